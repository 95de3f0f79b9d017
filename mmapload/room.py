"""How much room chunks take in a budget, be they all of one size or not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Counts", "Room", "most_chunks", "nbytes_of_most"]


def most_chunks(chunk_nbytes: int | npt.NDArray[np.int64], budget: int) -> int:
    """Return how many chunks always fit in a budget, whichever they are.

    Examples
    --------
    >>> most_chunks(10, 35), most_chunks(np.array([10, 5, 20, 1]), 32)
    (3, 2)
    """
    if isinstance(chunk_nbytes, int):
        return budget // max(1, chunk_nbytes)
    return int(np.searchsorted(np.cumsum(np.sort(chunk_nbytes)[::-1]), budget, "right"))


def nbytes_of_most(chunk_nbytes: int | npt.NDArray[np.int64], chunks: int) -> int:
    """Return a budget in which no more than so many chunks fit, but for one that always does.

    Examples
    --------
    >>> nbytes_of_most(10, 3), nbytes_of_most(np.array([10, 5, 20, 1]), 2)
    (30, 6)
    """
    if isinstance(chunk_nbytes, int):
        return chunks * chunk_nbytes
    return int(np.sort(chunk_nbytes)[:chunks].sum())


@dataclass(slots=True)
class Counts:
    """What a `Residency` has done so far.

    Attributes
    ----------
    hits, misses : int
        How often a chunk that was asked for was resident (or on its way), and how often it was not.
    ahead : int
        Chunks or rows brought in before they were asked for.
    dropped : int
        Chunks dropped to make room, or because training has passed them.
    resident_bytes, peak_bytes : int
        Decoded bytes of the chunks held now, and at most so far.
    """

    hits: int = 0
    misses: int = 0
    ahead: int = 0
    dropped: int = 0
    resident_bytes: int = 0
    peak_bytes: int = 0


class Room:
    """A budget, and what chunks take of it.

    Parameters
    ----------
    chunk_nbytes : int or ndarray of int64
        Decoded bytes of one chunk: one number for all, or of each chunk its own.
    chunks : int
        How many there are.
    budget : int
        Bytes that chunks may take together; at least one chunk always fits.

    Attributes
    ----------
    capacity : int
        Chunks that fit, whichever they are.
    """

    def __init__(self, chunk_nbytes: int | npt.NDArray[np.int64], chunks: int, budget: int) -> None:
        self.capacity = max(1, min(chunks, most_chunks(chunk_nbytes, budget)))
        self._chunk_nbytes = chunk_nbytes
        self._budget = budget

    def nbytes(self, chunk: int) -> int:
        """Return what a chunk takes."""
        return self._chunk_nbytes if isinstance(self._chunk_nbytes, int) else int(self._chunk_nbytes[chunk])

    def fits(self, chunk: int, held: int, nbytes: int) -> bool:
        """Say whether a chunk fits beside so many that take so many bytes."""
        return held < self.capacity or (
            not isinstance(self._chunk_nbytes, int) and nbytes + self.nbytes(chunk) <= self._budget
        )
