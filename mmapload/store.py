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
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.checksums import ChecksumList
from mmapload.chunkfile import read_chunk_file
from mmapload.errors import ChunkError, LayoutError, MmaploadError
from mmapload.opening import METADATA, read_layout
from mmapload.presence import chunks_there, missing_chunks
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

    def __post_init__(self) -> None:
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
        """Return the path of a chunk's file."""
        return os.path.join(self.path, field.name, field.chunk_key(chunk))

    @property
    def fingerprint(self) -> str:
        """Identify what the store holds by its layout, wherever it lies: 16 hexadecimal digits."""
        # Whether checksums are listed changes nothing of what is in it.
        root = dataclasses.replace(self.layout, has_checksums=False).root_attributes()
        fields = [dataclasses.astuple(each) for each in self.layout.fields]
        # Only those of ragged fields have pieces, and there were none before.
        told = repr((root, [each if each[-1] else each[:-1] for each in fields]))
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
            If its file is missing, of the wrong size, damaged, or another chunk's.
        """
        layout = self.field(field)
        if not 0 <= chunk < self.layout.chunks:
            raise IndexError(f"chunk {chunk} of {self.layout.chunks}")
        shape = (layout.chunk_length, *layout.shape)
        if not layout.sample_nbytes:
            return np.empty(shape, layout.dtype)[: self.layout.chunk_samples(chunk)]
        path = self.chunk_path(layout, chunk)
        try:
            content = read_chunk_file(layout, chunk, path)
            self.expect_listed(layout, chunk, content.trailer)
        except ChunkError as error:
            raise self.located(error) from error.__cause__
        return content.data.view(layout.dtype).reshape(shape)[: self.layout.chunk_samples(chunk)]

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
        if error.chunk not in range(self.layout.chunks) or not any(
            error.path == self.chunk_path(field, error.chunk) for field in self.layout.fields
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
        return [
            (field.name, chunk, self.chunk_path(field, chunk))
            for field in (self.layout.fields if fields is None else fields)
            for chunk in missing_chunks(self._there(field), self._files(field))
        ]

    def expect_all_files(self, fields: Iterable[FieldLayout]) -> None:
        """See to it that every chunk has its file, by one listing a field.

        Raises
        ------
        ChunkError
            If one is missing; naming the first, and saying how many more there are.
        """
        lacking = [field for field in fields if len(self._there(field)) < self._files(field)]
        if lacking:
            name, chunk, path = self.missing_chunks(lacking)[0]
            more = sum(self._files(field) - len(self._there(field)) for field in lacking) - 1
            found = f"no such file (and {more:,} more)" if more else "no such file"
            raise self.located(ChunkError(name, chunk, path, "a chunk file", found))

    def _files(self, field: FieldLayout) -> int:
        """Count the chunk files that a field has to have."""
        return self.layout.chunks if field.sample_nbytes else 0

    def _there(self, field: FieldLayout) -> set[int]:
        return chunks_there(os.path.join(self.path, field.name), field, self._files(field))

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
        return sum(map(self._files, self.layout.fields))


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
