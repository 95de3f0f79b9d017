"""Casting: only where it is asked for, counted value by value, and never a whole number lost."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import mmapload
from mmapload.errors import SourceError
from mmapload.notes import BFLOAT16
from mmapload.preprocessing import execute, plan_preprocess
from mmapload.sources.casting import CastCounts, cast_values, parse_casts

if TYPE_CHECKING:
    from pathlib import Path

REAL = [np.dtype(each) for each in ("f2", "f4", "f8")]
WHOLE = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]


def plain(value: Any) -> Any:
    """Return a number as Python's, in which comparisons of int and float are exact."""
    return value.item()


@settings(max_examples=300, deadline=None)
@given(
    values=st.sampled_from([*REAL, *WHOLE]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=2))
    ),
    dtype=st.sampled_from([*REAL, *WHOLE, np.dtype("?")]),
)
def test_counts_are_those_of_a_comparison_one_by_one(values, dtype):
    try:
        found, counts = cast_values(values, dtype)
    except ValueError:
        assert dtype.kind in "iub"
        numbers = [plain(value) for value in values.flat]
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        assert any(not (low <= number <= high) or number != number // 1 for number in numbers)
        return
    pairs = [(plain(a), plain(b)) for a, b in zip(values.flat, found.flat, strict=True)]
    assert found.dtype == dtype
    assert found.shape == values.shape
    assert counts.values == len(pairs)
    assert counts.changed == sum(a != b and a == a for a, b in pairs)
    assert counts.nan == sum(b != b and a == a for a, b in pairs)
    infinities = (float("inf"), -float("inf"))
    assert counts.infinite == sum(b in infinities and a not in infinities for a, b in pairs)
    if dtype.kind in "iub":
        assert counts.changed == 0


@settings(max_examples=200, deadline=None)
@given(values=hnp.arrays(np.float32, 8, elements=st.floats(width=32)))
def test_bfloat16_is_rounded_as_torch_rounds_it(values):
    found, _ = cast_values(values, BFLOAT16)
    expected = torch.from_numpy(values).to(torch.bfloat16)
    nan = np.isnan(values)
    assert (found.view(np.uint16)[~nan] == expected.view(torch.uint16).numpy()[~nan]).all()
    back, counts = cast_values(found, np.dtype("f4"))
    assert np.isnan(back[nan]).all()
    assert counts.changed == 0


@pytest.mark.parametrize(
    ("values", "dtype", "told"),
    [
        (np.array([300, 5]), "uint8", "1 of 2 values cannot be uint8, the first of them 300"),
        (np.array([-1], "i1"), "uint64", "cannot be uint64, the first of them -1"),
        (np.array([np.nan, 1]), "int32", "the first of them nan"),
        (np.array([2.0**63]), "int64", "the first of them 9.2"),
        (np.array([0, 2]), "bool", "cannot be bool, the first of them 2"),
        (np.array([1 + 2j, 3]), "float32", "1 of 2 values cannot be float32"),
    ],
)
def test_what_would_be_lost_is_refused(values, dtype, told):
    with pytest.raises(ValueError, match=told):
        cast_values(values, np.dtype(dtype))


@pytest.mark.parametrize(
    "cast", ["flow", "flow=", "=f4", "flow=<U3", "flow=object", "flow=int8,flow=int16", "a=f4"]
)
def test_what_is_no_cast_is_refused(cast):
    with pytest.raises(ValueError, match="cast: "):
        parse_casts(cast)


def test_types_may_be_given_as_such():
    casts = {"a": np.float16, "b": torch.bfloat16, "c": np.dtype("<i4"), "d": "complex64"}
    assert dict(parse_casts(casts)) == {"a": "float16", "b": "bfloat16", "c": "int32", "d": "complex64"}


def samples(count: int) -> list[dict[str, Any]]:
    return [
        {"flow": np.array([number / 8, 1e6, np.nan]), "label": float(number), "id": number}
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", ["npz", "sequence", "iterable", "rows"])
def test_a_field_is_cast_as_it_is_read_and_what_that_did_is_counted(tmp_path: Path, kind):
    source: Any = samples(10)
    options: Any = {}
    if kind == "npz":
        (tmp_path / "in").mkdir()
        for number, sample in enumerate(source):
            np.savez(tmp_path / "in" / f"{number}.npz", **sample)
        source = tmp_path / "in"
    elif kind == "rows":
        np.savez(
            tmp_path / "in.npz", **{name: np.stack([each[name] for each in source]) for name in source[0]}
        )
        source, options = tmp_path / "in.npz", {"samples": "rows"}
    elif kind == "iterable":
        source = iter(source)
    plan = plan_preprocess(source, tmp_path / "out", 2, cast={"flow": "float16", "label": "int32"}, **options)
    assert "float16 (3,), 6 bytes a sample, cast" in plan.describe().replace("6 B ", "6 bytes ")
    result = execute(plan)
    assert result.cast == {"flow": CastCounts(30, 10, 10, 0), "label": CastCounts(10)}
    flow, label, number = (
        np.concatenate([result.store.read_chunk(name, chunk) for chunk in range(result.store.layout.chunks)])
        for name in ("flow", "label", "id")
    )
    assert flow.dtype == np.float16
    assert flow[:, 0].tolist() == [number / 8 for number in range(10)]
    assert np.isposinf(flow[:, 1]).all()
    assert np.isnan(flow[:, 2]).all()
    assert (label.dtype, label.tolist()) == (np.int32, list(range(10)))
    assert number.dtype == np.int64
    assert result.store.layout.source["cast"] == {"flow": "float16", "label": "int32"}


def test_samples_of_several_types_become_one(tmp_path: Path):
    for number, values in enumerate([np.zeros((2, 1), "i8"), np.ones((2, 1)), np.full((2, 1), 2, "u1")]):
        np.savez(tmp_path / f"{number}.npz", x=values)
    with pytest.raises(SourceError, match="float64"):
        mmapload.preprocess(tmp_path / "*.npz", tmp_path / "out", 2)
    store = mmapload.preprocess(tmp_path / "*.npz", tmp_path / "out2", 2, cast="x=int64")
    assert store.read_chunk("x", 0)[:, 0, 0].tolist() == [0, 1, 2]


def test_a_sample_with_a_value_that_would_be_lost_is_bad(tmp_path: Path):
    values = [{"x": 1.0}, {"x": 1.5}, {"x": 3.0}]
    with pytest.raises(
        SourceError, match=r"sample 1, member 'x': cast: 1 of 1 values cannot be int8, .* 1\.5"
    ):
        mmapload.preprocess(values, tmp_path / "out", 1, cast="x=int8")
    store = mmapload.preprocess(values, tmp_path / "out", 1, cast="x=int8", on_error="skip")
    assert store.layout.source["skipped"] == 1
    stream = mmapload.preprocess(iter(values), tmp_path / "out2", 1, cast="x=int8", on_error="skip")
    assert len(stream) == 2


def test_a_field_that_is_not_there_or_no_number_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(ValueError, match=r"cast: there is no field 'flo' to cast to float16: .* 'flow'"):
        mmapload.preprocess(samples(2), tmp_path / "out", 1, cast="flo=float16")
    with pytest.raises(SourceError, match=r"member 'x': is <U1 .*, and only numbers can be cast"):
        mmapload.preprocess([{"x": "a"}], tmp_path / "out", 1, cast="x=float16")
    assert not list(tmp_path.iterdir())


def test_the_command_casts_and_says_what_it_did(tmp_path: Path):
    (tmp_path / "in").mkdir()
    for number, sample in enumerate(samples(4)):
        np.savez(tmp_path / "in" / f"{number}.npz", **sample)
    command = [
        sys.executable,
        "-m",
        "mmapload",
        "preprocess",
        "in",
        "out",
        "--batch-size",
        "2",
        "--cast",
        "flow=bfloat16",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "cast: flow to bfloat16: 4 of 12 values changed" in ran.stdout
    again = subprocess.run(
        [*command[:-1], "flow=text"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
