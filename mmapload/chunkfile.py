"""Read one chunk file: open it, check its size and checksum, decode it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES, Bytes, checksum
from mmapload.errors import ChunkError

if TYPE_CHECKING:
    from mmapload.layout import FieldLayout

__all__ = ["expect_checksum", "open_chunk_file", "read_chunk_file", "read_exactly"]


def read_chunk_file(layout: FieldLayout, chunk: int, path: str, out: Bytes, *, verify: bool = True) -> int:
    """Read one chunk file, check it, and decode it into `out`.

    Parameters
    ----------
    out : ndarray of uint8
        `layout.chunk_nbytes` long; filled exactly.
    verify : bool
        Whether to compute the checksum. Sizes are always checked.

    Returns
    -------
    int
        Bytes read from the file.

    Raises
    ------
    ChunkError
        If the file is missing, unreadable, of the wrong size, or damaged.
    """
    fd, size = open_chunk_file(layout, chunk, path)
    try:
        payload = size - CHECKSUM_BYTES
        encoded = out if layout.codec.is_raw else np.empty(payload, np.uint8)
        trailer = bytearray(CHECKSUM_BYTES)
        try:
            read = _read_fully(fd, encoded, trailer)
        except OSError as error:
            raise ChunkError(layout.name, chunk, path, f"{size} readable bytes", str(error)) from error
        if read != size:
            raise ChunkError(layout.name, chunk, path, f"{size} bytes", f"{read}: it shrank while being read")
    finally:
        os.close(fd)
    if verify:
        expect_checksum(layout, chunk, path, encoded, bytes(trailer))
    if not layout.codec.is_raw:
        try:
            layout.codec.decode(encoded, out)
        except ValueError as error:
            raise ChunkError(layout.name, chunk, path, f"{layout.codec.name} data", str(error)) from error
    return size


def open_chunk_file(layout: FieldLayout, chunk: int, path: str) -> tuple[int, int]:
    """Open a chunk file for reading, and check its size: returns (descriptor, size).

    Raises
    ------
    ChunkError
        If it is missing, unreadable, or of a size that it cannot have.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # so that a pipe in its place does not block
    except OSError as error:
        found = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise ChunkError(layout.name, chunk, path, "a chunk file", found) from error
    status = os.fstat(fd)
    size, wanted = status.st_size, layout.raw_file_nbytes
    if not stat.S_ISREG(status.st_mode) or size <= CHECKSUM_BYTES or (wanted is not None and size != wanted):
        os.close(fd)
        expected = f"{wanted} bytes" if wanted is not None else f"more than {CHECKSUM_BYTES} bytes"
        found = f"{size} bytes" if stat.S_ISREG(status.st_mode) else "something that is no file"
        raise ChunkError(layout.name, chunk, path, expected, found)
    return fd, size


def expect_checksum(layout: FieldLayout, chunk: int, path: str, encoded: Bytes, trailer: bytes) -> None:
    """Raise ChunkError if `trailer`, the last bytes of the file, is not the checksum of those before."""
    found = checksum(encoded)
    if found != trailer:
        raise ChunkError(
            layout.name,
            chunk,
            path,
            f"checksum {trailer[::-1].hex()}",
            f"{found[::-1].hex()}: the file is damaged",
        )


def _read_fully(fd: int, encoded: Bytes, trailer: bytearray) -> int:
    """Fill both buffers from the start of the file; returns the number of bytes there were."""
    total, want = 0, encoded.nbytes + len(trailer)
    while total < want:
        rest = encoded[total:]
        tail = memoryview(trailer)[max(0, total - encoded.nbytes) :]
        count = os.preadv(fd, [rest, tail] if rest.nbytes else [tail], total)
        if count == 0:
            break
        total += count
    return total


def read_exactly(fd: int, into: Bytes, offset: int) -> bool:
    """Fill `into` from a position of the file; returns False if the file ends before."""
    done = 0
    while done < into.nbytes:
        count = os.preadv(fd, [into[done:]], offset + done)
        if count == 0:
            return False
        done += count
    return True
