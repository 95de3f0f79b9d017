"""`check`: everything is read, nothing is written, and all that is unusual is told, with its samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mmapload
from mmapload.checking import check
from mmapload.checking.report import Variety
from mmapload.cli import main
from mmapload.errors import SourceError
from tests.npz_files import npy_bytes, npz_bytes, zip_bytes
from tests.preprocessing_cases import CountedSource, damage, samples, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Mapping

CUT = npz_bytes({"x": np.arange(300)})[:-40]
LABEL = ("label.npy", npy_bytes(np.int64(0)))
BAD = {
    "s03.npz": (b"", "empty (0 bytes)"),
    "s05.npz": (CUT, f"cut short ({len(CUT)} bytes)"),
    "s07.npz": (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    "s09.npz": (b"<!DOCTYPE html><html>Quota exceeded</html>", "an HTML or XML page"),
    "s11.npz": (b"\x80\x04K\x01.", "a Python pickle"),
    "s13.npz": (npz_bytes({"x": np.array([None, "a"]), "label": np.int64(13)}), "dtype object, shape (2,)"),
    "s15.npz": (
        zip_bytes([LABEL, ("x.npy", npy_bytes(np.arange(3))), ("x", npy_bytes(np.arange(3)))]),
        "two members have the key 'x'",
    ),
    "s17.npz": (
        zip_bytes([LABEL, ("x.npy", b"\0\5\x16\7")]),
        "a macOS AppleDouble file",
    ),
    "s19.npz": (
        zip_bytes([LABEL, ("x.npy", npy_bytes(np.zeros((2, 3), "f4")).replace(b"(2, 3)", b"(2, 3 "))]),
        "is damaged",
    ),
    "s21.npz": (
        zip_bytes([LABEL, ("x.npy", npy_bytes(np.zeros((2, 3), "f4")).replace(b"(2, 3)", b"(2, 9)"))]),
        "takes 72 bytes, and 24 are there",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty samples, some of them bad, each in another way."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(30):
        name = f"s{number:02}.npz"
        data = npz_bytes({"x": np.full((2, 3), number, "f4"), "label": np.int64(number)})
        (folder / name).write_bytes(BAD.get(name, (data, ""))[0])
    return folder


def test_every_bad_file_is_told_once_for_what_it_is(folder: Path) -> None:
    before = tree(folder)
    report = check(folder)
    assert not report.sound
    assert [os.path.basename(fault.file) for fault in report.faults] == sorted(BAD)
    for fault, (_, said) in zip(report.faults, BAD.values(), strict=True):
        assert said in fault.cause
        assert "allow_pickle" not in fault.cause
    assert report.outliers == ()
    assert {field: str(spec) for field, spec in report.schema.items()} == {
        "x": "float32 (2, 3)",
        "label": "int64 ()",
    }
    assert tree(folder) == before
    assert os.listdir(folder.parent) == ["in"]


def test_skipping_leaves_out_what_check_tells(folder: Path) -> None:
    report = check(folder)
    mmapload.preprocess(folder, folder.parent / "out", 4, on_error="skip")
    lines = (folder.parent / "out.skipped.jsonl").read_text().splitlines()
    skipped = [json.loads(line) for line in lines]
    assert [(s["index"], s["file"]) for s in skipped] == [(f.index, f.file) for f in report.faults]
    assert all(said in each["cause"] for each, (_, said) in zip(skipped, BAD.values(), strict=True))


def test_a_byte_that_only_the_checksum_knows_is_found(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(20))
    damage(source / "s13.npz")
    report = check(source, jobs=3)
    (fault,) = report.faults
    assert (fault.index, fault.member) == (13, "x.npy")
    assert "CRC-32" in fault.cause


def test_most_samples_are_right_even_if_the_first_is_not(tmp_path: Path) -> None:
    values = [{"image": np.zeros((3, 4), "u1"), "flow": np.zeros(2, "f4")} for _ in range(40)]
    values[0]["image"] = np.zeros((4, 3), "u1")
    values[9]["image"] = np.zeros((4, 3), "u1")
    values[7]["image"] = np.zeros((3, 4), "i2")
    del values[5]["flow"], values[0]["flow"]
    values[30]["mask"] = np.zeros(1, "?")
    for source in (write_npz(tmp_path / "in", values), values, iter(values)):
        report = check(source, jobs=2)
        assert report.faults == ()
        assert {field: str(spec) for field, spec in report.schema.items()} == {
            "image": "uint8 (3, 4)",
            "flow": "float32 (2,)",
        }
        found = [(o.field, str(o.found), str(o.expected), o.samples.tolist()) for o in report.outliers]
        assert sorted(found) == [
            ("flow", "None", "float32 (2,)", [0, 5]),
            ("image", "int16 (3, 4)", "uint8 (3, 4)", [7]),
            ("image", "uint8 (4, 3)", "uint8 (3, 4)", [0, 9]),
            ("mask", "bool (1,)", "None", [30]),
        ]
        assert not report.sound


def test_only_the_selected_fields_are_looked_at(tmp_path: Path) -> None:
    values = samples(10)
    values[3]["y"] = np.zeros(9)
    values[4] = {"y": values[4]["y"]}
    source = write_npz(tmp_path / "in", values)
    report = check(source, fields="x=image")
    (outlier,) = report.outliers
    assert (outlier.field, outlier.found, outlier.samples.tolist()) == ("image", None, [4])
    assert list(report.schema) == ["image"]


def test_values_that_are_no_numbers_are_counted_and_no_fault(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"x": np.zeros((3, 3), "f4"), "c": np.zeros(2, "c8")} for _ in range(9)]
    values[2]["x"][1] = np.nan
    values[4]["x"][0, 0] = -np.inf
    values[4]["c"][0] = complex(np.nan, np.inf)
    values[8]["x"] = np.full((300, 300), np.inf, "f4")
    for source in (write_npz(tmp_path / "in", values), iter(values)):
        report = check(source)
        found = [(v.field, v.nan, v.inf, v.samples.tolist()) for v in report.non_finite]
        assert found == [("c", 1, 0, [4]), ("x", 3, 90_001, [2, 4, 8])]
    assert check(values[:5]).sound


def test_of_many_shapes_the_range_is_told_and_memory_stays_small(tmp_path: Path) -> None:
    class Ragged(CountedSource):
        def schema(self, index: int) -> dict[str, Any]:
            return {"x": mmapload.sources.ArraySpec(np.dtype("f4"), (index, 3))}

        def read(self, index: int, into: Mapping[str, np.ndarray]) -> None:
            if into["x"].shape != (index, 3):
                raise SourceError("", "x", "another shape")

    report = check(Ragged(2000, parallel=False))
    assert len(report.outliers) < 100
    (rest,) = [o for o in report.outliers if isinstance(o.found, Variety)] or [None]
    largest = report.schema["x"]
    assert isinstance(largest, Variety)
    assert rest is None
    assert largest.longest == (1999, 3)
    assert sum(len(outlier.samples) for outlier in report.outliers) + 1935 == 2000


def test_what_lies_beside_the_samples_under_their_names_is_noted(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(3))
    np.save(source / "s1.npy", np.zeros(3))
    report = check(source)
    assert report.sound
    assert "note: s1.npy: skipped, an .npz file of the same name lies beside it" in report.describe()


def test_names_that_no_field_can_have_are_told(tmp_path: Path) -> None:
    report = check([{"x": 1.0, "__x": 2.0}])
    assert not report.sound
    assert "__x" in report.problems[0]


def test_an_array_larger_than_memory_is_refused_unread(tmp_path: Path) -> None:
    class Huge(CountedSource):
        def schema(self, index: int) -> dict[str, Any]:
            return {"x": mmapload.sources.ArraySpec(np.dtype("u1"), (2**44,))}

    report = check(Huge(2))
    assert ["more memory than there is" in fault.cause for fault in report.faults] == [True, True]


def test_every_sample_is_read_by_as_many_threads_as_told() -> None:
    threads: set[int] = set()

    class Seen(CountedSource):
        def read(self, index: int, into: Mapping[str, np.ndarray]) -> None:
            threads.add(threading.get_ident())
            super().read(index, into)

    source = Seen(3000, bad={7})
    assert [fault.index for fault in check(source, jobs=3).faults] == [7]
    assert set(source.reads) == set(range(3000))
    assert 1 <= len(threads) <= 3
    threads.clear()
    check(Seen(10, parallel=False), jobs=3)
    assert threads == {threading.get_ident()}


def test_no_sample_at_all_is_an_error(tmp_path: Path) -> None:
    for source in ([], iter(()), tmp_path):
        with pytest.raises((SourceError, TypeError)):
            check(source)
    with pytest.raises(ValueError, match="jobs"):
        check([{"x": 1}], jobs=0)


# command line


def test_the_command_prints_faults_outliers_and_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "s30.npz").write_bytes(npz_bytes({"x": np.full((2, 3), np.nan, "f4")}))
    (folder / ".s.npz").write_bytes(b"")
    assert main(["check", str(folder), "--quiet"]) == 1
    printed, told = capsys.readouterr()
    lines = printed.splitlines()
    assert told == ""
    assert sum(line.startswith(f"fault: {folder}") for line in lines) == len(BAD)
    assert "outlier: 'label' is missing in 1 of 31 samples: s30.npz" in lines
    assert "note: 'x' has 6 NaN values in 1 of 31 samples: s30.npz" in lines
    assert "note: 1 hidden file skipped" in lines
    assert lines[-1].startswith("31 samples: 10 that cannot be read, 1 unlike most; ")


def test_a_sound_source_is_said_to_be_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_npz(tmp_path / "in", samples(3))
    assert main(["check", str(source)]) == 0
    printed, told = capsys.readouterr()
    assert "3 samples: sound; 93 B of arrays read" in printed
    assert "3 of 3 samples" in told


def test_json_has_all_samples_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(40, 55):
        (folder / f"s{number}.npz").write_bytes(npz_bytes({"x": np.zeros((2, 3), "f4")}))
    assert main(["check", str(folder), "--json", "--quiet"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert len(report["faults"]) == len(BAD)
    (outlier,) = report["outliers"]
    assert outlier["samples"] == [f"s{number}.npz" for number in range(40, 55)]
    assert (outlier["field"], outlier["found"], outlier["expected"]) == ("label", None, "int64 ()")
    assert report["schema"] == {"x": "float32 (2, 3)", "label": "int64 ()"}


@pytest.mark.parametrize("arguments", [[], ["nowhere", "--jobs", "0"], ["src", "--fields", ","]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *arguments]) == 2
    assert "error: " in capsys.readouterr().err


SLOW = """
import sys, time
import numpy as np
from mmapload.cli import main
from mmapload.sources.npz import NpzSource
from pathlib import Path

def slow(self, index, into):
    Path(sys.argv[2]).touch()
    while index >= int(sys.argv[3]):
        time.sleep(0.05)
    time.sleep(0.05)
NpzSource.read = slow
sys.exit(main(["check", sys.argv[1]]))
"""


@pytest.mark.parametrize(("hanging", "interrupts"), [(10**9, 1), (2, 2)])
def test_ctrl_c_once_stops_after_a_sample_and_twice_at_once(
    tmp_path: Path, hanging: int, interrupts: int
) -> None:
    source = write_npz(tmp_path / "in", samples(200))
    begun = tmp_path / "begun"
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(source), str(begun), str(hanging)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    ) as process:
        while not begun.exists():
            time.sleep(0.01)
        assert process.stderr is not None
        for _ in range(interrupts):
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Ctrl-C again stops at once" in told
    assert ("stopped at once" in told) == (interrupts == 2)
    assert "Traceback" not in told
