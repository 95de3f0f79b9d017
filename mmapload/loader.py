"""A torch DataLoader by class that prepares batches of a store in threads, ahead of their use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from mmapload.batchsampler import ChunkBatchSampler
from mmapload.dataset import ChunkDataset
from mmapload.devices import checked_device
from mmapload.mixing import MixedBatchSampler
from mmapload.pipeline import group_size
from mmapload.plans import LoaderPlan, plan_of
from mmapload.samplers import ChunkSampler
from mmapload.serving import ServingLoader, reads_for_workers
from mmapload.stats import LoaderStats, disk_bytes, gathered_stats
from mmapload.workers.sending import READ_AHEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt
    import torch
    from torch.utils.data import Dataset, Sampler

    from mmapload.order import Remainder
    from mmapload.store import StrPath
    from mmapload.workers.slots import Counts

__all__ = ["ChunkDataLoader"]

PREFETCH: Final = 2
"""Batches prepared ahead of the one that training has, as many as torch prefetches for each worker."""


class ChunkDataLoader(ServingLoader):
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
    window, seed, lanes, remainder, weights, epoch_length, groups
        As for `ChunkSampler`.
    memory
        As for `ChunkDataset`; only where `dataset` is a path.
    batch_transform : callable, optional
        Called with every batch, after `collate_fn`; what it returns is delivered. It runs where batches are
        prepared: in two threads at once with `num_workers=0`, else in the worker processes.
    device : str or torch.device, optional
        Where batches are delivered. To a GPU they are copied from pinned memory, beside the computation; on
        "cpu" nothing is copied.
    collate_fn, pin_memory, timeout, worker_init_fn, multiprocessing_context, generator, prefetch_factor, \
persistent_workers, pin_memory_device, in_order
        As for torch. With `num_workers=0`, `prefetch_factor` is the number of batches prepared ahead, small
        ones counted by groups of up to 32, and `pin_memory_device` has no meaning.

    Raises
    ------
    ValueError
        If arguments do not fit together, or `device` is a GPU that is not there.

    Notes
    -----
    A batch is a dict of field name to tensor, (batch_size, *field shape). With `num_workers=0` a transform
    and a `collate_fn` run in the thread that iterates; with a `batch_transform`, in the two that prepare.

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
        weights: Sequence[float] | npt.NDArray[Any] | None = None,
        epoch_length: int | None = None,
        groups: Sequence[int] | npt.NDArray[Any] | str | None = None,
        memory: str | float = "auto",
        batch_transform: Callable[[Any], Any] | None = None,
        device: str | torch.device | None = None,
        **others: Any,
    ) -> None:
        if isinstance(dataset, (str, os.PathLike)):
            dataset = ChunkDataset(dataset, memory=memory)
        elif memory != "auto":
            raise ValueError("memory belongs to the dataset: pass it to ChunkDataset(memory=...)")
        if isinstance(dataset, ChunkDataset):
            # A batch of a compressed store is decoded in this process, for whichever worker it goes to.
            batched = batch_size is not None
            dataset.workers = 0 if batched and reads_for_workers(dataset, num_workers) else num_workers
        if "transform" in others:
            raise TypeError("a transform belongs to the dataset: ChunkDataset(path, transform=...)")
        if prefetch_factor is not None and not (isinstance(prefetch_factor, int) and prefetch_factor >= 1):
            raise ValueError(f"prefetch_factor is an integer from 1 up, not {prefetch_factor!r}")
        target = checked_device(device)
        others.update(
            device=target,
            batch_transform=batch_transform,
            prefetch=PREFETCH if prefetch_factor is None else prefetch_factor,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory or (target is not None and target.type == "cuda"),
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers,
        )
        self._chunks: ChunkBatchSampler | None = None
        if sampler is not None or batch_sampler is not None or batch_size is None:
            ours = (lanes, remainder, weights, epoch_length, groups)
            if isinstance(shuffle, str) or window != "auto" or any(each is not None for each in ours):
                raise ValueError(
                    "window, lanes, remainder, groups, weights and shuffle by name belong to mmapload's "
                    "order: give them to the sampler where you have one, and not with batch_size=None"
                )
            super().__init__(
                dataset, batch_size, shuffle, sampler, batch_sampler, drop_last=drop_last, **others
            )
            if isinstance(batch_sampler, (ChunkBatchSampler, MixedBatchSampler)):
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
            weights=weights,
            epoch_length=epoch_length,
            groups=groups,
        )
        super().__init__(dataset, batch_sampler=chunks, **others)
        self._follow(chunks)
        # torch leaves these at None and False beside a batch sampler; users read them.
        self.__dict__.update(batch_size=batch_size, drop_last=chunks.drop_last, sampler=chunks.sampler)

    def _follow(self, chunks: ChunkBatchSampler | MixedBatchSampler) -> None:
        if isinstance(chunks, MixedBatchSampler):
            chunks.lag = self._prefetch * max(1, self.num_workers)
            return
        if chunks.sampler.dataset is not self.dataset:
            return
        self._chunks = chunks
        ahead = READ_AHEAD if self._reads_for_workers else self.num_workers * self._prefetch
        chunks.sampler.lag = ahead  # not read yet
        dataset = self.dataset
        if self.num_workers == 0 and isinstance(dataset, ChunkDataset):
            nbytes = chunks.batch_size * dataset.sample_nbytes
            global_batch = chunks.batch_size * chunks.sampler.num_replicas
            if self.batch_transform is None:  # a slow one would keep the others of its group back
                length, ragged = dataset.geometry.chunk_length, dataset.is_ragged
                self._grouped = group_size(nbytes, global_batch, length, ragged=ragged)
            chunks.sampler.lag = (self._prefetch + 1) * self._grouped - 1

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

    def state_dict(self) -> dict[str, Any]:
        """Return where training is: what the loop has received counts, not what is prepared for it.

        Returns
        -------
        dict
            Small, of values that JSON has; the same on every rank. Inside the loop the batch in hand counts
            as received; after its end the state is the beginning of the next epoch. See `docs/resume.md`.

        Raises
        ------
        TypeError
            If the order of batches is not mmapload's.
        ValueError
            If batches may come out of order (`in_order=False`).
        """
        sampler = self._expect_ordering()
        begun = self._begun
        if sampler.begun is None or begun is None:
            return sampler.state_dict()
        return sampler.state_at(*begun.of_training)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved, of a loader or a sampler.

        The number of workers may be another, that of ranks too. `len(loader)` stays that of a whole epoch.

        Raises
        ------
        StateMismatchError
            If the state does not belong to this store, seed or shuffling, or no batch of this run begins
            where it was saved.
        TypeError
            If the order of batches is not mmapload's.
        """
        sampler = self._expect_ordering()
        sampler.load_state_dict(state)
        if self._chunks is not None:
            self._chunks.drop_last = sampler.drop_last
            if self.drop_last != sampler.drop_last and self.batch_size is not None:
                self.__dict__["drop_last"] = sampler.drop_last

    @property
    def _ordering(self) -> ChunkSampler | MixedBatchSampler | None:
        if isinstance(self.batch_sampler, MixedBatchSampler) and self.batch_sampler.dataset is self.dataset:
            return self.batch_sampler
        found = self.sampler if self._chunks is None else self._chunks.sampler
        if not isinstance(found, ChunkSampler) or found.dataset is not self.dataset:
            return None
        return found if self._chunks is not None or self.batch_size == found.batch_size else None

    def _expect_ordering(self) -> ChunkSampler | MixedBatchSampler:
        found = self._ordering
        if found is None:
            raise TypeError(
                "only mmapload's order of batches has a state: use this loader without a sampler, or with a "
                "ChunkSampler or ChunkBatchSampler of the same dataset and batch_size"
            )
        if self.num_workers > 1 and not getattr(self, "in_order", True):
            raise ValueError(
                "with in_order=False nobody can say which batches are still to come: leave it out"
            )
        return found

    @property
    def worker_batches(self) -> Counts:
        """How batches came back from worker processes so far: in memory used again, or torch's way."""
        return self._handover.counts

    @property
    def plan(self) -> LoaderPlan | None:
        """What the order of epochs is made from; None with a sampler that is not mmapload's."""
        sampler = self._chunks.sampler if self._chunks is not None else self.sampler
        return plan_of(sampler) if isinstance(sampler, ChunkSampler) else None

    def stats(self) -> LoaderStats:
        """Say what has been delivered, who waited for whom, and what it took."""
        now, before = disk_bytes(), self._disk_before
        return gathered_stats(
            self._deliveries,
            self.dataset.reading if isinstance(self.dataset, ChunkDataset) else None,
            None if now is None or before is None else now - before,
            self.worker_batches if self.num_workers else None,
        )

    def __iter__(self) -> Any:
        dataset, mixing = self.dataset, self._ordering
        if isinstance(mixing, MixedBatchSampler) and not self.num_workers and mixing.dataset.is_plain:
            return self._from_threads(mixing.dataset, mixing)
        if self.num_workers or self._chunks is None or not isinstance(dataset, ChunkDataset):
            return self._from_torch()
        kind = type(dataset)
        if (
            kind.__getitem__ is not ChunkDataset.__getitem__
            or kind.__getitems__ is not ChunkDataset.__getitems__
        ):
            return self._from_torch()
        return self._from_threads(dataset, self._chunks.sampler)
