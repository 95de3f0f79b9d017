"""Read all samples of a source block by block, in several threads or processes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol, cast

from mmapload.checking.processes import Processes, processes_pay
from mmapload.checking.reading import Block, Reader

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from mmapload.checking.processes import Divisible
    from mmapload.checking.reading import Usual
    from mmapload.sources import IndexedSource

__all__ = ["Readers", "default_jobs", "read_blocks"]

_BLOCK_BYTES: Final = 8 << 20
_MOST_IN_BLOCK: Final = 256
_TICK_SECONDS: Final = 0.25
_SMALL: Final = 64 << 10
"""Samples of fewer bytes are read faster by one thread than by two, which would wait for each other."""


def default_jobs(source: IndexedSource, usual: Usual) -> int:
    """Return how many threads or processes are to read: one for each core, if that is any faster."""
    small = sum(spec.nbytes for spec in usual.schema.values()) < _SMALL
    if source.kind == "npz" and small and not processes_pay(source):
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def read_blocks(source: IndexedSource, usual: Usual, jobs: int) -> Generator[Block]:
    """Read every sample of a source, in several threads or processes if it can be; yield what was found.

    Blocks come as they are done; with none for a while, an empty one comes. Where the caller stops, threads
    stop after the sample that they are at.

    Parameters
    ----------
    source : IndexedSource
        Where the samples are.
    usual : Usual
        What a sample is first tried to be read as.
    jobs : int
        Threads or processes, if the source can be read by several.
    """
    size = sum(spec.nbytes for spec in usual.schema.values())
    length = max(1, min(_MOST_IN_BLOCK, _BLOCK_BYTES // max(1, size)))
    ranges = (range(at, min(at + length, len(source))) for at in range(0, len(source), length))
    if not source.parallel:
        reader = Reader(usual)
        yield from (reader.read(source, indices) for indices in ranges)
        return
    apart = jobs > 1 and processes_pay(source)
    readers: Readers = Processes(cast("Divisible", source), usual) if apart else _Threads(source, usual)
    yield from _side_by_side(readers, ranges, jobs)


def _side_by_side(readers: Readers, ranges: Iterator[range], jobs: int) -> Generator[Block]:
    running: set[Future[Block]] = set()
    with ThreadPoolExecutor(jobs, thread_name_prefix="mmapload-check") as pool:
        try:
            while True:
                # Twice as many as threads: none waits while blocks are counted.
                running |= {
                    pool.submit(readers.read, some) for some in islice(ranges, 2 * jobs - len(running))
                }
                if not running:
                    return
                done, running = wait(running, _TICK_SECONDS, FIRST_COMPLETED)
                yield from (future.result() for future in done)
                if not done:
                    yield Block()
        finally:
            readers.stop()
            for future in running:
                future.cancel()


class Readers(Protocol):
    """What reads samples for several threads at once."""

    def read(self, indices: range) -> Block:
        """Read samples; called in a thread."""

    def stop(self) -> None:
        """Let what is being read be the last."""


class _Threads:
    """A reader for every thread, each with its own memory."""

    def __init__(self, source: IndexedSource, usual: Usual) -> None:
        self._source = source
        self._usual = usual
        self._own = threading.local()
        self._stopped = threading.Event()

    def read(self, indices: range) -> Block:
        reader: Reader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = Reader(self._usual, self._stopped)
        return reader.read(self._source, indices)

    def stop(self) -> None:
        self._stopped.set()
