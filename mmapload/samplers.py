"""Samplers that follow the chunks of a store, for torch's own DataLoader and for mmapload's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler

from mmapload.dataset import ChunkDataset
from mmapload.order import epoch_order
from mmapload.passes import EpochPass, SampleNumbers
from mmapload.ranks import find_ranks
from mmapload.selection import mode_of
from mmapload.state import SavedState
from mmapload.streams import Stream
from mmapload.windows import (
    checked_integer,
    fit_window,
    look_ahead,
    warn_of_lanes,
    warn_of_order,
    warn_of_room,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

    from mmapload.order import EpochOrder, Mode, Remainder
    from mmapload.ranks import Ranks
    from mmapload.windows import Lookahead

__all__ = ["ChunkSampler"]


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
        mode = mode_of(shuffle)
        if mode != "window" and (window != "auto" or lanes is not None):
            raise ValueError(f"window and lanes belong to shuffle='window', and shuffle is {shuffle!r}")
        self.ranks: Ranks = find_ranks(rank, world_size)
        self.dataset = self._chunk_dataset = dataset
        self.batch_size = checked_integer("batch_size", batch_size, 1)
        self.rank, self.num_replicas = self.ranks.rank, self.ranks.world_size
        self.mode: Mode = mode
        self.shuffle = self.mode != "sequential"
        self.seed = checked_integer("seed", seed, 0)
        by_default = self.ranks.nodes if mode == "window" else 1
        self.lanes = by_default if lanes is None else checked_integer("lanes", lanes, 1)
        if mode == "window" and lanes is None and not dataset.is_raw:
            warn_of_lanes(self.lanes, self.ranks)
        usual: Remainder = "keep" if self.num_replicas == 1 else "pad"
        self.remainder: Remainder = usual if remainder is None else remainder
        self.window = None if self.mode != "window" else self._fit(window)
        self.epoch = 0
        self.lag: int | None = None
        self._remainder_given = remainder is not None
        self._fingerprint = dataset.store.fingerprint
        self.begun: EpochPass | None = None  # None: the next iteration is that of `epoch`, from `_start`
        self._start = 0
        order = self.order(0)
        order.check_world_size(self.num_replicas)
        self._measure(order)
        dataset.follows_chunks = True
        warn_of_order(order, len(dataset), dataset.memory if dataset.exceeds_memory else None)

    def _measure(self, order: EpochOrder) -> None:
        self.drop_last = self.remainder == "drop"
        self.num_samples = order.rank_length(self.rank, self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.steps = order.steps

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
        return SampleNumbers(self.begin, self.lists, self.batch_size)

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration.

        If that is the epoch which has just been restored, it goes on where it was restored; else it begins at
        its first batch.

        Raises
        ------
        ValueError
            If it is no integer in [0, 2**64).
        """
        epoch = checked_integer("epoch", epoch, 0)
        self.order(epoch)  # refuses one that is too large
        if self.begun is not None or epoch != self.epoch:
            self._start = 0
        self.epoch = epoch
        self.begun = None

    def begin(self) -> EpochPass:
        """Begin the next iteration, for `batches` or `lists`."""
        self.ranks.check_division()
        if self.begun is not None:
            self.epoch, self._start = self.epoch + 1, 0
        self.begun = EpochPass(self.epoch, self._start)
        return self.begun

    def lists(self, begun: EpochPass) -> Iterator[list[int]]:
        """Iterate by lists of sample numbers, from which the dataset learns what transforms have to know."""
        stream = Stream(self.seed, begun.epoch) if self._chunk_dataset.takes_rng else None
        for batch in self.batches(begun):
            yield batch.tolist() if stream is None else stream.numbers(batch.tolist())

    def batches(self, begun: EpochPass | None = None) -> Iterator[npt.NDArray[np.int64]]:
        """Iterate by batches of sample numbers, telling the dataset what comes next."""
        begun = begun or self.begin()
        order = self.order(begun.epoch)
        residency, pid = self._chunk_dataset.residency, os.getpid()
        ahead = self._look_ahead()
        plan = order.uses(self.rank, self.num_replicas, begun.start)
        residency.follow(plan, rows_only=self.mode == "batch", kept=ahead.kept)
        coming = order.rank_batches(self.rank, self.num_replicas, begun.start)
        try:
            for step, batch in enumerate(coming, begun.start):
                if residency.follows(plan):  # not so once another iteration has begun
                    residency.advance(step - ahead.lag, step + ahead.steps)
                yield batch
        finally:
            # A forked child may be the one that clears this iterator away; the residency is not its own.
            if os.getpid() == pid and residency.follows(plan):
                residency.follow(())

    def state_dict(self, received: int | None = None) -> dict[str, Any]:
        """Return where the order is, as a small dict that JSON can hold; the same on every rank.

        Parameters
        ----------
        received : int, optional
            Batches that the loop over a DataLoader has received since it began. A sampler does not see that,
            and a DataLoader with workers asks it for batches ahead of time. By default all that the sampler
            has handed out count as received.

        Raises
        ------
        ValueError
            If the sampler has not handed out so many.
        """
        begun = self.begun
        epoch, step = (self.epoch, self._start) if begun is None else begun.of_sampler
        if received is not None:
            handed_out = 0 if begun is None else begun.handed_out
            if checked_integer("received", received, 0) > handed_out:
                raise ValueError(f"received={received}, and the sampler has handed out {handed_out} batches")
            epoch, step = (epoch, step) if begun is None else (begun.epoch, begun.start + int(received))
        return self.state_at(epoch, step)

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at a step of an epoch."""
        return SavedState(
            fingerprint=self._fingerprint,
            seed=self.seed,
            mode=self.mode,
            window=self.window,
            lanes=self.lanes,
            global_batch=self.batch_size * self.num_replicas,
            remainder=self.remainder,
            epoch=epoch,
            step=step,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved; window and lanes are the state's from now on.

        So is the remainder, unless it was given.

        Raises
        ------
        StateMismatchError
            If the state is of another store, seed, shuffling or version; if no batch of this run begins where
            it was saved; or if it is no state.

        Warns
        -----
        UserWarning
            If two of its windows do not fit in the memory budget.
        """
        dataset, geometry = self._chunk_dataset, self._chunk_dataset.geometry
        saved = SavedState.from_dict(state)
        saved.check_store(self._fingerprint, dataset.store.path)
        order, step = saved.resumed(
            geometry,
            batch_size=self.batch_size,
            world_size=self.num_replicas,
            mode=self.mode,
            seed=self.seed,
            remainder=self.remainder if self._remainder_given else None,
        )
        self.window, self.lanes, self.remainder = order.window, order.lanes, order.remainder
        self._measure(order)
        self.epoch, self._start, self.begun = order.epoch, step, None
        if self.window is not None:
            warn_of_room(
                self.window,
                geometry,
                lanes=self.lanes,
                capacity=dataset.chunks_held,
                chunk_nbytes=dataset.chunk_nbytes,
            )

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
