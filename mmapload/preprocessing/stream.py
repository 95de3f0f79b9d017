"""Write a store from samples that come once, and of which nobody knows how many there are."""

from __future__ import annotations

import os
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mmapload.errors import SourceError
from mmapload.preprocessing.build import SkippedSample, counted
from mmapload.preprocessing.fill import write_stand_ins
from mmapload.preprocessing.parallel import not_skipped
from mmapload.preprocessing.sequential import ChunkWriters
from mmapload.preprocessing.skipped import SkippedTold
from mmapload.sources.values import store_sample
from mmapload.spent import now, spend
from mmapload.writer.durable import sync_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.layout import StoreLayout
    from mmapload.preprocessing.buffers import Rows
    from mmapload.preprocessing.build import DoneChunk
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.progress import Progress
    from mmapload.spent import Spent
    from mmapload.writer.workfolder import WorkFolder

__all__ = ["run_stream"]

_TELL_EVERY = 1024
_Places: TypeAlias = "list[tuple[str, npt.NDArray[Any], np.dtype[Any], tuple[int, ...]]]"


def run_stream(
    plan: PreprocessPlan, work: WorkFolder, progress: Progress, spent: Spent
) -> tuple[StoreLayout, list[SkippedSample], tuple[Counter[str], Counter[str]]]:
    """Write all chunks; returns the finished store's layout, what was left out, and what was counted.

    Counted are samples with stand-ins, and those with values that are NaN or infinite, by field.

    Raises
    ------
    SourceError
        If a sample is bad and `on_error` is "fail", or none is sound.
    """
    stream = _Stream(plan, progress)
    layout = plan.layout(None)
    chunk = 0
    with spent.counted(), ChunkWriters(work.store, layout, plan.jobs, spent=spent) as writers:
        done: list[DoneChunk] = []
        ended = False
        while not ended:
            rows = writers.take()
            done += writers.finished()
            since = now()
            samples, ended = stream.fill(rows, layout.chunk_length)
            spend("reading", since)
            if ended:
                # A source that ends within its first chunk gets one as long as if that had been known.
                layout = plan.layout(stream.stored, len(stream.skipped))
            if samples:
                writers.write(layout, chunk, rows, samples)
                chunk += 1
        if not stream.stored:
            raise SourceError("the iterable", None, "there is no sound sample in it")
        done += writers.finished(everything=True)
    for field in layout.fields:
        sync_folder(os.path.join(work.store, field.name))
    return layout, stream.skipped, (stream.stand_ins, counted(each.non_finite for each in done))


class _Stream:
    """Takes samples off an iterator and puts them into chunk buffers."""

    def __init__(self, plan: PreprocessPlan, progress: Progress) -> None:
        self._samples: Iterator[Any] = iter(plan.stream)
        self._fail = plan.options.on_error == "fail"
        self._progress = progress
        self._told = SkippedTold(progress, plan.out)
        self._fill = plan.fill
        self._masks = plan.masks
        self.stand_ins: Counter[str] = Counter()
        self.skipped: list[SkippedSample] = []
        self.stored = 0

    def fill(self, rows: Rows, length: int) -> tuple[int, bool]:
        """Fill rows until there are `length`, or the source ends; returns how many, and whether it ended."""
        filled, ended = 0, False
        while filled < length and not ended:
            wanted = min(_TELL_EVERY, length - filled)
            count, ended = self._fill_some(rows, filled, wanted)
            filled += count
            self.stored += count
            self._progress.at(self.stored)
        return filled, ended

    def _fill_some(self, rows: Rows, first: int, wanted: int) -> tuple[int, bool]:
        arrays = {name: values for name, values in rows.items() if isinstance(values, np.ndarray)}
        masks = {name: arrays.pop(mask) for mask, name in self._masks.items()}
        for mask in masks.values():
            mask[first : first + wanted] = True
        places: _Places = [(name, values, values.dtype, values.shape[1:]) for name, values in arrays.items()]
        row, taken = first, 0
        # One pass a sample: a hundred thousand of them a second leave a few microseconds for each.
        for sample in islice(self._samples, wanted):
            taken += 1
            if not _copied(sample, places, row):
                into = {name: values[row, ...] for name, values in arrays.items()}
                absent = self._stored_slowly(sample, into, row - first)
                if absent is None:
                    continue
                for name, mask in masks.items():
                    mask[row] = name not in absent
            row += 1
        return row - first, taken < wanted

    def _stored_slowly(
        self, sample: Any, into: Mapping[str, npt.NDArray[Any]], before: int
    ) -> Collection[str] | None:
        """Store a sample that needs converting; returns what it lacks, None if something is wrong with it."""
        index = self.stored + before + len(self.skipped)
        try:
            absent = store_sample(sample, into, f"sample {index}", self._fill)
        except SourceError as error:
            if self._fail:
                raise not_skipped(error, again=False) from error.__cause__
            self.skipped.append(SkippedSample(index, error.file, error.member, error.cause))
            self._told.tell([(index, error)])
            return None
        write_stand_ins(absent, into, self._fill)
        self.stand_ins.update(absent)
        return absent


def _copied(sample: Any, places: _Places, row: int) -> bool:
    """Copy a sample of arrays that are just as the first one's; False if any of them is not."""
    if type(sample) is not dict or len(sample) != len(places):
        return False
    for name, values, dtype, shape in places:
        array = sample.get(name)
        if type(array) is not np.ndarray or array.dtype is not dtype or array.shape != shape:
            return False
        values[row] = array
    return True
