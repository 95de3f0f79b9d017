"""Chunk files: read whole, checked, and told apart from everything that is no chunk file."""

from __future__ import annotations

import os
import random
import socket
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from mmapload.chunkfile import ChunkContent, expect_checksum, open_chunk_file, read_chunk_file
from mmapload.codecs import Bytes, ZstdCodec, checksum, codec_named
from mmapload.errors import ChunkError
from mmapload.layout import FieldLayout
from tests.test_frames import zstd_frame_of_repeats

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


def stale(nbytes: int) -> Bytes:
    return np.full(nbytes, STALE, np.uint8)


def read(layout: FieldLayout, path: str, **options: bool) -> ChunkContent:
    return read_chunk_file(layout, 7, path, stale, **options)


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
    found = read(layout, path)
    assert np.array_equal(found.data, data)
    assert found.file_nbytes == os.path.getsize(path)
    assert found.trailer == Path(path).read_bytes()[-4:]


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


def test_what_is_no_file_is_refused_at_once_and_by_its_kind(tmp_path, codec_name):
    os.mkdir(tmp_path / "folder")
    os.mkfifo(tmp_path / "pipe")  # opening one waits for a writer, unless told not to
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
    for name in ("folder", "pipe", "socket"):
        assert fault(field(codec_name), str(tmp_path / name)).found == f"a {name}"
    assert fault(field(codec_name), "/dev/null").found == "a character device"


def test_a_symbolic_link_is_refused_whatever_it_leads_to(chunk_file, tmp_path):
    layout, path, _ = chunk_file
    for target in (path, os.path.basename(path), "/dev/zero", "nowhere", "link", str(tmp_path)):
        os.symlink(target, tmp_path / "link")
        error = fault(layout, str(tmp_path / "link"))
        assert error.found == f"a symbolic link to {target}"
        assert "copy it with links followed (cp -rL)" in str(error)
        os.remove(tmp_path / "link")


def test_a_hard_link_and_a_link_above_the_file_are_followed(chunk_file, tmp_path):
    layout, path, data = chunk_file
    os.link(path, tmp_path / "hard")
    os.symlink(tmp_path, tmp_path / "folder")
    for other in (tmp_path / "hard", tmp_path / "folder" / "hard"):
        assert np.array_equal(read(layout, str(other)).data, data)
    os.symlink("loop", tmp_path / "loop")
    assert "symbolic links" in fault(layout, str(tmp_path / "loop" / "c.7.0.0")).found


def test_a_file_of_zeros_is_damaged_and_never_zeros(tmp_path):
    """What some file systems leave of a file after a power cut: its length without its contents."""
    path = tmp_path / "c.7.0.0"
    for nbytes in (*range(1, 600), 4096, 2**20, 2**20 + 1):
        layout = FieldLayout("flow", np.dtype("u1"), (nbytes,), 1, codec_named("raw", 1))
        with open(path, "wb") as file:
            file.truncate(nbytes + 4)
        assert "damaged" in fault(layout, str(path)).found
    for name in ("zstd", "blosc-lz4", "blosc-zstd"):
        path.write_bytes(bytes(64))
        assert "damaged" in fault(field(name), str(path)).found


class NotAllocated(Exception):
    pass


def no_memory(nbytes: int) -> Bytes:
    raise NotAllocated(nbytes)


def test_nothing_is_allocated_for_a_claim_that_the_file_s_size_contradicts(tmp_path, codec_name):
    path = tmp_path / "c.7.0.0"
    for content in (b"short", bytes(1000), *(field(codec_name).codec.encode(payload(field())).tobytes(),)):
        data = np.frombuffer(content, np.uint8)
        path.write_bytes(content + checksum(data))
        claim = FieldLayout("flow", np.dtype("u1"), (2**50,), 1, codec_named(codec_name, 1))
        with pytest.raises(ChunkError, match=f"found {len(content) + 4} bytes") as caught:
            read_chunk_file(claim, 7, str(path), no_memory)
        assert str(2**50 if codec_name != "raw" else 2**50 + 4) in caught.value.expected


def test_nothing_is_allocated_for_a_frame_that_holds_another_number_of_bytes(tmp_path, codec_name):
    if codec_name == "raw":
        return
    path = tmp_path / "c.7.0.0"
    encoded = codec_named(codec_name, 1).encode(np.zeros(2**20, np.uint8))
    path.write_bytes(encoded.tobytes() + checksum(encoded))
    for claim in (2**20 - 1, 2**20 + 1, 2**15):
        layout = FieldLayout("flow", np.dtype("u1"), (claim,), 1, codec_named(codec_name, 1))
        for verify in (False, True):
            with pytest.raises(ChunkError, match=f"data of {claim} bytes, found a frame that holds 1048576"):
                read_chunk_file(layout, 7, str(path), no_memory, verify=verify)


def test_a_frame_as_dense_as_frames_can_be_is_read_if_the_store_says_so(tmp_path):
    layout = FieldLayout("flow", np.dtype("u1"), (2**28,), 1, ZstdCodec())
    frame = zstd_frame_of_repeats(2**28 // 2**17)
    path = tmp_path / "c.7.0.0"
    path.write_bytes(frame.tobytes() + checksum(frame))
    assert path.stat().st_size < 2**28 / 32_000
    assert (read_chunk_file(layout, 7, str(path)).data == 7).all()


def test_a_huge_file_is_not_read_as_a_frame(tmp_path, codec_name):
    """A hole: it has a length, and takes no room on the disk."""
    path = tmp_path / "c.7.0.0"
    with open(path, "wb") as file:
        file.truncate(2**40)
    assert fault(field(codec_name), str(path)).found == f"{2**40} bytes"


def test_too_little_memory_is_said_with_what_to_do(chunk_file):
    layout, path, _ = chunk_file

    def full(nbytes: int) -> Bytes:
        raise MemoryError

    with pytest.raises(ChunkError, match=r"384 bytes of memory.*too little.*smaller --chunk-bytes"):
        read_chunk_file(layout, 7, path, full)


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
    assert np.array_equal(read(layout, str(path), verify=False).data, data)


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
        fills = (np.zeros, partial(np.full, fill_value=255))
        try:
            outs = [
                read_chunk_file(layout, 7, path, partial(fill, dtype=np.uint8), verify=False).data
                for fill in fills
            ]
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
