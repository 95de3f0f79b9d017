"""Long work is visible: bad samples are told at once, and in the end where the time went."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from mmapload.preprocessing import execute, plan_preprocess
from mmapload.progress import LineProgress
from tests.preprocessing_cases import CountedSource, samples, write_npz

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np


class Told(LineProgress):
    """Keeps what it is told, and how many samples had been asked for then."""

    def __init__(self, source: Any) -> None:
        super().__init__(io.StringIO())
        self.source = source
        self.notes: list[tuple[str, int]] = []

    def note(self, text: str) -> None:
        self.notes.append((text, len(self.source.reads)))


@pytest.mark.parametrize("parallel", [True, False])
def test_the_first_samples_that_are_left_out_are_told_at_once_and_only_once(
    tmp_path: Path, parallel: bool
) -> None:
    source = CountedSource(4000, bad={5, *range(100, 200)}, parallel=parallel)
    progress = Told(source)
    plan = plan_preprocess(source, tmp_path / "out", 4, chunk_bytes=1, jobs=2, on_error="skip")
    result = execute(plan, progress)
    assert len(result.skipped) == 101
    texts = [text for text, _ in progress.notes]
    assert texts[0] == "left out: /numbers/n5, member 'x': a bad number"
    assert progress.notes[0][1] < 100
    assert len(texts) == len(set(texts)) == 11
    assert texts[-1] == f"left out: more; all will be listed in {tmp_path / 'out.skipped.jsonl'}"


def test_of_an_iterable_too(tmp_path: Path) -> None:
    class Counted:
        def __init__(self) -> None:
            self.reads: list[int] = []

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for number in range(3000):
                self.reads.append(number)
                yield {"x": number if number != 7 else "text"}

    source = Counted()
    progress = Told(source)
    execute(plan_preprocess(source, tmp_path / "out", 4, chunk_bytes=1, on_error="skip"), progress)
    ((text, asked),) = progress.notes
    assert text.startswith("left out: sample 7, member 'x': ")
    assert asked <= 8


@pytest.mark.parametrize("kind", ["files", "sequence", "iterable"])
def test_where_the_time_of_all_threads_went_adds_up(tmp_path: Path, kind: str) -> None:
    values = samples(300)
    source: Any = {"sequence": values, "iterable": iter(values)}.get(kind)
    source = source or write_npz(tmp_path / "in", values)
    result = execute(plan_preprocess(source, tmp_path / "out", 4, chunk_bytes=1, jobs=3, codec="zstd"))
    assert set(result.spent) == {"reading", "encoding", "writing", "waiting"}
    assert all(seconds > 0 for seconds in result.spent.values())
    assert sum(result.spent.values()) <= 3 * result.seconds * 1.01


def test_two_runs_at_once_are_counted_apart(tmp_path: Path) -> None:
    class Within(CountedSource):
        def read(self, index: int, into: dict[str, np.ndarray]) -> None:
            if index == 0:
                plan = plan_preprocess(CountedSource(50), tmp_path / "inner", 4, chunk_bytes=1, jobs=1)
                self.inner = execute(plan)
            super().read(index, into)

    source = Within(8, parallel=False)
    outer = execute(plan_preprocess(source, tmp_path / "outer", 4, jobs=1))
    assert outer.spent["writing"] > 0
    assert outer.spent["reading"] > source.inner.spent["writing"]
