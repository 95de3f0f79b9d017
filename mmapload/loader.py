"""A torch DataLoader by class that prepares batches of a store in threads, ahead of their use."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from mmapload.dataset import ChunkDataset
from mmapload.errors import MmaploadError, WorkerError
from mmapload.samplers import ChunkBatchSampler
from mmapload.workers.collating import SlotCollate
from mmapload.workers.handover import Handover, SlotSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    from torch.utils.data import Dataset, Sampler

    from mmapload.batches import ReadyBatch
    from mmapload.order import Remainder
    from mmapload.store import StrPath
    from mmapload.workers.slots import Counts

__all__ = ["ChunkDataLoader"]

THREADS: Final = 2
"""Threads that put batches together; each prepares one at a time."""

PREFETCH: Final = 2
"""Batches prepared ahead of the one that training has, as many as torch prefetches for each worker."""


class ChunkDataLoader(DataLoader[Any]):
    """torch's DataLoader, in the order of the chunks, with batches prepared in threads.

    Takes what `torch.utils.data.DataLoader` takes, in the same places, with the same defaults; so for a
    ChunkDataset changing the import is enough. `shuffle=True` means windows of chunks, not a permutation
    of all samples.

    Parameters
    ----------
    dataset : ChunkDataset, or path of a store
        Another dataset is served by torch as usual, if a sampler is given for it.
    batch_size : int
        Per rank.
    shuffle : bool or {"window", "batch", "full"}, optional
        As for `ChunkSampler`; None and False: in order.
    sampler, batch_sampler : optional
        In place of mmapload's own order.
    num_workers : int
        0: threads of this process prepare batches, which is fastest unless samples pass through Python code.
        Otherwise worker processes, as torch has them.
    drop_last : bool
        True means `remainder="drop"`.
    window, seed, lanes, remainder
        As for `ChunkSampler`.
    memory
        As for `ChunkDataset`; only where `dataset` is a path.
    collate_fn, pin_memory, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, \
persistent_workers, pin_memory_device, in_order
        As for torch. With `num_workers=0`, `prefetch_factor` is the number of batches prepared ahead, and
        `timeout` and `pin_memory_device` have no meaning.

    Notes
    -----
    A batch is a dict of field name to tensor, (batch_size, *field shape). With `num_workers=0` a transform
    and a `collate_fn` run in the thread that iterates.

    Worker processes put batches of a ChunkDataset into shared memory that is used again, and deliver what
    torch's would. A batch may be kept: its part of that memory is used again when its last tensor is gone.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
    >>> loader = ChunkDataLoader(folder.name + "/store", batch_size=4)
    >>> [tuple(batch["x"].shape) for batch in loader]
    [(4, 3), (4, 3), (2, 3)]
    """

    def __init__(
        self,
        dataset: Dataset[Any] | StrPath,
        batch_size: int | None = 1,
        shuffle: bool | str | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        window: int | str = "auto",
        seed: int = 0,
        lanes: int | None = None,
        remainder: Remainder | None = None,
        memory: str | float = "auto",
        **others: Any,
    ) -> None:
        if isinstance(dataset, (str, os.PathLike)):
            dataset = ChunkDataset(dataset, memory=memory)
        elif memory != "auto":
            raise ValueError("memory belongs to the dataset: pass it to ChunkDataset(memory=...)")
        if isinstance(dataset, ChunkDataset):
            dataset.workers = num_workers
        if "transform" in others:
            raise TypeError("a transform belongs to the dataset: ChunkDataset(path, transform=...)")
        self._prefetch = PREFETCH if prefetch_factor is None else prefetch_factor
        if not isinstance(self._prefetch, int) or self._prefetch < 1:
            raise ValueError(f"prefetch_factor is an integer from 1 up, not {prefetch_factor!r}")
        others.update(
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
        )
        self._handover = Handover()
        self._chunks: ChunkBatchSampler | None = None
        if sampler is not None or batch_sampler is not None or batch_size is None:
            if isinstance(shuffle, str) or window != "auto" or lanes is not None or remainder is not None:
                raise ValueError(
                    "window, lanes, remainder and shuffle by name belong to mmapload's order of batches: "
                    "give them to the sampler where you have one, and not with batch_size=None"
                )
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last, **others
            )
            if isinstance(batch_sampler, ChunkBatchSampler) and batch_sampler.sampler.dataset is dataset:
                self._follow(batch_sampler)
            return
        if drop_last and remainder not in {None, "drop"}:
            raise ValueError(f"drop_last=True means remainder='drop', not {remainder!r}")
        chunks = ChunkBatchSampler(
            dataset,  # type: ignore[arg-type] # refused there with advice if it is none
            batch_size,
            shuffle=shuffle,
            window=window,
            seed=seed,
            lanes=lanes,
            remainder="drop" if drop_last else remainder,
        )
        super().__init__(dataset, batch_sampler=chunks, **others)
        self._follow(chunks)
        # torch leaves these at None and False beside a batch sampler; users read them.
        self.__dict__.update(batch_size=batch_size, drop_last=chunks.drop_last, sampler=chunks.sampler)

    def _follow(self, chunks: ChunkBatchSampler) -> None:
        self._chunks = chunks
        chunks.sampler.lag = max(1, self.num_workers) * self._prefetch  # batches that are not read yet

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration; without it, each iteration is the next epoch.

        Raises
        ------
        AttributeError
            If the loader was given a sampler that has no epochs.
        """
        for sampler in (self.batch_sampler, getattr(self.batch_sampler, "sampler", None), self.sampler):
            fix = getattr(sampler, "set_epoch", None)
            if fix is not None:
                fix(epoch)
                return
        raise AttributeError("this loader's sampler has no epochs")

    @property
    def worker_batches(self) -> Counts:
        """How batches came back from worker processes so far: in memory used again, or torch's way."""
        return self._handover.counts

    def __iter__(self) -> Any:
        dataset = self.dataset
        if self.num_workers:
            return self._from_workers()
        if self._chunks is None or not isinstance(dataset, ChunkDataset):
            return super().__iter__()
        kind = type(dataset)
        if (
            kind.__getitem__ is not ChunkDataset.__getitem__
            or kind.__getitems__ is not ChunkDataset.__getitems__
        ):
            return super().__iter__()
        return self._from_threads(dataset, self._chunks.sampler.batches())

    def _get_iterator(self) -> Any:
        """Make torch's iterator over worker processes: its batches come back in recycled memory."""
        dataset = self.dataset
        if not self.num_workers or self.batch_sampler is None or not isinstance(dataset, ChunkDataset):
            return super()._get_iterator()
        size = getattr(self.batch_sampler, "batch_size", None)
        nbytes = size * sum(field.sample_nbytes for field in dataset.fields) if size else None
        slots = self._handover.begin(self.num_workers * self._prefetch, nbytes)
        if slots is None:
            return super()._get_iterator()
        # Where nobody but the dataset sees a batch before it is sent, it may be put together in its slot.
        gather = type(dataset) is ChunkDataset and self.collate_fn is default_collate
        view: DataLoader[Any] = object.__new__(type(self))
        view.__dict__.update(
            self.__dict__,
            collate_fn=SlotCollate(self.collate_fn, slots.file),
            batch_sampler=SlotSampler(self.batch_sampler, self.num_workers, slots, gather=gather),
        )
        return DataLoader._get_iterator(view)  # noqa: SLF001 - what torch's own __iter__ calls

    def _from_workers(self) -> Iterator[Any]:
        """Serve what torch's workers make; one that died is a WorkerError."""
        if self._iterator is not None and not all(_are_alive(self._iterator)):
            self._finish_workers(self._iterator)
        iterator: Any = None
        try:
            iterator = super().__iter__()
            # Not a loop: its variable would hold each batch until the next has come.
            yield from map(self._handover.note_arrival, iterator)
        except (RuntimeError, ConnectionError, EOFError) as error:
            # torch tells of a dead worker only by the text of a RuntimeError, or fails to fetch what that had
            # ready. An error that a worker caught and sent over is another thing, and begins with "Caught".
            sent_over = isinstance(error, MmaploadError) or str(error).startswith("Caught")
            unrelated = isinstance(error, RuntimeError) and "DataLoader worker (pid" not in str(error)
            if sent_over or unrelated:
                raise
            iterator = iterator or self._iterator
            self._iterator = None  # persistent workers: torch would wait for the one that ended
            raise WorkerError(
                f"a worker process ended without its batch ({error}). If it was killed for want of memory, "
                "use fewer workers, a smaller batch_size or a smaller ChunkDataset(memory=...); without a "
                "Python transform, num_workers=0 is faster"
            ) from error
        finally:
            if iterator is not None and iterator is not self._iterator:
                self._finish_workers(iterator)

    def _finish_workers(self, iterator: Any) -> None:
        """End the workers of an iteration now: the error that ends it may keep torch's iterator alive."""
        if self._iterator is iterator:
            self._iterator = None
        with suppress(RuntimeError):  # that a worker was killed: it was to end in any case
            iterator._shutdown_workers()  # noqa: SLF001 - what torch's own __del__ calls
        sampler = iterator._index_sampler  # noqa: SLF001 - what `_get_iterator` gave it
        if isinstance(sampler, SlotSampler) and not any(_are_alive(iterator)):
            self._handover.end(sampler.slots)

    def _from_threads(self, dataset: ChunkDataset, indices: Iterator[npt.NDArray[np.int64]]) -> Iterator[Any]:
        """Keep `prefetch` batches in preparation; an error surfaces at its batch, with its own traceback."""
        coming: deque[Future[ReadyBatch]] = deque()
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix="mmapload-batch")
        try:
            for batch in indices:
                coming.append(threads.submit(self._prepare, dataset, batch))
                if len(coming) > self._prefetch:
                    yield self._finish(dataset, coming.popleft().result())
            while coming:
                yield self._finish(dataset, coming.popleft().result())
        finally:
            threads.shutdown(wait=True, cancel_futures=True)
            indices.close()  # type: ignore[attr-defined] # a generator: ends its loading ahead

    def _prepare(self, dataset: ChunkDataset, indices: npt.NDArray[np.int64]) -> ReadyBatch:
        batch = dataset.read(indices)
        if self._pins:
            batch.tensors.update({name: tensor.pin_memory() for name, tensor in batch.tensors.items()})
        return batch

    @property
    def _pins(self) -> bool:
        return self.pin_memory and torch.cuda.is_available()

    def _finish(self, dataset: ChunkDataset, batch: ReadyBatch) -> Any:
        samples: Sequence[Any] = dataset.finish(batch)
        found = self.collate_fn(samples)  # type: ignore[arg-type] # torch says list; a sequence will do
        # A transform or a collate_fn may have made new tensors; those that are pinned already stay.
        return pin_memory(found) if self._pins else found  # type: ignore[no-untyped-call] # torch's has no types


def _are_alive(iterator: Any) -> list[bool]:
    """Say of each worker of torch's iterator whether it is alive."""
    return [worker.is_alive() for worker in iterator._workers]  # noqa: SLF001 - torch has no public name
