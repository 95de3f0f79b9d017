"""Which slots of shared memory are free, in the process that trains.

A slot is free, or assigned to a batch that has not arrived, or leased to the tensors of one that has. Nothing
here needs a lock: the states live in containers whose single operations are atomic, and only one thread
assigns slots.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import ReferenceType, WeakValueDictionary, ref

import numpy as np

from mmapload.workers.forks import Descendants, Inherited

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.codecs import Bytes
    from mmapload.workers.memory import SlotFile

__all__ = ["Counts", "Slots"]


FRESH: Final = -1
"""In place of the worker that wrote a slot: none did."""


@dataclass(slots=True)
class Counts:
    """How batches came back from worker processes.

    Attributes
    ----------
    in_slots : int
        Batches whose tensors all came in a slot.
    in_part : int
        Batches in a slot of which some tensors went torch's way, through fresh memory.
    too_large : int
        Those of them for which the slot had no room.
    no_slot : int
        Batches sent for without a slot, since none was free: they went torch's way.
    """

    in_slots: int = 0
    in_part: int = 0
    too_large: int = 0
    no_slot: int = 0


class _Lease(Inherited):
    """What an array over a slot holds on to: the slot is given back when it is collected."""

    __slots__ = ("__array_interface__", "file", "pid", "slot", "slots")

    def __init__(self, file: SlotFile, slot: int, slots: Slots) -> None:
        super().__init__()
        self.file = file
        self.slot = slot
        self.slots: ReferenceType[Slots] = ref(slots)
        self.pid = os.getpid()
        self.__array_interface__: dict[str, Any] = file.slot(slot).__array_interface__

    def __del__(self) -> None:
        if self.pid != os.getpid():  # a forked child's copy: the slot is not the child's to give
            return
        slots = self.slots()
        if slots is not None:
            slots.give_back(self.slot, self.descendants)
        elif not (self.descendants or sys.is_finalizing()):
            self.file.discard(self.slot)


class Slots:
    """The slots of one file, in the process that made it.

    Parameters
    ----------
    file : SlotFile
        Its slots are all free.
    counts : Counts
        Where arrivals are counted.

    Attributes
    ----------
    timings : deque of (float, float)
        When a worker began and ended each batch that has arrived, by `time.monotonic`, which is one clock for
        all processes. Whoever is told of the arrivals takes them out.

    Examples
    --------
    >>> from mmapload.workers.memory import SlotFile
    >>> slots = Slots(SlotFile(1, 4096), Counts())
    >>> slot = slots.assign(worker=0)
    >>> slots.assign(worker=0) is None
    True
    >>> with slots.arriving(slot):
    ...     kept = slots.memory(slot)
    >>> slots.free, len(kept)
    (0, 4096)
    >>> del kept
    >>> slots.free
    1
    """

    def __init__(self, file: SlotFile, counts: Counts) -> None:
        self.file = file
        self.counts = counts
        self.pid = os.getpid()
        self._writers = [FRESH] * file.count
        self._free: dict[int, deque[int]] = {FRESH: deque(range(file.count))}
        self._assigned: set[int] = set()
        self._arriving: dict[int, Bytes] = {}
        self._waiting: deque[tuple[int, tuple[Descendants, ...]]] = deque()
        self.timings: deque[tuple[float, float]] = deque(maxlen=file.count)
        _slots[file.key] = self

    @classmethod
    def find(cls, key: int) -> Slots:
        """Return the slots of the file of this key, in the process that made them."""
        return _slots[key]

    @property
    def free(self) -> int:
        """Number of slots that could be assigned now."""
        self._look_after_waiting()
        return sum(map(len, self._free.values()))

    def assign(self, worker: int) -> int | None:
        """Take a free slot for a batch to come; None if there is none.

        Parameters
        ----------
        worker : int
            Who will write it. Best is a slot that this worker wrote before, since it has mapped the pages;
            then one that another did, since there are pages; and of these the one that was freed last.
        """
        self._look_after_waiting()
        own = self._free.setdefault(worker, deque())
        others = [free for last, free in self._free.items() if last not in {worker, FRESH}]
        for free in (own, *others, self._free[FRESH]):
            with suppress(IndexError):
                slot = free.pop()
                self._assigned.add(slot)
                self._writers[slot] = worker
                return slot
        self.counts.no_slot += 1
        return None

    @contextmanager
    def arriving(self, slot: int) -> Iterator[None]:
        """Lease a slot to what takes its memory inside of this context."""
        self._assigned.discard(slot)
        self._arriving[slot] = np.asarray(_Lease(self.file, slot, self))
        try:
            yield
        finally:
            del self._arriving[slot]

    def memory(self, slot: int) -> Bytes:
        """Return the memory of a slot that is arriving."""
        return self._arriving[slot]

    def reclaim(self) -> None:
        """Free the slots of batches that will not arrive any more."""
        while self._assigned:
            self.give_back(self._assigned.pop())
        self._look_after_waiting()

    def give_back(self, slot: int, descendants: tuple[Descendants, ...] = ()) -> None:
        """Free a slot; one that forked processes may look at waits until these have ended."""
        if descendants:
            self._waiting.append((slot, descendants))
        else:
            self._free[self._writers[slot]].append(slot)

    def _look_after_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            slot, descendants = self._waiting.popleft()
            self.give_back(slot, tuple(each for each in descendants if not each.ended()))

    def __del__(self) -> None:
        if getattr(self, "pid", None) != os.getpid() or sys.is_finalizing():
            return
        # The file lives as long as a batch over one of its slots: what lies in the others goes now.
        for slot in (*itertools.chain(*self._free.values()), *self._assigned):
            self.file.discard(slot)


_slots: Final[WeakValueDictionary[int, Slots]] = WeakValueDictionary()
