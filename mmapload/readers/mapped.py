"""Read raw chunks by mapping their files."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.chunkfile import expect_checksum, open_chunk_file, read_exactly
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError
from mmapload.mappings import PAGE, count_in_memory, drop_pages, map_private, populate
from mmapload.mappool import MapPool
from mmapload.readers.base import PlacedArrays, Reader
from mmapload.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mmapload.checks import Checks
    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout
    from mmapload.readers.base import ChunkArrays
    from mmapload.store import Store

__all__ = ["MappedReader"]

SMALL_SAMPLE_BYTES: Final = 2**14
"""Below this, copying a sample takes less time than the calls for it, and chunks are mapped side by side."""

DROP_BYTES: Final = 2**19
"""Rows that were read in one piece are dropped behind from this size on; pages at the ends go with them."""


class MappedReader(Reader):
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
        super().__init__(store, fields, checks, drop_behind=drop_behind)
        self._pool = MapPool()
        if 0 < sum(field.sample_nbytes for field in fields) < SMALL_SAMPLE_BYTES:
            spans = {
                field.name: Span.of(field, store.layout.chunks) for field in fields if field.sample_nbytes
            }
            self.spans = {name: span for name, span in spans.items() if span is not None}
            if len(self.spans) < len(spans):
                self.spans = {}
            self.places_chunks = bool(self.spans)

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Map the rows, bring all their pages in, and check the chunk if that is due."""
        placed = stop is None and self.places_chunks
        stop = self.end_of(chunk, stop)
        with self.reading():
            arrays, nbytes = self._map(
                chunk, start, stop, drop=self.drop_behind, bring_in=not in_memory, placed=placed
            )
        self.finish(1, nbytes)
        return arrays

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Bring the pages in, check the chunk if that is due, and leave them to the page cache."""
        with self.reading():
            self._map(chunk, start, self.end_of(chunk, stop), drop=False, bring_in=True)

    def _map(
        self, chunk: int, start: int, stop: int, *, drop: bool, bring_in: bool, placed: bool = False
    ) -> tuple[ChunkArrays, int]:
        """Return the rows, and how many bytes of files were mapped for them."""
        arrays: ChunkArrays = {}
        loaded = 0
        for i, field, path in self.paths(chunk):
            shape = (stop - start, *field.shape)
            if field.is_ragged:
                arrays[field.name], nbytes = self.ragged[field.name].load(
                    chunk, start, stop, maps=True, drop=drop, bring_in=bring_in
                )
                loaded += nbytes
                continue
            if field.sample_nbytes == 0 or start == stop:
                arrays[field.name] = np.empty(shape, field.dtype)
                continue
            due = self.checks.due(i, chunk)
            first, last = start * field.sample_nbytes, stop * field.sample_nbytes
            # A checksum covers the whole file, so the first load of any row maps all of it.
            whole = due or (start == 0 and stop == self.store.layout.chunk_samples(chunk))
            begin, end = (0, field.chunk_nbytes + CHECKSUM_BYTES) if whole else (first, last)
            fd, _ = open_chunk_file(field, chunk, path)
            after = partial(drop_pages, path, begin, end) if drop else None
            try:
                memory = self.spans[field.name].map(chunk, fd, end, after) if placed else None
                placed = memory is not None
                if memory is not None:
                    self._bring_in(memory, wanted=bring_in or due)
                elif self.drop_behind:
                    # A large page that two parts of a file share would be dropped with neither.
                    memory = map_private(fd, begin, end, after, large_pages=whole)
                    if bring_in or due:
                        populate(memory)
                else:
                    memory = self._recycled(fd, begin, end, bring_in=bring_in or due)
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
        return PlacedArrays(arrays, self.ragged) if placed else arrays, loaded

    def _recycled(self, fd: int, begin: int, end: int, *, bring_in: bool) -> Bytes:
        """Return a map of these bytes of a file: an older one, if one came back untouched."""
        status = os.fstat(fd)
        part = status.st_dev, status.st_ino, begin, end
        memory = self._pool.take(part)
        if memory is None:
            memory = self._pool.lease(part, map_private(fd, begin, end, large_pages=True))
        else:
            bring_in = True  # what was in memory when it came back may not be now
        self._bring_in(memory, wanted=bring_in)
        return memory

    def _bring_in(self, memory: Bytes, *, wanted: bool) -> None:
        # To populate what is there takes several times as long as to find that out; pages are mapped as they
        # are touched then, and of a worker's chunks few are.
        if wanted and (self.drop_behind or count_in_memory(memory) * PAGE < memory.nbytes):
            populate(memory)

    def read_rows(
        self,
        chunk: int,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, Any],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Read rows by position, straight into their places; refuses while the chunk has to be checked."""
        fields = [(field, path) for _, field, path in self.paths(chunk) if field.sample_nbytes]
        ragged = {name: into[name] for name in self.ragged}
        with_files = [i for i, field in enumerate(self.fields) if field.sample_nbytes or field.is_ragged]
        if any(self.checks.due(i, chunk) for i in with_files):
            return False
        loaded = len(rows) * sum(field.sample_nbytes for field, _ in fields)
        with self.reading():
            for field, path in fields:
                self._read_rows(field, path, chunk, rows.tolist(), into[field.name], places.tolist())
                first, nbytes = int(rows[0]) * field.sample_nbytes, len(rows) * field.sample_nbytes
                # A batch's part of a chunk comes once in an epoch. Of scattered rows, pages are shared with
                # others; and what somebody has mapped to stay is not dropped.
                if self.drop_behind and nbytes >= DROP_BYTES and (np.diff(rows) == 1).all():
                    drop_pages(path, first, first + nbytes)
            for name, read in ragged.items():
                loaded += read(self.ragged[name], chunk)
        self.finish(0, loaded)
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
