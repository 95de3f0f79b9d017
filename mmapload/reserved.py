"""The arrays of the reserved group: where samples came from, and which checksum ends which chunk file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.chunkfile import read_chunk_file
from mmapload.codecs import RawCodec
from mmapload.layout import RESERVED_GROUP, FieldLayout

if TYPE_CHECKING:
    from mmapload.codecs import Bytes
    from mmapload.layout import StoreLayout

__all__ = ["NAME_ARRAYS", "checksums_array", "read_elements", "reserved_arrays", "reserved_path"]

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


def reserved_arrays(layout: StoreLayout) -> tuple[FieldLayout, ...]:
    """Return the arrays that a store has in its reserved group; none if it has no such group."""
    names = tuple(NAME_ARRAYS.values()) if layout.has_names else ()
    return (*names, checksums_array(len(layout.fields))) if layout.has_checksums else names


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
