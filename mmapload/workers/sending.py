"""What is sent to workers: the indices of each batch, a slot for it, and what has been read into it here."""

from __future__ import annotations

import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from mmapload.workers.indices import SlotIndices, SlotWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    import torch

    from mmapload.codecs import Bytes
    from mmapload.workers.slots import Slots

    Read: TypeAlias = Callable[[list[int], "Callable[[int], Bytes | None] | None"], dict[str, torch.Tensor]]

__all__ = ["READ_AHEAD", "SlotSampler"]

THREADS: Final = 2
"""Threads that read batches for workers."""

READ_AHEAD: Final = 2
"""Batches that they read before torch asks for what to send."""


class SlotSampler:
    """Yields what a batch sampler yields, each list of indices with a free slot.

    Parameters
    ----------
    batch_sampler : iterable of list of int
        Anything else than a list in it is yielded as it is.
    workers : int
        torch sends to them in turn.
    slots : Slots
        Of this iteration.
    gather : bool
        As for `SlotIndices`.
    read : callable, optional
        Reads a batch in this process, given its indices and what gives memory to read into (or None), so that
        workers need not; by default they do. What it raises is left to the worker to find, whose error comes
        in the batch's place.
    """

    def __init__(
        self, batch_sampler: Any, workers: int, slots: Slots, *, gather: bool, read: Read | None = None
    ) -> None:
        self.batch_sampler = batch_sampler
        self.workers = workers
        self.slots = slots
        self.gather = gather
        self.read = read
        self._threads: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        # torch asks for the first indices of an epoch when its workers have done with the epoch before.
        self.close()
        self.slots.reclaim()
        sent = map(self._with_slot, self.batch_sampler, itertools.cycle(range(self.workers)))
        if self.read is None:
            yield from sent
            return
        self._threads = threads = ThreadPoolExecutor(THREADS, thread_name_prefix="mmapload-send")
        coming: deque[Future[Any]] = deque()
        try:
            for indices in sent:
                coming.append(threads.submit(self._read_here, indices))
                if len(coming) > READ_AHEAD:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            threads.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Wait until no thread writes into a slot any more."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    def _with_slot(self, indices: Any, worker: int) -> Any:
        if type(indices) is not list:
            self.slots.counts.no_slot += 1
            return indices
        return SlotIndices(indices, self.slots.file.key, self.slots.assign(worker), gather=self.gather)

    def _read_here(self, indices: Any) -> Any:
        if type(indices) is SlotIndices and self.read is not None:
            with suppress(Exception):
                if indices.slot is None:
                    indices.tensors = self.read(indices, None)
                else:
                    writer = SlotWriter(self.slots.file, indices.slot)
                    self.read(indices, writer.take)
                    indices.nbytes_read = writer.used
        return indices
