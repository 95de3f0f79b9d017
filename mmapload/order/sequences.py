"""The chunks of an epoch one after another, in permuted order, seen as one sequence of places."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mmapload.order.bijection import bijection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mmapload.order.chosen import Chosen
    from mmapload.order.geometry import Geometry
    from mmapload.order.philox import Key

__all__ = ["ChosenSequence", "ChunkSequence", "WholeSequence"]


class ChunkSequence(Protocol):
    """Slots hold one chunk each, and places one sample each."""

    def slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot that every place lies in."""

    def opening(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first place of every slot; that of the slot after the last is the number of places."""

    def first(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of every slot's first sample among all samples, as they are stored."""

    def stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the sample at every place among all samples, as they are stored."""


class WholeSequence:
    """All chunks of a store, of one length but for the last; nothing is tabulated."""

    __slots__ = ("_chunks", "_length", "_missing", "_short_end")

    def __init__(self, geometry: Geometry, key: Key) -> None:
        self._length = geometry.chunk_length
        self._missing = geometry.chunks * self._length - geometry.samples  # of the last chunk
        self._chunks = bijection(geometry.chunks, key)
        slot = int(self._chunks.inverse(np.array([geometry.chunks - 1]))[0])
        self._short_end = (slot + 1) * self._length - self._missing

    def slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot that every place lies in."""
        return (places + self._missing * (places >= self._short_end)) // self._length

    def opening(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first place of every slot."""
        places = slots * self._length
        return places - self._missing * (places >= self._short_end)

    def first(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first sample of every slot's chunk."""
        return self._chunks.forward(slots) * self._length

    def stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample at every place."""
        slots = self.slots(places)
        rows = places - self.opening(slots)
        first = int(slots.min())
        count = int(slots.max()) - first + 1
        if count <= slots.size:  # ask for every chunk once
            return self.first(np.arange(first, first + count))[slots - first] + rows
        return self.first(slots) + rows


class ChosenSequence:
    """The chunks that hold chosen samples, with as many places each as there are such; tabulated."""

    __slots__ = ("_chosen", "_key", "_tables")

    def __init__(self, chosen: Chosen, key: Key) -> None:
        self._chosen = chosen
        self._key = key
        self._tables: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._chosen, self._key)

    def slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the slot that every place lies in."""
        return np.searchsorted(self._both()[0], places, "right") - 1

    def opening(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first place of every slot."""
        return self._both()[0][slots]

    def first(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of every slot's first sample."""
        return self._both()[1][slots]

    def stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of the sample at every place."""
        openings, firsts = self._both()
        low, high = self.slots(np.array([places.min(), places.max()])).tolist()
        moved = firsts[low : high + 1] - openings[low : high + 1]
        begin, end = int(openings[low]), int(openings[high + 1])
        if end - begin <= 4 * places.size:  # a table of all in between is found in sooner
            stored = np.repeat(moved, np.diff(openings[low : high + 2]))
            found: NDArray[np.int64] = stored[places - begin] + places
            return found
        return moved[np.searchsorted(openings[low : high + 1], places, "right") - 1] + places

    def _both(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first place of every slot, and the position of its first sample."""
        if self._tables is None:
            starts = self._chosen.starts
            order = bijection(len(starts) - 1, self._key).forward(np.arange(len(starts) - 1))
            openings = np.concatenate([[0], np.cumsum(np.diff(starts)[order])])
            self._tables = openings, starts[order]
        return self._tables
