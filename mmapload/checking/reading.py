"""Read samples whole, block by block in several threads, and keep only what is unusual in them."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.budget import available_memory
from mmapload.checking.report import SampleFault
from mmapload.errors import SourceError
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["Block", "count_non_finite", "fault_of", "read_blocks"]

_BLOCK_BYTES: Final = 8 << 20
_MOST_IN_BLOCK: Final = 256
_TICK_SECONDS: Final = 0.25
_SURELY_THERE: Final = 64 << 20
_AT_ONCE: Final = 1 << 16
"""Elements that are looked at for NaN at a time: they stay in the processor's cache."""

Schema: TypeAlias = "Mapping[str, ArraySpec]"


@dataclass(slots=True)
class Block:
    """What was found in some samples, one after the other in the source."""

    samples: int = 0
    nbytes: int = 0
    faults: list[SampleFault] = field(default_factory=list)
    unlike: list[tuple[int, Schema]] = field(default_factory=list)
    values: list[tuple[int, str, int, int]] = field(default_factory=list)


def read_blocks(source: IndexedSource, usual: Schema, jobs: int) -> Generator[Block]:
    """Read every sample of a source, in several threads if it can be, and yield what was found.

    Blocks come as they are done; with none for a while, an empty one comes. Where the caller stops, threads
    stop after the sample that they are at.

    Parameters
    ----------
    source : IndexedSource
        Where the samples are.
    usual : mapping of str to ArraySpec
        What a sample is first tried to be read as.
    jobs : int
        Threads, if the source can be read by several.
    """
    size = sum(spec.nbytes for spec in usual.values())
    length = max(1, min(_MOST_IN_BLOCK, _BLOCK_BYTES // max(1, size)))
    ranges = (range(at, min(at + length, len(source))) for at in range(0, len(source), length))
    if not source.parallel:
        reader = _Reader(source, usual)
        yield from map(reader.read, ranges)
        return
    yield from _side_by_side(source, usual, ranges, jobs)


def _side_by_side(
    source: IndexedSource, usual: Schema, ranges: Iterator[range], jobs: int
) -> Generator[Block]:
    readers = _Readers(source, usual)
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
            readers.stopped.set()
            for future in running:
                future.cancel()


class _Readers:
    """A reader for every thread, each with its own memory."""

    def __init__(self, source: IndexedSource, usual: Schema) -> None:
        self._source = source
        self._usual = usual
        self._own = threading.local()
        self.stopped = threading.Event()

    def read(self, indices: range) -> Block:
        """Read samples in a thread."""
        reader: _Reader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = _Reader(self._source, self._usual, self.stopped)
        return reader.read(indices)


class _Reader:
    """Reads samples into memory that is used again, and looks at their values."""

    def __init__(self, source: IndexedSource, usual: Schema, stopped: threading.Event | None = None) -> None:
        self._source = source
        self._usual = usual
        self._stopped = stopped
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}
        self._places: dict[str, npt.NDArray[Any]] | None = None
        self._nbytes = sum(spec.nbytes for spec in usual.values())

    def read(self, indices: range) -> Block:
        """Read samples."""
        block = Block()
        for index in indices:
            if self._stopped is not None and self._stopped.is_set():
                break
            block.samples += 1
            try:
                self._read_one(index, block)
            except SourceError as error:
                block.faults.append(fault_of(index, error))
        return block

    def _read_one(self, index: int, block: Block) -> None:
        # Nearly all samples are as the first one is: no need to ask each what it is.
        with contextlib.suppress(SourceError):
            if self._places is None:
                self._places = self._room(index, self._usual)
            places = self._places
            absent = self._source.read(index, places) or ()
            if absent:
                block.unlike.append((index, {k: v for k, v in self._usual.items() if k not in absent}))
                places = {name: values for name, values in places.items() if name not in absent}
            self._count(index, places, block)
            return
        schema = self._source.schema(index)
        self._places = None
        places = self._room(index, schema)
        absent = self._source.read(index, places) or ()
        if schema != self._usual:
            block.unlike.append((index, schema))
        self._count(index, {name: values for name, values in places.items() if name not in absent}, block)

    def _room(self, index: int, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        return {
            name: self._memory_of(index, name, spec)[: spec.nbytes].view(spec.dtype).reshape(spec.shape)
            for name, spec in schema.items()
        }

    def _memory_of(self, index: int, name: str, spec: ArraySpec) -> npt.NDArray[np.uint8]:
        memory = self._memory.get(name)
        if memory is not None and memory.nbytes >= spec.nbytes:
            return memory
        # A few bytes can inflate to a thousand times as many: the system would give them, and run out later.
        if spec.nbytes < _SURELY_THERE or spec.nbytes < available_memory():
            with contextlib.suppress(MemoryError, ValueError):
                memory = self._memory[name] = np.empty(max(1, spec.nbytes), np.uint8)
                return memory
        text = f"{spec} takes {format_size(spec.nbytes)}, more memory than there is: not read"
        raise SourceError(self._source.describe(index), name, text)

    def _count(self, index: int, places: Mapping[str, npt.NDArray[Any]], block: Block) -> None:
        for name, values in places.items():
            block.nbytes += values.nbytes
            nan, inf = count_non_finite(values)
            if nan or inf:
                block.values.append((index, name, nan, inf))


def fault_of(index: int, error: SourceError) -> SampleFault:
    """Return what is told of a sample that cannot be read."""
    return SampleFault(index, error.file, error.member, error.cause)


def count_non_finite(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Count values that are NaN, and values that are infinite.

    Examples
    --------
    >>> count_non_finite(np.array([1, np.nan, -np.inf, np.inf]))
    (1, 2)
    """
    if values.dtype.kind not in "fc":
        return 0, 0
    flat = values.reshape(-1)
    nan = inf = 0
    for at in range(0, flat.size, _AT_ONCE):
        some = flat[at : at + _AT_ONCE]
        finite = np.isfinite(some)
        if not finite.all():
            missing = int(np.count_nonzero(np.isnan(some)))
            nan += missing
            inf += some.size - int(np.count_nonzero(finite)) - missing
    return nan, inf
