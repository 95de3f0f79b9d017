"""Fill and write whole chunks side by side, from a source that several threads may read.

Threads suffice: reading, checksums, inflating, codecs and writing all release the GIL. Each thread takes
a chunk, reads its samples into a recycled set of buffers, encodes and writes it; the caller's thread hands
out chunks and keeps the journal.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError
from mmapload.preprocessing.buffers import BufferSets, chunk_rows
from mmapload.preprocessing.build import BadSample, DoneChunk, digest_of
from mmapload.preprocessing.filling import read_into
from mmapload.preprocessing.gathering import gather, many_of
from mmapload.preprocessing.headers import Expected, others_bad
from mmapload.preprocessing.nonfinite import count_non_finite_samples
from mmapload.preprocessing.skipped import SkippedTold
from mmapload.writer.chunks import write_chunk

if TYPE_CHECKING:
    from mmapload.layout import StoreLayout
    from mmapload.preprocessing.buffers import Rows
    from mmapload.preprocessing.build import Build
    from mmapload.progress import Progress
    from mmapload.sources.grouped import GroupedSource

__all__ = ["not_skipped", "run_parallel"]

_TICK_SECONDS: Final = 0.25
_NEVER: Final = 2**63
_MANY: Final = 1000
"""With so many samples, the first bad one is told before others are looked for."""


@dataclass(slots=True)
class _Shared:
    """What threads look at between two samples."""

    stop_at: int = _NEVER  # chunks from this one on are given up
    rows: dict[int, int] = field(default_factory=dict)  # chunk: samples read so far


@dataclass(frozen=True, slots=True)
class _Task:
    """One chunk, with everything that its thread needs."""

    chunk: int
    layout: StoreLayout
    positions: list[int]
    indices: list[int]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What came of a chunk: it is done, or has bad samples; neither if it was given up."""

    chunk: int
    done: DoneChunk | None = None
    bad: tuple[BadSample, ...] = ()


def run_parallel(build: Build, progress: Progress) -> None:
    """Do all chunks that are missing.

    Raises
    ------
    SourceError
        If a sample is bad and `on_error` is "fail": of those met, the first in the order of writing.
    """
    jobs = build.plan.jobs
    buffers = BufferSets(build.layout, jobs, build.plan.longest)
    told = SkippedTold(progress, build.plan.out)
    with ThreadPoolExecutor(jobs, "mmapload-job", build.spent.begin) as pool:
        while build.missing():
            _run_until_bad(build, progress, pool, buffers, told)


def _run_until_bad(
    build: Build, progress: Progress, pool: ThreadPoolExecutor, buffers: BufferSets, told: SkippedTold
) -> None:
    """Do chunks until all are done or some have bad samples; then leave those out, or raise."""
    shared = _Shared()
    pending = iter(build.missing())
    running: set[Future[_Outcome]] = set()
    ready: list[DoneChunk] = []
    bad: list[BadSample] = []
    try:
        while True:
            if not bad:
                for chunk in islice(pending, build.plan.jobs - len(running)):
                    positions = build.positions(chunk)
                    task = _Task(chunk, build.layout, positions, build.indices(positions))
                    running.add(pool.submit(_fill_and_write, build, task, shared, buffers))
                # The threads are busy again: time to flush and note what they have done.
                done_now, ready = ready, []
                build.commit(done_now)
            if not running:
                break
            for future in wait(running, _TICK_SECONDS, FIRST_COMPLETED).done:
                outcome = future.result()
                running.discard(future)
                shared.rows.pop(outcome.chunk, None)
                ready += [outcome.done] if outcome.done else []
                if outcome.bad:
                    bad += outcome.bad
                    first = outcome.chunk if build.plan.options.on_error == "skip" else -1
                    shared.stop_at = min(shared.stop_at, first + 1)
                    if first >= 0:
                        told.tell((each.index, each.error) for each in outcome.bad)
            progress.at(
                build.done_samples
                + sum(build.layout.chunk_samples(done.chunk) for done in ready)
                + sum(shared.rows.values())
            )
    except BaseException:
        # Ctrl-C, a full disk: threads stop after the sample they are at; what is written is kept.
        shared.stop_at = -1
        ready += _settled(running)
        with contextlib.suppress(OSError, SourceError):
            build.commit(ready)
        raise
    if bad:
        _settle_bad(build, bad, ready, shared.stop_at - 1, progress)


def _settle_bad(
    build: Build, bad: list[BadSample], ready: list[DoneChunk], first: int, progress: Progress
) -> None:
    if build.plan.options.on_error == "fail":
        build.commit(ready)
        worst, *others = sorted(bad, key=lambda each: each.position)
        if len(build.source) > _MANY:
            progress.note(f"bad: {worst.error}; looking whether others are, by their headers")
        plan = build.plan
        expected = Expected(plan.schema, {*plan.fill, *plan.masks}, plan.ragged)
        met = {each.index: each.error for each in others}
        raise not_skipped(worst.error, others_bad(build.source, worst.index, worst.error, expected, met))
    build.commit([done for done in ready if done.chunk < first])
    build.skip(bad, first)


def not_skipped(error: SourceError, others: str = "", *, again: bool = True) -> SourceError:
    """Return the error of a bad sample with advice, to run `again` or to skip, and which others are bad."""
    also = f"; {others}" if others else ""
    mend = "mend it and run the same command again to continue, or " if again else ""
    return SourceError(
        error.file,
        error.member,
        f"{error.cause}; {mend}leave out such samples by --on-error skip (on_error='skip'){also}",
    )


def _settled(running: set[Future[_Outcome]]) -> list[DoneChunk]:
    """Wait for what still runs; a second failure adds nothing to the first."""
    done = []
    for future in running:
        with contextlib.suppress(Exception):
            outcome = future.result()
            done += [outcome.done] if outcome.done else []
    return done


def _fill_and_write(build: Build, task: _Task, shared: _Shared, buffers: BufferSets) -> _Outcome:
    """Run in a thread: read a chunk's samples, all of them even if some are bad, and write it."""
    source, fail = build.source, build.plan.options.on_error == "fail"
    stand_ins: Counter[str] = Counter()
    bad: list[BadSample] = []
    digests: list[str] = []
    rows = buffers.take()
    try:
        many = many_of(build.plan)
        if many is not None:
            return _gather_and_write(build, task, shared, rows, many)
        for row, (position, index) in enumerate(zip(task.positions, task.indices, strict=True)):
            if task.chunk >= shared.stop_at:
                return _Outcome(task.chunk, bad=tuple(bad))
            digest = ""
            try:
                digest = digest_of(source, index)
                stand_ins.update(read_into(build.plan, rows, row, index))
            except SourceError as error:
                bad.append(BadSample(position, index, digest, error))
                if fail:
                    break
            digests.append(digest)
            shared.rows[task.chunk] = row + 1
        if bad or task.chunk >= shared.stop_at:
            return _Outcome(task.chunk, bad=tuple(bad))
        whole = chunk_rows(rows, len(task.indices), task.layout.chunk_length)
        files = write_chunk(build.work.store, task.layout.fields, task.chunk, whole)
        odd = count_non_finite_samples(whole, len(task.indices))
        return _Outcome(task.chunk, DoneChunk(task.chunk, files, "".join(digests), stand_ins, {}, odd))
    finally:
        buffers.give(rows)


def _gather_and_write(
    build: Build, task: _Task, shared: _Shared, rows: Rows, source: GroupedSource
) -> _Outcome:
    """Do the same with a source that reads many samples at a time."""

    def go_on(count: int) -> bool:
        shared.rows[task.chunk] = count
        return task.chunk < shared.stop_at

    digests = [digest_of(source, index) for index in source.heads(task.indices)]
    stand_ins, sums = gather(build.plan, source, task.indices, rows, go_on)
    if task.chunk >= shared.stop_at:
        return _Outcome(task.chunk)
    whole = chunk_rows(rows, len(task.indices), task.layout.chunk_length)
    files = write_chunk(build.work.store, task.layout.fields, task.chunk, whole)
    odd = count_non_finite_samples(whole, len(task.indices))
    return _Outcome(task.chunk, DoneChunk(task.chunk, files, "".join(digests), stand_ins, sums, odd))
