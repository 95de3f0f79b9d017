"""Arrays in Zarr folders of version 2 and 3, by zarr-python.

A chunk that is not there reads as the array's fill value, as Zarr has it: nothing tells one that was lost
from one that was never written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from mmapload.errors import SourceError, shown
from mmapload.sources.arrays import explained_read
from mmapload.sources.stored import rows_at_once
from mmapload.strictjson import MAX_DOCUMENT_BYTES, parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.sources.stored import StoredArray

__all__ = ["ZarrFormat", "is_zarr"]

_DOCUMENTS: Final = ("zarr.json", ".zarray", ".zgroup")
_MOST_LEVELS: Final = 32
_CODECS: Final = frozenset(
    [
        *("bytes", "transpose", "sharding_indexed", "gzip", "blosc", "zstd", "crc32c", "vlen-utf8"),
        *("vlen-bytes", "vlen-array", "zlib", "bz2", "lzma", "lz4", "shuffle", "delta", "quantize"),
        *("fixedscaleoffset", "packbits", "astype", "bitround", "crc32", "adler32", "fletcher32"),
        *("jenkins_lookup3", "zfpy", "pcodec", "scale_offset", "cast_value"),
    ]
)
"""Codecs that read numbers and text; others, pickles above all, might run what the data say."""


def is_zarr(folder: str) -> bool:
    """Whether a folder is a Zarr array or group, of either version, and no store of mmapload."""
    which = next((name for name in _DOCUMENTS if os.path.isfile(os.path.join(folder, name))), None)
    if which != "zarr.json":
        return which is not None
    try:
        attributes = _document(folder, which).get("attributes")
    except SourceError:
        return True  # it is told when it is opened
    return not isinstance(attributes, dict) or "mmapload" not in attributes


class ZarrFormat:
    """Arrays of Zarr folders, by their paths from the group that is given.

    Parameters
    ----------
    single : str
        What the array is called where the folder is one array, not a group.
    """

    kind = "zarr"
    parallel = False  # zarr-python has threads of its own

    def __init__(self, single: str) -> None:
        self._single = single

    @contextmanager
    def open(self, path: str) -> Iterator[Mapping[str, StoredArray]]:
        """Open a folder and list its arrays.

        Raises
        ------
        SourceError
            If it is no Zarr array or group, or its metadata cannot be read.
        """
        arrays: dict[str, Mapping[str, Any]] = {}
        _collect(path, "", arrays)
        yield _Arrays(path, {name or self._single: (name, document) for name, document in arrays.items()})


def _collect(path: str, name: str, found: dict[str, Mapping[str, Any]]) -> None:
    """List the arrays in a folder and in those below that are groups, with their metadata."""
    folder = os.path.join(path, name) if name else path
    which = next((each for each in _DOCUMENTS if os.path.isfile(os.path.join(folder, each))), None)
    if which is None:
        if not name:
            raise SourceError(
                path, None, "neither a Zarr array nor a group: no zarr.json, .zarray or .zgroup"
            )
        return
    document = _document(folder, which)
    if which == ".zarray" or document.get("node_type") == "array":
        found[name] = document
        return
    if name.count("/") >= _MOST_LEVELS:
        raise SourceError(path, name, f"lies deeper than in {_MOST_LEVELS} groups")
    try:
        with os.scandir(folder) as entries:
            below = sorted(entry.name for entry in entries if entry.is_dir())
    except OSError as error:
        raise explained_read(error, folder) from error
    for each in below:
        _collect(path, f"{name}/{each}" if name else each, found)


def _document(folder: str, which: str) -> dict[str, Any]:
    where = os.path.join(folder, which)
    try:
        with open(where, "rb") as file:
            document, problems = parse_document(file.read(MAX_DOCUMENT_BYTES + 1), where)
    except OSError as error:
        raise explained_read(error, where) from error
    if problems:
        raise SourceError(folder, None, "; ".join(problems))
    return document


class _Arrays(Mapping[str, "_StoredZarr"]):
    """The arrays of a folder."""

    def __init__(self, path: str, arrays: Mapping[str, tuple[str, Mapping[str, Any]]]) -> None:
        self._path = path
        self._arrays = arrays
        self._opened: dict[str, _StoredZarr] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, name: str) -> _StoredZarr:
        import zarr

        if name not in self._opened:
            below, document = self._arrays[name]
            unknown = sorted(_codec_names(document) - _CODECS)
            if unknown:
                what = f"was written with the codec {shown(unknown[0])}, which is not read here"
                raise SourceError(self._path, name, f"{what}: write it with another")
            version: Literal[2, 3] = 3 if document.get("zarr_format") == 3 else 2
            try:
                array = zarr.open_array(os.path.join(self._path, below), mode="r", zarr_format=version)
            except Exception as error:
                raise explained_read(error, self._path, name) from error
            self._opened[name] = _StoredZarr(self._path, name, array)
        return self._opened[name]


@dataclass(frozen=True, slots=True)
class _StoredZarr:
    """An array in a folder."""

    path: str
    name: str
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        shape: tuple[int, ...] = self.array.shape
        return shape

    @property
    def chunked(self) -> bool:
        """True: a row costs as much as its chunk."""
        return True

    @property
    def rows(self) -> int:
        """Rows in a chunk, or in a shard."""
        chunks = self.array.shards or self.array.chunks
        return rows_at_once(self.shape, self.array.dtype.itemsize, chunks[0] if chunks else None)

    def read(self, start: int | None = None, stop: int | None = None) -> Any:
        """Read these rows, or the whole array."""
        try:
            return self.array[...] if start is None else self.array[start:stop]
        except Exception as error:
            raise explained_read(error, os.path.join(self.path, self.name)) from error


def _codec_names(document: Mapping[str, Any]) -> set[str]:
    """Collect the names of all codecs in an array's metadata, of either version, those within others too."""
    names: set[str] = set()
    left: list[Any] = [document.get(key) for key in ("compressor", "filters", "codecs")]
    while left:
        found = left.pop()
        if isinstance(found, list):
            left += found
        elif isinstance(found, dict):
            name = found.get("id" if document.get("zarr_format") == 2 else "name")
            names.add(str(name).removeprefix("numcodecs."))
            inner = found.get("configuration")
            if isinstance(inner, dict):
                left += [inner.get("codecs"), inner.get("index_codecs")]
        elif isinstance(found, str) and document.get("zarr_format") == 3:
            names.add(found.removeprefix("numcodecs."))
    return names
