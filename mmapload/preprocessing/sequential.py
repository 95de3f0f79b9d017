"""Fill chunks one after the other in the caller's thread, and write them side by side in others.

For sources that one thread alone may read: Python sequences and iterables.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from mmapload.errors import SourceError
from mmapload.preprocessing.buffers import BufferSets, RaggedRows, Rows, chunk_rows
from mmapload.preprocessing.build import BadSample, DoneChunk, digest_of
from mmapload.preprocessing.filling import read_into
from mmapload.preprocessing.gathering import gather, many_of
from mmapload.preprocessing.nonfinite import count_non_finite_samples
from mmapload.preprocessing.parallel import not_skipped
from mmapload.preprocessing.skipped import SkippedTold
from mmapload.writer.chunks import write_chunk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import Self

    from mmapload.layout import StoreLayout
    from mmapload.preprocessing.build import Build
    from mmapload.progress import Progress
    from mmapload.sources.grouped import Sums
    from mmapload.spent import Spent

__all__ = ["ChunkWriters", "run_sequential"]


class ChunkWriters:
    """Threads that encode and write filled chunks, while the caller fills the next.

    Parameters
    ----------
    folder : str
        The store.
    layout : StoreLayout
        Fields and chunk length; the buffers are made from it.
    jobs : int
        Sets of buffers: the caller fills one, the others are being written.
    longest : mapping of str to int
        How many values the longest chunk of a ragged field has.
    spent : Spent, optional
        Counts what the threads spend their time on.
    """

    def __init__(
        self,
        folder: str,
        layout: StoreLayout,
        jobs: int,
        longest: Mapping[str, int] | None = None,
        spent: Spent | None = None,
    ) -> None:
        self._folder = folder
        self._buffers = BufferSets(layout, jobs, longest or {})
        begin = None if spent is None else spent.begin
        self._pool = ThreadPoolExecutor(max(1, jobs - 1), "mmapload-job", begin)
        self._running: list[Future[DoneChunk]] = []

    def take(self) -> Rows:
        """Wait for a set of buffers to fill."""
        return self._buffers.take()

    def write(
        self,
        layout: StoreLayout,
        chunk: int,
        rows: Rows,
        samples: int,
        digests: str = "",
        stand_ins: Mapping[str, int] | None = None,
        sums: Sums | None = None,
    ) -> None:
        """Write a chunk of which so many samples are filled; the buffers are no longer the caller's."""
        facts = (digests, stand_ins or {}, sums or {})
        self._running.append(self._pool.submit(self._write, layout, chunk, rows, samples, facts))

    def _write(
        self,
        layout: StoreLayout,
        chunk: int,
        rows: Rows,
        samples: int,
        facts: tuple[str, Mapping[str, int], Sums],
    ) -> DoneChunk:
        try:
            whole = chunk_rows(rows, samples, layout.chunk_length)
            odd = count_non_finite_samples(whole, samples)
            return DoneChunk(chunk, write_chunk(self._folder, layout.fields, chunk, whole), *facts, odd)
        finally:
            self._buffers.give(rows)

    def finished(self, *, everything: bool = False) -> list[DoneChunk]:
        """Return the chunks written since the last call, and raise what went wrong; may wait for all."""
        ended = [future for future in self._running if everything or future.done()]
        self._running = [future for future in self._running if future not in ended]
        return [future.result() for future in ended]

    def settle(self) -> list[DoneChunk]:
        """Wait for all and return what was written, without regard to failures."""
        done = []
        for future in self._running:
            with contextlib.suppress(Exception):
                done.append(future.result())
        self._running = []
        return done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)


def run_sequential(build: Build, progress: Progress) -> None:
    """Do all chunks that are missing, reading samples in the order of writing.

    Raises
    ------
    SourceError
        If a sample is bad and `on_error` is "fail".
    """
    told, plan = SkippedTold(progress, build.plan.out), build.plan
    with (
        build.spent.counted(),
        ChunkWriters(build.work.store, build.layout, plan.jobs, plan.longest, build.spent) as writers,
    ):
        try:
            chunk = 0
            while chunk < build.layout.chunks:
                if chunk not in build.done:
                    rows = writers.take()
                    build.commit(writers.finished())
                    samples, digests, stand_ins, sums = _fill(build, progress, chunk, rows, told)
                    if samples:
                        writers.write(build.layout, chunk, rows, samples, digests, stand_ins, sums)
                chunk += 1
            build.commit(writers.finished(everything=True))
        except BaseException:
            with contextlib.suppress(OSError, SourceError):
                build.commit(writers.settle())
            raise


def _fill(
    build: Build, progress: Progress, chunk: int, rows: Rows, told: SkippedTold
) -> tuple[int, str, Mapping[str, int], Sums]:
    """Fill one chunk; bad samples are left out, and the next ones take their places."""
    if many_of(build.plan) is not None:
        return _gather(build, progress, chunk, rows)
    digests: list[str] = []
    stand_ins: Counter[str] = Counter()
    ragged = bool(build.plan.ragged)
    while (first := len(digests)) < len(positions := build.positions(chunk)):
        bad = []
        left = positions[first:]
        indices = build.indices(left)
        found: dict[int, str] = {}
        # In the source's order whatever the store's: what neighbours share, a file or a compressed chunk, is
        # then opened once for all of them.
        for place in range(len(left)) if ragged else np.argsort(indices, kind="stable").tolist():
            index, digest = indices[place], ""
            try:
                digest = digest_of(build.source, index)
                row = first + (len(found) if ragged else place)
                stand_ins.update(read_into(build.plan, rows, row, index))
            except SourceError as error:
                if build.plan.options.on_error == "fail":
                    raise not_skipped(error) from error.__cause__
                bad.append(BadSample(left[place], index, digest, error))
                told.tell([(index, error)])
            else:
                found[place] = digest
                progress.at(chunk * build.layout.chunk_length + first + len(found))
        digests += [found[place] for place in sorted(found)]
        if bad:
            if not ragged:
                _close_up(rows, first, sorted(found))
            build.skip(bad, chunk)
    return len(digests), "".join(digests), stand_ins, {}


def _close_up(rows: Rows, first: int, places: Sequence[int]) -> None:
    """Move rows to where they follow one another, from row `first` on."""
    for values in rows.values():
        if not isinstance(values, RaggedRows):
            values[first : first + len(places)] = values[[first + place for place in places]]


def _gather(
    build: Build, progress: Progress, chunk: int, rows: Rows
) -> tuple[int, str, Mapping[str, int], Sums]:
    """Fill one chunk from a source that reads many samples at a time."""
    source, before = many_of(build.plan), chunk * build.layout.chunk_length
    if source is None:
        raise AssertionError("a source that reads sample by sample")

    def go_on(count: int) -> bool:
        progress.at(before + count)
        return True

    indices = build.indices(build.positions(chunk))
    digests = "".join(digest_of(source, head) for head in build.heads(chunk))
    return len(indices), digests, *gather(build.plan, source, indices, rows, go_on)
