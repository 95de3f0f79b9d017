"""Chunk files: read whole, checked, and told apart from everything that is no chunk file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from mmapload.chunkfile import expect_checksum, open_chunk_file, read_chunk_file
from mmapload.codecs import Bytes, ZstdCodec, checksum, codec_named
from mmapload.errors import ChunkError
from mmapload.layout import FieldLayout

STALE = 0xA5


def field(codec: str = "raw", length: int = 16) -> FieldLayout:
    return FieldLayout("flow", np.dtype("<f4"), (2, 3), length, codec_named(codec, 4))


def payload(layout: FieldLayout) -> Bytes:
    return np.arange(layout.chunk_nbytes // 4, dtype="<f4").view(np.uint8)


@pytest.fixture
def chunk_file(tmp_path, codec_name):
    """A chunk file of each codec, its layout, path and contents."""
    layout = field(codec_name)
    encoded = layout.codec.encode(payload(layout))
    path = tmp_path / "c.7.0.0"
    path.write_bytes(encoded.tobytes() + checksum(encoded))
    return layout, str(path), payload(layout)


def read(layout: FieldLayout, path: str, **options: bool) -> tuple[int, Bytes]:
    out = np.full(layout.chunk_nbytes, STALE, np.uint8)
    return read_chunk_file(layout, 7, path, out, **options), out


def fault(layout: FieldLayout, path: str) -> ChunkError:
    with pytest.raises(ChunkError) as caught:
        read(layout, path)
    error = caught.value
    assert (error.field, error.chunk, error.path) == ("flow", 7, path)
    assert "'flow'" in str(error)
    assert "chunk 7" in str(error)
    assert path in str(error)
    return error


def test_a_chunk_file_is_read_and_its_bytes_counted(chunk_file):
    layout, path, data = chunk_file
    count, out = read(layout, path)
    assert np.array_equal(out, data)
    assert count == os.path.getsize(path)


def test_reading_leaves_no_descriptor_open(chunk_file):
    layout, path, _ = chunk_file
    before = os.listdir("/proc/self/fd")
    read(layout, path)
    os.truncate(path, os.path.getsize(path) - 1)
    fault(layout, path)
    os.remove(path)
    fault(layout, path)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_every_flipped_bit_is_found(chunk_file):
    layout, path, _ = chunk_file
    whole = Path(path).read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << position % 8
        with open(path, "wb") as file:
            file.write(damaged)
        assert "checksum" in fault(layout, path).expected


def test_every_other_size_is_found(chunk_file):
    layout, path, _ = chunk_file
    whole = Path(path).read_bytes()
    for length in {*range(12), *range(0, len(whole), 17), len(whole) - 1}:
        with open(path, "wb") as file:
            file.write(whole[:length])
        fault(layout, path)
    for tail in (b"\0", whole[-4:], whole):
        with open(path, "wb") as file:
            file.write(whole + tail)
        fault(layout, path)


def test_a_raw_file_of_another_size_says_both_sizes(tmp_path):
    path = str(tmp_path / "c.7.0.0")
    with open(path, "wb") as file:
        file.write(bytes(100))
    error = fault(field(), path)
    assert (error.expected, error.found) == ("388 bytes", "100 bytes")


def test_a_missing_file_is_an_error_and_never_zeros(tmp_path, codec_name):
    assert fault(field(codec_name), str(tmp_path / "c.7.0.0")).found == "no such file"
    assert fault(field(codec_name), str(tmp_path / "nowhere" / "c.7.0.0")).found == "no such file"


def test_what_is_no_file_is_refused_at_once(tmp_path, codec_name):
    os.mkdir(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer, unless told not to
    for name in ("folder", "pipe"):
        assert "no file" in fault(field(codec_name), str(tmp_path / name)).found


def test_a_chunk_of_another_length_in_a_proper_frame_is_refused(tmp_path, codec_name):
    """The checksum is right, so only the frame's own size tells."""
    for length in (8, 32):
        encoded = field(codec_name).codec.encode(payload(field(codec_name, length)))
        path = tmp_path / f"c.{length}"
        path.write_bytes(encoded.tobytes() + checksum(encoded))
        fault(field(codec_name), str(path))


def test_without_verification_a_damaged_raw_file_is_read_as_it_is(tmp_path):
    layout = field()
    data = payload(layout)
    path = tmp_path / "c.7.0.0"
    path.write_bytes(data.tobytes() + b"none")
    assert np.array_equal(read(layout, str(path), verify=False)[1], data)


def test_without_verification_a_damaged_frame_is_an_error_or_wholly_written(tmp_path):
    layout = FieldLayout("flow", np.dtype("<f4"), (2, 3), 64, ZstdCodec())
    encoded = layout.codec.encode(payload(layout))
    path = str(tmp_path / "c.7.0.0")
    rng = random.Random(1)
    for _ in range(200):
        damaged = encoded.copy()
        damaged[rng.randrange(damaged.nbytes)] ^= rng.randrange(1, 256)
        with open(path, "wb") as file:
            file.write(damaged.tobytes() + b"none")
        outs = [np.full(layout.chunk_nbytes, fill, np.uint8) for fill in (0, 255)]
        try:
            for out in outs:
                read_chunk_file(layout, 7, path, out, verify=False)
        except ChunkError:
            continue
        assert np.array_equal(*outs)


def test_opening_says_the_size_and_leaves_reading_to_the_caller(chunk_file):
    layout, path, _ = chunk_file
    fd, size = open_chunk_file(layout, 7, path)
    try:
        assert size == os.fstat(fd).st_size == os.path.getsize(path)
        assert not os.get_inheritable(fd)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(fd, b"x")
    finally:
        os.close(fd)


def test_checksums_are_shown_as_numbers():
    data = np.frombuffer(b"123456789", np.uint8)
    expect_checksum(field(), 7, "x", data, bytes.fromhex("839206e3"))
    with pytest.raises(ChunkError, match=r"expected checksum 04030201, found e3069283: the file is damaged"):
        expect_checksum(field(), 7, "x", data, bytes([1, 2, 3, 4]))
