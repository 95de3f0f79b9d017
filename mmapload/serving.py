"""How a loader serves its batches: from threads of this process, or as torch does, from workers too."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate

from mmapload.dataset import ChunkDataset
from mmapload.devices import DeviceCopy
from mmapload.errors import MmaploadError, WorkerError
from mmapload.finishing import Finishing, TransformedCollate
from mmapload.pipeline import prepared_in_threads
from mmapload.stats import CountedSampler, Deliveries, disk_bytes
from mmapload.streams import Stream
from mmapload.workers.collating import SlotCollate
from mmapload.workers.handover import Handover
from mmapload.workers.sending import READ_AHEAD, SlotSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mmapload.gather import Take
    from mmapload.mixed import MixedDataset
    from mmapload.mixing import MixedBatchSampler
    from mmapload.passes import EpochPass
    from mmapload.pipeline import Prepared
    from mmapload.samplers import ChunkSampler

__all__ = ["ServingLoader", "reads_for_workers"]


class ServingLoader(DataLoader[Any]):
    """torch's DataLoader, with batches that are transformed whole, sent to a device, and counted.

    Parameters
    ----------
    prefetch : int
        Batches, or groups of small ones, that are prepared ahead: by threads, or by each worker.
    batch_transform : callable or None
        Called with what was collated.
    device : torch.device or None
        Where batches are delivered.
    arguments
        As for torch.
    """

    def __init__(
        self,
        *arguments: Any,
        prefetch: int,
        batch_transform: Callable[[Any], Any] | None,
        device: torch.device | None,
        **others: Any,
    ) -> None:
        self.batch_transform = batch_transform
        self.device = device
        self._prefetch = prefetch
        self._grouped = 1
        self._handover = Handover()
        self._deliveries = Deliveries()
        self._disk_before = disk_bytes()
        self._begun: EpochPass | None = None
        super().__init__(*arguments, **others)

    def _get_iterator(self) -> Any:
        """Make torch's iterator; batches of worker processes come back in recycled memory."""
        dataset, collate_fn, transform = self.dataset, self.collate_fn, self.batch_transform
        slots, reads = None, False
        if self.num_workers and self.batch_sampler is not None and isinstance(dataset, ChunkDataset):
            size = getattr(self.batch_sampler, "batch_size", None)
            nbytes = size * dataset.sample_nbytes if size else None
            reads = self._reads_for_workers
            outstanding = self.num_workers * self._prefetch + (READ_AHEAD if reads else 0)
            slots = self._handover.begin(outstanding, nbytes)
        batches: Any = self.batch_sampler
        if slots is not None:
            read = partial(_read, dataset) if reads and isinstance(dataset, ChunkDataset) else None
            batches = SlotSampler(batches, self.num_workers, slots, gather=self._is_plain, read=read)
            collate_fn = SlotCollate(collate_fn, slots.file, transform)
        elif transform is not None:
            collate_fn = TransformedCollate(collate_fn, transform)
        if batches is not None:
            batches = CountedSampler(batches, slots)
        view: DataLoader[Any] = object.__new__(type(self))
        view.__dict__.update(self.__dict__, collate_fn=collate_fn, batch_sampler=batches)
        return DataLoader._get_iterator(view)  # noqa: SLF001 - what torch's own __iter__ calls

    @property
    def _is_plain(self) -> bool:
        """Whether nobody but the dataset sees a batch before it is sent, so it may be made in its slot."""
        return (
            type(self.dataset) is ChunkDataset
            and self.collate_fn is default_collate
            and self.batch_transform is None
        )

    @property
    def _reads_for_workers(self) -> bool:
        """Whether this process reads for its workers: they would do no more, but map all chunks anew."""
        dataset = self.dataset
        idle = self._is_plain and isinstance(dataset, ChunkDataset) and dataset.transform is None
        return reads_for_workers(dataset, self.num_workers, idle=idle)

    def _from_torch(self) -> Iterator[Any]:
        """Serve what torch's own iterator gives; a worker that died is a WorkerError."""
        if self._iterator is not None and not all(_are_alive(self._iterator)):
            self._finish_workers(self._iterator)
        iterator: Any = None
        begun: list[EpochPass] = []
        try:
            iterator = super().__iter__()
            self._deliveries.begin()
            copying = None if self.device is None else DeviceCopy(self.device)
            # Not a loop with a variable: it would hold each batch until the next has come.
            yield from map(self._arrived, repeat(iterator), repeat(copying), repeat(begun))
            for each in begun:
                each.finished = True
        except (RuntimeError, ConnectionError, EOFError) as error:
            # torch tells of a dead worker only by the text of a RuntimeError, or fails to fetch what that had
            # ready. An error that a worker caught and sent over is another thing, and begins with "Caught".
            sent_over = isinstance(error, MmaploadError) or str(error).startswith("Caught")
            unrelated = isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error)
            if sent_over or unrelated or not self.num_workers:
                raise
            iterator = iterator or self._iterator
            self._iterator = None  # persistent workers: torch would wait for the one that ended
            raise WorkerError(
                f"a worker process ended without its batch ({error}). If it was killed for want of memory, "
                "use fewer workers, a smaller batch_size or a smaller ChunkDataset(memory=...); without a "
                "Python transform, num_workers=0 is faster"
            ) from error
        finally:
            if iterator is not None and self.num_workers and iterator is not self._iterator:
                self._finish_workers(iterator)

    def _arrived(self, iterator: Any, copying: DeviceCopy | None, begun: list[EpochPass]) -> Any:
        """Return torch's next batch; the StopIteration at the end ends the `map` that calls this."""
        asked = time.monotonic()
        try:
            batch = self._handover.note_arrival(next(iterator))
        finally:
            # Whatever has come of it, the sampler's pass is the one that torch has begun for this iterator.
            if not begun and self._ordering is not None and self._ordering.begun is not None:
                begun.append(self._ordering.begun)
                self._begun = begun[0]
        if copying is not None:
            batch = copying.arrive(copying.start(batch))
        sent = iterator._index_sampler  # noqa: SLF001 - what `_get_iterator` gave it
        counted = sent.arrived() if isinstance(sent, CountedSampler) else (1, None, 0.0)
        self._deliveries.note(counted[0], asked, *counted[1:])
        for each in begun:
            each.received += 1
        return batch

    @property
    def _ordering(self) -> ChunkSampler | MixedBatchSampler | None:
        """The sampler whose batches are delivered, if it is mmapload's and a subclass knows of it."""
        return None

    def _finish_workers(self, iterator: Any) -> None:
        """End the workers of an iteration now: the error that ends it may keep torch's iterator alive."""
        if self._iterator is iterator:
            self._iterator = None
        with suppress(RuntimeError):  # that a worker was killed: it was to end in any case
            iterator._shutdown_workers()  # noqa: SLF001 - what torch's own __del__ calls
        sampler = iterator._index_sampler  # noqa: SLF001 - what `_get_iterator` gave it
        slots = sampler.slots if isinstance(sampler, CountedSampler) else None
        if slots is not None and not any(_are_alive(iterator)):
            sampler.sampler.close()
            self._handover.end(slots)

    def _from_threads(
        self, dataset: ChunkDataset | MixedDataset, sampler: ChunkSampler | MixedBatchSampler
    ) -> Iterator[Any]:
        """Keep `prefetch` groups of batches in preparation; an error surfaces at its batch."""
        self._begun = begun = sampler.begin()
        finishing = Finishing(
            dataset,
            self.collate_fn,
            self.batch_transform,
            pins=self.pin_memory and torch.cuda.is_available(),
            copying=None if self.device is None else DeviceCopy(self.device),
            stream=Stream(sampler.seed, begun.epoch),
        )
        indices: Any = sampler.batches(begun)
        prepared: Any = prepared_in_threads(
            indices,
            finishing.prepare,
            grouped=self._grouped,
            ahead=self._prefetch,
            timeout=self.timeout,
        )
        self._deliveries.begin()
        try:
            yield from map(self._deliver, repeat(finishing), repeat(prepared), repeat(begun))
            begun.finished = True
        finally:
            prepared.close()
            indices.close()  # ends its loading ahead

    def _deliver(self, finishing: Finishing, coming: Iterator[Prepared], begun: EpochPass) -> Any:
        """Return the next batch; the StopIteration at the end ends the `map` that calls this."""
        asked = time.monotonic()
        prepared = next(coming)
        if prepared.error is not None:
            try:
                raise prepared.error
            finally:
                del prepared  # or it and the error would hold each other
        batch = finishing.deliver(prepared)
        self._deliveries.note(prepared.samples, asked, prepared.ready)
        begun.received += 1
        return batch


def reads_for_workers(dataset: Any, workers: int, *, idle: bool = False) -> bool:
    """Say whether the process that trains reads batches for its workers.

    Parameters
    ----------
    dataset : Dataset
        One that is compressed is decoded once then, not once in each worker.
    workers : int
        How many.
    idle : bool
        Whether workers would do nothing but read.
    """
    kind = type(dataset)
    return (
        workers > 0
        and isinstance(dataset, ChunkDataset)
        and (idle or not dataset.is_raw)
        and not dataset.is_ragged  # nobody knows the size of a batch before
        and hasattr(os, "memfd_create")
        and kind.__getitem__ is ChunkDataset.__getitem__
        and kind.__getitems__ is ChunkDataset.__getitems__
    )


def _read(dataset: ChunkDataset, indices: list[int], take: Take | None) -> dict[str, torch.Tensor]:
    return dataset.read(indices, take).tensors


def _are_alive(iterator: Any) -> list[bool]:
    """Say of each worker of torch's iterator whether it is alive."""
    return [worker.is_alive() for worker in iterator._workers]  # noqa: SLF001 - torch has no public name
