"""How each mode arranges a store's samples in lanes, before they are dealt into batches.

An arrangement answers two questions about a lane: which sample stands at a position, and which stored
samples a stretch of positions needs. It knows nothing of batches, ranks or remainders. Where samples were
chosen from a store, "sample k" is the k-th of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mmapload.order.bijection import bijection
from mmapload.order.philox import Purpose, stream_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.chosen import Chosen
    from mmapload.order.geometry import Geometry

__all__ = [
    "Arrangement",
    "BatchArrangement",
    "FullArrangement",
    "SequentialArrangement",
    "Spans",
    "blocks",
]

_SPANS = 1024  # spans computed at once: planning stays lazy, and numpy's calls are shared


@dataclass(frozen=True, slots=True)
class Spans:
    """Stretches of a lane whose samples are stored one after another, as int64 arrays of one shape.

    Attributes
    ----------
    at : int64 ndarray
        Where the sample of the lowest position stands among all samples, as they are stored.
    low, high : int64 ndarrays
        Positions in the lane, half open.
    reach_low, reach_high : int64 ndarrays
        Positions, half open, that may hold samples of the stretch: the windows that it lies in, or
        low and high again where samples stand in place.
    """

    at: NDArray[np.int64]
    low: NDArray[np.int64]
    high: NDArray[np.int64]
    reach_low: NDArray[np.int64]
    reach_high: NDArray[np.int64]


class Arrangement(Protocol):
    """The samples of an epoch, in one or several lanes."""

    @property
    def lanes(self) -> int:
        """Number of lanes."""

    @property
    def in_place(self) -> bool:
        """Whether the samples of a span stand at its positions in the order of its rows."""

    @property
    def grain(self) -> int:
        """Positions whose order is computed together; 1 where each costs no others."""

    def length(self, lane: int) -> int:
        """Return the number of samples in a lane."""

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at positions of a lane, best few windows apart (int64, one dimension)."""

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield what the lane reads from position `start` on, by rising position, in blocks."""


class SequentialArrangement:
    """The samples as they are stored."""

    __slots__ = ("_chosen", "_geometry")

    lanes = 1
    in_place = True
    grain = 1

    def __init__(self, geometry: Geometry, chosen: Chosen | None = None) -> None:
        self._geometry = geometry
        self._chosen = chosen

    def length(self, lane: int) -> int:
        """Return the number of samples."""
        return self._geometry.samples

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions: sample k stands at position k."""
        return positions

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield chunk by chunk."""
        length, total = self._geometry.chunk_length, self._geometry.samples
        if self._chosen is None:
            for chunk in blocks(start // length, self._geometry.chunks):
                low = chunk * length
                high = np.minimum(low + length, total)
                yield Spans(low, low, high, low, high)
            return
        starts = self._chosen.starts
        for place in blocks(int(np.searchsorted(starts, start, "right")) - 1, len(starts) - 1):
            low, high = starts[place], starts[place + 1]
            yield Spans(low, low, high, low, high)


class FullArrangement:
    """All samples permuted; nothing that could be planned by chunks."""

    __slots__ = ("_geometry", "_order")

    lanes = 1
    in_place = False
    grain = 1

    def __init__(self, geometry: Geometry, seed: int, epoch: int) -> None:
        self._geometry = geometry
        self._order = bijection(geometry.samples, stream_key(seed, epoch, Purpose.FULL))

    def length(self, lane: int) -> int:
        """Return the number of samples."""
        return self._geometry.samples

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at any positions."""
        return self._order.forward(positions)

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield nothing: every batch may touch every chunk."""
        return iter(())


class BatchArrangement:
    """Whole units of the store permuted, their samples in place, the short unit last."""

    __slots__ = ("_full", "_geometry", "_order")

    lanes = 1
    in_place = True
    grain = 1

    def __init__(self, geometry: Geometry, seed: int, epoch: int) -> None:
        self._geometry = geometry
        self._full = geometry.samples // geometry.unit
        self._order = bijection(max(self._full, 1), stream_key(seed, epoch, Purpose.UNITS))

    def length(self, lane: int) -> int:
        """Return the number of samples."""
        return self._geometry.samples

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at any positions."""
        slots = positions // self._geometry.unit
        return self._units(slots) * self._geometry.unit + (positions - slots * self._geometry.unit)

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield unit by unit."""
        unit, total = self._geometry.unit, self._geometry.samples
        for slots in blocks(start // unit, -(-total // unit)):
            low = slots * unit
            high = np.minimum(low + unit, total)
            yield Spans(self._units(slots) * unit, low, high, low, high)

    def _units(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the unit at every slot; only the short one stands beyond the permuted ones, in place."""
        units = slots.copy()
        whole = slots < self._full
        units[whole] = self._order.forward(slots[whole])
        return units


def blocks(start: int, stop: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers from `start` up to `stop` as arrays of limited length."""
    for low in range(start, stop, _SPANS):
        yield np.arange(low, min(low + _SPANS, stop))
