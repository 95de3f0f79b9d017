"""Read chunks of fields whose samples differ in shape: their values, and not what pads their files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.buffers import BufferPool
from mmapload.chunkfile import expect_checksum, open_chunk_file, read_exactly
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError
from mmapload.extents import RaggedArray
from mmapload.mappings import PAGE, drop_pages, map_private, populate, reserve
from mmapload.ragged import (
    combined_checksum,
    piece_array,
    piece_count,
    piece_path,
    read_extents,
    read_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mmapload.checks import Checks
    from mmapload.codecs import Bytes
    from mmapload.extents import Extents
    from mmapload.layout import FieldLayout, StoreLayout
    from mmapload.store import Store

__all__ = ["RaggedReader"]

KEPT: Final = 64
"""Chunks of which it is kept where their samples lie, at most, and in as many bytes as the next number."""

KEPT_BYTES: Final = 2**25

TABLE_BYTES: Final = 2**26
"""Up to this size a table says of all samples of a store where they lie: it is looked at once for a batch."""


class RaggedReader:
    """Reads one ragged field. Thread-safe.

    Parameters
    ----------
    number : int
        The field's, among those that are checked.
    drop_behind : bool
        Whether pages are given back to the system when the last array over them is gone.
    """

    def __init__(
        self, store: Store, field: FieldLayout, number: int, checks: Checks, *, drop_behind: bool
    ) -> None:
        self.field = field
        self._store = store
        self._number = number
        self._checks = checks
        self._drop_behind = drop_behind
        self._buffers = BufferPool(idle=4)
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Extents, bytes]] = OrderedDict()
        layout, axes = store.layout, len(field.shape)
        fits = layout.chunks * layout.chunk_length * 8 * (1 + axes) <= TABLE_BYTES
        self._table = Table(layout, axes) if fits and checks.verify != "always" else None

    @property
    def _due(self) -> Callable[[int], bool]:
        return partial(self._checks.due, self._number)

    def places(self, samples: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where samples begin in the values of their chunks, and their shapes.

        Raises
        ------
        ChunkError
            If a file that says so is missing or damaged.
        """
        chunks = samples // self.field.chunk_length
        table = self._table
        if table is not None:
            if not table.known[chunks].all():
                for chunk in np.unique(chunks[~table.known[chunks]]).tolist():
                    table.put(chunk, self._extents(chunk)[0])
            return table.starts[samples], table.shapes[samples]
        rows = samples - chunks * self.field.chunk_length
        starts = np.empty(len(samples), np.int64)
        shapes = np.empty((len(samples), len(self.field.shape)), np.int64)
        for chunk in np.unique(chunks).tolist():
            here, extents = chunks == chunk, self._extents(chunk)[0]
            starts[here], shapes[here] = extents.offsets[rows[here]], extents.shapes[rows[here]]
        return starts, shapes

    def _extents(self, chunk: int) -> tuple[Extents, bytes]:
        due = self._due(chunk)
        with self._lock:
            found = self._kept.get(chunk)
            if found is not None and self._checks.verify != "always":
                self._kept.move_to_end(chunk)
                return found
        samples, values = self._store.layout.chunk_samples(chunk), int(self._store.values(self.field)[chunk])
        found = read_extents(self._store.path, self.field, chunk, samples, values, verify=due)
        with self._lock:
            self._kept[chunk] = found
            most = min(KEPT, 1 + KEPT_BYTES // max(1, found[0].offsets.nbytes + found[0].shapes.nbytes))
            while len(self._kept) > most:
                self._kept.popitem(last=False)
        return found

    def load(
        self, chunk: int, start: int, stop: int, *, maps: bool, drop: bool, bring_in: bool
    ) -> tuple[RaggedArray, int]:
        """Return samples [start, stop) of a chunk, and how many bytes of files were mapped or read for them.

        Parameters
        ----------
        maps : bool
            Whether to map the files, as far as pieces end where pages do.
        drop : bool
            Whether to drop the pages of a map when it is gone.
        bring_in : bool
            Whether the pages are to be brought into memory.

        Raises
        ------
        ChunkError
            If a file is missing, of the wrong size, or damaged.
        """
        due = self._due(chunk)
        extents, first_trailer = self._extents(chunk)
        itemsize = self.field.dtype.itemsize
        first, last = int(extents.offsets[start]), int(extents.offsets[stop])
        if due or not maps:
            first, last = 0, int(extents.offsets[-1])
        if first == last:
            memory, trailers, nbytes = np.empty(0, np.uint8), [], 0
        elif maps:
            begin, end = first * itemsize, last * itemsize
            memory = self._mapped(chunk, begin, end, drop=drop, bring_in=bring_in or due)
            nbytes = end - begin
            trailers = self._checked(chunk, memory) if due else []
        else:
            pieces = piece_count(self.field, last)
            memory = self._buffers.take(pieces * self.field.piece_length * itemsize)
            trailers, nbytes = read_values(self._store.path, self.field, chunk, last, memory, verify=due)
            memory = memory[: last * itemsize]
            if self._drop_behind:
                for piece in range(pieces):
                    drop_pages(self._path(chunk, piece), 0, 2**62)
        if due:
            self._store.expect_listed(self.field, chunk, combined_checksum([first_trailer, *trailers]))
            self._checks.passed(self._number, chunk)
        return RaggedArray(memory.view(self.field.dtype), extents.part(start, stop), first), nbytes

    def _path(self, chunk: int, piece: int) -> str:
        return piece_path(self._store.path, self.field, chunk, piece)

    def _mapped(self, chunk: int, begin: int, end: int, *, drop: bool, bring_in: bool) -> Bytes:
        """Return bytes [begin, end) of a chunk's values; copied where pieces do not end with their pages."""
        length = self.field.piece_length * self.field.dtype.itemsize
        pieces = range(begin // length, (end - 1) // length + 1)
        if len(pieces) == 1:
            before = pieces[0] * length
            return self._map(chunk, pieces[0], begin - before, end - before, drop=drop, bring_in=bring_in)
        if length % PAGE:
            memory = self._buffers.take(end - begin)
            self.read(chunk, begin, memory)
            for piece in pieces if drop else ():
                drop_pages(self._path(chunk, piece), 0, length)
            return memory
        start = begin // PAGE * PAGE
        space = reserve(-(-(end - start) // PAGE) * PAGE)
        maps = []
        for piece in pieces:
            low, high = max(start - piece * length, 0), min(end - piece * length, length)
            place = space[piece * length + low - start :]
            maps.append(self._map(chunk, piece, low, high, drop=drop, bring_in=bring_in, within=place))
        return np.asarray(_Together(space[begin - start : end - start], maps))

    def _map(
        self,
        chunk: int,
        piece: int,
        low: int,
        high: int,
        *,
        drop: bool,
        bring_in: bool,
        within: Bytes | None = None,
    ) -> Bytes:
        path = self._path(chunk, piece)
        fd, _ = open_chunk_file(piece_array(self.field), chunk, path)
        try:
            after = partial(drop_pages, path, low, high) if drop else None
            memory = map_private(fd, low, high, after, large_pages=within is None, within=within)
            if bring_in:
                populate(memory)
        except OSError as error:
            raise ChunkError(self.field.name, chunk, path, "a readable file", str(error)) from error
        finally:
            os.close(fd)
        return memory

    def read(self, chunk: int, begin: int, into: Bytes) -> None:
        """Read bytes of a chunk's values from `begin` on, without bringing anything else in.

        Raises
        ------
        ChunkError
            If a file is missing, of the wrong size, or cannot be read.
        """
        length, done = self.field.piece_length * self.field.dtype.itemsize, 0
        while done < into.nbytes:
            piece, offset = divmod(begin + done, length)
            part = into[done : done + length - offset]
            path = self._path(chunk, piece)
            fd, _ = open_chunk_file(piece_array(self.field), chunk, path)
            try:
                if not read_exactly(fd, part, offset):
                    raise ChunkError(self.field.name, chunk, path, f"byte {offset}", "the end of the file")
            except OSError as error:
                if isinstance(error, ChunkError):
                    raise
                raise ChunkError(self.field.name, chunk, path, "a readable file", str(error)) from error
            finally:
                os.close(fd)
            done += part.nbytes

    def _checked(self, chunk: int, memory: Bytes) -> list[bytes]:
        """Compare all values of a chunk with the checksums that end their files; returns these."""
        length, found = self.field.piece_length * self.field.dtype.itemsize, []
        layout = piece_array(self.field)
        for piece in range(-(-memory.nbytes // length)):
            path = self._path(chunk, piece)
            fd, size = open_chunk_file(layout, chunk, path)
            try:
                trailer = os.pread(fd, CHECKSUM_BYTES, size - CHECKSUM_BYTES)
            except OSError as error:
                raise ChunkError(layout.name, chunk, path, "a readable file", str(error)) from error
            finally:
                os.close(fd)
            part = memory[piece * length : (piece + 1) * length]
            expect_checksum(layout, chunk, path, part, trailer, length - part.nbytes)
            found.append(trailer)
        return found

    def will_need(self, chunk: int) -> None:
        """Ask the system to read the chunk's files ahead."""
        values = int(self._store.values(self.field)[chunk])
        for piece in range(piece_count(self.field, values)):
            fd, size = open_chunk_file(piece_array(self.field), chunk, self._path(chunk, piece))
            try:
                os.posix_fadvise(fd, 0, size, os.POSIX_FADV_WILLNEED)
            except OSError:
                pass  # advice, which a file system may not take
            finally:
                os.close(fd)


class Table:
    """Where all samples of a field lie, chunk by chunk as that is read.

    Attributes
    ----------
    known : ndarray of bool
        Of each chunk.
    starts : ndarray of int64
        Where each sample's values begin in those of its chunk.
    shapes : ndarray of int64
        Shape (samples, axes).
    """

    __slots__ = ("_length", "known", "shapes", "starts")

    def __init__(self, layout: StoreLayout, axes: int) -> None:
        self._length = layout.chunk_length
        self.known = np.zeros(layout.chunks, np.bool_)
        self.starts = np.empty(layout.samples, np.int64)
        self.shapes = np.empty((layout.samples, axes), np.int64)

    def put(self, chunk: int, extents: Extents) -> None:
        """Take what is known of a chunk; twice in two threads does no harm."""
        rows = slice(chunk * self._length, chunk * self._length + len(extents))
        self.starts[rows], self.shapes[rows] = extents.offsets[:-1], extents.shapes
        self.known[chunk] = True


class _Together:
    """Holds maps that lie side by side as long as there is an array over them."""

    __slots__ = ("__array_interface__", "maps", "space")

    def __init__(self, space: npt.NDArray[Any], maps: list[Bytes]) -> None:
        self.space = space
        self.maps = maps
        self.__array_interface__: dict[str, Any] = space.__array_interface__
