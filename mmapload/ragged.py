"""Fields whose samples differ in shape: where the values of each sample lie, and reading them from files.

The array of a ragged field has a row for each chunk, with the values of the chunk's samples one after the
other; it is cut into pieces, a file each. An array of extents says where in the row each sample ends.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.chunkfile import expect_checksum, open_chunk_file, read_chunk_file, read_exactly
from mmapload.codecs import CHECKSUM_BYTES, RawCodec, checksum
from mmapload.errors import ChunkError
from mmapload.extents import Extents, extents_columns, parse_extents
from mmapload.fieldnames import groups_of
from mmapload.layout import RESERVED_GROUP, FieldLayout

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from mmapload.codecs import Bytes

__all__ = [
    "EXTENTS",
    "PADDING_SHARE",
    "chunk_files",
    "combined_checksum",
    "extents_array",
    "extents_folder",
    "extents_path",
    "field_groups",
    "piece_array",
    "piece_count",
    "piece_key",
    "piece_length_for",
    "piece_path",
    "read_extents",
    "read_values",
]

EXTENTS: Final = "extents"
"""Group inside the reserved one with an array for each ragged field, of the field's name."""

PADDING_SHARE: Final = 0.1
"""Zeros behind the values of chunks, as a share of all values, at most."""

_BLOCK: Final = 2**16
"""Bytes: a whole number of pages on any machine."""
_ALIGNED_BLOCKS: Final = 4
"""Blocks from which on a piece is rounded up to whole ones; that costs a quarter of one piece at most."""


def piece_array(field: FieldLayout) -> FieldLayout:
    """Return the array of a ragged field as one of fixed shape: a row for each chunk, a file for each piece.

    Examples
    --------
    >>> words = FieldLayout("words", np.dtype("u1"), (-1,), 32, RawCodec(), piece_length=4096)
    >>> piece_array(words).zarr_chunk_shape, piece_key(3, 1), piece_count(words, 5000)
    ((1, 4096), 'c.3.1', 2)
    """
    return FieldLayout(field.name, field.dtype, (field.piece_length,), 1, field.codec)


def piece_key(chunk: int, piece: int) -> str:
    """Name of the file of a ragged field that holds this piece of a chunk's values."""
    return f"c.{chunk}.{piece}"


def piece_path(store: str, field: FieldLayout, chunk: int, piece: int) -> str:
    """Return the path of that file."""
    return os.path.join(store, field.name, piece_key(chunk, piece))


def piece_count(field: FieldLayout, values: int) -> int:
    """Count the pieces of a chunk of a ragged field that has so many values."""
    return -(-values // field.piece_length)


def field_groups(fields: Iterable[str], ragged: Iterable[str]) -> list[str]:
    """Return the groups in which fields of such names lie, and the extents of those that are ragged.

    Examples
    --------
    >>> field_groups(["a/x", "b/y", "z"], ["b/y"])
    ['a', 'b', '__mmapload__/extents/b']
    """
    return groups_of(fields) + [f"{RESERVED_GROUP}/{EXTENTS}/{group}" for group in groups_of(ragged)]


def extents_array(field: FieldLayout) -> FieldLayout:
    """Return the array that says where a ragged field's samples end, and their shapes if that is not all.

    Examples
    --------
    >>> image = FieldLayout("image", np.dtype("u1"), (-1, -1), 32, RawCodec(), piece_length=4096)
    >>> extents_array(image).shape, extents_array(image).chunk_length
    ((3,), 32)
    """
    columns = extents_columns(len(field.shape))
    return FieldLayout(field.name, np.dtype("<i8"), (columns,), field.chunk_length, RawCodec())


def extents_folder(field: FieldLayout) -> str:
    """Return the folder of that array below the store's."""
    return os.path.join(RESERVED_GROUP, EXTENTS, field.name)


def extents_path(store: str, field: FieldLayout, chunk: int) -> str:
    """Return the path of a file of that array."""
    key = extents_array(field).chunk_key(chunk)
    return os.path.join(store, extents_folder(field), key)


def chunk_files(store: str, field: FieldLayout, chunk: int, values: int) -> list[tuple[FieldLayout, str]]:
    """Return layout and path of all files of a chunk of a ragged field: its extents', then its pieces'."""
    found = [(extents_array(field), extents_path(store, field, chunk))]
    piece = piece_array(field)
    return found + [
        (piece, piece_path(store, field, chunk, number)) for number in range(piece_count(field, values))
    ]


def combined_checksum(trailers: Sequence[bytes]) -> bytes:
    """Return what is listed for a chunk of a ragged field: the checksum of those that end its files."""
    return checksum(np.frombuffer(b"".join(trailers), np.uint8))


def piece_length_for(values: npt.NDArray[np.int64], itemsize: int, most_nbytes: int) -> int:
    """Choose how long the pieces of a ragged field are.

    As long as the longest chunk, so that each chunk has one piece, if the zeros behind the shorter ones stay
    within a tenth of all values; else as long as they may be. Long pieces are whole blocks of 64 KiB where
    several make a chunk, so that they can be mapped one behind the other.

    Parameters
    ----------
    values : ndarray of int64
        How many each chunk has.
    itemsize : int
        Bytes of one.
    most_nbytes : int
        Of a piece.

    Examples
    --------
    >>> [piece_length_for(np.array([100, 95, last]), 4, 2**30) for last in (98, 10)]
    [100, 25]
    """
    longest, total = int(values.max(initial=0)), int(values.sum())
    parts = 1
    while True:
        length = -(-longest // parts)
        block = _BLOCK // itemsize
        if parts > 1 and length >= _ALIGNED_BLOCKS * block:
            length = -(-length // block) * block
        padding = int((-(-values // max(1, length))).sum()) * length - total
        if length <= 1 or (padding <= PADDING_SHARE * total and length * itemsize <= most_nbytes):
            return max(1, length)
        parts += max(1, parts // 8)


def read_extents(
    store: str, field: FieldLayout, chunk: int, samples: int, values: int, *, verify: bool = True
) -> tuple[Extents, bytes]:
    """Read the extents of a chunk's samples, and the checksum that ends their file.

    Raises
    ------
    ChunkError
        If the file is missing or damaged.
    """
    path = extents_path(store, field, chunk)
    content = read_chunk_file(extents_array(field), chunk, path, verify=verify)
    return parse_extents(field, chunk, path, content.data, samples, values), content.trailer


def read_values(
    store: str, field: FieldLayout, chunk: int, values: int, into: Bytes, *, verify: bool = True
) -> tuple[list[bytes], int]:
    """Read the values of a chunk of a ragged field.

    Of a raw one the zeros behind them are not read; in a file they may take no room.

    Parameters
    ----------
    values : int
        How many the chunk has.
    into : ndarray of uint8
        Room for them, and for whole pieces where the codec compresses.

    Returns
    -------
    trailers : list of bytes
        The checksums that end the files.
    nbytes : int
        How many bytes were read.

    Raises
    ------
    ChunkError
        If a file is missing or damaged.
    """
    trailers, nbytes = [], 0
    piece, length = piece_array(field), field.piece_length * field.dtype.itemsize
    for number in range(piece_count(field, values)):
        path = piece_path(store, field, chunk, number)
        start = number * length
        if field.codec.is_raw:
            part = into[start : min(start + length, values * field.dtype.itemsize)]
            trailers.append(_read_raw(piece, chunk, path, part, verify=verify))
            nbytes += part.nbytes + CHECKSUM_BYTES
        else:
            content = read_chunk_file(piece, chunk, path, partial(_part, into, start), verify=verify)
            trailers.append(content.trailer)
            nbytes += content.file_nbytes
    return trailers, nbytes


def _part(memory: Bytes, start: int, nbytes: int) -> Bytes:
    return memory[start : start + nbytes]


def _read_raw(piece: FieldLayout, chunk: int, path: str, into: Bytes, *, verify: bool) -> bytes:
    fd, size = open_chunk_file(piece, chunk, path)
    trailer = np.empty(CHECKSUM_BYTES, np.uint8)
    try:
        whole = read_exactly(fd, into, 0) and read_exactly(fd, trailer, size - CHECKSUM_BYTES)
    except OSError as error:
        raise ChunkError(piece.name, chunk, path, f"{size} readable bytes", str(error)) from error
    finally:
        os.close(fd)
    if not whole:
        raise ChunkError(piece.name, chunk, path, f"{size} bytes", "fewer: it shrank while being read")
    if verify:
        expect_checksum(piece, chunk, path, into, trailer.tobytes(), size - CHECKSUM_BYTES - into.nbytes)
    return trailer.tobytes()
