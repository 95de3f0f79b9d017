"""Recycled slots for one loader: made for its first iteration, kept for the next."""

from __future__ import annotations

import os
import warnings
from typing import Any, Final

from mmapload.windows import levels_to_caller
from mmapload.workers.memory import SlotFile
from mmapload.workers.slots import Counts, Slots

__all__ = ["Handover"]

SPARE_SLOTS: Final = 8
"""Beyond the batches in preparation: the batch in use, the one before it, and some that are kept."""

GROWTH: Final = 8
"""How many times the bytes that are read a batch may have: a transform makes float64 of uint8."""

LEAST_BYTES: Final = 2**26
"""Of a slot. As its other bytes, these cost nothing until they are used."""

TRIALS: Final = 4
"""Batches that must all have been too large for their slots before a warning says so."""


class Handover:
    """Makes slots, keeps them between iterations, and counts.

    Attributes
    ----------
    counts : Counts
        Of all iterations.

    Notes
    -----
    Every iteration has slots of its own, so iterations side by side share none; those of one that has ended
    are kept for the next.
    """

    def __init__(self) -> None:
        self.counts = Counts()
        self._idle: Slots | None = None
        self._warned = False

    def __reduce__(self) -> tuple[type[Handover], tuple[()]]:
        return Handover, ()

    def begin(self, outstanding: int, batch_nbytes: int | None) -> Slots | None:
        """Return slots for an iteration, None if the system has no such memory.

        Parameters
        ----------
        outstanding : int
            Batches that workers prepare.
        batch_nbytes : int or None
            Bytes of a batch as it is read; None if the size of batches is not known.
        """
        slots, self._idle = self._idle, None
        count = outstanding + SPARE_SLOTS
        nbytes = 2**30 if batch_nbytes is None else max(LEAST_BYTES, GROWTH * batch_nbytes)
        if slots is not None and slots.pid == os.getpid() and slots.file.count == count:
            return slots
        if not hasattr(os, "memfd_create"):
            return None
        try:
            return Slots(SlotFile(count, nbytes), self.counts)
        except OSError:
            return None

    def end(self, slots: Slots) -> None:
        """Keep the slots of an iteration that has ended, its workers with it."""
        if slots.pid == os.getpid():
            slots.reclaim()
            self._idle = slots

    def note_arrival(self, batch: Any) -> Any:
        """Return the batch, having said once if none of them fits in its slot."""
        counts = self.counts
        if counts.too_large >= TRIALS and not (counts.in_slots or self._warned):
            self._warned = True
            warnings.warn(
                f"what workers make of a batch has more than {GROWTH} times the bytes that they read for it, "
                "so it comes in fresh memory, which is slower: let samples grow after loading, on the device",
                stacklevel=levels_to_caller(),
            )
        return batch
