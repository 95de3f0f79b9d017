"""Write the files of one chunk: encode, checksum, flush, rename; and check them again when resuming."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from crc32c import crc32c

from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError, MmaploadError
from mmapload.extents import extents_rows
from mmapload.notes import bytes_of
from mmapload.padding import padded_checksum
from mmapload.ragged import extents_array, extents_folder, piece_count, piece_path
from mmapload.spent import now, spend
from mmapload.writer.durable import explain, open_regular, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

    Written: TypeAlias = "ChunkFile | tuple[ChunkFile, ...] | None"

__all__ = ["ChunkFile", "RaggedChunk", "is_intact", "write_chunk", "write_field_chunk"]

_PIECE = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """Size and checksum (hexadecimal, as in the file) of a chunk file that was written."""

    nbytes: int
    checksum: str


@dataclass(frozen=True, slots=True, eq=False)
class RaggedChunk:
    """The samples of one chunk of a field whose samples differ in shape.

    Attributes
    ----------
    values : ndarray
        One axis: theirs, one after the other.
    shapes : ndarray of int64
        Shape (samples, axes).
    """

    values: npt.NDArray[Any]
    shapes: npt.NDArray[np.int64]


def write_chunk(
    folder: str, fields: Sequence[FieldLayout], chunk: int, rows: Mapping[str, npt.NDArray[Any] | RaggedChunk]
) -> tuple[Written, ...]:
    """Write one chunk of every field.

    Must not run in the main thread: there, numcodecs lets blosc split the work among threads, and other
    bytes come out.

    Parameters
    ----------
    folder : str
        The store; the fields' folders are there.
    rows : mapping of str to ndarray or RaggedChunk
        For every field an array of shape (chunk_length, *shape), or the samples that there are.

    Returns
    -------
    tuple of ChunkFile, tuple of ChunkFile, or None
        For every field: several files of a ragged one, none of one with an empty axis.

    Raises
    ------
    ChunkError
        If a file cannot be written; `errno` says why.
    """
    return tuple(_write_rows(folder, field, chunk, rows[field.name]) for field in fields)


def _write_rows(folder: str, field: FieldLayout, chunk: int, rows: npt.NDArray[Any] | RaggedChunk) -> Written:
    if isinstance(rows, RaggedChunk):
        where = os.path.join(folder, extents_folder(field))
        extents = extents_rows(rows.shapes, field.chunk_length)
        first = write_field_chunk(where, extents_array(field), chunk, extents)
        return (first, *_write_pieces(folder, field, chunk, rows.values))
    return write_field_chunk(os.path.join(folder, field.name), field, chunk, rows) if rows.nbytes else None


def _write_pieces(
    folder: str, field: FieldLayout, chunk: int, values: npt.NDArray[Any]
) -> Iterator[ChunkFile]:
    """Write the values of a chunk; zeros behind them become a hole in a raw file."""
    for piece in range(piece_count(field, len(values))):
        part = values[piece * field.piece_length : (piece + 1) * field.piece_length]
        path = piece_path(folder, field, chunk, piece)
        zeros = (field.piece_length - len(part)) * field.dtype.itemsize
        encoded = bytes_of(part)
        since = now()
        if not field.codec.is_raw:
            whole = np.concatenate([encoded, np.zeros(zeros, np.uint8)]) if zeros else encoded
            encoded, zeros = field.codec.encode(whole), 0
        spend("encoding", since)
        yield _write_file(path, field, chunk, encoded, zeros)


def write_field_chunk(folder: str, field: FieldLayout, chunk: int, rows: npt.NDArray[Any]) -> ChunkFile:
    """Write one chunk of one field of fixed shape; as `write_chunk`."""
    path = os.path.join(folder, field.chunk_key(chunk))
    since = now()
    encoded = field.codec.encode(bytes_of(rows))
    spend("encoding", since)
    return _write_file(path, field, chunk, encoded, 0)


def _write_file(path: str, field: FieldLayout, chunk: int, encoded: Bytes, zeros: int) -> ChunkFile:
    since = now()
    trailer = padded_checksum(encoded, zeros)
    since = spend("encoding", since)
    nbytes = encoded.nbytes + zeros + CHECKSUM_BYTES
    try:
        write_durably(path, [encoded, trailer], zeros)
    except OSError as error:
        advice = explain(error, path, nbytes)
        problem = ChunkError(field.name, chunk, path, f"to write {nbytes} bytes", "an error", advice)
        problem.errno = error.errno
        raise problem from error
    spend("writing", since)
    return ChunkFile(nbytes, trailer.hex())


def is_intact(path: str, written: ChunkFile) -> bool:
    """Read a file whole and say whether it is the one that was written."""
    try:
        with open_regular(path) as file:
            if os.fstat(file.fileno()).st_size != written.nbytes:
                return False
            buffer = bytearray(min(_PIECE, written.nbytes))
            found, left = 0, written.nbytes - CHECKSUM_BYTES
            while left:
                count = file.readinto(memoryview(buffer)[: min(left, _PIECE)])
                if not count:
                    return False
                found = crc32c(memoryview(buffer)[:count], found)
                left -= count
            trailer = file.read(CHECKSUM_BYTES)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    except (OSError, MmaploadError):
        return False
    return trailer.hex() == written.checksum == found.to_bytes(CHECKSUM_BYTES, "little").hex()
