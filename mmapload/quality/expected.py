"""How many pairs in a batch come from one chunk, in closed form: the mean over all permutations.

In mode "window" the mean is taken inside windows, given how their borders cut the chunks; these lie in
random order, but only the place of the short last chunk changes any cut. Nothing is drawn here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.order.bijection import bijection
from mmapload.order.deal import Deal
from mmapload.order.philox import Purpose, stream_key

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mmapload.order import Geometry, Mode

__all__ = ["Batching", "expected_pairs", "pairs_of", "short_slot", "uniform_rate"]

_PIECES: Final = 2**18  # windows cut by batches that are looked at together


@dataclass(frozen=True, slots=True)
class Batching:
    """What decides how a store is mixed, but for the seed and the epoch.

    Attributes
    ----------
    geometry : Geometry
        How the store is cut.
    global_batch : int
        Samples of all ranks in a step.
    mode : {"window", "batch", "full", "sequential"}
        How samples are shuffled.
    window : int or None
        Samples in the windows of all lanes together, in mode "window".
    lanes : int
        Their number.
    """

    geometry: Geometry
    global_batch: int
    mode: Mode
    window: int | None = None
    lanes: int = 1

    @property
    def steps(self) -> int:
        """Number of batches in an epoch, a smaller last one included."""
        return -(-self.geometry.samples // self.global_batch)


def uniform_rate(geometry: Geometry) -> float:
    """Return the share of all pairs of samples that come from one chunk; 0 where there is no pair.

    It is the mean share of the pairs of a batch, too, where samples are permuted uniformly.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> uniform_rate(Geometry(samples=10, chunk_length=4, unit=2))  # (4 * 3 + 4 * 3 + 2 * 1) / (10 * 9)
    0.28888888888888886
    """
    samples, length = geometry.samples, geometry.chunk_length
    last = samples - (geometry.chunks - 1) * length
    same = (geometry.chunks - 1) * length * (length - 1) + last * (last - 1)
    return same / (samples * (samples - 1)) if samples > 1 else 0.0


def pairs_of(batching: Batching, steps: NDArray[np.int64]) -> int:
    """Count the pairs of samples in the batches of some steps.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> pairs_of(Batching(Geometry(10, 4, 2), 4, "full"), np.arange(3))  # batches of 4, 4 and 2
    13
    """
    sizes = np.minimum(batching.global_batch, batching.geometry.samples - steps * batching.global_batch)
    return int((sizes * (sizes - 1) // 2).sum())


def short_slot(geometry: Geometry, seed: int, epoch: int) -> int:
    """Return where the last chunk, the one that may be short, stands among an epoch's permuted chunks."""
    chunks = bijection(geometry.chunks, stream_key(seed, epoch, Purpose.CHUNKS))
    return int(chunks.inverse(np.array([geometry.chunks - 1]))[0])


def expected_pairs(batching: Batching, steps: NDArray[np.int64], short: int) -> float:
    """Return the mean number of pairs of samples of one chunk in the batches of some steps.

    Parameters
    ----------
    batching : Batching
        How the store is mixed.
    steps : int64 ndarray, shape (k,)
        In [0, batching.steps).
    short : int
        Where the last chunk stands among the permuted ones, for mode "window"; see `short_slot`.

    Returns
    -------
    float
        Summed over the batches.

    Examples
    --------
    A batch of 4 out of a window of 8 that holds two chunks of 4 has 6 pairs, each from one chunk with
    probability 3/7:

    >>> from mmapload.order import Geometry
    >>> expected_pairs(Batching(Geometry(16, 4, 4), 4, "window", 8), np.array([0]), short=3)
    2.571428571428571
    """
    if batching.mode == "full":
        return pairs_of(batching, steps) * uniform_rate(batching.geometry)
    if batching.mode == "batch":
        return _pairs_of_units(batching, steps)
    if batching.mode == "sequential":
        starts = steps * batching.global_batch
        stops = np.minimum(starts + batching.global_batch, batching.geometry.samples)
        return (
            float(_Slots(batching.geometry, batching.geometry.chunks - 1).ordered_pairs(starts, stops).sum())
            / 2
        )
    # As many steps at once as cut a limited number of windows.
    size = min((batching.window or 1) // batching.lanes, -(-batching.geometry.samples // batching.lanes))
    block = max(1, _PIECES // (batching.lanes * (batching.global_batch // batching.lanes // size + 2)))
    return sum(
        _pairs_of_windows(batching, size, steps[low : low + block], short)
        for low in range(0, len(steps), block)
    )


def _pairs_of_units(batching: Batching, steps: NDArray[np.int64]) -> float:
    """Count pairs inside units, always of one chunk, and of two units, which may be of one chunk."""
    samples, unit = batching.geometry.samples, batching.geometry.unit
    if unit % batching.global_batch == 0:
        return float(pairs_of(batching, steps))  # a batch lies inside one unit
    full, per_chunk = samples // unit, batching.geometry.chunk_length // unit
    in_last = full - (batching.geometry.chunks - 1) * per_chunk
    starts = steps * batching.global_batch
    stops = np.minimum(starts + batching.global_batch, samples)
    units = ((np.minimum(stops, full * unit) - np.minimum(starts, full * unit)) // unit).astype(float)
    rest = np.maximum(stops - np.maximum(starts, full * unit), 0).astype(float)  # of the short unit
    together = (batching.geometry.chunks - 1) * per_chunk * (per_chunk - 1) + in_last * (in_last - 1)
    two = together / (full * (full - 1)) if full > 1 else 0.0
    inside = units * unit * (unit - 1) / 2 + rest * (rest - 1) / 2
    across = units * (units - 1) / 2 * unit**2 * two + units * unit * rest * (in_last / max(full, 1))
    return float((inside + across).sum())


@dataclass(frozen=True, slots=True)
class _Slots:
    """Chunks as one sequence of samples, the last chunk at place `short` among them."""

    geometry: Geometry
    short: int

    @property
    def _last(self) -> int:
        return self.geometry.samples - (self.geometry.chunks - 1) * self.geometry.chunk_length

    def opening(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first place of every chunk."""
        length = self.geometry.chunk_length
        return slots * length - (length - self._last) * (slots > self.short)

    def of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which chunk of the sequence each place lies in."""
        length = self.geometry.chunk_length
        short_end = self.short * length + self._last
        return (places + (length - self._last) * (places >= short_end)) // length

    def ends(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the first and the last chunk of every stretch, and how many samples it has of each."""
        first, last = self.of(starts), self.of(stops - 1)
        of_first = np.minimum(self.opening(first + 1), stops) - starts
        of_last = stops - np.maximum(self.opening(last), starts)
        return first, last, of_first.astype(float), of_last.astype(float)

    def ordered_pairs(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.float64]:
        """Count the ordered pairs of one chunk in every stretch: k (k - 1) of each chunk that it has k of."""
        first, last, of_first, of_last = self.ends(starts, stops)
        length = float(self.geometry.chunk_length)
        whole = (last - first - 1) * length * (length - 1)
        inside = (first < self.short) & (self.short < last)
        whole -= inside * (length * (length - 1) - self._last * (self._last - 1))
        cut = of_first * (of_first - 1) + of_last * (of_last - 1) + whole
        return np.where(first == last, of_first * (of_first - 1), cut)


def _pairs_of_windows(batching: Batching, size: int, steps: NDArray[np.int64], short: int) -> float:
    """Sum over the pieces of batches that lie in one window each, and over pairs of pieces of a batch.

    A piece of t samples is drawn from its window of m, which has k of a chunk: of this chunk
    t (t - 1) k (k - 1) / (m (m - 1)) ordered pairs are expected in it, and between two pieces the product of
    their t k / m. Two windows have a chunk in common only where it is the first or the last of each.
    """
    slots = _Slots(batching.geometry, short)
    batch, drawn, starts, stops = _pieces(batching, size, steps)
    length = (stops - starts).astype(float)
    within = slots.ordered_pairs(starts, stops) / np.maximum(length * (length - 1), 1)
    expected = float((drawn * (drawn - 1) * within).sum()) / 2
    if len(batch) > len(steps):
        first, last, of_first, of_last = slots.ends(starts, stops)
        other = first != last
        keys = np.concatenate([batch, batch[other]]) * batching.geometry.chunks
        keys += np.concatenate([first, last[other]])
        means = np.concatenate([drawn * of_first / length, (drawn * of_last / length)[other]])
        _, chunk = np.unique(keys, return_inverse=True)
        sums = np.bincount(chunk, means)
        expected += (float((sums**2).sum()) - float((means**2).sum())) / 2
    return expected


def _pieces(
    batching: Batching, size: int, steps: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut batches at the windows' borders.

    Returns the batch of every piece, how many samples it has, and the places from and up to which its
    window reaches in the sequence of chunks.
    """
    samples, lanes = batching.geometry.samples, batching.lanes
    deal = Deal(samples, lanes, batching.global_batch, "keep")
    smaller = np.flatnonzero(steps >= deal.regular_steps)
    last = {share.lane: share for share in deal.shares(deal.regular_steps, 0, 1)} if smaller.size else {}
    found = []
    for lane in range(lanes):
        begin, end = lane * samples // lanes, (lane + 1) * samples // lanes
        low = steps * deal.stride
        high = low + deal.stride
        high[smaller] = last[lane].stop if lane in last else low[smaller]
        number = np.where(high > low, (high - 1) // size - low // size + 1, 0)
        batch = np.repeat(np.arange(len(steps)), number)
        window = np.arange(len(batch)) - np.repeat(np.cumsum(number) - number, number) + low[batch] // size
        drawn = np.minimum(high[batch], (window + 1) * size) - np.maximum(low[batch], window * size)
        starts = begin + window * size
        found.append((batch, drawn.astype(float), starts, np.minimum(starts + size, end)))
    batches, counts, all_starts, all_stops = zip(*found, strict=True)
    return tuple(map(np.concatenate, (batches, counts, all_starts, all_stops)))  # type: ignore[return-value]
