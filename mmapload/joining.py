"""Put samples that differ in shape one behind the other: where each goes, and copying them there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from mmapload.extents import Extents, RaggedArray

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mmapload.buffers import BufferPool
    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

__all__ = ["Copies", "Joined", "joined"]

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
        self._starts = starts

    def in_order(self, order: npt.NDArray[np.int64] | slice) -> Copies:
        """Return what is to be copied when samples come in this order, which is that of chunks and rows."""
        size, offsets = self.array.values.itemsize, self.array.extents.offsets
        lows, highs, begins = offsets[:-1][order], offsets[1:][order], self._starts[order]
        into = self.array.values.view(np.uint8)
        return Copies(into, begins * size, (begins + highs - lows) * size, lows * size, highs * size)


class Copies:
    """Copies of samples from their chunks to their places in a batch, in bytes.

    Parameters
    ----------
    into : ndarray of uint8
        The batch.
    begins, ends, lows, highs : ndarray of int64
        Where each sample begins and ends in the values of its chunk, and in the batch.
    """

    def __init__(
        self,
        into: Bytes,
        begins: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
        lows: npt.NDArray[np.int64],
        highs: npt.NDArray[np.int64],
    ) -> None:
        self._into = into
        follows = (lows[1:] == highs[:-1]) & (begins[1:] == ends[:-1])
        self._follows = follows if follows.any() else None
        self._has_large = bool(len(begins)) and int((ends - begins).max()) >= LARGE_BYTES
        # Lists, once for a batch: numbers are taken out of them one by one.
        self._spans = begins.tolist(), ends.tolist(), lows.tolist(), highs.tolist()

    def copy(self, source: RaggedArray, part: slice) -> None:
        """Copy a part of the samples, all of which are of one chunk."""
        begins, ends, lows, highs = (each[part] for each in self._spans)
        if self._follows is not None and self._follows[part.start : part.stop - 1].all():
            begins, ends, lows, highs = begins[:1], ends[-1:], lows[:1], highs[-1:]  # one piece
        given = source.values.view(np.uint8)
        if before := source.first * source.values.itemsize:
            begins, ends = [each - before for each in begins], [each - before for each in ends]
        if self._has_large or len(begins) == 1:
            for begin, end, low, high in zip(begins, ends, lows, highs, strict=True):
                np.copyto(self._into[low:high], given[begin:end])
            return
        small_into, small_given = memoryview(self._into), memoryview(given)
        for begin, end, low, high in zip(begins, ends, lows, highs, strict=True):
            small_into[low:high] = small_given[begin:end]

    def read(self, part: slice, reader: _RowReader, chunk: int) -> int:
        """Read a part of the samples, all of one chunk, one by one; returns their bytes."""
        begins, _, lows, highs = (each[part] for each in self._spans)
        for begin, low, high in zip(begins, lows, highs, strict=True):
            if high > low:
                reader.read(chunk, begin, self._into[low:high])
        return int(sum(highs) - sum(lows))


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
