"""Put a batch together: a view where its samples lie in one piece, copies of single samples otherwise."""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.buffers import BufferPool
from mmapload.joining import Copies, Joined, joined

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
    at_once : int
        How many of the copies took one call for each field.

    Parameters
    ----------
    ragged_nbytes : int
        Bytes of a sample of all ragged fields, on average.
    """

    def __init__(
        self,
        residency: Residency,
        fields: tuple[FieldLayout, ...],
        chunk_length: int,
        ragged_nbytes: int = 0,
    ) -> None:
        self.pid = os.getpid()
        self.residency = residency
        self.views = 0
        self.copies = 0
        self.at_once = 0
        self._fields = tuple(field for field in fields if not field.is_ragged)
        self._ragged = tuple(field for field in fields if field.is_ragged)
        self._names = tuple(field.name for field in fields)
        self._chunk_length = chunk_length
        self._nbytes = {field.name: field.sample_nbytes for field in self._fields}
        self._fixed_nbytes = sum(self._nbytes.values())
        self._sample_nbytes = self._fixed_nbytes + ragged_nbytes
        self._pools = {field.name: BufferPool(IDLE_BUFFERS) for field in fields}
        self._strayed = 0
        self._jumps = 0
        self._last_chunk = -1

    @property
    def wanders(self) -> bool:
        """Whether samples that are not in memory are asked for in an order that follows no chunks."""
        return self._jumps >= 8 and 3 * self._jumps > self._strayed

    def batch(self, samples: npt.NDArray[np.int64], take: Take | None = None) -> ChunkArrays:
        """Read samples, by number, in any order, repeats allowed.

        Parameters
        ----------
        samples : ndarray of int64
            Their numbers.
        take : callable, optional
            Gives memory to copy into, for so many bytes; where it gives None, and by default, it is pooled.

        Returns
        -------
        dict of str to ndarray or RaggedArray
            Shape (len(samples), *field shape), C order, writable, in memory that nobody else holds.

        Raises
        ------
        ChunkError
            If a chunk's file is missing, of the wrong size, or damaged.
        """
        if take is None and self._is_one_piece(samples) and self._is_viewed(samples):
            self.views += 1
            chunk, start = divmod(int(samples[0]), self._chunk_length)
            return self.residency.view(chunk, start, start + len(samples))
        self.copies += 1
        arrays: ChunkArrays = {field.name: self._array(field, len(samples), take) for field in self._fields}
        for field in self._ragged:
            arrays[field.name] = self._join(field, samples, take)
        stray = self._gather(samples, arrays) if len(samples) else []
        if stray:
            self._note(samples // self._chunk_length, stray)
        if not self._ragged:
            return arrays
        return {
            name: each.array if isinstance(each := arrays[name], Joined) else each for name in self._names
        }

    def _join(self, field: FieldLayout, samples: npt.NDArray[np.int64], take: Take | None) -> Joined:
        return joined(field, samples, self.residency.reader.places, self._pools[field.name], take)

    def _is_one_piece(self, samples: npt.NDArray[np.int64]) -> bool:
        return bool(
            len(samples) * self._sample_nbytes >= VIEW_BYTES
            and samples[0] // self._chunk_length == samples[-1] // self._chunk_length
            and (len(samples) == 1 or (np.diff(samples) == 1).all())
        )

    def _is_viewed(self, samples: npt.NDArray[np.int64]) -> bool:
        """Say whether loading these samples costs no others: they are mapped, or a chunk decoded for them."""
        chunk, row = divmod(int(samples[0]), self._chunk_length)
        whole = row == 0 and len(samples) == self._chunk_length
        return self.residency.reader.maps or (whole and not self.residency.covers(chunk))

    def _gather(self, samples: npt.NDArray[np.int64], arrays: ChunkArrays) -> list[int]:
        """Copy the samples together; returns the chunks among theirs that were not in memory."""
        if self.residency.reader.places_chunks and self._gather_at_once(samples, arrays):
            return []
        # One sort of plain numbers, by sample and then by place, is several times as fast as an argsort.
        places = np.arange(len(samples))
        bits = len(samples).bit_length()
        keys = (samples << bits) | places
        keys.sort()
        order = keys & ((1 << bits) - 1)
        keys >>= bits
        in_one_chunk = keys[0] // self._chunk_length == keys[-1] // self._chunk_length
        if in_one_chunk or (order == places).all():
            return self._fill(samples, places, arrays | self._copies(arrays, slice(None)), runs=True)
        copies = self._copies(arrays, order)
        if self._fixed_nbytes >= LARGE_SAMPLE_BYTES or not self._fixed_nbytes:
            return self._fill(keys, order, arrays | copies, runs=False)
        # In the order of chunks first, then in their own: copying runs of small samples twice is faster than
        # scattering them once.
        by_chunk: ChunkArrays = {field.name: self._array(field, len(order), None) for field in self._fields}
        stray = self._fill(keys, places, by_chunk | copies, runs=True)
        back = np.empty_like(order)
        back[order] = places
        for name, nbytes in self._nbytes.items():
            if nbytes:
                _take(by_chunk[name], back, arrays[name])
        return stray

    def _copies(self, arrays: ChunkArrays, order: npt.NDArray[np.int64] | slice) -> dict[str, Copies]:
        """Return what is to be copied of ragged fields."""
        return {field.name: arrays[field.name].in_order(order) for field in self._ragged}

    def _gather_at_once(self, samples: npt.NDArray[np.int64], arrays: ChunkArrays) -> bool:
        """Copy small samples with one call for each field, if all their chunks are in memory."""
        chunks = samples // self._chunk_length
        numbers = np.unique(chunks)
        held = self.residency.held_placed(numbers.tolist())
        if held is None:
            return False
        for field in self._ragged:
            addresses = np.array([each.addresses[field.name] for each in held])
            arrays[field.name].copy_all(addresses[numbers.searchsorted(chunks)])
        for name, span in self.residency.reader.spans.items():
            _take(span.array, span.rows(samples, chunks, self._chunk_length), arrays[name])
        self.at_once += 1
        return True

    def _fill(
        self, samples: npt.NDArray[np.int64], places: npt.NDArray[np.int64], into: ChunkArrays, *, runs: bool
    ) -> list[int]:
        """Copy samples to their places, chunk by chunk; `runs` says that places count from 0 up."""
        chunks = samples // self._chunk_length
        rows = samples - chunks * self._chunk_length
        cuts = [0, *((chunks[1:] != chunks[:-1]).nonzero()[0] + 1).tolist(), len(chunks)]
        parts = [slice(start, stop) for start, stop in pairwise(cuts)]
        numbers = chunks[cuts[:-1]].tolist()
        absent = []
        for chunk, part, held in zip(numbers, parts, self.residency.held(numbers), strict=True):
            if held is None:
                absent.append((chunk, part))
            else:
                self._copy(held, rows[part], into, part if runs else places[part], part)
        del held  # nothing of what is held may outlive its place in the budget while others are loaded
        stray = []
        for chunk, part in absent:
            if not self.residency.covers(chunk):
                stray.append(chunk)
                single = {field.name: partial(into[field.name].read, part) for field in self._ragged}
                if self.residency.reader.read_rows(chunk, rows[part], into | single, places[part]):
                    continue
            self._copy(self.residency.get(chunk), rows[part], into, part if runs else places[part], part)
        return stray

    def _array(self, field: FieldLayout, count: int, take: Take | None) -> npt.NDArray[Any]:
        shape = (count, *field.shape)
        nbytes = count * self._nbytes[field.name]
        given = None if take is None else take(nbytes)
        if given is None and nbytes < SMALL_BYTES:
            return np.empty(shape, field.dtype)
        return np.ndarray(
            shape, field.dtype, self._pools[field.name].take(nbytes) if given is None else given
        )

    def _copy(
        self,
        chunk: ChunkArrays,
        rows: npt.NDArray[np.int64],
        into: ChunkArrays,
        places: npt.NDArray[np.int64] | slice,
        part: slice,
    ) -> None:
        """Copy rows of a chunk to their places, and of ragged fields this part of what is to be copied."""
        for field in self._ragged:
            into[field.name].copy(chunk[field.name], part)
        for name, nbytes in self._nbytes.items():
            source, target = chunk[name], into[name]
            if nbytes >= LARGE_SAMPLE_BYTES:
                one_by_one = (
                    range(places.start, places.stop) if isinstance(places, slice) else places.tolist()
                )
                for row, place in zip(rows.tolist(), one_by_one, strict=True):
                    np.copyto(target[place], source[row])
            elif nbytes and isinstance(places, slice):
                _take(source, rows, target[places])
            elif nbytes:
                _whole(target)[places] = _whole(source)[rows]

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


def _whole(array: npt.NDArray[Any]) -> npt.NDArray[np.void]:
    """See samples as opaque elements: they move at once, whatever their dtype."""
    flat = array.reshape(len(array), -1)
    return flat.view(f"V{flat.itemsize * flat.shape[1]}")[:, 0]


def _take(source: npt.NDArray[Any], rows: npt.NDArray[np.int64], target: npt.NDArray[Any]) -> None:
    """Copy rows, all of which exist, one after another; releases the GIL.

    Without views as opaque elements: making two of them takes longer than copying 45 rows of 1 KiB.
    """
    source.take(rows, 0, target, "clip")
