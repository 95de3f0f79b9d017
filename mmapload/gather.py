"""Put a batch together: a view where its samples lie in one piece, copies of single samples otherwise."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.buffers import BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout
    from mmapload.readers import ChunkArrays
    from mmapload.residency import Residency

__all__ = ["BatchReader", "Take"]

Take: TypeAlias = "Callable[[int], Bytes | None]"
"""Gives memory for so many bytes, or None."""

VIEW_BYTES: Final = 2**20
"""A batch that lies in one piece is mapped, not copied, from this size on: mapping costs more below."""

SMALL_BYTES: Final = 2**16
"""Below this, the allocator's own recycling is as good, and a pooled buffer would take whole pages."""

LARGE_SAMPLE_BYTES: Final = 2**14
"""From this size on a sample is copied by a call of its own, which releases the GIL."""

IDLE_BUFFERS: Final = 8
"""Buffers of each field kept for use again: those being prepared, those held by training, and some more."""


class BatchReader:
    """Reads batches in one process. Thread-safe.

    Attributes
    ----------
    pid : int
        The process it belongs to: its locks and threads do not survive a fork.
    views, copies : int
        How many batches were served as views of a mapped chunk, and how many were copied together.
    """

    def __init__(self, residency: Residency, fields: tuple[FieldLayout, ...], chunk_length: int) -> None:
        self.pid = os.getpid()
        self.residency = residency
        self.views = 0
        self.copies = 0
        self._fields = fields
        self._chunk_length = chunk_length
        self._sample_nbytes = sum(field.sample_nbytes for field in fields)
        self._pools = {field.name: BufferPool(IDLE_BUFFERS) for field in fields}
        self._strayed = 0
        self._jumps = 0
        self._last_chunk = -1

    @property
    def wanders(self) -> bool:
        """Whether samples that are not in memory are asked for in an order that follows no chunks."""
        return self._jumps >= 8 and 3 * self._jumps > self._strayed

    def batch(self, samples: npt.NDArray[np.int64], take: Take | None = None) -> dict[str, npt.NDArray[Any]]:
        """Read samples, by number, in any order, repeats allowed.

        Parameters
        ----------
        samples : ndarray of int64
            Their numbers.
        take : callable, optional
            Gives memory to copy into, for so many bytes; where it gives None, and by default, it is pooled.

        Returns
        -------
        dict of str to ndarray
            Shape (len(samples), *field shape), C order, writable, in memory that nobody else holds.

        Raises
        ------
        ChunkError
            If a chunk's file is missing, of the wrong size, or damaged.
        """
        chunks, rows = np.divmod(samples, self._chunk_length)
        if self._is_one_piece(samples, chunks):
            self.views += 1
            start = int(rows[0])
            return self.residency.view(int(chunks[0]), start, start + len(samples))
        self.copies += 1
        arrays = {field.name: self._array(field, len(samples), take) for field in self._fields}
        order = np.argsort(chunks, kind="stable")
        starts = np.flatnonzero(np.diff(chunks[order], prepend=-1))
        stray = []
        for places in np.split(order, starts[1:]) if len(order) else ():
            chunk = int(chunks[places[0]])
            if not self.residency.covers(chunk):
                stray.append(chunk)
                if self.residency.reader.read_rows(chunk, rows[places], arrays, places):
                    continue
            self._copy(self.residency.get(chunk), rows[places], arrays, places)
        if stray:
            self._note(chunks, stray)
        return arrays

    def _is_one_piece(self, samples: npt.NDArray[np.int64], chunks: npt.NDArray[np.int64]) -> bool:
        return bool(
            self.residency.reader.maps
            and len(samples) * self._sample_nbytes >= VIEW_BYTES
            and chunks[0] == chunks[-1]
            and (len(samples) == 1 or (np.diff(samples) == 1).all())
        )

    def _array(self, field: FieldLayout, count: int, take: Take | None) -> npt.NDArray[Any]:
        shape = (count, *field.shape)
        nbytes = count * field.sample_nbytes
        given = None if take is None else take(nbytes)
        if given is not None:
            return given.view(field.dtype).reshape(shape)
        if nbytes < SMALL_BYTES:
            return np.empty(shape, field.dtype)
        return self._pools[field.name].take(nbytes).view(field.dtype).reshape(shape)

    def _copy(
        self,
        chunk: ChunkArrays,
        rows: npt.NDArray[np.int64],
        into: dict[str, npt.NDArray[Any]],
        places: npt.NDArray[np.int64],
    ) -> None:
        for field in self._fields:
            source, target = chunk[field.name], into[field.name]
            if field.sample_nbytes >= LARGE_SAMPLE_BYTES:
                for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                    np.copyto(target[place], source[row])
            elif field.sample_nbytes:
                # As opaque elements, whole samples move at once, whatever their dtype.
                whole = f"V{field.sample_nbytes}"
                flat = target.reshape(len(target), -1).view(whole)[:, 0]
                flat[places] = source.reshape(len(source), -1).view(whole)[:, 0][rows]

    def _note(self, chunks: npt.NDArray[np.int64], stray: list[int]) -> None:
        """Count samples that are not in memory, and those reached by a jump to a chunk that is not the next.

        Single samples in random order are jumps, but for half of those that begin a batch; where whole
        chunks come in random order, one sample of each chunk is.
        """
        strayed = chunks[np.isin(chunks, stray)]
        steps = np.diff(strayed, prepend=max(self._last_chunk, 0))
        steps[0] = min(steps[0], 0)  # between batches, other workers may have had the chunks between
        self._jumps += int(np.count_nonzero((steps != 0) & (steps != 1)))
        self._strayed += len(strayed)
        self._last_chunk = int(chunks[-1])
