"""In how many samples values are NaN or infinite is told at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.cli import main
from mmapload.errors import SourceError
from mmapload.preprocessing import execute, plan_preprocess
from mmapload.preprocessing.nonfinite import count_non_finite_samples
from mmapload.writer.chunks import RaggedChunk
from tests.case_makers import numbered, put_npz
from tests.npz_files import put

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "c8", "c16", "i4"])
def test_counts_are_those_of_a_look_at_every_value(dtype: str) -> None:
    rng = np.random.default_rng(0)
    most = np.finfo(dtype).max if dtype != "i4" else 9  # their sum is infinite, and none of them is
    for odd in (0, 1, 5):
        for shape in ((), (3,), (2, 0), (70_000,), (2, 20_000)):
            values = np.full((9, *shape), most, dtype)
            flat = values.reshape(-1)
            if flat.size and dtype != "i4":
                flat[rng.integers(0, flat.size, odd)] = rng.choice([np.nan, np.inf, -np.inf], odd)
            for samples in (1, 7, 9):
                expected = sum(not np.isfinite(each).all() for each in values[:samples])
                assert count_non_finite_samples({"x": values}, samples).get("x", 0) == expected
            lengths = rng.multinomial(flat.size, [1 / 4] * 4)
            parts = np.split(flat, np.cumsum(lengths)[:-1])
            expected = sum(not np.isfinite(each).all() for each in parts)
            chunk = RaggedChunk(flat, lengths[:, np.newaxis])
            assert count_non_finite_samples({"x": chunk}, 4).get("x", 0) == expected


def test_a_run_counts_samples_with_such_values_those_of_an_interrupted_one_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    for number in range(12):
        x = numbered(number)
        x[0, :2] = [np.nan, np.inf] if number % 3 == 0 else 0
        put_npz(folder, f"s{number:02}.npz", x=x, y=numbered(number), half=np.float16(number))
    last = (folder / "s11.npz").read_bytes()
    put(folder / "s11.npz", b"")
    options = {"chunk_bytes": 1, "jobs": 1}
    with pytest.raises(SourceError, match=r"s11\.npz"):
        execute(plan_preprocess(folder, tmp_path / "out", 2, **options))
    put(folder / "s11.npz", last)
    result = execute(plan_preprocess(folder, tmp_path / "out", 2, **options))
    assert result.resumed_samples == 10
    assert result.non_finite == {"x": 4}
    samples = [{"x": np.float32(np.nan if number % 2 else 0)} for number in range(5)]
    for source in (samples, iter(samples)):  # threads of writers count these
        done = execute(plan_preprocess(source, tmp_path / "again", 2, overwrite=True, **options))
        assert done.non_finite == {"x": 2}
    assert main(["preprocess", str(folder), str(tmp_path / "told"), "--batch-size", "4"]) == 0
    assert "NaN or infinite: x in 4 of 12 samples; mmapload check lists them" in capsys.readouterr().out
