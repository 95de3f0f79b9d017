"""Samplers that follow the chunks of a store, for torch's own DataLoader and for mmapload's."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.dataset import ChunkDataset
from mmapload.epochs import Epochs
from mmapload.following import Followed, followed
from mmapload.grouping import (
    chunks_waiting,
    few_rows,
    grouped_look_ahead,
    groups_of,
    warn_of_small_groups,
    warn_of_waiting,
)
from mmapload.order import GroupedOrder, epoch_order
from mmapload.passes import SampleNumbers
from mmapload.ranks import find_ranks
from mmapload.resuming import ResumableSampler
from mmapload.selection import checked_integer, mode_of
from mmapload.streams import Stream
from mmapload.weights import checked_weights
from mmapload.windows import (
    fit_window,
    look_ahead,
    warn_of_lanes,
    warn_of_order,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mmapload.order import EpochOrder, Mode, Remainder, Use
    from mmapload.passes import EpochPass
    from mmapload.windows import Lookahead

__all__ = ["ChunkSampler"]


class ChunkSampler(ResumableSampler):
    """Order the samples of a `ChunkDataset` so that whole chunks can be loaded ahead of their use.

    Takes the place of RandomSampler, SequentialSampler and DistributedSampler in `DataLoader(sampler=...)`.
    While it is iterated it tells the dataset which chunks come next.

    Parameters
    ----------
    dataset : ChunkDataset
        Or a part of one, by its `subset` or `split`; not a torch Subset, whose indices follow no chunks.
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
    weights : sequence of float, optional
        How often each sample of the dataset comes, relatively, for shuffle=True. In every epoch it comes as
        often as that says, to the next whole number below or above, drawn anew by seed and epoch.
    epoch_length : int, optional
        Samples of an epoch with weights; by default as many as the dataset has.
    groups : sequence of int, or name of a field, optional
        A number for each sample of the dataset, or an integer field of the store: then each batch, of all
        ranks together, has samples of one group. `remainder` is that of every group. Not with weights, lanes
        or shuffle="batch".

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
    >>> sorted(ChunkSampler(ds, 4, weights=[6, 2, 2, 0, 0, 0, 0, 0, 0, 0], epoch_length=5))
    [0, 0, 0, 1, 2]
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
        weights: Sequence[float] | npt.NDArray[Any] | None = None,
        epoch_length: int | None = None,
        groups: Sequence[int] | npt.NDArray[Any] | str | None = None,
    ) -> None:
        # DistributedSampler's own constructor would insist on a process group; its attributes are all here.
        if not isinstance(dataset, ChunkDataset):
            raise TypeError(
                f"a chunk sampler orders a ChunkDataset, not a {type(dataset).__name__}; "
                "for a part of one, dataset.subset() and dataset.split() stand in for torch's Subset and "
                "random_split; for other datasets, use torch's own samplers"
            )
        mode = mode_of(shuffle)
        if mode != "window" and (window != "auto" or lanes is not None):
            raise ValueError(f"window and lanes belong to shuffle='window', and shuffle is {shuffle!r}")
        if weights is None and epoch_length is not None:
            raise ValueError("epoch_length belongs to weights: without them an epoch has each sample once")
        if weights is not None and mode != "window":
            raise ValueError(f"weights belong to shuffle=True, and shuffle is {shuffle!r}")
        if groups is not None and (mode == "batch" or weights is not None or lanes not in {None, 1}):
            raise ValueError(
                "groups make batches anew, of samples that come once, in one lane: not with shuffle='batch', "
                "weights or lanes"
            )
        self.ranks = find_ranks(rank, world_size)
        self.dataset = self._chunk_dataset = dataset
        self.batch_size = checked_integer("batch_size", batch_size, 1)
        self.rank, self.num_replicas = self.ranks.rank, self.ranks.world_size
        self.mode: Mode = mode
        self.shuffle = self.mode != "sequential"
        self.seed = checked_integer("seed", seed, 0)
        self._epochs = Epochs(
            dataset.geometry,
            dataset.chosen,
            dataset.fingerprint,
            self.seed,
            None if weights is None else checked_weights(weights, len(dataset), epoch_length),
            None if groups is None else groups_of(dataset, groups),
        )
        by_default = self.ranks.nodes if mode == "window" and groups is None else 1
        self.lanes = by_default if lanes is None else checked_integer("lanes", lanes, 1)
        if mode == "window" and lanes is None and groups is None and not dataset.is_raw:
            warn_of_lanes(self.lanes, self.ranks)
        usual: Remainder = "keep" if self.num_replicas == 1 else "pad"
        self.remainder: Remainder = usual if remainder is None else remainder
        self.window = None if self.mode != "window" else self._fit(window)
        self._remainder_given = remainder is not None
        order = self.order(0)
        order.check_world_size(self.num_replicas)
        self._measure(order)
        dataset.follows_chunks = True
        warn_of_order(order, order.geometry.samples, dataset.memory if dataset.exceeds_memory else None)
        if isinstance(order, GroupedOrder):
            self._warn_of_groups(order)

    def _warn_of_groups(self, order: GroupedOrder) -> None:
        dataset, waiting = self._chunk_dataset, chunks_waiting(order)
        if self.remainder == "drop":
            warn_of_small_groups(order.groups, order.global_batch)
        if waiting > dataset.chunks_held and self.rank == 0:
            warn_of_waiting(waiting, dataset.chunk_nbytes, dataset.memory)

    def _fit(self, window: int | str) -> int:
        dataset = self._chunk_dataset
        return fit_window(
            window,
            self._epochs.geometry,
            lanes=self.lanes,
            capacity=dataset.chunks_held,
            memory=dataset.memory,
            ranks=self.ranks,
            chosen=self._epochs.chosen(0),
        )

    def order(self, epoch: int) -> EpochOrder | GroupedOrder:
        """Return the order of an epoch, a pure function of the arguments.

        Of samples that come by weights, it gives positions among those of the epoch, in rising order.
        """
        order = epoch_order(
            self._epochs.geometry,
            global_batch=self.batch_size * self.num_replicas,
            mode=self.mode,
            seed=self.seed,
            epoch=epoch,
            window=self.window,
            lanes=self.lanes,
            remainder=self.remainder,
            chosen=self._epochs.chosen(epoch),
        )
        return order if self._epochs.groups is None else GroupedOrder(order, self._epochs.groups)

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        groups = self._epochs.groups
        if (
            groups is not None
            and self.remainder == "keep"
            and groups.left_over(self.batch_size * self.num_replicas).any()
        ):
            raise ValueError(
                "samples one by one do not say where the short last batch of a group ends: use "
                "ChunkBatchSampler or ChunkDataLoader, or remainder='pad' or 'drop'"
            )
        return SampleNumbers(self.begin, self.lists, self.batch_size)

    def _check_epoch(self, epoch: int) -> None:
        self.order(epoch)  # refuses one that is too large

    def lists(self, begun: EpochPass) -> Iterator[list[int]]:
        """Iterate by lists of sample numbers, from which the dataset learns what transforms have to know."""
        stream = Stream(self.seed, begun.epoch) if self._chunk_dataset.takes_rng else None
        for batch in self.batches(begun):
            numbers = batch if isinstance(batch, list) else batch.tolist()
            yield numbers if stream is None or isinstance(batch, list) else stream.numbers(numbers)

    def batches(self, begun: EpochPass | None = None) -> Iterator[npt.NDArray[np.int64] | list[int]]:
        """Iterate by batches of sample numbers, telling the dataset what comes next.

        They are lists where samples come several times and a transform is to tell their copies apart.
        """
        begun = begun or self.begin()
        order = self.order(begun.epoch)
        plan, ahead = self._planned(order, begun.start)
        residency, rows_only = self._chunk_dataset.residency, self.mode == "batch"
        store = Followed(residency, plan, ahead, order.chosen, rows_only)
        drawn = self._epochs.drawn(begun.epoch)
        coming = order.rank_batches(self.rank, self.num_replicas, begun.start)
        with closing(followed(coming, begun.start, [store])) as batches:
            for batch in batches:
                yield batch if drawn is None else self._copies(drawn, batch, begun.epoch)

    def _copies(
        self, drawn: npt.NDArray[np.int64], places: npt.NDArray[np.int64], epoch: int
    ) -> npt.NDArray[np.int64] | list[int]:
        numbers = drawn[places]
        if not self._chunk_dataset.takes_rng:
            return numbers
        copies = places - np.searchsorted(drawn, numbers)
        return Stream(self.seed, epoch).copies(numbers.tolist(), copies.tolist())

    def _planned(self, order: EpochOrder | GroupedOrder, start: int) -> tuple[Iterator[Use], Lookahead]:
        dataset = self._chunk_dataset
        if isinstance(order, GroupedOrder):
            ahead, stay = grouped_look_ahead(order, capacity=dataset.chunks_held, lag=self.lag)
            crowded = chunks_waiting(order) > dataset.chunks_held
            few = few_rows(dataset, self.num_replicas, crowded=crowded)
            return order.uses(self.rank, self.num_replicas, start, stay=stay, few=few), ahead
        ahead = look_ahead(
            self.mode,
            order.geometry,
            global_batch=order.global_batch,
            capacity=dataset.chunks_held,
            window=self.window,
            lanes=self.lanes,
            lag=self.lag,
            chosen=order.chosen,
        )
        return order.uses(self.rank, self.num_replicas, start), ahead
