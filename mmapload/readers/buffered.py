"""Read chunks of any codec by decoding them."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.buffers import BufferPool
from mmapload.chunkfile import open_chunk_file, read_chunk_file
from mmapload.mappings import drop_pages
from mmapload.readers.base import PlacedArrays, Reader

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mmapload.checks import Checks
    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout
    from mmapload.readers.base import ChunkArrays
    from mmapload.store import Store

__all__ = ["BufferedReader"]


AT_ONCE: Final = 4
"""Chunks that are decoded at a time, as a rule."""


class BufferedReader(Reader):
    """Reads whole chunk files and decodes them into recycled buffers; for any codec.

    Parameters
    ----------
    held : int
        Chunks that are held at a time: the memory of as many is kept for use again, since those of a whole
        window may be dropped at once.
    """

    maps = False

    def __init__(
        self,
        store: Store,
        fields: tuple[FieldLayout, ...],
        checks: Checks,
        *,
        drop_behind: bool,
        held: int = 1,
    ) -> None:
        super().__init__(store, fields, checks, drop_behind=drop_behind)
        self._pools = [BufferPool(idle=max(held, AT_ONCE)) for _ in fields]
        self._scratch = [BufferPool(idle=AT_ONCE) for _ in fields]

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Read, check if that is due, and decode the whole chunk."""
        placed = stop is None and self.places_chunks
        stop = self.end_of(chunk, stop)
        arrays: ChunkArrays = {}
        loaded = 0
        with self.reading():
            for i, field, path in self.paths(chunk):
                if field.is_ragged:
                    arrays[field.name], nbytes = self.ragged[field.name].load(
                        chunk, start, stop, maps=False, drop=False, bring_in=True
                    )
                    loaded += nbytes
                    continue
                shape = (field.chunk_length, *field.shape)
                if field.sample_nbytes == 0:
                    arrays[field.name] = np.empty(shape, field.dtype)[start:stop]
                    continue
                due = self.checks.due(i, chunk)
                content = read_chunk_file(
                    field, chunk, path, self._pools[i].take, scratch=partial(self._encoded, i), verify=due
                )
                if due:
                    self.store.expect_listed(field, chunk, content.trailer)
                    self.checks.passed(i, chunk)
                if self.drop_behind:
                    drop_pages(path, 0, content.file_nbytes)
                loaded += content.file_nbytes
                arrays[field.name] = content.data.view(field.dtype).reshape(shape)[start:stop]
        self.finish(1, loaded)
        return PlacedArrays(arrays, self.ragged) if placed else arrays

    def _encoded(self, field: int, nbytes: int) -> Bytes:
        """Return memory for a compressed chunk: of one size for all, so that it can be used again."""
        size = max(nbytes, self.fields[field].chunk_nbytes)
        return self._scratch[field].take(size)[:nbytes]

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Ask the system to read the chunk's files ahead."""
        with self.reading():
            for _, field, path in self.paths(chunk):
                if field.is_ragged and hasattr(os, "posix_fadvise"):
                    self.ragged[field.name].will_need(chunk)
                elif field.sample_nbytes and hasattr(os, "posix_fadvise"):
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
        into: Mapping[str, Any],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Refuse: a chunk is decoded whole."""
        return False
