"""Where the samples of a ragged field lie in the values of a chunk or of a batch, and their shapes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

__all__ = ["Extents", "RaggedArray", "extents_columns", "extents_rows", "parse_extents"]


def extents_columns(axes: int) -> int:
    """Return how many numbers are stored of a sample: its end, and from two axes on its shape.

    Examples
    --------
    >>> extents_columns(1), extents_columns(2)
    (1, 3)
    """
    return 1 if axes == 1 else 1 + axes


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Where samples lie in a row of values, and their shapes.

    Attributes
    ----------
    offsets : ndarray of int64
        Sample k has the values `offsets[k]` to `offsets[k + 1]`.
    shapes : ndarray of int64
        Shape (samples, axes).
    """

    offsets: npt.NDArray[np.int64]
    shapes: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def part(self, start: int, stop: int) -> Extents:
        """Return those of samples [start, stop), from the same beginning."""
        return Extents(self.offsets[start : stop + 1], self.shapes[start:stop])

    @classmethod
    def of(cls, shapes: npt.NDArray[np.int64]) -> Extents:
        """Return those of samples of these shapes that follow each other.

        Examples
        --------
        >>> Extents.of(np.array([[2, 3], [0, 3], [1, 1]])).offsets.tolist()
        [0, 6, 6, 7]
        """
        offsets = np.zeros(len(shapes) + 1, np.int64)
        np.cumsum(shapes[:, 0] if shapes.shape[1] == 1 else shapes.prod(axis=1), out=offsets[1:])
        return cls(offsets, shapes)


@dataclass(frozen=True, slots=True, eq=False)
class RaggedArray:
    """Samples that differ in shape, in one piece of memory.

    Attributes
    ----------
    values : ndarray
        One axis; the samples' values in C order, one sample after the other.
    extents : Extents
        Which of them are whose: counted from `first`.
    first : int
        The number of the first of `values`.

    Examples
    --------
    >>> array = RaggedArray(np.arange(7), Extents.of(np.array([[2, 3], [0, 3], [1, 1]])))
    >>> [each.tolist() for each in array]
    [[[0, 1, 2], [3, 4, 5]], [], [[6]]]
    >>> len(array[1:]), array[2].shape
    (2, (1, 1))
    """

    values: npt.NDArray[Any]
    extents: Extents
    first: int = 0

    def __len__(self) -> int:
        return len(self.extents)

    def __getitem__(self, index: int | slice) -> Any:
        """Return a sample, or several that follow each other; views."""
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            return RaggedArray(self.values, self.extents.part(start, max(start, stop)), self.first)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        start, stop = (self.extents.offsets[index : index + 2] - self.first).tolist()
        return self.values[start:stop].reshape(self.extents.shapes[index])

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        """Yield each sample, a view."""
        offsets, shapes = self.extents.offsets - self.first, self.extents.shapes
        spans = pairwise(offsets.tolist())
        if shapes.shape[1] == 1:
            yield from (self.values[start:stop] for start, stop in spans)
        else:
            for (start, stop), shape in zip(spans, shapes.tolist(), strict=True):
                yield self.values[start:stop].reshape(shape)

    @property
    def address(self) -> int:
        """Where in memory the number 0 of the values would lie."""
        first: int = self.values.__array_interface__["data"][0]
        return first - self.first * self.values.itemsize

    @property
    def own_values(self) -> npt.NDArray[Any]:
        """The values of these samples alone."""
        offsets = self.extents.offsets
        return self.values[offsets[0] - self.first : offsets[-1] - self.first]


def extents_rows(shapes: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Return the rows that are stored for samples of these shapes, filled up with zeros to so many.

    Examples
    --------
    >>> extents_rows(np.array([[2, 3], [1, 1]]), 3).tolist()
    [[6, 2, 3], [7, 1, 1], [0, 0, 0]]
    """
    axes = shapes.shape[1]
    rows = np.zeros((length, extents_columns(axes)), np.int64)
    np.cumsum(shapes.prod(axis=1), out=rows[: len(shapes), 0])
    if axes > 1:
        rows[: len(shapes), 1:] = shapes
    return rows


def parse_extents(
    field: FieldLayout, chunk: int, path: str, data: Bytes, samples: int, values: int
) -> Extents:
    """Read the extents of a chunk's samples from what their file holds.

    Parameters
    ----------
    samples, values : int
        How many the chunk has.

    Raises
    ------
    ChunkError
        If ends fall, shapes have another number of values than they say, or the last end is not `values`.
    """
    rows = data.view("<i8").reshape(-1, extents_columns(len(field.shape)))[:samples]
    offsets = np.zeros(samples + 1, np.int64)
    offsets[1:] = rows[:, 0]
    lengths = np.diff(offsets)
    shapes = lengths[:, None] if len(field.shape) == 1 else rows[:, 1:]
    last = int(offsets[-1])
    if last != values:
        raise ChunkError(field.name, chunk, path, f"the end of {values:,} values", f"{last:,}")
    if not _are_sound(lengths, shapes):
        raise ChunkError(field.name, chunk, path, "ends that never fall, and shapes that fit them", "others")
    return Extents(offsets, shapes)


def _are_sound(lengths: npt.NDArray[np.int64], shapes: npt.NDArray[np.int64]) -> bool:
    if int(lengths.min(initial=0)) < 0:
        return False
    if shapes.shape[1] == 1:
        return True
    # A product could overflow to just the right number where one axis alone is longer than all values.
    longest = max(1, int(lengths.sum()))
    return bool(
        shapes.min(initial=0) >= 0
        and ((shapes <= longest) | (lengths == 0)[:, None]).all()
        and (_products(shapes, longest) == lengths).all()
    )


def _products(shapes: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Multiply along the axes; -1 where the product is more than `most`."""
    found = np.ones(len(shapes), np.int64)
    empty = (shapes == 0).any(axis=1)
    for lengths in shapes.T:
        safe = np.where(empty, 1, lengths)
        found = np.where((found < 0) | (found > most // np.maximum(1, safe)), -1, found * safe)
    return np.where(empty, 0, found)
