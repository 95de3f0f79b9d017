"""What an order really does, counted: how far samples move, and what meets in a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from mmapload.order import EpochOrder

__all__ = ["OrderCounts", "batches_at", "chosen_steps", "count_order", "mates_apart"]

_BLOCK: Final = 2**16  # samples counted at once
_GOLDEN: Final = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class OrderCounts:
    """Sums over the batches of an epoch that were looked at.

    Attributes
    ----------
    samples, pairs, same_chunk : int
        Samples, pairs of two in one batch, and those of them that come from one chunk.
    moved, moved_uniform : float
        Sum over the samples of |position in the epoch - number of the sample|, and its mean where samples are
        permuted uniformly.
    """

    samples: int
    pairs: int
    same_chunk: int
    moved: float
    moved_uniform: float


def chosen_steps(steps: int, most: int) -> NDArray[np.int64]:
    """Choose at most so many steps of an epoch, spread over all of it; the same for the same numbers.

    One of each of `most` equal parts, at places in them that keep step with no window: the parts of the
    golden ratio's multiples.

    Examples
    --------
    >>> chosen_steps(5, 8)
    array([0, 1, 2, 3, 4])
    >>> chosen_steps(1000, 5)
    array([  0, 323, 447, 770, 894])
    """
    if steps <= most:
        return np.arange(steps)
    parts = np.arange(most)
    return np.unique(np.minimum(((parts + parts * _GOLDEN % 1) * (steps / most)).astype(np.int64), steps - 1))


def batches_at(order: EpochOrder, steps: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield the global batches of some steps, all of an epoch's quicker than one by one."""
    if len(steps) == order.steps:
        return order.rank_batches(0, 1)
    return (order.step_batch(int(step)) for step in steps)


def count_order(order: EpochOrder, steps: NDArray[np.int64]) -> OrderCounts:
    """Count what happens to samples in the batches of some steps.

    Parameters
    ----------
    order : EpochOrder
        With remainder "keep", so that no sample repeats.
    steps : int64 ndarray, shape (k,)
        Rising.
    """
    samples = pairs = same = 0
    moved = uniform = 0.0
    for first, batches in _blocks(batches_at(order, steps)):
        sizes = np.array([len(batch) for batch in batches])
        numbers = np.concatenate(batches)
        of_batch = np.repeat(np.arange(len(batches)), sizes)
        inside = np.arange(len(numbers)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        positions = steps[first : first + len(batches)][of_batch] * order.global_batch + inside
        samples += len(numbers)
        pairs += int((sizes * (sizes - 1) // 2).sum())
        same += _same_pairs(of_batch * order.geometry.chunks + numbers // order.geometry.chunk_length)
        moved += float(np.abs(positions - numbers).sum())
        uniform += _moved_uniformly(positions, order.geometry.samples)
    return OrderCounts(samples, pairs, same, moved, uniform)


def _blocks(batches: Iterator[NDArray[np.int64]]) -> Iterator[tuple[int, Sequence[NDArray[np.int64]]]]:
    """Yield batches by the dozen or thousand, and the number of the first."""
    gathered: list[NDArray[np.int64]] = []
    first = total = 0
    for batch in batches:
        gathered.append(batch)
        total += len(batch)
        if total >= _BLOCK:
            yield first, gathered
            first, gathered, total = first + len(gathered), [], 0
    if gathered:
        yield first, gathered


def _same_pairs(keys: NDArray[np.int64]) -> int:
    """Count the pairs of equal keys."""
    _, counts = np.unique(keys, return_counts=True)
    return int((counts * (counts - 1) // 2).sum())


def _moved_uniformly(positions: NDArray[np.int64], samples: int) -> float:
    """Sum the mean distance of a sample drawn uniformly from each position; over all, (N**2 - 1) / 3."""
    before = positions.astype(float)
    after = samples - 1 - before
    return float((before * (before + 1) + after * (after + 1)).sum()) / (2 * samples)


def mates_apart(order: EpochOrder) -> float | None:
    """Return the mean distance in the order of two samples of one chunk; None where chunks hold one sample.

    Computes the whole epoch: 16 bytes a sample.

    Examples
    --------
    >>> from mmapload.order import Geometry, epoch_order
    >>> mates_apart(epoch_order(Geometry(10, 4, 2), global_batch=5, mode="sequential"))  # (4 + 1) / 3
    1.6153846153846154
    """
    samples, length = order.geometry.samples, order.geometry.chunk_length
    positions = np.empty(samples, np.int64)
    positions[np.concatenate(list(order.rank_batches(0, 1)))] = np.arange(samples)
    whole = samples // length * length
    total, pairs = 0.0, 0
    for mates in (positions[:whole].reshape(-1, length), positions[whole:].reshape(1, -1)):
        count = mates.shape[1]
        # Of sorted numbers, number i is above i of the others and below the rest.
        total += float((np.sort(mates, axis=1) @ np.arange(1 - count, count, 2)).sum()) if mates.size else 0.0
        pairs += len(mates) * (count * (count - 1) // 2)
    return total / pairs if pairs else None
