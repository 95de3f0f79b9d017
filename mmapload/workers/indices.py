"""What goes to a worker: the indices of a batch, and the slot that it shall come back in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from mmapload.workers.memory import SlotFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt
    import torch

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

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
    nbytes_read : int
        Bytes of the batch that lie in the slot already, read by the process that trains; 0 if it did not.
    tensors : dict of str to Tensor, or None
        What that process has read where there was no slot.
    """

    __slots__ = ("gather", "key", "nbytes_read", "slot", "take", "tensors")

    def __init__(self, numbers: Iterable[int], key: int, slot: int | None, *, gather: bool) -> None:
        super().__init__(numbers)
        self.key = key
        self.slot = slot
        self.gather = gather
        self.take: Callable[[int], Bytes | None] | None = None
        self.nbytes_read = 0
        self.tensors: dict[str, torch.Tensor] | None = None

    def __reduce__(self) -> tuple[Callable[..., SlotIndices], tuple[Any, ...]]:
        return _receive, (list(self), self.key, self.slot, self.gather, self.nbytes_read, self.tensors)

    def arrays(self, fields: Iterable[FieldLayout]) -> dict[str, npt.NDArray[Any]] | None:
        """Return the samples that were read into the slot, in a worker; None if they were not.

        Parameters
        ----------
        fields : iterable of FieldLayout
            Those that were read, in that order.

        Returns
        -------
        dict of str to ndarray
            Shape (len(self), *field shape): in the slot if `gather`, else in memory of its own, since whoever
            gets the samples may keep them.
        """
        if self.slot is None or not self.nbytes_read:
            return None
        take = self.take or SlotWriter(SlotFile.find(self.key), self.slot).take
        found = {}
        for field in fields:
            memory = take(len(self) * field.sample_nbytes)
            if memory is None:
                return None
            array = memory.view(field.dtype).reshape((len(self), *field.shape))
            found[field.name] = array if self.gather else array.copy()
        return found


class _Received:
    """The slot of the batch that this worker has been sent for."""

    writer: SlotWriter | None = None


def _receive(
    numbers: list[int],
    key: int,
    slot: int | None,
    gather: bool,
    nbytes_read: int,
    tensors: dict[str, torch.Tensor] | None,
) -> SlotIndices:
    """Take indices out of a worker's queue.

    torch's worker has one batch in work at a time: it takes indices from its queue, fetches, collates, and
    only then takes the next. The collate function gets to see samples only; so the slot is noted here.
    """
    indices = SlotIndices(numbers, key, slot, gather=gather)
    indices.nbytes_read, indices.tensors = nbytes_read, tensors
    _Received.writer = None if slot is None else SlotWriter(SlotFile.find(key), slot)
    if gather and _Received.writer is not None:
        indices.take = _Received.writer.take
    return indices


def claim_writer() -> SlotWriter | None:
    """Return the slot of the batch in work, to be used once."""
    writer, _Received.writer = _Received.writer, None
    return writer
