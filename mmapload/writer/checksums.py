"""Write the list of the checksums that end the chunk files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.chunkfile import open_chunk_file
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError
from mmapload.ragged import chunk_files, combined_checksum
from mmapload.reserved import checksums_array
from mmapload.writer.ragged import chunk_values
from mmapload.writer.reserved import ReservedArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["checksums_nbytes", "trailers", "write_checksums"]

_NO_FILE: Final = bytes(CHECKSUM_BYTES)


def checksums_nbytes(chunks: int, fields: int) -> int:
    """Return the size of all files of the list."""
    array = checksums_array(fields)
    return -(-chunks // array.chunk_length) * (array.chunk_nbytes + CHECKSUM_BYTES)


def write_checksums(folder: str, layout: StoreLayout) -> None:
    """List the checksums of all chunk files, as they are at the ends of the files.

    Parameters
    ----------
    folder : str
        The store, with all chunk files.

    Raises
    ------
    ChunkError
        If one of them is missing, or has a size that it cannot have.
    """
    listed = ReservedArray(folder, checksums_array(len(layout.fields)))
    for chunk in range(layout.chunks):
        listed.extend(trailers(folder, layout, chunk)[None])
    listed.close()


def trailers(folder: str, layout: StoreLayout, chunk: int) -> npt.NDArray[np.uint32]:
    """Read the checksums that end the files of a chunk, a number for each field; 0 where there is no file."""
    row = b"".join(_listed(folder, layout, field, chunk) for field in layout.fields)
    return np.frombuffer(row, "<u4")


def _listed(folder: str, layout: StoreLayout, field: FieldLayout, chunk: int) -> bytes:
    if field.is_ragged:
        values = chunk_values(folder, field, chunk, layout.chunk_samples(chunk))
        files = chunk_files(folder, field, chunk, values)
        return combined_checksum([_trailer(array, chunk, path) for array, path in files])
    if not field.sample_nbytes:
        return _NO_FILE
    return _trailer(field, chunk, os.path.join(folder, field.name, field.chunk_key(chunk)))


def _trailer(field: FieldLayout, chunk: int, path: str) -> bytes:
    fd, size = open_chunk_file(field, chunk, path)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead, or behind
        trailer = os.pread(fd, CHECKSUM_BYTES, size - CHECKSUM_BYTES)
    except OSError as error:
        raise ChunkError(field.name, chunk, path, "a readable file", str(error)) from error
    finally:
        os.close(fd)
    if len(trailer) != CHECKSUM_BYTES:
        raise ChunkError(field.name, chunk, path, f"{size} bytes", "fewer: it shrank while being read")
    return trailer
