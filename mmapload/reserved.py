"""The arrays of the reserved group: where samples came from, and which checksum ends which chunk file."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.chunkfile import read_chunk_file
from mmapload.codecs import RawCodec
from mmapload.errors import ChunkError
from mmapload.layout import RESERVED_GROUP, FieldLayout

if TYPE_CHECKING:
    from mmapload.codecs import Bytes
    from mmapload.layout import StoreLayout

__all__ = [
    "NAME_ARRAYS",
    "checksums_array",
    "elements_array",
    "end_of_names",
    "expect_ends",
    "read_elements",
    "read_name",
    "read_names",
    "reserved_arrays",
    "reserved_path",
]

NAME_ARRAYS: Final = {
    "names": FieldLayout("names", np.dtype("u1"), (), 2**16, RawCodec()),
    "ends": FieldLayout("ends", np.dtype("<i8"), (), 2**13, RawCodec()),
}
"""All names' UTF-8 bytes in one, and where each sample's name ends in the other."""


def checksums_array(fields: int) -> FieldLayout:
    """Return the layout of the list of checksums: a row for each chunk, a column for each field.

    Examples
    --------
    >>> array = checksums_array(fields=3)
    >>> array.dtype, array.shape, array.chunk_length
    (dtype('uint32'), (3,), 5461)
    """
    return FieldLayout("checksums", np.dtype("<u4"), (fields,), max(1, 2**14 // fields), RawCodec())


def elements_array(ragged: int) -> FieldLayout:
    """Return the layout of how many values chunks have: a row for each, a column for each ragged field.

    Examples
    --------
    >>> array = elements_array(ragged=3)
    >>> array.dtype, array.shape, array.chunk_length
    (dtype('int64'), (3,), 2730)
    """
    return FieldLayout("elements", np.dtype("<i8"), (ragged,), max(1, 2**13 // ragged), RawCodec())


def reserved_arrays(layout: StoreLayout) -> tuple[FieldLayout, ...]:
    """Return the arrays that a store has in its reserved group, but for those of extents."""
    names = tuple(NAME_ARRAYS.values()) if layout.has_names else ()
    ragged = (elements_array(len(layout.ragged)),) if layout.ragged else ()
    listed = (checksums_array(len(layout.fields)),) if layout.has_checksums else ()
    return (*names, *ragged, *listed)


def reserved_path(store: str, array: FieldLayout, chunk: int) -> str:
    """Return the path of a chunk file of a reserved array."""
    return os.path.join(store, RESERVED_GROUP, array.name, array.chunk_key(chunk))


def read_elements(store: str, array: FieldLayout, start: int, stop: int) -> Bytes:
    """Read elements [start, stop) of a reserved array along its first axis, as bytes.

    Raises
    ------
    ChunkError
        If a file that holds some of them is missing or damaged.
    """
    parts = []
    while start < stop:
        chunk, first = divmod(start, array.chunk_length)
        last = min(array.chunk_length, first + stop - start)
        rows = read_chunk_file(array, chunk, reserved_path(store, array, chunk)).data
        parts.append(rows[first * array.sample_nbytes : last * array.sample_nbytes])
        start += last - first
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


def read_name(store: str, sample: int) -> str:
    """Read the name of a sample from a store that keeps names.

    Raises
    ------
    ChunkError
        If a file is missing or damaged, or says that the name ends before it begins.
    """
    array = NAME_ARRAYS["ends"]
    first = max(0, sample - 1)
    ends = read_elements(store, array, first, sample + 1).view("<i8").tolist()
    start, stop = ends if sample else (0, *ends)
    if not 0 <= start <= stop:
        raise _falling(store, sample, start, stop)
    text = read_elements(store, NAME_ARRAYS["names"], start, stop).tobytes()
    return text.decode("utf-8", "surrogateescape")


def read_names(store: str, samples: int) -> list[str]:
    """Read the names of all samples; errors are those of `read_name`."""
    ends = read_elements(store, NAME_ARRAYS["ends"], 0, samples).view("<i8").tolist()
    text = read_elements(store, NAME_ARRAYS["names"], 0, ends[-1]).tobytes()
    return [
        text[start:stop].decode("utf-8", "surrogateescape")
        for start, stop in zip([0, *ends], ends, strict=False)
    ]


def end_of_names(store: str, samples: int) -> int:
    """Return how many bytes all names have, by where the last one ends; 0 where that cannot be told."""
    with contextlib.suppress(ChunkError):
        return max(0, int(read_elements(store, NAME_ARRAYS["ends"], samples - 1, samples).view("<i8")[0]))
    return 0


def expect_ends(store: str, chunk: int, ends: Bytes, samples: int, total: int | None) -> None:
    """Check a chunk of the array that says where names end.

    Parameters
    ----------
    ends : ndarray of uint8
        The chunk, decoded.
    samples : int
        How many ends there are in all chunks.
    total : int or None
        How many bytes all names have, where that is known.

    Raises
    ------
    ChunkError
        If ends fall, or the last of all is not the end of the names.
    """
    array = NAME_ARRAYS["ends"]
    first = chunk * array.chunk_length
    before = read_elements(store, array, first - 1, first).view("<i8") if chunk else np.zeros(1, "<i8")
    found = np.concatenate([before, ends.view("<i8")[: samples - first]])
    falls = np.flatnonzero(found[1:] < found[:-1])
    if falls.size:
        at = int(falls[0])
        raise _falling(store, first + at, int(found[at]), int(found[at + 1]))
    last = int(found[-1])
    if total is not None and (last > total or (last < total and first + array.chunk_length >= samples)):
        path = reserved_path(store, array, chunk)
        raise ChunkError(array.name, chunk, path, f"the end of {total:,} bytes of names", f"{last:,}")


def _falling(store: str, sample: int, start: int, stop: int) -> ChunkError:
    array = NAME_ARRAYS["ends"]
    chunk = sample // array.chunk_length
    found = f"{stop:,} after {start:,} for sample {sample:,}"
    path = reserved_path(store, array, chunk)
    return ChunkError(array.name, chunk, path, "ends of names, from 0 on, that never fall", found)
