"""Samplers that follow the chunks of a store, for torch's own DataLoader and for mmapload's."""

from __future__ import annotations

import os
import warnings
from collections.abc import Hashable
from typing import TYPE_CHECKING, Final

from torch.utils.data import BatchSampler, DistributedSampler

from mmapload.dataset import ChunkDataset
from mmapload.order import epoch_order
from mmapload.ranks import find_ranks
from mmapload.sizes import format_size
from mmapload.windows import checked_integer, fit_window, levels_to_caller, look_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from mmapload.order import EpochOrder, Mode, Remainder
    from mmapload.ranks import Ranks
    from mmapload.windows import Lookahead

__all__ = ["ChunkBatchSampler", "ChunkSampler"]

_MODES: Final[dict[bool | str | None, Mode]] = {
    None: "sequential",
    False: "sequential",
    True: "window",
    "window": "window",
    "batch": "batch",
    "full": "full",
}


class ChunkSampler(DistributedSampler[int]):
    """Order the samples of a `ChunkDataset` so that whole chunks can be loaded ahead of their use.

    Takes the place of RandomSampler, SequentialSampler and DistributedSampler in `DataLoader(sampler=...)`.
    While it is iterated it tells the dataset which chunks come next.

    Parameters
    ----------
    dataset : ChunkDataset
        Not a Subset of one: its indices do not follow the chunks.
    batch_size : int
        Per rank; the same as the DataLoader's.
    shuffle : bool or {"window", "batch", "full"}
        True is "window": samples mixed within a moving window of chunks in random order. "batch": the
        batches that the store was made with, in random order. "full": a permutation of all samples, for data
        that fit in memory. False: in order. `docs/order.md` has them in full.
    window : int or "auto"
        Samples that are mixed with each other; "auto" is the larger of 1,024 samples and 16 chunks. Two
        windows have to fit in the dataset's memory budget, else the window is cut to whole chunks, with a
        warning.
    seed : int
        Of the order; the same on all ranks.
    rank, world_size : int, optional
        By default those of `torch.distributed` where it is initialised, else 0 of 1. Given by hand, the
        ranks cannot agree on a smaller window, so one that does not fit is a ValueError.
    lanes : int, optional
        Groups of ranks with windows of their own; by default one a machine, so that its ranks share a
        window. More lanes than machines hold as many windows on each.
    remainder : {"keep", "pad", "drop"}, optional
        What becomes of the last samples where they do not fill a batch on every rank. By default kept on
        one rank and padded on several; every rank has the same number of steps in any case.

    Raises
    ------
    ValueError
        If the numbers do not fit together; the message names values that do.
    TypeError
        If `dataset` is no ChunkDataset.

    Notes
    -----
    Each iteration is the next epoch, unless `set_epoch` has been called before it.

    Where `torch.distributed` is initialised and samples are shuffled in windows, the ranks agree on the
    window while the sampler is made: every rank has to make it, as for any collective operation.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
    >>> ds = mmapload.ChunkDataset(folder.name + "/store")
    >>> sampler = ChunkSampler(ds, 4)
    >>> sorted(sampler) == list(range(10)), len(sampler)
    (True, 10)
    >>> list(ChunkSampler(ds, 4, shuffle=False, rank=1, world_size=2))
    [4, 5, 6, 7, 2, 3, 4, 5]
    """

    def __init__(
        self,
        dataset: ChunkDataset,
        batch_size: int,
        *,
        shuffle: bool | str | None = True,
        window: int | str = "auto",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        remainder: Remainder | None = None,
    ) -> None:
        # DistributedSampler's own constructor would insist on a process group; its attributes are all here.
        if not isinstance(dataset, ChunkDataset):
            raise TypeError(
                f"a chunk sampler orders a ChunkDataset, not a {type(dataset).__name__}; "
                "a Subset follows no chunks: preprocess its parts into stores of their own (--list FILE), or "
                "use torch's own samplers"
            )
        mode = _MODES.get(shuffle) if isinstance(shuffle, Hashable) else None
        if mode is None:
            raise ValueError(f"shuffle is True, False, 'window', 'batch' or 'full', not {shuffle!r}")
        if mode != "window" and (window != "auto" or lanes is not None):
            raise ValueError(f"window and lanes belong to shuffle='window', and shuffle is {shuffle!r}")
        self.ranks: Ranks = find_ranks(rank, world_size)
        self.dataset = self._chunk_dataset = dataset
        self.batch_size = checked_integer("batch_size", batch_size, 1)
        self.num_replicas = self.ranks.world_size
        self.rank = self.ranks.rank
        self.mode: Mode = mode
        self.shuffle = self.mode != "sequential"
        self.seed = checked_integer("seed", seed, 0)
        by_default = self.ranks.nodes if mode == "window" else 1
        self.lanes = by_default if lanes is None else checked_integer("lanes", lanes, 1)
        usual: Remainder = "keep" if self.num_replicas == 1 else "pad"
        self.remainder: Remainder = usual if remainder is None else remainder
        self.drop_last = self.remainder == "drop"
        self.window = None if self.mode != "window" else self._fit(window)
        self.epoch = 0
        self.lag: int | None = None
        self._fresh = True
        order = self.order(0)
        order.check_world_size(self.num_replicas)
        self.num_samples = order.rank_length(self.rank, self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.steps = order.steps
        dataset.follows_chunks = True
        self._warn_of(order)

    def _fit(self, window: int | str) -> int:
        dataset = self._chunk_dataset
        return fit_window(
            window,
            dataset.geometry,
            lanes=self.lanes,
            capacity=dataset.chunks_held,
            memory=dataset.memory,
            ranks=self.ranks,
        )

    def _warn_of(self, order: EpochOrder) -> None:
        dataset = self._chunk_dataset
        if self.steps == 0:
            warnings.warn(
                f"{len(dataset)} samples do not fill one batch of {order.global_batch} over all ranks, and "
                "remainder='drop' (or drop_last=True) leaves none: take a smaller batch_size or 'keep'",
                stacklevel=levels_to_caller(),
            )
        if self.mode == "full" and dataset.exceeds_memory:
            warnings.warn(
                "shuffle='full' reads samples one by one, at random, from more than the dataset's memory "
                f"budget of {format_size(dataset.memory)} holds: shuffle='window' reads whole chunks ahead",
                stacklevel=levels_to_caller(),
            )

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch, a pure function of the arguments."""
        return epoch_order(
            self._chunk_dataset.geometry,
            global_batch=self.batch_size * self.num_replicas,
            mode=self.mode,
            seed=self.seed,
            epoch=epoch,
            window=self.window,
            lanes=self.lanes,
            remainder=self.remainder,
        )

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        for batch in self.batches():
            yield from batch.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration.

        Raises
        ------
        ValueError
            If it is no integer in [0, 2**64).
        """
        epoch = checked_integer("epoch", epoch, 0)
        self.order(epoch)  # refuses one that is too large
        self.epoch = epoch
        self._fresh = True

    def batches(self) -> Iterator[npt.NDArray[np.int64]]:
        """Iterate over an epoch by batches of sample numbers, telling the dataset what comes next."""
        # The epoch is taken with the first batch: torch's DataLoader makes iterators that it never uses.
        if not self._fresh:
            self.epoch += 1
        self._fresh = False
        order = self.order(self.epoch)
        residency, pid = self._chunk_dataset.residency, os.getpid()
        ahead = self._look_ahead()
        plan = order.uses(self.rank, self.num_replicas)
        residency.follow(plan, rows_only=self.mode == "batch", kept=ahead.kept)
        try:
            for step, batch in enumerate(order.rank_batches(self.rank, self.num_replicas)):
                if residency.follows(plan):  # not so once another iteration has begun
                    residency.advance(step - ahead.lag, step + ahead.steps)
                yield batch
        finally:
            # A forked child may be the one that clears this iterator away; the residency is not its own.
            if os.getpid() == pid and residency.follows(plan):
                residency.follow(())

    def _look_ahead(self) -> Lookahead:
        return look_ahead(
            self.mode,
            self._chunk_dataset.geometry,
            global_batch=self.batch_size * self.num_replicas,
            capacity=self._chunk_dataset.chunks_held,
            window=self.window,
            lanes=self.lanes,
            lag=self.lag,
        )


class ChunkBatchSampler(BatchSampler):
    """The same order by batches, for `DataLoader(batch_sampler=...)`; arguments as for `ChunkSampler`.

    Attributes
    ----------
    sampler : ChunkSampler
        Holds the epoch.
    batch_size : int
        Per rank.
    drop_last : bool
        Whether the last samples are left out where they do not fill a batch on every rank.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
    >>> ds = mmapload.ChunkDataset(folder.name + "/store")
    >>> list(ChunkBatchSampler(ds, 4, shuffle=False))
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self,
        dataset: ChunkDataset,
        batch_size: int,
        *,
        shuffle: bool | str | None = True,
        window: int | str = "auto",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        remainder: Remainder | None = None,
    ) -> None:
        sampler = ChunkSampler(
            dataset,
            batch_size,
            shuffle=shuffle,
            window=window,
            seed=seed,
            rank=rank,
            world_size=world_size,
            lanes=lanes,
            remainder=remainder,
        )
        super().__init__(sampler, batch_size, drop_last=sampler.drop_last)
        self.sampler: ChunkSampler = sampler

    def __len__(self) -> int:
        return self.sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.sampler.batches():
            yield batch.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration."""
        self.sampler.set_epoch(epoch)
