"""Which chunks are in memory: loaded ahead of their use, kept while they are needed, dropped behind.

A sampler says what its epoch will touch, as a stream of `Use`s, and how far training has come; threads
load what comes next, in the order of use, as long as the memory budget has room. What nobody announced is
loaded when it is asked for.

Where the chunks do not all fit, the part of the budget that a plan does not need keeps the same chunks from
epoch to epoch: dropping the least recently used would drop each one just before its use (the MinIO cache of
Mohan et al., "Analyzing and Mitigating Data Stalls in DNN Training", VLDB 2021).
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Final

from mmapload.errors import MmaploadError
from mmapload.readers.base import PlacedArrays
from mmapload.room import Counts, Room
from mmapload.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from mmapload.order import Use
    from mmapload.readers import ChunkArrays, ChunkReader

__all__ = ["Counts", "Residency"]

THREADS: Final = 4
"""Threads that load ahead, which wait for the disk most of the time. On the disks measured two were a quarter
faster than one, and four a fifth faster than two where training kept the processors busy."""


class Residency:
    """A bounded set of resident chunks. Thread-safe; belongs to one process.

    Parameters
    ----------
    reader : ChunkReader
        Loads chunks.
    chunk_nbytes : int or ndarray of int64
        Decoded bytes of one chunk, all fields: one number for all, or of each chunk its own.
    chunks : int
        How many there are.
    budget : int
        Bytes that resident chunks may take together; at least one chunk is always held.
    """

    def __init__(
        self, reader: ChunkReader, chunk_nbytes: int | npt.NDArray[np.int64], chunks: int, budget: int
    ) -> None:
        self.reader = reader
        self.counts = Counts()
        self._room = Room(chunk_nbytes, chunks, budget)
        self.capacity = self._room.capacity
        self.holds_all = self.capacity == chunks
        self._lock = threading.Lock()
        self._resident: OrderedDict[int, Future[ChunkArrays]] = OrderedDict()
        self._loaded: dict[int, ChunkArrays] = {}
        self._schedule = Schedule(())
        self._warmed: set[tuple[int, int]] = set()
        self._kept = 0
        self._asked = False
        self._running = 0

    def follow(self, plan: Iterable[Use], *, rows_only: bool = False, kept: int | None = None) -> None:
        """Take up the plan of an epoch in place of the one before.

        Parameters
        ----------
        plan : iterable of Use
            Ordered by first step; read lazily.
        rows_only : bool
            Whether chunks are visited in parts far from each other in time, so that only the rows of a
            use are worth bringing in, and only into the page cache.
        kept : int, optional
            Chunks below this number stay once they are loaded, beside those that the plan needs at any time;
            by default those that stayed before. Which ones is all the same, but that all processes have to
            choose alike.
        """
        with self._lock:
            if kept is not None:
                self._kept = kept
            self._schedule = Schedule(plan, rows_only=rows_only)
            self._asked = False

    def follows(self, plan: Iterator[Use]) -> bool:
        """Say whether this plan is the one taken up last."""
        return self._schedule.is_of(plan)

    def advance(self, step: int, horizon: int) -> None:
        """Note that training has come to `step`: drop what lies behind, load what is used up to `horizon`.

        Parameters
        ----------
        step : int
            Everything last used before it may go.
        horizon : int
            Step up to which chunks are loaded ahead, where the budget has room.
        """
        with self._lock:
            for chunk in self._schedule.move(step, horizon):
                if chunk in self._loaded and not self._keeps(chunk):
                    self._drop(chunk)
            self._pass_over_done()
            more = self._schedule.count_due(THREADS - self._running)
            self._running += more
        for _ in range(more):
            threading.Thread(target=self._load_ahead, name="mmapload-ahead", daemon=True).start()

    def covers(self, chunk: int) -> bool:
        """Say whether `get` is the way to this chunk: it is resident or planned, or is to stay.

        Otherwise it may be cheaper to read single rows.
        """
        with self._lock:
            return self._keeps(chunk) or chunk in self._resident or self._schedule.needs(chunk)

    def held(self, chunks: Sequence[int]) -> list[ChunkArrays | None]:
        """Return the arrays of those chunks that are in memory now, None for the others.

        One call for many chunks: `get` costs more than copying a few small samples does.
        """
        with self._lock:
            found = [self._loaded.get(chunk) for chunk in chunks]
            self.counts.hits += len(found) - found.count(None)
            for chunk, arrays in zip(chunks, found, strict=True):
                if arrays is not None:
                    self._resident.move_to_end(chunk)
        return found

    def held_placed(self, chunks: Sequence[int]) -> list[PlacedArrays] | None:
        """Return the arrays of these chunks if all are in memory, as `PlacedArrays`.

        Nothing of it leaves its place while the list is kept.
        """
        with self._lock:
            found = [self._loaded.get(chunk) for chunk in chunks]
            placed = [arrays for arrays in found if type(arrays) is PlacedArrays]
            if len(placed) < len(found):
                return None
            self.counts.hits += len(found)
            for chunk in chunks:
                self._resident.move_to_end(chunk)
        return placed

    def get(self, chunk: int) -> ChunkArrays:
        """Return a chunk's arrays, loading them if need be. They are shared: for reading only.

        Raises
        ------
        ChunkError
            If a file of it is missing, of the wrong size, or damaged.
        """
        while True:
            with self._lock:
                self._note_asked()
                found = self._resident.get(chunk)
                if found is not None:
                    self.counts.hits += 1
                    self._resident.move_to_end(chunk)
                    break
                if self._make_room(chunk, by_force=True):
                    self.counts.misses += 1
                    future = self._admit(chunk)
                    break
                coming = list(self._resident.values())
            wait(coming, return_when=FIRST_COMPLETED)  # all that is held is on its way to somebody else
        if found is not None:
            return found.result()
        self._load(chunk, future)
        return future.result()

    def view(self, chunk: int, start: int, stop: int) -> ChunkArrays:
        """Return rows of a chunk as arrays of the caller's own, for a reader that maps.

        Pages that are known to be in memory are mapped as they are touched: bringing them in once more would
        take a third of the time that copying them takes. Rows that were brought in ahead are known to be only
        where everything fits: else the system may have taken their pages back, and touching one whose disk
        has failed meanwhile would end the process.

        Raises
        ------
        ChunkError
            As `get` does.
        """
        with self._lock:
            known = chunk in self._loaded or (chunk, start) in self._warmed
        return self.reader.load(chunk, start, stop, in_memory=known)

    def _load_ahead(self) -> None:
        """Load what is pending, in order; the thread ends when nothing is due or the budget is full."""
        try:
            self._load_all_due()
        finally:
            with self._lock:
                self._running -= 1

    def _load_all_due(self) -> None:
        while True:
            with self._lock:
                use = self._next_due()
                if use is None:
                    return
                self.counts.ahead += 1
                future = self._admit(use.chunk) if self._admits(use.chunk) else None
            if future is not None:
                self._load(use.chunk, future)
            else:
                with contextlib.suppress(MmaploadError):  # whoever asks for the rows finds it again
                    self.reader.warm(use.chunk, use.start, use.stop)
                    if self.holds_all:
                        self._warmed.add((use.chunk, use.start))

    def _keeps(self, chunk: int) -> bool:
        return self.holds_all or chunk < self._kept

    def _admits(self, chunk: int) -> bool:
        """Say whether to load the chunk, or else only to bring its bytes into the page cache."""
        # Decoding ahead is in vain where other processes do the reading, so it starts when the first
        # chunk has been asked for in this one; until then files are brought in as they are.
        if not (self.reader.maps or self._asked):
            return False
        # A chunk that stays is held: the system drops no page that is mapped, whoever asks for it.
        return not self._schedule.rows_only or (not self.holds_all and chunk < self._kept)

    def _note_asked(self) -> None:
        """Put what was only brought into the page cache first in line, now that it is to be decoded."""
        self._asked = True
        self._schedule.resume()

    def _pass_over_done(self) -> None:
        """Forget what is due and needs nothing done: training has passed it, or it is in memory."""
        while (use := self._schedule.first_due()) is not None and self._is_done(use):
            self._schedule.done()

    def _is_done(self, use: Use) -> bool:
        # Where everything fits, rows that were brought in once are taken to be in the page cache still.
        was_warmed = self._schedule.rows_only and (use.chunk, use.start) in self._warmed
        is_resident = use.chunk in self._resident and self._admits(use.chunk)
        return use.last_step < self._schedule.step or was_warmed or is_resident

    def _next_due(self) -> Use | None:
        self._pass_over_done()
        use = self._schedule.first_due()
        if use is None:
            return None
        if self._admits(use.chunk):
            if not self._make_room(use.chunk):
                return None
            self._schedule.done()
        elif self._schedule.rows_only:
            self._schedule.done()
        else:
            self._schedule.put_off()
        return use

    def _admit(self, chunk: int) -> Future[ChunkArrays]:
        future: Future[ChunkArrays] = Future()
        self._resident[chunk] = future
        self.counts.resident_bytes += self._room.nbytes(chunk)
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.counts.resident_bytes)
        return future

    def _fits(self, chunk: int) -> bool:
        return self._room.fits(chunk, len(self._resident), self.counts.resident_bytes)

    def _make_room(self, wanted: int, *, by_force: bool = False) -> bool:
        """Drop what nobody needs, oldest first, until this chunk fits too; by force more than that."""
        for needed in range(3 if by_force else 1):
            for chunk in list(self._resident):
                if self._fits(wanted):
                    return True
                planned = 2 if self._schedule.needs(chunk) else int(self._keeps(chunk))
                if chunk in self._loaded and planned == needed:
                    self._drop(chunk)
        return self._fits(wanted)

    def _drop(self, chunk: int) -> None:
        self._loaded.pop(chunk, None)
        if self._resident.pop(chunk, None) is not None:
            self.counts.dropped += 1
            self.counts.resident_bytes -= self._room.nbytes(chunk)

    def _load(self, chunk: int, future: Future[ChunkArrays]) -> None:
        try:
            arrays = self.reader.load(chunk)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the chunk gets it
            with self._lock:
                if self._resident.get(chunk) is future:
                    self._drop(chunk)
            future.set_exception(error)
            return
        with self._lock:
            self._loaded[chunk] = arrays
        future.set_result(arrays)
