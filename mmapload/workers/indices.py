"""What goes to a worker: the indices of a batch, and the slot that it shall come back in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mmapload.workers.memory import SlotFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mmapload.codecs import Bytes

__all__ = ["SlotIndices", "SlotWriter", "claim_writer"]

ALIGNMENT: Final = 64
"""Of every array in a slot, in bytes: a cache line, and more than any dtype needs."""


class SlotWriter:
    """Hands out the memory of one slot, piece after piece, in a worker.

    Examples
    --------
    >>> writer = SlotWriter(SlotFile(2, 4096), 1)
    >>> writer.take(100).nbytes, writer.used, writer.take(5000) is None
    (100, 128, True)
    """

    __slots__ = ("began", "file", "memory", "slot", "used")

    def __init__(self, file: SlotFile, slot: int) -> None:
        self.began = time.monotonic()
        self.file = file
        self.slot = slot
        self.memory = file.slot(slot)
        self.used = 0

    def take(self, nbytes: int) -> Bytes | None:
        """Return the next `nbytes` of the slot, holding whatever was there; None if there is no room."""
        start = self.used
        if start + nbytes > self.memory.nbytes:
            return None
        self.file.make_ready(self.slot, start + nbytes)
        self.used = min(start + -(-nbytes // ALIGNMENT) * ALIGNMENT, self.memory.nbytes)
        return self.memory[start : start + nbytes]

    def offset(self, address: int, nbytes: int) -> int | None:
        """Return where in the slot memory lies, None if it is not what was taken from the slot."""
        start = address - int(self.memory.ctypes.data)
        return start if start >= 0 and start + nbytes <= self.used else None


class SlotIndices(list[int]):
    """The indices of a batch, with the slot for it: what a worker's dataset is called with.

    Parameters
    ----------
    numbers : iterable of int
        The indices.
    key : int
        Of the file.
    slot : int or None
        The batch's; None if there was none free.
    gather : bool
        Whether the dataset may put the batch together in the slot, because nobody else sees it there.

    Attributes
    ----------
    take : callable or None
        In a worker, where there is a slot to gather in: gives memory for so many bytes, or None.
    """

    __slots__ = ("gather", "key", "slot", "take")

    def __init__(self, numbers: Iterable[int], key: int, slot: int | None, *, gather: bool) -> None:
        super().__init__(numbers)
        self.key = key
        self.slot = slot
        self.gather = gather
        self.take: Callable[[int], Bytes | None] | None = None

    def __reduce__(self) -> tuple[Callable[..., SlotIndices], tuple[Any, ...]]:
        return _receive, (list(self), self.key, self.slot, self.gather)


class _Received:
    """The slot of the batch that this worker has been sent for."""

    writer: SlotWriter | None = None


def _receive(numbers: list[int], key: int, slot: int | None, gather: bool) -> SlotIndices:
    """Take indices out of a worker's queue.

    torch's worker has one batch in work at a time: it takes indices from its queue, fetches, collates, and
    only then takes the next. The collate function gets to see samples only; so the slot is noted here.
    """
    indices = SlotIndices(numbers, key, slot, gather=gather)
    _Received.writer = None if slot is None else SlotWriter(SlotFile.find(key), slot)
    if gather and _Received.writer is not None:
        indices.take = _Received.writer.take
    return indices


def claim_writer() -> SlotWriter | None:
    """Return the slot of the batch in work, to be used once."""
    writer, _Received.writer = _Received.writer, None
    return writer
