"""Open a store: read its metadata, say where each chunk's bytes lie, and check them.

Only numpy and the standard library are needed; nothing is mapped and no chunk is opened before it is
asked for, so a store opens in the same time whatever its size.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.checksums import ChecksumList
from mmapload.chunkfile import read_chunk_file
from mmapload.elements import ElementCounts, absent_files
from mmapload.errors import ChunkError, LayoutError, MmaploadError
from mmapload.extents import RaggedArray
from mmapload.layout import CONTENTS
from mmapload.opening import METADATA, read_layout
from mmapload.presence import MOST_MISSING, chunks_there, missing_chunks
from mmapload.ragged import (
    combined_checksum,
    extents_array,
    extents_folder,
    piece_path,
    read_extents,
    read_values,
)
from mmapload.reserved import read_name
from mmapload.verifying import verified

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["METADATA", "Store", "StrPath", "open_store"]

StrPath: TypeAlias = "str | os.PathLike[str]"
_NAMES_SHOWN: Final = 3
"""Source names in the message of an error, of all the samples in a chunk."""


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
    _checksums: ChecksumList | None = dataclasses.field(init=False, repr=False, compare=False)
    _elements: ElementCounts = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_elements", ElementCounts(self.path, self.layout))
        listed = ChecksumList(self.path, self.layout) if self.layout.has_checksums else None
        object.__setattr__(self, "_checksums", listed)  # the dataclass is frozen

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
        """Return the path of a chunk's file; of a ragged field that of its first piece."""
        if field.is_ragged:
            return piece_path(self.path, field, chunk, 0)
        return os.path.join(self.path, field.name, field.chunk_key(chunk))

    @property
    def fingerprint(self) -> str:
        """Identify what the store holds by its layout, wherever it lies: 16 hexadecimal digits."""
        # Whether checksums are listed changes nothing of what is in it; nor does what is known of its source.
        source = {name: told for name, told in self.layout.source.items() if name not in CONTENTS}
        root = dataclasses.replace(self.layout, has_checksums=False, source=source).root_attributes()
        fields = [dataclasses.astuple(each) for each in self.layout.fields]
        # Only those of ragged fields have pieces, only some have notes, and there was neither before.
        told = repr((root, [each[:-2] + tuple(filter(None, each[-2:])) for each in fields]))
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def values(self, field: FieldLayout) -> npt.NDArray[np.int64]:
        """Return how many values each chunk of a ragged field has.

        Raises
        ------
        ChunkError
            If a file that says so is missing or damaged.
        """
        return self._elements.of(field)

    def chunk_nbytes(self, fields: Iterable[FieldLayout]) -> npt.NDArray[np.int64]:
        """Return the bytes that each chunk of some fields takes in memory, decoded."""
        found = np.zeros(self.layout.chunks, np.int64)
        for field in fields:
            found += field.chunk_nbytes
            if field.is_ragged:
                values = self.values(field)
                if not field.codec.is_raw:  # pieces are decoded whole
                    values = -(-values // field.piece_length) * field.piece_length
                found += values * field.dtype.itemsize + extents_array(field).chunk_nbytes
        return found

    def sample_nbytes(self, field: FieldLayout) -> int:
        """Return the bytes of a sample of a field; of a ragged one on average, rounded up."""
        if not field.is_ragged:
            return field.sample_nbytes
        return -(-int(self.values(field).sum()) * field.dtype.itemsize // len(self))

    def decoded_nbytes(self, field: FieldLayout) -> int:
        """Return the bytes of all samples of a field."""
        if field.is_ragged:
            return int(self.values(field).sum()) * field.dtype.itemsize
        return field.sample_nbytes * len(self)

    def _read_ragged(self, field: FieldLayout, chunk: int) -> RaggedArray:
        values = int(self.values(field)[chunk])
        extents, first = read_extents(self.path, field, chunk, self.layout.chunk_samples(chunk), values)
        whole = -(-values // field.piece_length) * field.piece_length
        memory = np.empty(whole * field.dtype.itemsize, np.uint8)
        trailers, _ = read_values(self.path, field, chunk, values, memory)
        self.expect_listed(field, chunk, combined_checksum([first, *trailers]))
        return RaggedArray(memory.view(field.values_dtype)[:values], extents)

    def read_chunk(self, field: str, chunk: int) -> Any:
        """Read, check and decode one chunk of one field.

        Returns
        -------
        ndarray or RaggedArray
            Shape (samples in this chunk, *field shape), writable, in memory of its own; of a ragged field a
            sequence of arrays.

        Raises
        ------
        ChunkError
            If its file is missing, of the wrong size, damaged, or another chunk's.
        """
        layout = self.field(field)
        if not 0 <= chunk < self.layout.chunks:
            raise IndexError(f"chunk {chunk} of {self.layout.chunks}")
        shape = (layout.chunk_length, *layout.shape)
        if layout.is_ragged:
            try:
                return self._read_ragged(layout, chunk)
            except ChunkError as error:
                raise self.located(error) from error.__cause__
        if not layout.sample_nbytes:
            return layout.values(np.empty(shape, layout.dtype))[: self.layout.chunk_samples(chunk)]
        path = self.chunk_path(layout, chunk)
        try:
            content = read_chunk_file(layout, chunk, path)
            self.expect_listed(layout, chunk, content.trailer)
        except ChunkError as error:
            raise self.located(error) from error.__cause__
        stored = content.data.view(layout.dtype).reshape(shape)
        return layout.values(stored)[: self.layout.chunk_samples(chunk)]

    def expect_listed(self, field: FieldLayout, chunk: int, trailer: bytes) -> None:
        """Compare the checksum that ends a chunk's file with the one that the store lists, if it lists any.

        Raises
        ------
        ChunkError
            If they differ, for files were swapped for instance; or if the list is damaged.
        """
        if self._checksums is not None:
            self._checksums.expect(field, chunk, self.chunk_path(field, chunk), trailer)

    def located(self, error: ChunkError) -> ChunkError:
        """Return the error of a field's chunk file with the samples that are in the chunk.

        Names of the first of them are added where the store keeps names and they can be read.
        """
        folder = os.path.dirname(error.path)
        if error.chunk not in range(self.layout.chunks) or not any(
            error.path == self.chunk_path(field, error.chunk)
            or (field.is_ragged and folder in self._folders(field))
            for field in self.layout.fields
        ):
            return error
        first = error.chunk * self.layout.chunk_length
        samples = range(first, first + self.layout.chunk_samples(error.chunk))
        names: list[str] = []
        with contextlib.suppress(ChunkError):  # one error is enough
            names = [name for each in samples[:_NAMES_SHOWN] if (name := self.sample_name(each)) is not None]
        return error.of_samples(samples, names)

    def sample_name(self, sample: int) -> str | None:
        """Return the source's name of a sample, or None if the store keeps no names."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        if not self.layout.has_names:
            return None
        return read_name(self.path, sample)

    def missing_chunks(self, fields: Iterable[FieldLayout] | None = None) -> list[tuple[str, int, str]]:
        """List chunk files that are not there, as (field, chunk, path), by one listing a field.

        Parameters
        ----------
        fields : iterable of FieldLayout, optional
            Where to look; everywhere by default.

        Returns
        -------
        list of tuple
            In order; of each field the first 1,000 at most.
        """
        found = []
        for field in self.layout.fields if fields is None else fields:
            found += [(field.name, *each) for each in islice(self._absent(field), MOST_MISSING)]
        return found

    def expect_all_files(self, fields: Iterable[FieldLayout]) -> None:
        """See to it that every chunk has its file, by one listing a field.

        Raises
        ------
        ChunkError
            If one is missing; naming the first, and saying how many more there are.
        """
        lacking = [field for field in fields if self._count_absent(field)]
        if lacking:
            name, chunk, path = self.missing_chunks(lacking)[0]
            more = sum(map(self._count_absent, lacking)) - 1
            found = f"no such file (and {more:,} more)" if more else "no such file"
            raise self.located(ChunkError(name, chunk, path, "a chunk file", found))

    def count_files(self, field: FieldLayout) -> int:
        """Count the chunk files that a field has to have."""
        if field.is_ragged:
            return self.layout.chunks + int((-(-self.values(field) // field.piece_length)).sum())
        return self.layout.chunks if field.sample_nbytes else 0

    def _folders(self, field: FieldLayout) -> tuple[str, str]:
        """Return the two folders with files of a ragged field."""
        return os.path.join(self.path, field.name), os.path.join(self.path, extents_folder(field))

    def _absent(self, field: FieldLayout) -> Iterator[tuple[int, str]]:
        """Yield chunk and path of files of a field that are not there; of one of fixed shape the first."""
        if field.is_ragged:
            yield from absent_files(self.path, field, self.values(field))
            return
        for chunk in missing_chunks(self._there(field), self.count_files(field)):
            yield chunk, self.chunk_path(field, chunk)

    def _count_absent(self, field: FieldLayout) -> int:
        if field.is_ragged:
            return sum(1 for _ in self._absent(field))
        return self.count_files(field) - len(self._there(field))

    def _there(self, field: FieldLayout) -> set[int]:
        return chunks_there(os.path.join(self.path, field.name), field, self.count_files(field))

    def verify(self, threads: int = 1) -> Iterator[ChunkError | LayoutError | None]:
        """Read every chunk file: yields for each None, or what is wrong with it.

        Fields come first, in order, then what is reserved: metadata, of which only faults are told, the list
        of checksums, and the samples' names. Each thread keeps one chunk in memory. Where more than 1,000
        files of an array are missing, one error stands for the rest of them.
        """
        return verified(self.path, self.layout, self.expect_listed, self.located, threads)

    @property
    def chunk_files(self) -> int:
        """Number of chunk files of the fields."""
        return sum(map(self.count_files, self.layout.fields))


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
    return Store(folder, read_layout(folder, os.fspath(path)))
