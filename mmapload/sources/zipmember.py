"""The contents of one member of a zip file, read straight to where they belong.

Nothing holds the GIL for long: `preadv`, isal's inflate and CRC-32 and `numpy.copyto` release it, which
copies through `memoryview` or `bytes` do not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np
from isal import igzip_lib, isal_zlib

from mmapload.errors import SourceError
from mmapload.sources.zipdir import DEFLATED, LOCAL_HEADER, STORED

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mmapload.sources.zipdir import Member

__all__ = ["contents_at", "inflated", "read_first", "read_member"]

# Bytes read, and inflated, at a time. With igzip_lib that is as fast as the whole in one go; the
# decompressor of isal_zlib, which hands unused input back and forth, is slower by a third.
_PIECE = 1 << 18

_ENCRYPTED = 0x0001 | 0x0040 | 0x2000
_PATCH = 0x0020
_DESCRIPTOR = 0x0008
_METHODS = {
    1: "shrunk",
    6: "imploded",
    9: "Deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "zstd",
    95: "xz",
    98: "PPMd",
}


def read_first(fd: int, path: str, member: Member, count: int) -> bytes:
    """Read the first bytes of a member, unchecked: `count` of them, or all where there are fewer.

    Raises
    ------
    SourceError
        If the member is damaged, encrypted, or compressed by another method than deflate.
    """
    _check_readable(path, member)
    count = min(count, member.size)
    if member.method == STORED:
        guess = _gap(member)
        block = _read(fd, path, member, member.offset, min(guess + count, member.end - member.offset))
        length = _local_length(path, member, block)
        if length > guess:
            return _read(fd, path, member, member.offset + length, count)
        return block[length : length + count]
    first = b""
    for piece in inflated(fd, path, member):
        first += piece[: count - len(first)]
        if len(first) == count:
            break
    return first


def read_member(fd: int, path: str, member: Member, payload: npt.NDArray[np.uint8]) -> bytes:
    """Read a member's last bytes into `payload`, and check its CRC-32.

    Parameters
    ----------
    fd : int
        Descriptor of the file; its position is neither used nor moved.
    path : str
        For messages.
    member : Member
        The member.
    payload : numpy.ndarray of uint8, shape (bytes,)
        At most `member.size` bytes, contiguous and writable. Filled with the contents' last bytes.

    Returns
    -------
    bytes
        What comes before them.

    Raises
    ------
    SourceError
        If the member is damaged, encrypted, or compressed by another method than deflate. What `payload` then
        holds is undefined.
    """
    _check_readable(path, member)
    if member.method == STORED:
        head = _read_stored(fd, path, member, payload)
        crc = isal_zlib.crc32(payload, isal_zlib.crc32(head))
    else:
        head, crc = _read_deflated(fd, path, member, payload)
    if crc != member.crc:
        raise SourceError(
            path,
            member.name,
            f"its contents are damaged: their CRC-32 is {crc:08x}, the zip directory has {member.crc:08x}; "
            "fetch or write the file again",
        )
    return head


def contents_at(fd: int, path: str, member: Member) -> int:
    """Return where in the file a member's contents begin; for a stored member they are the array's bytes.

    Raises
    ------
    SourceError
        If the member is encrypted, compressed in a way that is not read, or not where the directory says.
    """
    _check_readable(path, member)
    block = _read(fd, path, member, member.offset, LOCAL_HEADER.size)
    block += _read(fd, path, member, member.offset + LOCAL_HEADER.size, len(member.raw_name))
    return member.offset + _local_length(path, member, block)


def _check_readable(path: str, member: Member) -> None:
    if member.flags & _ENCRYPTED:
        raise SourceError(path, member.name, "encrypted: write the file again without a password")
    if member.method not in {STORED, DEFLATED} or member.flags & _PATCH:
        method = _METHODS.get(member.method, "an unknown method")
        raise SourceError(
            path,
            member.name,
            f"compressed by {method} (zip method {member.method}, flags {member.flags:#06x}): "
            "only stored and deflated members are read",
        )


def _gap(member: Member) -> int:
    """Length of the local header, where nothing but header and contents lies before the member's end."""
    gap = member.end - member.offset - member.compressed
    usual = LOCAL_HEADER.size + len(member.raw_name)
    # Streaming writers put a data descriptor behind the contents; others leave holes. Both take two reads.
    return usual if member.flags & _DESCRIPTOR or gap > usual + _PIECE else gap


def _local_length(path: str, member: Member, block: bytes | bytearray) -> int:
    """Length of the local header at the start of `block`, checked against the directory."""
    signature, *_, name_length, extra_length = LOCAL_HEADER.unpack_from(block)
    name = block[LOCAL_HEADER.size : LOCAL_HEADER.size + name_length]
    if signature != b"PK\x03\x04" or name != member.raw_name:
        raise SourceError(
            path,
            member.name,
            f"does not start at byte {member.offset}, where the zip directory has it: the file is damaged",
        )
    length: int = LOCAL_HEADER.size + name_length + extra_length
    if member.offset + length + member.compressed > member.end:
        raise SourceError(
            path, member.name, f"reaches beyond byte {member.end}, where the next starts: the file is damaged"
        )
    return length


def _read_stored(fd: int, path: str, member: Member, payload: npt.NDArray[np.uint8]) -> bytes:
    """Read local header, leading bytes and payload with one call, or more where the first guessed wrong."""
    before = member.size - len(payload)
    guess = _gap(member)
    head = bytearray(guess + before)
    _fill(fd, path, member, member.offset, head, payload)
    length = _local_length(path, member, head)
    if length == guess:
        return bytes(memoryview(head)[length:])
    start = member.offset + length
    _fill(fd, path, member, start + before, payload)
    return _read(fd, path, member, start, before)


def _read_deflated(fd: int, path: str, member: Member, payload: npt.NDArray[np.uint8]) -> tuple[bytes, int]:
    """Inflate piece by piece; returns the leading bytes and the CRC-32 of all."""
    before = member.size - len(payload)
    head = b""
    crc = filled = 0
    for piece in inflated(fd, path, member):
        crc = isal_zlib.crc32(piece, crc)
        skip = min(before - len(head), len(piece))
        head += piece[:skip]
        rest = np.frombuffer(piece, np.uint8)[skip:]
        np.copyto(payload[filled : filled + len(rest)], rest)
        filled += len(rest)
    return head, crc


def inflated(fd: int, path: str, member: Member) -> Iterator[bytes]:
    """Inflate a member in pieces of at most 256 KiB, to exactly its size in the directory.

    The CRC-32 of what comes is the caller's to check.

    Raises
    ------
    SourceError
        If the deflated bytes are damaged, or make more or less than the directory says.
    """
    block = _read(fd, path, member, member.offset, min(_PIECE, member.end - member.offset))
    length = _local_length(path, member, block)
    position = member.offset + len(block)
    stop = member.offset + length + member.compressed
    block = block[length : length + member.compressed]
    inflater = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
    left = member.size
    while not inflater.eof:
        if inflater.needs_input and not block:
            if position >= stop:
                raise SourceError(path, member.name, "its deflated bytes end too early: the file is damaged")
            block = _read(fd, path, member, position, min(_PIECE, stop - position))
            position += len(block)
        try:
            piece = inflater.decompress(block, _PIECE)
        except igzip_lib.IsalError as error:  # type: ignore[misc]  # the stub gives an instance for the class
            raise SourceError(path, member.name, f"its deflated bytes are damaged ({error})") from None
        block = b""
        left -= len(piece)
        if left < 0:
            raise SourceError(
                path,
                member.name,
                f"inflates to more than the {member.size} bytes that its zip directory says",
            )
        yield piece
    if left:
        raise SourceError(
            path,
            member.name,
            f"inflates to {member.size - left} bytes, not the {member.size} in the zip directory: damaged",
        )


def _read(fd: int, path: str, member: Member, offset: int, count: int) -> bytes:
    block = os.pread(fd, count, offset)
    if len(block) < count:
        raise _ended(path, member, offset + len(block))
    return block


def _fill(
    fd: int, path: str, member: Member, offset: int, *buffers: bytearray | npt.NDArray[np.uint8]
) -> None:
    """Fill the buffers, one after the other; the system reads at most 2 GiB at a time."""
    got = os.preadv(fd, buffers, offset)
    for buffer in buffers:
        while got < len(buffer):
            more = os.preadv(fd, [memoryview(buffer)[got:]], offset + got)
            if not more:
                raise _ended(path, member, offset + got)
            got += more
        got -= len(buffer)
        offset += len(buffer)


def _ended(path: str, member: Member, position: int) -> SourceError:
    return SourceError(
        path, member.name, f"the file ended at byte {position} while being read: it was changed meanwhile"
    )
