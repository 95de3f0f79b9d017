"""Open a store: read its metadata, say where each chunk's bytes lie, and check them.

Only numpy and the standard library are needed; nothing is mapped and no chunk is opened before it is
asked for, so a store opens in the same time whatever its size.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.chunkfile import read_chunk_file
from mmapload.codecs import Bytes, RawCodec
from mmapload.errors import ChunkError, MmaploadError
from mmapload.layout import RESERVED_GROUP, FieldLayout, StoreLayout
from mmapload.opening import METADATA, read_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

__all__ = ["METADATA", "NAME_ARRAYS", "Store", "StrPath", "open_store"]

StrPath: TypeAlias = "str | os.PathLike[str]"
NAME_ARRAYS: Final = {
    "names": FieldLayout("names", np.dtype("u1"), (), 2**16, RawCodec()),
    "ends": FieldLayout("ends", np.dtype("<i8"), (), 2**13, RawCodec()),
}
"""The reserved arrays: all names' UTF-8 bytes in one, and where each sample's name ends in the other."""


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """An open store: its path and its layout. Holds no descriptor and pickles small.

    Attributes
    ----------
    path : str
        Absolute path of the store's folder.
    layout : StoreLayout
        Fields, dtypes, shapes and chunk arithmetic.
    """

    path: str
    layout: StoreLayout

    def __len__(self) -> int:
        return self.layout.samples

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields, in the order in which they were written."""
        return tuple(each.name for each in self.layout.fields)

    def field(self, name: str) -> FieldLayout:
        """Return the layout of one field.

        Raises
        ------
        KeyError
            Naming the fields there are.
        """
        for each in self.layout.fields:
            if each.name == name:
                return each
        raise KeyError(f"{self.path} has no field {name!r}, only {', '.join(self.fields)}")

    def chunk_path(self, field: FieldLayout, chunk: int) -> str:
        """Return the path of a chunk's file."""
        return os.path.join(self.path, field.name, field.chunk_key(chunk))

    @property
    def fingerprint(self) -> str:
        """Identify what the store holds by its layout, wherever it lies: 16 hexadecimal digits."""
        told = repr(
            (self.layout.root_attributes(), [dataclasses.astuple(each) for each in self.layout.fields])
        )
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def read_chunk(self, field: str, chunk: int) -> npt.NDArray[Any]:
        """Read, check and decode one chunk of one field.

        Returns
        -------
        ndarray
            Shape (samples in this chunk, *field shape), writable, in memory of its own.

        Raises
        ------
        ChunkError
            If its file is missing, of the wrong size, or damaged.
        """
        layout = self.field(field)
        if not 0 <= chunk < self.layout.chunks:
            raise IndexError(f"chunk {chunk} of {self.layout.chunks}")
        out = np.empty((layout.chunk_length, *layout.shape), layout.dtype)
        if out.nbytes:
            read_chunk_file(layout, chunk, self.chunk_path(layout, chunk), out.reshape(-1).view(np.uint8))
        return out[: self.layout.chunk_samples(chunk)]

    def sample_name(self, sample: int) -> str | None:
        """Return the source's name of a sample, or None if the store keeps no names."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        if not self.layout.has_names:
            return None
        stop = self._reserved("ends", sample, sample + 1).view("<i8")[0]
        start = self._reserved("ends", sample - 1, sample).view("<i8")[0] if sample else 0
        if not 0 <= start <= stop:
            path = os.path.join(self.path, RESERVED_GROUP)
            raise ChunkError("ends", sample, path, "rising offsets", f"{start} before {stop}")
        text = self._reserved("names", int(start), int(stop)).tobytes()
        return text.decode("utf-8", "surrogateescape")

    def _reserved(self, name: str, start: int, stop: int) -> Bytes:
        """Read elements [start, stop) of a reserved array, as bytes."""
        layout = NAME_ARRAYS[name]
        out = np.empty(layout.chunk_nbytes, np.uint8)
        parts = []
        while start < stop:
            chunk, first = divmod(start, layout.chunk_length)
            last = min(layout.chunk_length, first + stop - start)
            read_chunk_file(layout, chunk, self._reserved_path(layout, chunk), out)
            parts.append(out[first * layout.sample_nbytes : last * layout.sample_nbytes].copy())
            start += last - first
        return np.concatenate(parts) if parts else out[:0]

    def _reserved_path(self, layout: FieldLayout, chunk: int) -> str:
        return os.path.join(self.path, RESERVED_GROUP, layout.name, layout.chunk_key(chunk))

    def missing_chunks(self, fields: Iterable[FieldLayout] | None = None) -> list[tuple[str, int, str]]:
        """List the chunk files that are not there, as (field, chunk, path), by one listing a field.

        Parameters
        ----------
        fields : iterable of FieldLayout, optional
            Where to look; everywhere by default.
        """
        missing = []
        for layout in self.layout.fields if fields is None else fields:
            folder = os.path.join(self.path, layout.name)
            there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
            if layout.sample_nbytes:
                missing += [
                    (layout.name, chunk, self.chunk_path(layout, chunk))
                    for chunk in range(self.layout.chunks)
                    if layout.chunk_key(chunk) not in there
                ]
        return missing

    def verify(self, threads: int = 1) -> Iterator[ChunkError | None]:
        """Read every chunk file: yields for each None, or what is wrong with it.

        Fields come first, in order, then the reserved arrays that keep the samples' names. Each thread
        keeps one chunk in memory.
        """
        files = (
            (layout, chunk, self.chunk_path(layout, chunk))
            for layout in self.layout.fields
            if layout.sample_nbytes
            for chunk in range(self.layout.chunks)
        )
        yield from _faults(files, threads)
        if self.layout.has_names:
            yield from self._verify_names(threads)

    def _verify_names(self, threads: int) -> Iterator[ChunkError | None]:
        broken = False
        for fault in _faults(self._reserved_files("ends", len(self)), threads):
            broken |= fault is not None
            yield fault
        if not broken:
            total = int(self._reserved("ends", len(self) - 1, len(self)).view("<i8")[0])
            yield from _faults(self._reserved_files("names", total), threads)

    def _reserved_files(self, name: str, length: int) -> Iterator[tuple[FieldLayout, int, str]]:
        layout = NAME_ARRAYS[name]
        for chunk in range(-(-length // layout.chunk_length)):
            yield layout, chunk, self._reserved_path(layout, chunk)

    @property
    def chunk_files(self) -> int:
        """Number of chunk files of the fields."""
        return self.layout.chunks * sum(1 for each in self.layout.fields if each.sample_nbytes)


def _faults(files: Iterable[tuple[FieldLayout, int, str]], threads: int) -> Iterator[ChunkError | None]:
    """Read chunk files side by side, and yield what is wrong with each, in order."""
    kept = threading.local()  # memory used before is several times faster than fresh memory

    def fault(layout: FieldLayout, chunk: int, path: str) -> ChunkError | None:
        if getattr(kept, "out", np.empty(0)).nbytes < layout.chunk_nbytes:
            kept.out = np.empty(layout.chunk_nbytes, np.uint8)
        try:
            read_chunk_file(layout, chunk, path, kept.out[: layout.chunk_nbytes])
        except ChunkError as error:
            return error
        return None

    ahead: deque[Future[ChunkError | None]] = deque()
    with ThreadPoolExecutor(threads, "mmapload-verify") as pool:
        for file in files:
            ahead.append(pool.submit(fault, *file))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def open_store(path: StrPath) -> Store:
    """Open a finished store.

    Parameters
    ----------
    path : str or path-like
        Its folder.

    Raises
    ------
    StoreNotFoundError
        If there is none; the message says what is there instead, an unfinished one for instance.
    LayoutError
        If its metadata is not as the format wants it: all problems at once.
    """
    if sys.byteorder != "little":
        raise MmaploadError("stores are little-endian, and this machine is not: it is not supported")
    folder = os.path.abspath(os.fspath(path))
    return Store(folder, read_layout(folder))
