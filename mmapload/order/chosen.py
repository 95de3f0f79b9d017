"""Samples that were chosen from a store, and how they lie in its chunks.

An order over them is one of positions 0 up to n: position k is that of the k-th of them, as they are stored.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Chosen"]


class Chosen:
    """Samples of a store in rising order, kept as runs of consecutive numbers: a slice is a single one.

    Parameters
    ----------
    first : int64 ndarray, shape (r,)
        The first number of every run, not falling.
    opening : int64 ndarray, shape (r + 1,)
        The position of every run's first number, from 0; the last entry is the number of positions.
    chunk_length : int
        Of the store.
    repeats : bool
        Whether a number may come several times. Its copies are kept apart in windows then.

    Examples
    --------
    >>> chosen = Chosen.of(np.array([2, 3, 4, 9, 10]), chunk_length=4)
    >>> chosen.first.tolist(), chosen.opening.tolist()
    ([2, 9], [0, 3, 5])
    >>> chosen.chunks.tolist(), chosen.starts.tolist()  # chunk 0 has two of them, chunk 1 one, chunk 2 two
    ([0, 1, 2], [0, 2, 3, 5])
    >>> chosen.numbers(np.array([0, 4])).tolist()
    [2, 10]
    """

    def __init__(
        self,
        first: NDArray[np.int64],
        opening: NDArray[np.int64],
        chunk_length: int,
        *,
        repeats: bool = False,
    ) -> None:
        self.first = first
        self.opening = opening
        self.chunk_length = chunk_length
        self.repeats = repeats

    @classmethod
    def of(cls, numbers: NDArray[np.int64], chunk_length: int, *, repeats: bool = False) -> Chosen:
        """Make it from the numbers of all samples, at least one, which do not fall."""
        begins = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 2) != 1)
        return cls(numbers[begins], np.append(begins, len(numbers)), chunk_length, repeats=repeats)

    @classmethod
    def between(cls, start: int, stop: int, chunk_length: int) -> Chosen:
        """Make it from one run, half open."""
        return cls(np.array([start]), np.array([0, stop - start]), chunk_length)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remake, (self.first, self.opening, self.chunk_length, self.repeats)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Chosen)
            and (self.chunk_length, self.repeats) == (other.chunk_length, other.repeats)
            and np.array_equal(self.first, other.first)
            and np.array_equal(self.opening, other.opening)
        )

    def __hash__(self) -> int:
        return hash((self.samples, self.chunk_length, self.repeats, int(self.first[0]), len(self.first)))

    @property
    def samples(self) -> int:
        """Number of positions."""
        return int(self.opening[-1])

    @property
    def span(self) -> tuple[int, int] | None:
        """Where all of them lie in one piece, half open; None if they do not."""
        return (int(self.first[0]), int(self.first[0]) + self.samples) if len(self.first) == 1 else None

    @cached_property
    def chunks(self) -> NDArray[np.int64]:
        """The chunks that hold any of them, rising; shape (t,)."""
        return self._cut[0]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The first position in each of those chunks, and the number of positions; shape (t + 1,)."""
        return self._cut[1]

    @cached_property
    def _cut(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        length = self.chunk_length
        low = self.first // length
        high = (self.first + np.diff(self.opening) - 1) // length
        counts = high - low + 1
        runs = np.repeat(np.arange(len(low)), counts)
        chunks = low[runs] + np.arange(len(runs)) - (np.cumsum(counts) - counts)[runs]
        starts = self.opening[runs] + np.maximum(chunks * length - self.first[runs], 0)
        new = np.diff(chunks, prepend=-1) != 0
        return chunks[new], np.append(starts[new], self.samples)

    @cached_property
    def most_in_a_chunk(self) -> int:
        """The largest number of positions in one chunk."""
        return int(np.diff(self.starts).max())

    @property
    def mean_in_a_chunk(self) -> int:
        """How many positions a chunk that has any holds on average, at least 1."""
        return max(1, self.samples // len(self.chunks))

    @cached_property
    def _least(self) -> NDArray[np.int64]:
        least: NDArray[np.int64] = np.cumsum(np.sort(np.diff(self.starts)))
        return least

    def most_touched(self, places: int) -> int:
        """Count the chunks that so many places in a row may touch, whatever order the chunks stand in."""
        inside = int(np.searchsorted(self._least, max(places - 2, 0), "right"))
        return min(inside + 2, places, len(self.chunks))

    def numbers(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the samples at positions, each in [0, samples)."""
        if len(self.first) == 1:
            return positions + int(self.first[0])
        if 4 * len(self.first) > self.samples:  # a table of all takes as little memory, and finds them sooner
            return self._table[positions]
        runs = np.searchsorted(self.opening, positions, "right") - 1
        found: NDArray[np.int64] = self.first[runs] + (positions - self.opening[runs])
        return found

    @cached_property
    def _table(self) -> NDArray[np.int64]:
        return self.all_numbers()

    def all_numbers(self) -> NDArray[np.int64]:
        """Return the numbers at all positions."""
        lengths = np.diff(self.opening)
        return np.arange(self.samples) + np.repeat(self.first - self.opening[:-1], lengths)

    def among(self, positions: Chosen) -> Chosen:
        """Return those at chosen positions of these."""
        span = positions.span
        if span is not None and self.span is not None:
            start = int(self.first[0])
            return Chosen.between(start + span[0], start + span[1], self.chunk_length)
        return Chosen.of(
            self.numbers(positions.all_numbers()),
            self.chunk_length,
            repeats=positions.repeats or self.repeats,
        )

    def digest(self) -> bytes:
        """Return the SHA-256 of the runs: first number and end, half open, as little-endian int64."""
        pairs = np.stack([self.first, self.first + np.diff(self.opening)], axis=1)
        return hashlib.sha256(pairs.astype("<i8").tobytes()).digest()


def _remake(first: NDArray[np.int64], opening: NDArray[np.int64], chunk_length: int, repeats: bool) -> Chosen:
    return Chosen(first, opening, chunk_length, repeats=repeats)
