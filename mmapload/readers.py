"""Bring chunks into memory: mapped where a chunk's file is its array, read and decoded otherwise.

Both readers give equal arrays for the same store; only where the memory comes from differs.
"""

from __future__ import annotations

import contextlib
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import numpy as np

from mmapload.buffers import BufferPool
from mmapload.chunkfile import expect_checksum, open_chunk_file, read_chunk_file, read_exactly
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError, StateMismatchError
from mmapload.mappings import drop_pages, map_private, populate
from mmapload.opening import identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from mmapload.checks import Checks
    from mmapload.layout import FieldLayout
    from mmapload.store import Store

__all__ = ["BufferedReader", "ChunkArrays", "ChunkReader", "MappedReader", "reader_for"]

DROP_BYTES: Final = 2**19
"""Rows that were read in one piece are dropped behind from this size on; pages at the ends go with them."""

ChunkArrays: TypeAlias = "dict[str, npt.NDArray[Any]]"
"""The samples of one chunk: field name -> array of shape (samples, *field shape), writable, private."""


class ChunkReader(Protocol):
    """Loads chunks. Thread-safe; every array that it gives out is the caller's alone.

    Attributes
    ----------
    chunks_loaded, bytes_loaded : int
        How often `load` has given out rows of a chunk, and the bytes of files that were mapped or read for
        that and for `read_rows`.
    row_bytes_loaded : int
        Those of them that `read_rows` read.
    """

    chunks_loaded: int
    bytes_loaded: int
    row_bytes_loaded: int

    @property
    def maps(self) -> bool:
        """Whether loading maps files, so that the page cache holds what was loaded."""

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Load rows [start, stop) of a chunk, all of them by default.

        Parameters
        ----------
        in_memory : bool
            Whether the files' pages are known to be in memory, so that nothing has to be brought in.

        Raises
        ------
        ChunkError
            If a file is missing, of the wrong size, or damaged.
        StateMismatchError
            If another store has taken this one's place since it was first read.
        """

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Bring the bytes of these rows' files into the page cache."""

    def read_rows(
        self,
        chunk: int,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, npt.NDArray[Any]],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Read single rows of a chunk into `into[field][places]` without loading the chunk.

        Returns
        -------
        bool
            False if that cannot be done: the chunk has to be decoded, or checked, as a whole.
        """


class _Reader:
    def __init__(self, store: Store, fields: tuple[FieldLayout, ...], checks: Checks) -> None:
        self.store = store
        self.fields = fields
        self.checks = checks
        self.chunks_loaded = 0
        self.bytes_loaded = 0
        self.row_bytes_loaded = 0
        self._root = identity_of(store.path)
        self._counting = threading.Lock()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Say in errors which samples they concern; but of a store that was replaced, that it was."""
        try:
            yield
        except ChunkError as error:
            self._refuse_replaced()
            raise self.store.located(error) from error.__cause__

    def _finish(self, chunks: int, nbytes: int) -> None:
        """Count what was read, and refuse it if the store was replaced meanwhile: old and new would mix."""
        self._refuse_replaced()
        with self._counting:
            self.chunks_loaded += chunks
            self.bytes_loaded += nbytes
            self.row_bytes_loaded += 0 if chunks else nbytes

    def _refuse_replaced(self) -> None:
        root = identity_of(self.store.path)
        if root != self._root:
            raise StateMismatchError(
                f"{self.store.path} was replaced by another store while it was in use; open it again",
                f"folder {self._root}",
                f"{root}",
            )

    def _paths(self, chunk: int) -> list[tuple[int, FieldLayout, str]]:
        return [(i, field, self.store.chunk_path(field, chunk)) for i, field in enumerate(self.fields)]

    def _stop(self, chunk: int, stop: int | None) -> int:
        return self.store.layout.chunk_samples(chunk) if stop is None else stop


class MappedReader(_Reader):
    """Maps raw chunks: private and writable, so that no change reaches the file or a later load.

    Attributes
    ----------
    drop_behind : bool
        Whether a chunk's pages are given back to the system when its last array is gone: for data larger
        than the memory budget.
    """

    maps = True

    def __init__(
        self, store: Store, fields: tuple[FieldLayout, ...], checks: Checks, *, drop_behind: bool
    ) -> None:
        super().__init__(store, fields, checks)
        self.drop_behind = drop_behind

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Map the rows, bring all their pages in, and check the chunk if that is due."""
        stop = self._stop(chunk, stop)
        with self._reading():
            arrays, nbytes = self._map(chunk, start, stop, drop=self.drop_behind, bring_in=not in_memory)
        self._finish(1, nbytes)
        return arrays

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Bring the pages in, check the chunk if that is due, and leave them to the page cache."""
        with self._reading():
            self._map(chunk, start, self._stop(chunk, stop), drop=False, bring_in=True)

    def _map(
        self, chunk: int, start: int, stop: int, *, drop: bool, bring_in: bool
    ) -> tuple[ChunkArrays, int]:
        """Return the rows, and how many bytes of files were mapped for them."""
        arrays, loaded = {}, 0
        for i, field, path in self._paths(chunk):
            shape = (stop - start, *field.shape)
            if field.sample_nbytes == 0 or start == stop:
                arrays[field.name] = np.empty(shape, field.dtype)
                continue
            due = self.checks.due(i, chunk)
            first, last = start * field.sample_nbytes, stop * field.sample_nbytes
            # A checksum covers the whole file, so the first load of any row maps all of it.
            begin, end = (0, field.chunk_nbytes + CHECKSUM_BYTES) if due else (first, last)
            fd, _ = open_chunk_file(field, chunk, path)
            try:
                memory = map_private(fd, begin, end, partial(drop_pages, path, begin, end) if drop else None)
                if bring_in or due:
                    populate(memory)
            except OSError as error:
                raise ChunkError(field.name, chunk, path, "a readable file", str(error)) from error
            finally:
                os.close(fd)
            if due:
                payload, trailer = memory[: field.chunk_nbytes], memory[field.chunk_nbytes :].tobytes()
                expect_checksum(field, chunk, path, payload, trailer)
                self.store.expect_listed(field, chunk, trailer)
                self.checks.passed(i, chunk)
            loaded += end - begin
            rows = memory[first - begin : last - begin]
            arrays[field.name] = rows.view(field.dtype).reshape(shape)
        return arrays, loaded

    def read_rows(
        self,
        chunk: int,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, npt.NDArray[Any]],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Read rows by position, straight into their places; refuses while the chunk has to be checked."""
        fields = [(field, path) for _, field, path in self._paths(chunk) if field.sample_nbytes]
        if any(self.checks.due(i, chunk) for i, field in enumerate(self.fields) if field.sample_nbytes):
            return False
        with self._reading():
            for field, path in fields:
                self._read_rows(field, path, chunk, rows.tolist(), into[field.name], places.tolist())
                first, nbytes = int(rows[0]) * field.sample_nbytes, len(rows) * field.sample_nbytes
                # A batch's part of a chunk comes once in an epoch. Of scattered rows, pages are shared with
                # others; and what somebody has mapped to stay is not dropped.
                if self.drop_behind and nbytes >= DROP_BYTES and (np.diff(rows) == 1).all():
                    drop_pages(path, first, first + nbytes)
        self._finish(0, len(rows) * sum(field.sample_nbytes for field, _ in fields))
        return True

    def _read_rows(
        self,
        field: FieldLayout,
        path: str,
        chunk: int,
        rows: list[int],
        into: npt.NDArray[Any],
        places: list[int],
    ) -> None:
        fd, _ = open_chunk_file(field, chunk, path)
        try:
            target = into.reshape(len(into), -1).view(np.uint8)
            for row, place in zip(rows, places, strict=True):
                if not read_exactly(fd, target[place], row * field.sample_nbytes):
                    raise ChunkError(field.name, chunk, path, f"row {row}", "the end of the file")
        except OSError as error:
            if isinstance(error, ChunkError):
                raise
            raise ChunkError(field.name, chunk, path, "a readable file", str(error)) from error
        finally:
            os.close(fd)


class BufferedReader(_Reader):
    """Reads whole chunk files and decodes them into recycled buffers; for any codec."""

    maps = False

    def __init__(
        self, store: Store, fields: tuple[FieldLayout, ...], checks: Checks, *, drop_behind: bool
    ) -> None:
        super().__init__(store, fields, checks)
        self.drop_behind = drop_behind
        self._pools = [BufferPool(idle=4) for _ in fields]

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Read, check if that is due, and decode the whole chunk."""
        stop = self._stop(chunk, stop)
        arrays, loaded = {}, 0
        with self._reading():
            for i, field, path in self._paths(chunk):
                shape = (field.chunk_length, *field.shape)
                if field.sample_nbytes == 0:
                    arrays[field.name] = np.empty(shape, field.dtype)[start:stop]
                    continue
                due = self.checks.due(i, chunk)
                content = read_chunk_file(field, chunk, path, self._pools[i].take, verify=due)
                if due:
                    self.store.expect_listed(field, chunk, content.trailer)
                    self.checks.passed(i, chunk)
                if self.drop_behind:
                    drop_pages(path, 0, content.file_nbytes)
                loaded += content.file_nbytes
                arrays[field.name] = content.data.view(field.dtype).reshape(shape)[start:stop]
        self._finish(1, loaded)
        return arrays

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Ask the system to read the chunk's files ahead."""
        with self._reading():
            for _, field, path in self._paths(chunk):
                if field.sample_nbytes and hasattr(os, "posix_fadvise"):
                    fd, size = open_chunk_file(field, chunk, path)
                    try:
                        with contextlib.suppress(OSError):  # advice, which a file system may not take
                            os.posix_fadvise(fd, 0, size, os.POSIX_FADV_WILLNEED)
                    finally:
                        os.close(fd)

    def read_rows(
        self,
        chunk: int,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, npt.NDArray[Any]],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Refuse: a chunk is decoded whole."""
        return False


def reader_for(
    store: Store, fields: tuple[FieldLayout, ...], checks: Checks, *, drop_behind: bool
) -> ChunkReader:
    """Choose the reader: mapped if every field is raw, else buffered."""
    kind = MappedReader if all(field.codec.is_raw for field in fields) else BufferedReader
    return kind(store, fields, checks, drop_behind=drop_behind)
