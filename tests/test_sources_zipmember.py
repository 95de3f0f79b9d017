import io
import os
import zipfile
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import SourceError
from mmapload.sources import zipmember
from mmapload.sources.zipdir import read_directory
from mmapload.sources.zipmember import read_first, read_member
from tests.npz_files import count_reads, full_zip64_bytes, zip_bytes


class Opened:
    """A zip file in memory: descriptor and directory."""

    def __init__(self, data):
        self.fd = os.memfd_create("zip")
        os.write(self.fd, data)
        self.members = read_directory(self.fd, len(data), "a.npz")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        os.close(self.fd)

    def split(self, member, payload_bytes):
        """Read a member, its last bytes apart, into the middle of a guarded buffer."""
        guarded = np.full(payload_bytes + 16, 0xA5, np.uint8)
        head = read_member(self.fd, "a.npz", member, guarded[8 : 8 + payload_bytes])
        assert bytes(guarded[:8]) == bytes(guarded[8 + payload_bytes :]) == b"\xa5" * 8
        return head, bytes(guarded[8 : 8 + payload_bytes])


# A piece is shrunk to 1,000 bytes, so that small members cross every border.
PIECE = 1000
SIZES = [0, 1, 12, 997, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 4999]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SIZES),
    st.sampled_from(SIZES),
    st.sampled_from(["text", "noise", "zeros"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_contents_come_out_as_they_went_in(before, after, kind, deflate, zip64, stream):
    rng = np.random.default_rng(before * 5000 + after)
    high = {"text": 20, "noise": 256, "zeros": 1}[kind]
    contents = [rng.integers(0, high, before + after, np.uint8).tobytes(), b"next" * 9]
    data = zip_bytes(zip("ab", contents, strict=True), deflate=deflate, zip64=zip64, stream=stream)
    with pytest.MonkeyPatch.context() as patch, Opened(data) as opened:
        patch.setattr(zipmember, "_PIECE", PIECE)
        first, second = opened.members
        assert opened.split(first, after) == (contents[0][:before], contents[0][before:])
        assert opened.split(second, 20) == (contents[1][:16], contents[1][16:])
        for count in (0, 1, before, before + after, before + after + 7):
            assert read_first(opened.fd, "a.npz", first, count) == contents[0][:count]


def test_a_stored_member_costs_one_call(monkeypatch):
    content = bytes(range(256)) * 5000
    for data in (zip_bytes([("a", content)], zip64=True), full_zip64_bytes([("a", content)])):
        calls = count_reads(monkeypatch)
        with Opened(data) as opened:
            calls.clear()  # what was read for the directory
            assert opened.split(opened.members[0], len(content) - 128)[1] == content[128:]
        monkeypatch.undo()
        assert len(calls) == 1


def test_holes_between_members_are_read_over():
    data = zip_bytes([("a", b"A" * 40)])
    directory = data.index(b"PK\x01\x02")
    moved = bytearray(data[:directory] + bytes(70) + data[directory:])
    at = moved.rindex(b"PK\x05\x06") + 16
    moved[at : at + 4] = (directory + 70).to_bytes(4, "little")
    with Opened(bytes(moved)) as opened:
        assert opened.split(opened.members[0], 30) == (b"A" * 10, b"A" * 30)


def test_short_reads_are_continued(monkeypatch):
    content = os.urandom(3000)
    real = os.preadv

    def stingy(fd, buffers, offset):
        left, some = 700, []
        for buffer in buffers:
            some.append(memoryview(buffer)[:left])
            left -= len(some[-1])
        return real(fd, some, offset)

    monkeypatch.setattr(zipmember.os, "preadv", stingy)
    with Opened(zip_bytes([("a", content)])) as opened:
        assert opened.split(opened.members[0], 2900) == (content[:100], content[100:])


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA], ids=["bzip2", "LZMA"])
def test_other_methods_are_refused_by_name(method):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("a", b"A" * 500)
    with Opened(buffer.getvalue()) as opened:
        for read in (lambda m: opened.split(m, 100), lambda m: read_first(opened.fd, "a.npz", m, 100)):
            with pytest.raises(SourceError, match=f"compressed by (bzip2|LZMA) .zip method {method}"):
                read(opened.members[0])


def with_entry(data, offset, value, size):
    out = bytearray(data)
    at = out.index(b"PK\x01\x02") + offset
    out[at : at + size] = value.to_bytes(size, "little")
    return bytes(out)


CONTENT = b"contents that deflate " * 30
STORED, DEFLATED = zip_bytes([("a", CONTENT)]), zip_bytes([("a", CONTENT)], deflate=True)
DEFLATED_LENGTH = int.from_bytes(DEFLATED[18:22], "little")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (with_entry(STORED, 8, 0x0001, 2), "encrypted"),
        (with_entry(DEFLATED, 8, 0x0041, 2), "encrypted"),
        (with_entry(DEFLATED, 8, 0x0020, 2), "only stored and deflated"),
        (with_entry(STORED, 10, 77, 2), "an unknown method"),
        (with_entry(STORED, 16, 7, 4), "CRC-32"),
        (with_entry(DEFLATED, 16, 7, 4), "CRC-32"),
        (with_entry(DEFLATED, 24, len(CONTENT) + 1, 4), f"inflates to {len(CONTENT)} bytes"),
        (with_entry(DEFLATED, 24, len(CONTENT) - 1, 4), "inflates to more than"),
        (with_entry(DEFLATED, 24, 200, 4), "inflates to more than"),
        (with_entry(DEFLATED, 20, DEFLATED_LENGTH - 1, 4), "end too early"),
        (with_entry(STORED, 10, 8, 2), "are damaged"),
        (STORED.replace(b"PK\x03\x04", b"PK\x03\x05"), "does not start"),
        (STORED[:30] + b"z" + STORED[31:], "does not start"),
        (STORED[:28] + b"\x09\x00" + STORED[30:], "reaches beyond"),
        (DEFLATED[:28] + b"\x09\x00" + DEFLATED[30:], "reaches beyond"),
    ],
)
def test_damage_is_refused_for_what_it_is(data, said):
    with Opened(data) as opened, pytest.raises(SourceError, match=r"^a\.npz, member 'a': ") as caught:
        opened.split(opened.members[0], 100)
    assert said in str(caught.value)


def test_a_bomb_is_stopped_at_the_size_in_the_directory():
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = b"".join([squeezer.compress(bytes(1 << 20)) for _ in range(256)]) + squeezer.flush()
    data = zip_bytes([("a", bomb)])
    data = with_entry(with_entry(data, 10, 8, 2), 24, 5000, 4)
    inflated = []
    with Opened(data) as opened:
        real = zipmember.isal_zlib.crc32
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                zipmember.isal_zlib,
                "crc32",
                lambda block, crc=0: inflated.append(len(block)) or real(block, crc),
            )
            with pytest.raises(SourceError, match="inflates to more than the 5000 bytes"):
                opened.split(opened.members[0], 4900)
    assert sum(inflated) <= 5000


def test_a_file_that_shrinks_meanwhile_is_refused():
    for deflate in (False, True):
        data = zip_bytes([("a", os.urandom(9000))], deflate=deflate)
        with Opened(data) as opened:
            os.ftruncate(opened.fd, 5000)
            with pytest.raises(SourceError, match="ended at byte 5000 while being read"):
                opened.split(opened.members[0], 8900)
