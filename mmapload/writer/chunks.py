"""Write the files of one chunk: encode, checksum, flush, rename; and check them again when resuming."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from crc32c import crc32c

from mmapload.codecs import CHECKSUM_BYTES, checksum
from mmapload.errors import ChunkError, MmaploadError
from mmapload.writer.durable import explain, open_regular, write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from mmapload.layout import FieldLayout

__all__ = ["ChunkFile", "is_intact", "write_chunk", "write_field_chunk"]

_PIECE = 4 * 2**20


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """Size and checksum (hexadecimal, as in the file) of a chunk file that was written."""

    nbytes: int
    checksum: str


def write_chunk(
    folder: str, fields: Sequence[FieldLayout], chunk: int, rows: Mapping[str, npt.NDArray[Any]]
) -> tuple[ChunkFile | None, ...]:
    """Write one chunk of every field.

    Must not run in the main thread: there, numcodecs lets blosc split the work among threads, and other
    bytes come out.

    Parameters
    ----------
    folder : str
        The store; the fields' folders are there.
    rows : mapping of str to ndarray
        For every field an array of shape (chunk_length, *shape).

    Returns
    -------
    tuple of ChunkFile or None
        For every field; None for one with an empty axis, which has no chunk files.

    Raises
    ------
    ChunkError
        If a file cannot be written; `errno` says why.
    """
    return tuple(
        write_field_chunk(os.path.join(folder, field.name), field, chunk, rows[field.name])
        if field.sample_nbytes
        else None
        for field in fields
    )


def write_field_chunk(folder: str, field: FieldLayout, chunk: int, rows: npt.NDArray[Any]) -> ChunkFile:
    """Write one chunk of one field; as `write_chunk`."""
    path = os.path.join(folder, field.chunk_key(chunk))
    encoded = field.codec.encode(np.frombuffer(rows, np.uint8))
    trailer = checksum(encoded)
    nbytes = encoded.nbytes + CHECKSUM_BYTES
    try:
        write_durably(path, [encoded, trailer])
    except OSError as error:
        advice = explain(error, path, nbytes)
        problem = ChunkError(field.name, chunk, path, f"to write {nbytes} bytes", "an error", advice)
        problem.errno = error.errno
        raise problem from error
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
