"""Read one chunk file: open it, check its size and checksum, decode it.

Nothing is allocated before the file's own size makes it plausible: a store's metadata may claim anything.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES, Bytes
from mmapload.errors import ChunkError
from mmapload.frames import EXPANSION
from mmapload.padding import padded_checksum

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.layout import FieldLayout

__all__ = [
    "ChunkContent",
    "expect_checksum",
    "expect_size",
    "fresh_bytes",
    "open_chunk_file",
    "read_chunk_file",
    "read_exactly",
    "shown_checksum",
]

_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFCHR: "a character device",
}


@dataclass(frozen=True, slots=True)
class ChunkContent:
    """What a chunk file holds.

    Attributes
    ----------
    data : ndarray of uint8
        The chunk, decoded.
    file_nbytes : int
        Bytes read from the file.
    trailer : bytes
        The checksum that ends it.
    """

    data: Bytes
    file_nbytes: int
    trailer: bytes


def fresh_bytes(nbytes: int) -> Bytes:
    """Return memory of its own for a chunk."""
    return np.empty(nbytes, np.uint8)


def read_chunk_file(
    layout: FieldLayout,
    chunk: int,
    path: str,
    allocate: Callable[[int], Bytes] = fresh_bytes,
    *,
    scratch: Callable[[int], Bytes] = fresh_bytes,
    verify: bool = True,
) -> ChunkContent:
    """Read one chunk file, check it, and decode it.

    Parameters
    ----------
    allocate : callable
        Called with `layout.chunk_nbytes`, for memory that is filled exactly; but not before the file's size,
        and where it is a frame also its header, say that there are so many bytes.
    scratch : callable
        Called with the size of a compressed chunk, for memory that is needed until it is decoded.
    verify : bool
        Whether to compute the checksum. Sizes are always checked.

    Raises
    ------
    ChunkError
        If the file is missing, unreadable, no regular file, of a wrong size, or damaged; or if there is too
        little memory.
    """
    is_raw = layout.codec.is_raw
    fd, size = open_chunk_file(layout, chunk, path)
    try:
        trailer = bytearray(CHECKSUM_BYTES)
        take = allocate if is_raw else scratch
        encoded = _allocated(layout, chunk, path, size - CHECKSUM_BYTES, take)
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
    if is_raw:
        return ChunkContent(encoded, size, bytes(trailer))
    data = _decoded(layout, chunk, path, encoded, allocate)
    return ChunkContent(data, size, bytes(trailer))


def _decoded(
    layout: FieldLayout, chunk: int, path: str, encoded: Bytes, allocate: Callable[[int], Bytes]
) -> Bytes:
    expected = f"{layout.codec.name} data of {layout.chunk_nbytes} bytes"
    try:
        holds = layout.codec.content_nbytes(encoded)
        if holds == layout.chunk_nbytes:
            data = _allocated(layout, chunk, path, layout.chunk_nbytes, allocate)
            layout.codec.decode(encoded, data)
            return data
    except ValueError as error:
        raise ChunkError(layout.name, chunk, path, expected, str(error)) from error
    raise ChunkError(layout.name, chunk, path, expected, f"a frame that holds {holds} bytes")


def _allocated(
    layout: FieldLayout, chunk: int, path: str, nbytes: int, allocate: Callable[[int], Bytes]
) -> Bytes:
    try:
        return allocate(nbytes)
    except (MemoryError, OSError) as error:  # of numpy, and of a mapping
        advice = "close other programs, or preprocess again with a smaller --chunk-bytes"
        expected = f"{nbytes} bytes of memory to read it"
        raise ChunkError(layout.name, chunk, path, expected, "too little", advice) from error


def expect_size(layout: FieldLayout, chunk: int, path: str) -> None:
    """Refuse a chunk file that is missing, or of a size that cannot be right.

    Raises
    ------
    ChunkError
        As `open_chunk_file` does.
    """
    fd, _ = open_chunk_file(layout, chunk, path)
    os.close(fd)


def open_chunk_file(layout: FieldLayout, chunk: int, path: str) -> tuple[int, int]:
    """Open a chunk file for reading, and check its size: returns (descriptor, size).

    Raises
    ------
    ChunkError
        If it is missing, unreadable, no regular file, or of a size that it cannot have.
    """
    try:
        # A pipe in its place does not block, and a link is not followed.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise _not_opened(layout, chunk, path, error) from error
    status = os.fstat(fd)
    least, most = _file_sizes(layout)
    if stat.S_ISREG(status.st_mode) and least <= status.st_size <= most:
        return fd, status.st_size
    os.close(fd)
    if not stat.S_ISREG(status.st_mode):
        raise ChunkError(layout.name, chunk, path, "a chunk file", _kind(status.st_mode))
    expected = f"{least} bytes"
    if least != most:
        expected = f"{least} to {most} bytes, for {layout.chunk_nbytes} in {layout.codec.name}"
    raise ChunkError(layout.name, chunk, path, expected, f"{status.st_size} bytes")


def _file_sizes(layout: FieldLayout) -> tuple[int, int]:
    """Return the least and the greatest size that a chunk file can have."""
    nbytes = layout.chunk_nbytes
    if layout.codec.is_raw:
        return nbytes + CHECKSUM_BYTES, nbytes + CHECKSUM_BYTES
    # What does not compress becomes longer by less than 1 % and a header; the bound keeps a file that claims
    # to be huge from being taken for a frame.
    return -(-nbytes // EXPANSION[layout.codec.name]) + CHECKSUM_BYTES, 2 * nbytes + 2**16


def _not_opened(layout: FieldLayout, chunk: int, path: str, error: OSError) -> ChunkError:
    found, advice = error.strerror or str(error), ""
    if isinstance(error, FileNotFoundError):
        found = "no such file"
    else:
        with contextlib.suppress(OSError):
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found = f"a symbolic link to {os.readlink(path)}"
                advice = "a store holds its own files: copy it with links followed (cp -rL)"
            elif not stat.S_ISREG(mode):
                found = _kind(mode)
    return ChunkError(layout.name, chunk, path, "a chunk file", found, advice)


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something that is no file")


def expect_checksum(
    layout: FieldLayout, chunk: int, path: str, encoded: Bytes, trailer: bytes, zeros: int = 0
) -> None:
    """Raise ChunkError if `trailer`, the last bytes of the file, is not the checksum of those before.

    Parameters
    ----------
    zeros : int
        Zero bytes between `encoded` and `trailer`, which were not read.
    """
    found = padded_checksum(encoded, zeros)
    if found != trailer:
        raise ChunkError(
            layout.name,
            chunk,
            path,
            f"checksum {shown_checksum(trailer)}",
            f"{shown_checksum(found)}: the file is damaged",
        )


def shown_checksum(trailer: bytes) -> str:
    """Write a checksum as people write such numbers, in hexadecimal."""
    return trailer[::-1].hex()


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
