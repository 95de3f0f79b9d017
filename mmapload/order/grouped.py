"""Batches of one group each, made of an order as it is walked along.

Every sample goes to the open batch of its group, and a batch is served when it is full or its group has come
to its end. Where all stand is tabulated once for an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.order.checks import check_world_size
from mmapload.order.plan import Located
from mmapload.order.visits import planned_visits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.chosen import Chosen
    from mmapload.order.epoch import EpochOrder
    from mmapload.order.geometry import Geometry, Mode, Remainder, Use

__all__ = ["GroupedOrder", "Groups"]

_BLOCK: Final = 2**16  # samples that are walked along, or served, at once


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Which group every sample is of.

    Attributes
    ----------
    codes : ndarray of an unsigned dtype, shape (samples,)
        Groups by their places among `numbers`.
    numbers : int64 ndarray, shape (groups,)
        What the groups are called, rising.
    sizes : int64 ndarray, shape (groups,)
        Samples of each, at least 1.
    digest : bytes
        Of the samples' group numbers.
    """

    codes: NDArray[np.unsignedinteger]
    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]
    digest: bytes = b""

    def left_over(self, global_batch: int) -> NDArray[np.int64]:
        """Return how many samples of each group do not fill a last global batch."""
        return self.sizes % global_batch

    def steps(self, global_batch: int, remainder: Remainder) -> int:
        """Return the number of global batches in an epoch."""
        more = remainder != "drop" and np.count_nonzero(self.left_over(global_batch))
        return int((self.sizes // global_batch).sum()) + int(more)


@dataclass(frozen=True, slots=True)
class _Table:
    """Where the batches of an epoch stand.

    Attributes
    ----------
    samples : int32 or int64 ndarray
        Of all groups, one after another, each in the order of the walk.
    openings : int64 ndarray, shape (groups,)
        Where each group begins there.
    codes, begins, counts : ndarrays, shape (steps,)
        Of every step its group, and where its own samples stand.
    """

    samples: NDArray[np.signedinteger]
    openings: NDArray[np.int64]
    codes: NDArray[np.int64]
    begins: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GroupedOrder:
    """The order of an epoch whose global batches have samples of one group each.

    Parameters
    ----------
    walk : EpochOrder
        In one lane; samples of a group keep its order. Its global batch and remainder are those of the
        groups.
    groups : Groups
        Of its samples.

    Examples
    --------
    >>> from mmapload.order import Geometry, epoch_order
    >>> walk = epoch_order(Geometry(9, 4, 1), global_batch=2, mode="sequential", remainder="pad")
    >>> codes = np.array([0, 1, 0, 0, 2, 1, 1, 0, 0], np.uint8)
    >>> order = GroupedOrder(walk, Groups(codes, np.arange(3), np.bincount(codes)))
    >>> [(order.group(step), order.step_batch(step).tolist()) for step in range(order.steps)]
    [(0, [0, 2]), (2, [4, 4]), (1, [1, 5]), (1, [6, 1]), (0, [3, 7]), (0, [8, 0])]
    """

    walk: EpochOrder
    groups: Groups = field(repr=False)

    @property
    def geometry(self) -> Geometry:
        """How the store is cut."""
        return self.walk.geometry

    @property
    def epoch(self) -> int:
        """Which epoch."""
        return self.walk.epoch

    @property
    def mode(self) -> Mode:
        """How samples are shuffled."""
        return self.walk.mode

    @property
    def window(self) -> int | None:
        """Samples in a window, in mode "window"; otherwise None."""
        return self.walk.window

    @property
    def lanes(self) -> int:
        """Number of lanes: 1."""
        return self.walk.lanes

    @property
    def global_batch(self) -> int:
        """Samples of all ranks together in a step."""
        return self.walk.global_batch

    @property
    def remainder(self) -> Remainder:
        """What becomes of the samples that do not fill a last global batch of their group."""
        return self.walk.remainder

    @property
    def chosen(self) -> Chosen | None:
        """The samples of the store that the order is over; None: all."""
        return self.walk.chosen

    @property
    def steps(self) -> int:
        """Number of global batches, the same on every rank and in every epoch."""
        return self.groups.steps(self.global_batch, self.remainder)

    @property
    def dropped(self) -> int:
        """Number of samples left out by remainder "drop"."""
        return int(self.groups.left_over(self.global_batch).sum()) if self.remainder == "drop" else 0

    @property
    def padded(self) -> int:
        """Number of samples that remainder "pad" serves once more."""
        extra = self.steps * self.global_batch - self.geometry.samples
        return extra if self.remainder == "pad" else 0

    def check_world_size(self, world_size: int) -> None:
        """Check that so many ranks can share this order.

        Raises
        ------
        ValueError
            The ranks do not divide the global batch, or remainder "keep" would leave some without a sample at
            the last step of a group.
        """
        check_world_size(self.global_batch, world_size)
        left = self.groups.left_over(self.global_batch)
        few = np.flatnonzero((left > 0) & (left < world_size))
        if self.remainder == "keep" and few.size:
            code = few[0]
            raise ValueError(
                f"the last global batch of group {self.groups.numbers[code]} has {left[code]} of its "
                f"{self.groups.sizes[code]} samples, fewer than the {world_size} ranks (so it is with "
                f"{few.size} groups): use remainder='pad' or 'drop', or fewer ranks"
            )

    def rank_length(self, rank: int, world_size: int) -> int:
        """Return the number of samples that one rank gets in the whole epoch."""
        self._check_rank(rank, world_size)
        own = self.global_batch // world_size
        if self.remainder != "keep":
            return self.steps * own
        left = self.groups.left_over(self.global_batch)
        kept = (rank + 1) * left // world_size - rank * left // world_size
        return int((self.groups.sizes // self.global_batch).sum()) * own + int(kept.sum())

    def group(self, step: int) -> int:
        """Return the number of the group that the samples of a step are of."""
        return int(self.groups.numbers[self._table.codes[self._checked(step)]])

    def step_batch(self, step: int) -> NDArray[np.int64]:
        """Return the samples of all ranks at one step, in the ranks' order."""
        return self.rank_batch(step, 0, 1)

    def rank_batch(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """Return the samples of one rank at one step: global_batch / world_size, or less with "keep"."""
        self._check_rank(rank, world_size)
        step = self._checked(step)
        return self._served(step, step + 1, rank, world_size)[0]

    def rank_batches(self, rank: int, world_size: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Iterate over the samples of one rank, step by step."""
        self._check_rank(rank, world_size)
        self._check_start(start)
        return self._stream(rank, world_size, start)

    def uses(self, rank: int, world_size: int, start: int = 0, *, stay: int, few: int = 0) -> Iterator[Use]:
        """Iterate over what of the store one rank touches and when.

        Parameters
        ----------
        rank, world_size : int
            Which rank, of how many.
        start : int
            First step, in [0, steps].
        stay : int
            Steps that a chunk may stay for one visit. What is taken from it later is another visit.
        few : int
            Visits for no more rows than this are left out.

        Returns
        -------
        iterator of Use
            By rising first step, one for each visit; computed `stay` + 1 steps at a time. None in mode
            "full".
        """
        self._check_rank(rank, world_size)
        self._check_start(start)
        if self.mode == "full":
            return iter(())
        located = Located(self.geometry.chunk_length, self.chosen)
        chunks = self.geometry.chunks if self.chosen is None else int(self.chosen.chunks[-1]) + 1

        def numbers(low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            samples, counts = self._served(low, high, rank, world_size)
            return located.numbers(samples), counts

        return planned_visits(numbers, start, self.steps, chunks, located.chunk_length, stay=stay, few=few)

    def _check_rank(self, rank: int, world_size: int) -> None:
        self.check_world_size(world_size)
        if not 0 <= rank < world_size:
            raise IndexError(f"expected a rank in [0, {world_size}), found {rank}")

    def _check_start(self, start: int) -> None:
        if not 0 <= start <= self.steps:
            raise IndexError(f"expected a first step in [0, {self.steps}], found {start}")

    def _checked(self, step: int) -> int:
        if not 0 <= step < self.steps:
            raise IndexError(f"expected a step in [0, {self.steps}), found {step}")
        return step

    def _stream(self, rank: int, world_size: int, start: int) -> Iterator[NDArray[np.int64]]:
        block = max(1, _BLOCK * world_size // self.global_batch)
        for low in range(start, self.steps, block):
            samples, counts = self._served(low, min(low + block, self.steps), rank, world_size)
            yield from np.split(samples, np.cumsum(counts)[:-1])

    def _served(
        self, low: int, high: int, rank: int, world_size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return what a rank gets at steps `low` up to `high`, and how much of it at each."""
        table = self._table
        codes, begins, sizes = table.codes[low:high], table.begins[low:high], table.counts[low:high]
        if self.remainder == "pad":
            sizes = np.full_like(sizes, self.global_batch)
        first, last = rank * sizes // world_size, (rank + 1) * sizes // world_size
        counts = last - first
        openings = table.openings[codes]
        # Places in their groups; beyond its end a group begins anew.
        places = np.repeat(begins - openings + first - (np.cumsum(counts) - counts), counts)
        places += np.arange(len(places))
        places %= np.repeat(self.groups.sizes[codes], counts)
        places += np.repeat(openings, counts)
        return table.samples[places].astype(np.int64), counts

    @cached_property
    def _table(self) -> _Table:
        """Walk along the epoch, and note where every sample stands in its group and every batch is full."""
        size, sizes, samples = self.global_batch, self.groups.sizes, self.geometry.samples
        openings = np.cumsum(sizes) - sizes
        coming = openings.copy()  # where the next sample of each group goes
        kind: type[np.signedinteger] = np.int32 if samples < 2**31 else np.int64
        found: NDArray[np.signedinteger] = np.empty(samples, kind)
        dues, ends = [], []
        for low in range(0, samples, _BLOCK):
            walked = self.walk.at(np.arange(low, min(low + _BLOCK, samples)))
            codes = self.groups.codes[walked]
            by_group = np.argsort(codes, kind="stable")
            codes = codes[by_group]
            counts = np.bincount(codes, minlength=len(sizes))
            places = (coming - np.cumsum(counts) + counts)[codes] + np.arange(len(codes))
            found[places] = walked[by_group]
            coming += counts
            after = places + 1 - openings[codes]
            full = np.flatnonzero((after % size == 0) | (after == sizes[codes]))
            dues.append(low + by_group[full])
            ends.append(places[full] + 1)
        due, end = np.concatenate(dues), np.concatenate(ends)
        end = end[np.argsort(due)]
        code = np.searchsorted(openings, end - 1, "right") - 1
        begin = openings[code] + (end - 1 - openings[code]) // size * size
        if self.remainder == "drop":
            whole = end - begin == size
            end, code, begin = end[whole], code[whole], begin[whole]
        return _Table(found, openings, code, begin, end - begin)
