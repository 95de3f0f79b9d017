"""The directory of a zip file: which members it has, and where their bytes lie.

Written from PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (layout), 4.4 (fields) and 4.5.3 (zip64). Every number
in the file is checked against the file's size before it is used, and nothing is allocated by a number that
the file claims: what is allocated is what has been read.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from mmapload.errors import SourceError
from mmapload.sources.signatures import FIRST_BYTES, identify

__all__ = ["DEFLATED", "LOCAL_HEADER", "STORED", "Member", "read_directory"]

STORED = 0
DEFLATED = 8

LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR64 = struct.Struct("<4sIQI")

_END_SIGNATURE = b"PK\x05\x06"
_FULL16 = 0xFFFF
_FULL32 = 0xFFFFFFFF
_UTF8_NAME = 0x0800
_ZIP64_EXTRA = 1

_TAIL = 4096  # one page holds the directory of some 60 members
_COMMENT = 0xFFFF  # the longest comment there can be behind the directory
_PIECE = 1 << 20
# Deflate's densest code is 258 bytes for 2 bits; a claim beyond it is a lie.
_DEFLATE_RATIO = 1032


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a zip file, as the directory has it.

    Attributes
    ----------
    name : str
        Its name, decoded.
    raw_name : bytes
        Its name as it stands in the file.
    flags, method : int
        General purpose bits, and compression method: `STORED`, `DEFLATED` or another.
    crc : int
        CRC-32 of the contents.
    compressed, size : int
        Bytes in the file, and bytes of the contents.
    offset : int
        Where in the file its local header starts.
    end : int
        Where the next thing starts: local header, contents and perhaps a data descriptor lie before it.
    """

    name: str
    raw_name: bytes
    flags: int
    method: int
    crc: int
    compressed: int
    size: int
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class _File:
    """An open file with its last bytes at hand."""

    fd: int
    size: int
    path: str
    tail: bytes

    def read(self, offset: int, count: int) -> bytes:
        """Read exactly `count` bytes; only ever asked for ranges inside the file."""
        start = offset - (self.size - len(self.tail))
        block = self.tail[start : start + count] if start >= 0 else os.pread(self.fd, count, offset)
        if len(block) != count:
            raise self.error(f"ended at {offset + len(block)} bytes while being read; it had {self.size}")
        return block

    def error(self, cause: str, member: str | None = None) -> SourceError:
        return SourceError(self.path, member, cause)


def read_directory(fd: int, size: int, path: str) -> tuple[Member, ...]:
    """Read the directory of an open zip file; one read does where it fits in the last 4 KiB.

    Parameters
    ----------
    fd : int
        Descriptor of the file; its position is neither used nor moved.
    size : int
        Bytes in the file.
    path : str
        For messages.

    Returns
    -------
    tuple of Member
        In the directory's order.

    Raises
    ------
    SourceError
        If this is no zip file (the message says what it is instead), or its directory contradicts itself or
        the file's size, or a name occurs twice, or the file is one part of several.
    """
    file, position = _find_end(_File(fd, size, path, b""))
    count, length, start, end = _extent(file, position)
    if start + length != end:
        away = end - start - length
        what = f"{away} bytes were put in front of it, or into it" if away > 0 else f"{-away} bytes were lost"
        raise file.error(
            f"its zip directory should end at byte {end} and by its own figures ends at {start + length}: "
            f"{what}; fetch or write the file again"
        )
    return _check_places(file, _parse_entries(file, count, start, length), start)


def _find_end(file: _File) -> tuple[_File, int]:
    """Find the end record: the last one whose comment reaches exactly to the end of the file."""
    for reach in (_TAIL, _END.size + _COMMENT):
        base = max(0, file.size - reach)
        tail = file.read(base, file.size - base)
        at = tail.rfind(_END_SIGNATURE)
        while at >= 0:
            comment = int.from_bytes(tail[at + _END.size - 2 : at + _END.size], "little")
            if at + _END.size + comment == len(tail):
                return _File(file.fd, file.size, file.path, tail), base + at
            at = tail.rfind(_END_SIGNATURE, 0, at)
        if base == 0:
            break
    if behind := _bytes_behind(tail, base):
        raise file.error(
            f"a zip file with {behind} more bytes behind its end: something was appended; "
            "fetch or write the file again"
        )
    raise file.error(identify(os.pread(file.fd, FIRST_BYTES, 0), file.size))


def _bytes_behind(tail: bytes, base: int) -> int:
    """Count what follows the last end record whose directory lies right before it."""
    at = tail.rfind(_END_SIGNATURE, 0, max(0, len(tail) - _END.size + 4))
    if at < 0:
        return 0
    *_, length, start, comment = _END.unpack_from(tail, at)
    return max(0, len(tail) - at - _END.size - comment) if start + length == base + at else 0


def _extent(file: _File, position: int) -> tuple[int, int, int, int]:
    """Give the number of entries, length and start of the directory, and where it has to end."""
    _, disk, first_disk, here, count, length, start, _ = _END.unpack(file.read(position, _END.size))
    end = position
    at = position - _LOCATOR64.size
    # Some writers put the zip64 records into every file, so they count even where no figure calls for them.
    if at >= _END64.size and (locator := file.read(at, _LOCATOR64.size)).startswith(b"PK\x06\x07"):
        _, _, end, disks = _LOCATOR64.unpack(locator)
        if end + _END64.size != at:
            raise file.error(
                f"its zip64 end record should start at byte {at - _END64.size}, and by its own figures does "
                f"at {end}: bytes were lost or put in front; fetch or write the file again"
            )
        figures = _END64.unpack(file.read(end, _END64.size))
        signature, figures = figures[0], figures[4:]
        if signature != b"PK\x06\x06":
            raise file.error(f"no zip64 end record at byte {end}, where the file's end says it is")
        for short, full, figure in zip(
            (disk, first_disk, here, count, length, start),
            (_FULL16,) * 4 + (_FULL32,) * 2,
            figures,
            strict=True,
        ):
            if short not in {full, figure}:
                raise file.error(f"its two end records contradict each other: {short} and {figure}: damaged")
        disk, first_disk, here, count, length, start = figures
        if disks > 1:
            disk = 1
    if disk or first_disk or here != count:
        raise file.error("one part of a zip file split over several: join them first")
    return count, length, start, end


def _parse_entries(file: _File, count: int, start: int, length: int) -> list[Member]:
    """Parse the entries, reading the directory piece by piece."""
    members: list[Member] = []
    names: set[str] = set()
    position, stop = start, start + length
    block, at = b"", 0

    def need(wanted: int) -> None:
        nonlocal block, at, position
        if len(block) - at < wanted:
            more = min(max(_PIECE, wanted), stop - position)
            block, at = block[at:] + file.read(position, more), 0
            position += more
        if len(block) - at < wanted:
            raise file.error(f"its zip directory ends inside entry {len(members)} of {count}")

    for _ in range(count):
        need(_ENTRY.size)
        (signature, _, _, flags, method, _, _, crc, compressed, size, name_length, extra_length,
         comment_length, disk, _, _, offset) = _ENTRY.unpack_from(block, at)  # fmt: skip
        if signature != b"PK\x01\x02":
            raise file.error(f"its zip directory is damaged at entry {len(members)} of {count}")
        need(_ENTRY.size + name_length + extra_length + comment_length)
        at += _ENTRY.size
        raw = block[at : at + name_length]
        name = _decode(file, raw, flags)
        if _FULL32 in {compressed, size, offset}:
            extra = block[at + name_length : at + name_length + extra_length]
            size, compressed, offset = _widen(file, name, extra, size, compressed, offset)
        at += name_length + extra_length + comment_length
        if disk:
            raise file.error("lies in another part of a zip file split over several", name)
        if name in names:
            raise file.error("occurs more than once in the zip directory; write the file again", name)
        names.add(name)
        members.append(Member(name, raw, flags, method, crc, compressed, size, offset, 0))
    if position - (len(block) - at) != stop:
        raise file.error(f"its zip directory holds more than the {count} entries that the file's end counts")
    return members


def _decode(file: _File, raw: bytes, flags: int) -> str:
    if raw.isascii():
        name = raw.decode("ascii")
    else:
        try:
            name = raw.decode("utf-8" if flags & _UTF8_NAME else "cp437")
        except UnicodeDecodeError:
            raise file.error(f"a member's name is not UTF-8: {raw!r}") from None
    if "\0" in name:
        raise file.error(f"a member's name holds a zero byte: {raw!r}")
    return name


def _widen(
    file: _File, name: str, extra: bytes, size: int, compressed: int, offset: int
) -> tuple[int, int, int]:
    """Take those of the three figures that are full from the zip64 extra field, in this order."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == _ZIP64_EXTRA:
            field = extra[at + 4 : at + 4 + length]
            figures = [size, compressed, offset]
            for place, figure in enumerate(figures):
                if figure == _FULL32:
                    if len(field) < 8:
                        break
                    figures[place] = int.from_bytes(field[:8], "little")
                    field = field[8:]
            else:
                return figures[0], figures[1], figures[2]
            break
        at += 4 + length
    raise file.error("its sizes should be in a zip64 extra field, which is missing or too short", name)


def _check_places(file: _File, members: list[Member], start: int) -> tuple[Member, ...]:
    """Check that members lie before the directory, side by side, and give each its end."""
    ends = {}
    behind = start
    for member in sorted(members, key=lambda member: member.offset, reverse=True):
        last = member.offset + LOCAL_HEADER.size + len(member.raw_name) + member.compressed
        if last > behind:
            raise file.error(
                f"{member.compressed} bytes from byte {member.offset} on reach beyond byte {behind}, "
                "where the next member or the zip directory starts: the file is damaged",
                member.name,
            )
        if member.method == STORED and member.compressed != member.size:
            raise file.error(
                f"stored, but in {member.compressed} bytes where its contents have {member.size}", member.name
            )
        if member.method == DEFLATED and member.size > member.compressed * _DEFLATE_RATIO:
            raise file.error(
                f"{member.compressed} deflated bytes cannot hold the {member.size} claimed", member.name
            )
        ends[member.name] = behind
        behind = member.offset
    return tuple(
        Member(m.name, m.raw_name, m.flags, m.method, m.crc, m.compressed, m.size, m.offset, ends[m.name])
        for m in members
    )
