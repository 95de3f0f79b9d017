"""Put samples that differ in shape one behind the other: where each goes, and copying them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from mmapload.extents import Extents, RaggedArray
from mmapload.scattered import copy_pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mmapload.buffers import BufferPool
    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

__all__ = ["Copies", "Joined", "joined"]

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
        bounds = extents.offsets * values.itemsize
        self._begins, self._lows, self._lengths = starts * values.itemsize, bounds[:-1], np.diff(bounds)

    def in_order(self, order: npt.NDArray[np.int64] | slice) -> Copies:
        """Return what is to be copied when samples come in this order, which is that of chunks and rows."""
        into = self.array.values.view(np.uint8)
        return Copies(into, self._begins[order], self._lows[order], self._lengths[order])

    def copy_all(self, addresses: npt.NDArray[np.int64]) -> None:
        """Copy all samples; the values of each one's chunk begin at an address."""
        target: int = self.array.values.__array_interface__["data"][0]
        copy_pieces(target + self._lows, addresses + self._begins, self._lengths)


class Copies:
    """Copies of samples from their chunks to their places in a batch, in bytes.

    Parameters
    ----------
    into : ndarray of uint8
        The batch.
    begins, lows, lengths : ndarray of int64
        Where each sample begins in the values of its chunk, and in the batch, and how long it is.
    """

    def __init__(
        self,
        into: Bytes,
        begins: npt.NDArray[np.int64],
        lows: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        self._into = into
        self._begins, self._lows, self._lengths = begins, lows, lengths
        follows = (lows[1:] == lows[:-1] + lengths[:-1]) & (begins[1:] == begins[:-1] + lengths[:-1])
        self._follows = follows if follows.any() else None

    def copy(self, source: RaggedArray, part: slice) -> None:
        """Copy a part of the samples, all of which are of one chunk."""
        begins, lows, lengths = self._begins[part], self._lows[part], self._lengths[part]
        if self._follows is not None and self._follows[part.start : part.stop - 1].all():
            begins, lows, lengths = begins[:1], lows[:1], lengths.sum(keepdims=True)  # one piece
        target: int = self._into.__array_interface__["data"][0]
        copy_pieces(target + lows, source.address + begins, lengths)

    def read(self, part: slice, reader: _RowReader, chunk: int) -> int:
        """Read a part of the samples, all of one chunk, one by one; returns their bytes."""
        spans = (each[part].tolist() for each in (self._begins, self._lows, self._lengths))
        for begin, low, length in zip(*spans, strict=True):
            if length:
                reader.read(chunk, begin, self._into[low : low + length])
        return int(self._lengths[part].sum())


def joined(
    field: FieldLayout,
    samples: npt.NDArray[np.int64],
    places: Callable[[str, npt.NDArray[np.int64]], tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]],
    pool: BufferPool,
    take: Callable[[int], Bytes | None] | None,
) -> Joined:
    """Find where the samples of a batch lie, and give them room.

    Parameters
    ----------
    samples : ndarray of int64
        Their numbers.
    places : callable
        Returns where samples of a field begin in the values of their chunks, and their shapes.
    pool : BufferPool
        Gives memory where `take` gives none.
    take : callable, optional
        Gives memory for so many bytes, or None.
    """
    starts, shapes = places(field.name, samples)
    batch = Extents.of(shapes)
    nbytes = int(batch.offsets[-1]) * field.dtype.itemsize
    given = None if take is None else take(nbytes)
    if given is None and nbytes >= SMALL_BYTES:
        given = pool.take(1 << (nbytes - 1).bit_length())[:nbytes]  # few sizes, so that they are used again
    memory = np.empty(nbytes, np.uint8) if given is None else given
    return Joined(memory.view(field.dtype), batch, starts)
