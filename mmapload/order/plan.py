"""What a rank will read of the store, and when: the order turned into data for a prefetcher."""

from __future__ import annotations

from heapq import merge
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np

from mmapload.order.geometry import Use

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.arrangements import Arrangement
    from mmapload.order.chosen import Chosen
    from mmapload.order.deal import Deal, Share

__all__ = ["Located", "own_and_repeated", "plan_uses"]


class Located:
    """Where in the store's chunks samples lie, all of the store's or some that were chosen.

    Parameters
    ----------
    chunk_length : int
        Of the store.
    chosen : Chosen, optional
        The samples; by default all of the store.
    """

    __slots__ = ("_chosen", "chunk_length")

    def __init__(self, chunk_length: int, chosen: Chosen | None = None) -> None:
        self.chunk_length = chunk_length
        self._chosen = chosen

    def numbers(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the store's numbers of samples."""
        return samples if self._chosen is None else self._chosen.numbers(samples)

    def rows(
        self, low: NDArray[np.int64], high: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Say which rows of which chunks stretches of samples take, none empty.

        Returns
        -------
        chunk, row, end_row : int64 ndarrays
            Rows half open, from the first to the last that is taken.
        which : int64 ndarray
            The stretch. A whole store's lie in one chunk each, and chosen ones may take several.
        """
        length, which = self.chunk_length, np.arange(len(low))
        if self._chosen is None:
            row = low % length
            return low // length, row, row + high - low, which
        starts = self._chosen.starts
        first = np.searchsorted(starts, low, "right") - 1
        counts = np.searchsorted(starts, high, "left") - first
        which = np.repeat(which, counts)
        place = first[which] + np.arange(len(which)) - (np.cumsum(counts) - counts)[which]
        row = self._chosen.numbers(np.maximum(low[which], starts[place])) % length
        end_row = self._chosen.numbers(np.minimum(high[which], starts[place + 1]) - 1) % length + 1
        return self._chosen.chunks[place], row, end_row, which


def own_and_repeated(arrangement: Arrangement, share: Share) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples of a share: those inside the lane, and those that repeat it from its start."""
    length = arrangement.length(share.lane)
    own = np.arange(share.start, min(share.stop, length))
    repeated = np.arange(max(share.start, length), share.stop) % length
    return arrangement.samples(share.lane, own), arrangement.samples(share.lane, repeated)


def plan_uses(
    arrangement: Arrangement, deal: Deal, located: Located, rank: int, world_size: int, start: int
) -> Iterator[Use]:
    """Yield what one rank reads from step `start` on, by rising first step."""
    if start >= deal.steps:
        return
    lanes = [share.lane for share in deal.shares(0, rank, world_size)]
    streams = [_lane_uses(arrangement, deal, located, lane, rank, world_size, start) for lane in lanes]
    yield from merge(*streams, key=attrgetter("first_step"))
    if deal.left_over and deal.remainder == "pad":
        yield from _repeated_uses(arrangement, deal, located, rank, world_size)


def _lane_uses(
    arrangement: Arrangement,
    deal: Deal,
    located: Located,
    lane: int,
    rank: int,
    world_size: int,
    start: int,
) -> Iterator[Use]:
    """Yield the uses of one lane: of every span the steps at which the rank takes positions that reach it."""
    stride, regular = deal.stride, deal.regular_steps
    # The rank takes [begin, end) at step 0 and `stride` further at each regular step; the tail is what it
    # takes at a smaller last step.
    begin, end = _positions(deal.shares(0, rank, world_size), lane) if regular else (0, 0)
    tail_begin, tail_end = 0, 0
    if regular < deal.steps:
        tail_begin, tail_end = _positions(deal.shares(regular, rank, world_size), lane)
    for spans in arrangement.spans(lane, start * stride):
        first = np.maximum(-((end - 1 - spans.reach_low) // stride), 0)
        last = np.minimum((spans.reach_high - 1 - begin) // stride, regular - 1)
        tail = np.maximum(tail_begin, spans.reach_low) < np.minimum(tail_end, spans.reach_high)
        first = np.where(first <= last, first, np.where(tail, regular, deal.steps))
        last = np.where(tail, regular, last)
        first = np.maximum(first, start)
        low, high = spans.low, spans.high
        if arrangement.in_place:
            low = np.maximum(low, np.where(first < regular, first * stride + begin, tail_begin))
            high = np.minimum(high, np.where(last < regular, last * stride + end, tail_end))
        used = first <= last
        at = (spans.at + low - spans.low)[used]
        chunk, row, end_row, which = located.rows(at, at + (high - low)[used])
        columns = (chunk, row, end_row, first[used][which], last[used][which])
        for values in zip(*(column.tolist() for column in columns), strict=True):
            yield Use(*values)


def _positions(shares: list[Share], lane: int) -> tuple[int, int]:
    """Return the positions that shares take of a lane; an empty range if none."""
    return next(((share.start, share.stop) for share in shares if share.lane == lane), (0, 0))


def _repeated_uses(
    arrangement: Arrangement, deal: Deal, located: Located, rank: int, world_size: int
) -> Iterator[Use]:
    """Yield the uses of samples that fill up the last step."""
    step = deal.steps - 1
    shares = deal.shares(step, rank, world_size)
    samples = np.concatenate([own_and_repeated(arrangement, share)[1] for share in shares])
    rows: dict[int, list[int]] = {}
    for number in located.numbers(np.sort(samples)).tolist():
        rows.setdefault(number // located.chunk_length, []).append(number % located.chunk_length)
    for chunk, found in rows.items():
        yield Use(chunk, found[0], found[-1] + 1, step, step)
