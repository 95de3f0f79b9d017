"""Samples of a finished store's last chunk, if it is not full, with those that are appended behind them.

So an append fills, writes and resumes whole chunks like any other run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.order.bijection import bijection
from mmapload.order.philox import Purpose, stream_key
from mmapload.reserved import checksums_array, read_elements
from mmapload.sources import ArraySpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources import IndexedSource, StreamSource
    from mmapload.store import Store

__all__ = ["AppendedSource", "AppendedStream", "Extension", "store_of"]

_WRITING_LANE: Final = 2**32 - 1
"""Keeps the order of writing apart from every epoch's order, as in `build`."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A finished store that samples are appended to.

    Attributes
    ----------
    store : Store
        As it is now.
    samples : int
        How many it had when the append began.
    """

    store: Store
    samples: int

    @property
    def chunk_length(self) -> int:
        """Samples in a chunk."""
        return self.store.layout.chunk_length

    @property
    def rows(self) -> int:
        """Samples of a last chunk that is not full, and is written anew; 0 if all are full."""
        return self.samples % self.chunk_length

    @property
    def first_chunk(self) -> int:
        """Number of the first chunk that is written."""
        return self.samples // self.chunk_length

    def held(self, name: str) -> npt.NDArray[Any]:
        """Read the samples of the last chunk, if it is not full."""
        rows: npt.NDArray[Any] = self.store.read_chunk(name, self.first_chunk)[: self.rows]
        return rows

    def contents(self) -> str:
        """Return what tells the samples that are here from all others, also while new ones are put in place.

        Raises
        ------
        ChunkError
            If the last chunk or the list of checksums is missing or damaged.
        """
        layout, found = self.store.layout, hashlib.sha256()
        if layout.has_checksums and self.first_chunk:
            listed = checksums_array(len(layout.fields))
            found.update(read_elements(self.store.path, listed, 0, self.first_chunk))
        for name in self.store.fields if self.rows else ():
            found.update(np.ascontiguousarray(self.held(name)))
        return found.hexdigest()


def store_of(source: IndexedSource | StreamSource) -> str:
    """Return what tells the store that a source's samples are appended to; empty if to none."""
    return source.extension.contents() if isinstance(source, (AppendedSource, AppendedStream)) else ""


def _kind(extension: Extension, kind: str) -> str:
    """Say what a source is, and of which append: a run that goes on compares it."""
    return f"{kind}, appended to {extension.samples:,} samples"


class AppendedSource:
    """The samples of a store's last chunk, if it is not full, and those of a source behind them.

    Parameters
    ----------
    extension : Extension
        The store.
    source : IndexedSource
        What is appended.
    shuffle : int, optional
        Seed of the order in which the source's samples stand.
    """

    def __init__(self, extension: Extension, source: IndexedSource, shuffle: int | None) -> None:
        self.kind = _kind(extension, source.kind)
        self.parallel = source.parallel
        self.extension = extension
        self._source = source
        self._rows = extension.rows
        self._held: dict[str, npt.NDArray[Any]] = {}
        self._order = None
        if shuffle is not None:
            key = stream_key(shuffle, 0, Purpose.FULL, _WRITING_LANE)
            self._order = bijection(len(source), key)

    def __len__(self) -> int:
        """Count the samples."""
        return self._rows + len(self._source)

    def original(self, index: int) -> int:
        """Return the number that a sample has in the source that is appended."""
        if self._order is None:
            return index - self._rows
        return int(self._order.forward(np.array([index - self._rows], np.int64))[0])

    def name(self, index: int) -> str | None:
        """Name the sample."""
        if index < self._rows:
            return self.extension.store.sample_name(self._stored(index))
        return self._source.name(self.original(index))

    def describe(self, index: int) -> str:
        """Say which sample this is."""
        if index < self._rows:
            return f"sample {self._stored(index)} of {self.extension.store.path}"
        return self._source.describe(self.original(index))

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Say what arrays a sample has."""
        if index < self._rows:
            return {
                each.name: ArraySpec(each.dtype, each.shape) for each in self.extension.store.layout.fields
            }
        return self._source.schema(self.original(index))

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> Collection[str] | None:
        """Read a sample."""
        if index >= self._rows:
            return self._source.read(self.original(index), into)
        # They stand in one chunk, which one thread fills from the first row to the last.
        if index == 0:
            self._held = {}
        for name, array in into.items():
            if name not in self._held:
                self._held[name] = self.extension.held(name)
            array[...] = self._held[name][index]
        if index == self._rows - 1:
            self._held = {}
        return None

    def fingerprint(self, index: int) -> bytes:
        """Summarise the contents of a sample; those of the store do not change."""
        if index < self._rows:
            return b"stored %d" % self._stored(index)
        return self._source.fingerprint(self.original(index))

    def _stored(self, index: int) -> int:
        return self.extension.samples - self._rows + index


class AppendedStream:
    """As `AppendedSource`, for samples that come once.

    Parameters
    ----------
    extension : Extension
        The store.
    source : StreamSource
        What is appended.
    """

    def __init__(self, extension: Extension, source: StreamSource) -> None:
        self.kind = _kind(extension, source.kind)
        self.extension = extension
        self._source = source

    def __iter__(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """Yield every sample once."""
        names = self.extension.store.fields if self.extension.rows else ()
        held = {name: self.extension.held(name) for name in names}
        for row in range(self.extension.rows):
            yield {name: values[row] for name, values in held.items()}
        del held
        yield from self._source
