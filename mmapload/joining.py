"""Put samples that differ in shape one behind the other: where each goes, and copying them there."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from mmapload.extents import Extents, RaggedArray

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from mmapload.buffers import BufferPool
    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

    Places: TypeAlias = npt.NDArray[np.int64] | slice

__all__ = ["Joined", "joined"]

LARGE_BYTES: Final = 2**16
"""From this size on values are copied by a call that releases the GIL; below, the shortest call is best."""

SMALL_BYTES: Final = 2**16
"""Below this, the allocator's own recycling is as good as a pool."""


class _RowReader(Protocol):
    def read(self, chunk: int, begin: int, into: Bytes) -> None: ...


class Joined:
    """Samples of one ragged field, each with its place.

    Attributes
    ----------
    array : RaggedArray
        The batch; its values are still to be copied.

    Parameters
    ----------
    values : ndarray
        Room for all values.
    extents : Extents
        Of the batch.
    starts : ndarray of int64
        Where each sample's values begin in those of its chunk.
    """

    def __init__(self, values: npt.NDArray[Any], extents: Extents, starts: npt.NDArray[np.int64]) -> None:
        self.array = RaggedArray(values, extents)
        self._itemsize = values.itemsize
        self._bytes = values.view(np.uint8)
        self._starts = starts
        self._order: npt.NDArray[np.int64] | None = None

    def in_order(self, order: npt.NDArray[np.int64]) -> Joined:
        """Return the same batch with other numbers of places: k stands for `order[k]`."""
        other = object.__new__(Joined)
        other.__dict__.update(self.__dict__, _order=order)
        return other

    def _spans(self, places: Places) -> tuple[npt.NDArray[np.int64], ...]:
        """Return where samples begin in their chunk, and where they begin and end here, in values."""
        if self._order is not None:
            places = self._order[places]
        offsets = self.array.extents.offsets
        if isinstance(places, slice):
            return self._starts[places], offsets[:-1][places], offsets[1:][places]
        return self._starts[places], offsets[places], offsets[places + 1]

    def copy(self, source: RaggedArray, places: Places) -> None:
        """Copy the samples at these places, all of which are of one chunk."""
        begins, lows, highs = self._spans(places)
        begins = begins - source.first
        if (
            len(lows) > 1
            and (lows[1:] == highs[:-1]).all()
            and (np.diff(begins) == (highs - lows)[:-1]).all()
        ):
            begins, lows, highs = begins[:1], lows[:1], highs[-1:]  # one piece
        size = self._itemsize
        ends = begins + (highs - lows)
        given = source.values.view(np.uint8)
        spans = zip(
            (begins * size).tolist(),
            (ends * size).tolist(),
            (lows * size).tolist(),
            (highs * size).tolist(),
            strict=True,
        )
        into, small_into, small_given = self._bytes, memoryview(self._bytes), memoryview(given)
        for begin, end, low, high in spans:
            if high - low < LARGE_BYTES:
                small_into[low:high] = small_given[begin:end]
            else:
                np.copyto(into[low:high], given[begin:end])

    def read(self, reader: _RowReader, chunk: int, places: Sequence[int]) -> int:
        """Read the samples at these places, all of one chunk, one by one; returns their bytes."""
        begins, lows, highs = self._spans(np.array(places, np.int64))
        size, nbytes = self._itemsize, 0
        for begin, low, high in zip(begins.tolist(), lows.tolist(), highs.tolist(), strict=True):
            if high > low:
                reader.read(chunk, begin * size, self._bytes[low * size : high * size])
                nbytes += (high - low) * size
        return nbytes


def joined(
    field: FieldLayout,
    samples: npt.NDArray[np.int64],
    extents: Callable[[str, int], Extents],
    pool: BufferPool,
    take: Callable[[int], Bytes | None] | None,
) -> Joined:
    """Find where the samples of a batch lie, and give them room.

    Parameters
    ----------
    samples : ndarray of int64
        Their numbers.
    extents : callable
        Returns those of a chunk of a field.
    pool : BufferPool
        Gives memory where `take` gives none.
    take : callable, optional
        Gives memory for so many bytes, or None.
    """
    chunks = samples // field.chunk_length
    order = np.argsort(chunks, kind="stable")
    rows = samples[order] - chunks[order] * field.chunk_length
    numbers, firsts = np.unique(chunks[order], return_index=True)
    starts, shapes = np.empty(len(samples), np.int64), np.empty((len(samples), len(field.shape)), np.int64)
    cuts = [*firsts.tolist(), len(samples)]
    for chunk, (first, last) in zip(numbers.tolist(), pairwise(cuts), strict=True):
        here, own, places = extents(field.name, chunk), rows[first:last], order[first:last]
        starts[places] = here.offsets[own]
        shapes[places] = here.shapes[own]
    batch = Extents.of(shapes)
    nbytes = int(batch.offsets[-1]) * field.dtype.itemsize
    given = None if take is None else take(nbytes)
    if given is None and nbytes >= SMALL_BYTES:
        given = pool.take(1 << (nbytes - 1).bit_length())[:nbytes]  # few sizes, so that they are used again
    memory = np.empty(nbytes, np.uint8) if given is None else given
    return Joined(memory.view(field.dtype), batch, starts)
