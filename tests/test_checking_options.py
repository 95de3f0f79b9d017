"""`check` with the options of the planned `preprocess`: what these allow is no fault, and nothing else is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mmapload
from mmapload.checking import check
from mmapload.cli import main
from mmapload.errors import SourceError
from tests.preprocessing_cases import write_npz

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.checking import CheckReport


def words(count: int = 40) -> list[dict[str, Any]]:
    """Samples that differ in shape, in the length of text, and in what they have; all of one dtype."""
    return [
        {
            "word": np.arange(i % 5, dtype="i2"),
            "box": np.zeros((i % 3, 4), "f4"),
            "name": np.array("é" * (1 + i % 4)),
            "x": np.zeros(3, "f4"),
        }
        | ({"flow": np.zeros(2, "f4")} if i % 2 else {})
        for i in range(count)
    ]


def outliers(report: CheckReport) -> list[tuple[str, str, list[int]]]:
    return sorted((each.field, str(each.found), each.samples.tolist()) for each in report.outliers)


ALLOWED = [{"optional": ["flow"]}, {"fill": {"flow": 0}}, {"fill": {"flow": np.ones(2, "f4")}}]


@pytest.mark.parametrize("allowed", ALLOWED)
@pytest.mark.parametrize("kind", ["files", "sequence"])
def test_what_the_options_allow_is_sound_and_preprocess_takes_it(
    tmp_path: Path, kind: str, allowed: Any
) -> None:
    source: Any = write_npz(tmp_path / "in", words()) if kind == "files" else words()
    report = check(source, ragged="auto", jobs=2, **allowed)
    assert (report.sound, report.faults, outliers(report)) == (True, (), [])
    assert {field: str(spec) for field, spec in report.schema.items()} == {
        "word": "int16 (0 to 4), ragged",
        "box": "float32 (0 to 2 x 4), ragged",
        "name": "<U4 ()",
        "x": "float32 (3,)",
        "flow": "float32 (2,)",
    }
    store = mmapload.preprocess(source, tmp_path / "store", 4, ragged="auto", **allowed)
    assert len(store) == 40
    assert not check(source).sound
    assert not check(source, ragged="auto").sound
    assert not check(source, **allowed).sound


def test_what_they_do_not_allow_is_told_as_before(tmp_path: Path) -> None:
    values = words()
    values[3]["word"] = np.arange(3, dtype="i4")
    values[5]["box"] = np.zeros(4, "f4")
    values[7]["x"] = np.zeros(4, "f4")
    values[9]["flow"] = np.zeros(3, "f4")
    values[11]["more"] = np.zeros(1)
    del values[13]["x"]
    source = write_npz(tmp_path / "in", values)
    report = check(source, ragged="word,box", optional="flow")
    assert outliers(report) == [
        ("box", "float32 (4), ragged", [5]),
        ("flow", "float32 (3,)", [9]),
        ("more", "float64 (1,)", [11]),
        ("word", "int32 (3), ragged", [3]),
        ("x", "None", [13]),
        ("x", "float32 (4,)", [7]),
    ]
    with pytest.raises(SourceError, match=r"s3\.npz"):
        mmapload.preprocess(source, tmp_path / "store", 4, ragged="word,box", optional="flow")


def test_a_field_that_few_samples_have_is_sound_if_the_others_may_lack_it(tmp_path: Path) -> None:
    values = [{"x": np.zeros(2)} for _ in range(30)]
    values[17]["rare"] = np.zeros((2, 2))
    source = write_npz(tmp_path / "in", values)
    report = check(source, optional="rare")
    assert report.sound
    assert str(report.schema["rare"]) == "float64 (2, 2)"
    assert outliers(check(source)) == [("rare", "float64 (2, 2)", [17])]
    assert check(iter(values), optional="rare").sound
    mmapload.preprocess(source, tmp_path / "store", 4, optional="rare")


def test_a_text_that_samples_may_lack_is_sound_as_it_is_in_preprocess(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"x": 1} | ({"text": "ab"} if i % 2 else {}) for i in range(9)]
    assert check(values, optional="text").sound
    mmapload.preprocess(values, tmp_path / "store", 4, optional="text")
    (problem,) = check(values, fill={"text": 0}).problems
    assert "'text' is <U2, for which no number stands in" in problem


def test_types_that_are_cast_may_differ_and_values_that_are_lost_are_faults(tmp_path: Path) -> None:
    values = [{"x": np.arange(3, dtype="i8" if i % 2 else "f4")} for i in range(20)]
    source = write_npz(tmp_path / "in", values)
    assert not check(source).sound
    assert check(source, cast="x=int32").sound
    values[4]["x"] = np.array([0.5, 1, 2])
    source = write_npz(tmp_path / "in", values)
    report = check(source, cast={"x": "int32"})
    (fault,) = report.faults
    assert fault.index == 4
    assert "cannot be int32" in fault.cause


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"ragged": "label"}, "ragged: the field 'label' has no axes"),
        ({"ragged": "nowhere"}, "ragged: the field 'nowhere' is not there"),
        ({"fill": {"nowhere": 0}}, "fill: no sample has 'nowhere'"),
        ({"fill": {"label": 0.5}}, "fill: 'label' is int64, which cannot hold 0.5"),
        ({"fill": {"x": np.zeros(9)}}, "fill: 'x' is given as float64 (9,)"),
        ({"fill": {"x": 1}, "ragged": "x"}, "fill: 'x' is ragged, so nothing says how many times"),
        ({"optional": "x"}, "optional: 'x_present' will say which samples have 'x'"),
        ({"cast": "nowhere=int8"}, "cast: there is no field 'nowhere' to cast to int8"),
        (
            {"fields": "x,nowhere"},
            "most samples have no array 'nowhere', which is selected: check its name; keep what some lack",
        ),
    ],
)
def test_an_option_that_fits_no_sample_is_a_problem_as_it_is_an_error_in_preprocess(
    tmp_path: Path, options: Any, said: str
) -> None:
    source = [{"x": np.zeros(3), "label": i, "x_present": True} for i in range(9)]
    report = check(source, **options)
    assert [problem for problem in report.problems if said in problem], report.problems
    assert not report.sound
    with pytest.raises((ValueError, SourceError)):
        mmapload.preprocess(source, tmp_path / "store", 2, **options)


def test_shapes_of_samples_that_come_once_are_refused_as_in_preprocess() -> None:
    with pytest.raises(ValueError, match="an iterable comes once"):
        check(iter(words()), ragged="auto")


def test_processes_are_told_what_may_differ(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", [{"x": np.zeros(i % 3, "u1")} for i in range(2000)])
    report = check(source, ragged="x", jobs=2)
    assert report.sound
    assert str(report.schema["x"]) == "uint8 (0 to 2), ragged"


def test_the_command_takes_the_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = str(write_npz(tmp_path / "in", words()))
    options = ["--ragged", "auto", "--optional", "flow", "--fill", "flow=1", "--cast", "x=float16"]
    assert main(["check", source, *options, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"]["x"] == "float16 (3,)"
    assert main(["check", source, *options, "--fill", "x", "--quiet"]) == 2
    assert main(["check", source, "--ragged", ",", "--quiet"]) == 2
