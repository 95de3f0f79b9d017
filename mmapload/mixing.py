"""A batch sampler for a mix of several stores, which tells each store what to load ahead for it."""

from __future__ import annotations

import hashlib
from contextlib import closing
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

from mmapload.following import Followed, followed
from mmapload.mixed import MixedDataset
from mmapload.mixedstate import MixedState
from mmapload.order.mixture import MixedOrder, MixedPart
from mmapload.order.turns import Turns, whole_shares
from mmapload.ranks import find_ranks
from mmapload.resuming import Resumable
from mmapload.selection import checked_integer, mode_of
from mmapload.streams import DrawnNumber, Stream
from mmapload.windows import fit_window, look_ahead, warn_of_room

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mmapload.dataset import ChunkDataset
    from mmapload.order.mixture import Mixture
    from mmapload.passes import EpochPass
    from mmapload.windows import Lookahead

__all__ = ["MixedBatchSampler"]


class MixedBatchSampler(Resumable, Sampler[list[int]]):
    """Order the samples of a `MixedDataset` such that each store has its proportion, in every batch.

    For `DataLoader(batch_sampler=...)`, torch's or mmapload's. Of all samples up to any one, each store has
    its share to the next whole number below or above. Each store runs through epochs of its own: every
    sample comes once before any comes again. While it is iterated it tells each store which chunks come next.

    Parameters
    ----------
    dataset : MixedDataset
        Of the stores.
    batch_size : int
        Per rank.
    proportions : sequence of float
        Of every store, above 0, with any sum. In the ratio of whole numbers whose sum is at most 10,000 they
        are exact; else they are rounded to 10,000ths of their sum.
    shuffle : bool or {"window", "full"}
        How each store's samples are shuffled: as for `ChunkSampler`.
    window : int or "auto"
        As for `ChunkSampler`, for each store.
    seed : int
        Of the order; the same on all ranks.
    rank, world_size : int, optional
        As for `ChunkSampler`.
    epoch_length : int, optional
        Samples of an epoch over all ranks, rounded up to whole global batches; by default as many as all
        stores have. The next epoch goes on where the stores are then.

    Attributes
    ----------
    shares : tuple of int
        The proportions as whole numbers.
    steps : int
        Batches in an epoch, all full, the same on every rank.
    epoch : int
        Of the iteration begun last, or of the next one.

    Raises
    ------
    ValueError
        If the numbers do not fit together.
    TypeError
        If `dataset` is no MixedDataset.

    Notes
    -----
    Each iteration is the next epoch, unless `set_epoch` has been called before it. Where `torch.distributed`
    is initialised, every rank has to make the sampler, as for `ChunkSampler`.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name in "ab":
    ...     _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], f"{folder.name}/{name}", 4)
    >>> mixed = mmapload.MixedDataset([mmapload.ChunkDataset(f"{folder.name}/{name}") for name in "ab"])
    >>> list(MixedBatchSampler(mixed, 4, [3, 1], shuffle=False))
    [[0, 1, 2, 10], [3, 4, 5, 11], [6, 7, 8, 12], [9, 0, 1, 13], [2, 3, 4, 14]]
    """

    drop_last = False

    def __init__(
        self,
        dataset: MixedDataset,
        batch_size: int,
        proportions: Sequence[float],
        *,
        shuffle: bool | str | None = True,
        window: int | str = "auto",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epoch_length: int | None = None,
    ) -> None:
        if not isinstance(dataset, MixedDataset):
            raise TypeError(f"a mix is ordered of a MixedDataset, not of a {type(dataset).__name__}")
        self.mode = mode_of(shuffle)
        if self.mode == "batch":
            raise ValueError(
                "shuffle='batch' serves a store's batches whole, and a mix has samples of several"
            )
        if self.mode != "window" and window != "auto":
            raise ValueError(f"window belongs to shuffle='window', and shuffle is {shuffle!r}")
        self.dataset = dataset
        self.batch_size = checked_integer("batch_size", batch_size, 1)
        self.seed = checked_integer("seed", seed, 0)
        if self.seed >= 2**64:
            raise ValueError(f"seed must lie in [0, 2**64), found {seed}")
        self.ranks = find_ranks(rank, world_size)
        self.rank, self.num_replicas = self.ranks.rank, self.ranks.world_size
        self._global_batch = self.batch_size * self.num_replicas
        self._turns = Turns(_checked_shares(proportions, len(dataset.datasets)))
        self.shares = self._turns.shares
        length = len(dataset) if epoch_length is None else checked_integer("epoch_length", epoch_length, 1)
        self.steps = -(-length // self._global_batch)
        self._fingerprint = self._whole_fingerprint(length)
        self._windows = (
            [self._fit(each, window) for each in dataset.datasets] if self.mode == "window" else None
        )
        self._last_epoch = 2**62 // (self.steps * self._global_batch) - 1
        for each in dataset.datasets:
            each.follows_chunks = True

    def _whole_fingerprint(self, length: int) -> str:
        numbers = np.array([*self.shares, length], "<i8").tobytes()
        stores = "".join(each.fingerprint for each in self.dataset.datasets)
        return hashlib.sha256(stores.encode() + b"mixed" + numbers).hexdigest()[:16]

    def _fit(self, dataset: ChunkDataset, window: int | str) -> int:
        return fit_window(
            window,
            dataset.geometry,
            lanes=1,
            capacity=dataset.chunks_held,
            memory=dataset.memory,
            ranks=self.ranks,
            chosen=dataset.chosen,
        )

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        # The epoch is taken with the first batch: torch's DataLoader makes iterators that it never uses.
        begun = self.begin()
        for batch in self.batches(begun):
            begun.handed_out += 1
            yield batch
        begun.exhausted = True

    def _check_epoch(self, epoch: int) -> None:
        if epoch > self._last_epoch:
            raise ValueError(f"epoch must lie in [0, {self._last_epoch}], found {epoch}")

    def batches(self, begun: EpochPass) -> Iterator[list[int]]:
        """Iterate by lists of sample numbers, telling each store what comes next."""
        start, stop = begun.epoch * self.steps + begun.start, (begun.epoch + 1) * self.steps
        order = self._order()
        stores = [
            Followed(each.residency, order.uses(place, start, stop), self._look_ahead(place), each.chosen)
            for place, each in enumerate(self.dataset.datasets)
        ]
        with closing(followed(order.batches(start, stop), start, stores)) as batches:
            for batch in batches:
                yield self._own_part(order, batch)

    def _order(self) -> MixedOrder:
        return MixedOrder(
            tuple(MixedPart(each.geometry, each.chosen) for each in self.dataset.datasets),
            self._turns,
            self.mode,
            self.seed,
            None if self._windows is None else tuple(self._windows),
            self._global_batch,
        )

    def _own_part(self, order: MixedOrder, batch: Mixture) -> list[int]:
        """Return this rank's numbers of a global batch, store by store, since so they are read."""
        part = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        stores, samples, visits = batch.stores[part], batch.samples[part], batch.visits[part]
        by_store = np.argsort(stores, kind="stable")
        numbers: list[int] = (samples + self.dataset.offsets[stores])[by_store].tolist()
        if not any(each.takes_rng for each in self.dataset.datasets):
            return numbers
        told = zip(numbers, stores[by_store].tolist(), visits[by_store].tolist(), strict=True)
        return [DrawnNumber(number, Stream(order.own_seed(store), visit)) for number, store, visit in told]

    def _look_ahead(self, store: int) -> Lookahead:
        dataset = self.dataset.datasets[store]
        return look_ahead(
            self.mode,
            dataset.geometry,
            global_batch=ceil(self._global_batch * self.shares[store] / self._turns.period),
            capacity=dataset.chunks_held,
            window=None if self._windows is None else self._windows[store],
            lag=self.lag,
            chosen=dataset.chosen,
        )

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at a step of an epoch."""
        return self._state(epoch, step).to_dict()

    def _state(self, epoch: int, step: int) -> MixedState:
        return MixedState(
            self._fingerprint, self.seed, self.mode, self._windows, self._global_batch, epoch=epoch, step=step
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved; windows are the state's from now on.

        Raises
        ------
        StateMismatchError
            If the state is of other stores, proportions, seed, shuffling, length of an epoch or global batch.

        Warns
        -----
        UserWarning
            If two of its windows do not fit in the memory budget of their store.
        """
        saved = MixedState.from_dict(state)
        saved.check(self._state(0, 0), self.steps, self._last_epoch)
        self._windows = saved.windows
        self._go_on_at(saved.epoch, saved.step)
        for window, dataset in zip(saved.windows or (), self.dataset.datasets, strict=False):
            warn_of_room(
                window,
                dataset.geometry,
                lanes=1,
                capacity=dataset.chunks_held,
                chunk_nbytes=dataset.chunk_nbytes,
                chosen=dataset.chosen,
            )


def _checked_shares(proportions: Sequence[float], stores: int) -> tuple[int, ...]:
    found = np.asarray(proportions).tolist() if hasattr(proportions, "__array__") else list(proportions)
    if len(found) != stores:
        raise ValueError(f"proportions are one for each of {stores} stores, not {len(found)}")
    for store, each in enumerate(found):
        real = isinstance(each, (int, float, np.integer, np.floating)) and not isinstance(each, bool)
        if not (real and isfinite(each) and each > 0):
            raise ValueError(
                f"a proportion is a finite number above 0, and that of store {store} is {each!r}"
            )
    return whole_shares([int(each) if isinstance(each, np.integer) else float(each) for each in found])
