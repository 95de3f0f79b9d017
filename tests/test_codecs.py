"""Codecs: what goes in comes out, exactly; what is damaged is refused and leaves nothing stale behind."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numcodecs.zstd
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.codecs import (
    BLOSC_MAX_BYTES,
    CODEC_NAMES,
    BloscCodec,
    Codec,
    RawCodec,
    ZstdCodec,
    checksum,
    codec_named,
)

ITEMSIZES = (1, 2, 4, 8, 16)
COMPRESSED = [name for name in CODEC_NAMES if name != "raw"]
STALE = 0xA5


def sample_bytes(nbytes: int, kind: str, seed: int = 0) -> np.ndarray:
    """Bytes that compress not at all, well, or to next to nothing."""
    rng = np.random.default_rng(seed)
    if kind == "noise":
        return rng.integers(0, 256, nbytes, np.uint8)
    if kind == "smooth":
        return np.resize(np.arange(0, 1000, 0.5, np.float32).view(np.uint8), nbytes)
    return np.zeros(nbytes, np.uint8)


def decoded(codec: Codec, frame: np.ndarray, nbytes: int) -> np.ndarray:
    out = np.full(nbytes, STALE, np.uint8)
    codec.decode(frame, out)
    return out


@pytest.mark.parametrize("kind", ["noise", "smooth", "zeros"])
@pytest.mark.parametrize("itemsize", ITEMSIZES)
@pytest.mark.parametrize("count", [1, 2, 15, 1021, 70_001])
def test_every_codec_returns_what_it_was_given(codec_name, itemsize, count, kind):
    codec = codec_named(codec_name, itemsize)
    data = sample_bytes(count * itemsize, kind)
    before = data.copy()
    frame = codec.encode(data)
    assert np.array_equal(decoded(codec, frame, data.nbytes), data)
    assert np.array_equal(data, before), "encoding changes its input"


@given(data=st.binary(min_size=1, max_size=3000), name=st.sampled_from(CODEC_NAMES))
def test_any_bytes_survive_any_codec(data, name):
    array = np.frombuffer(data, np.uint8)
    codec = codec_named(name, 1)
    assert decoded(codec, codec.encode(array), array.nbytes).tobytes() == data


def test_several_megabytes_survive(codec_name):
    codec = codec_named(codec_name, 4)
    data = sample_bytes(9 * 2**20 + 4, "noise")
    data[: 4 * 2**20] = 7
    assert np.array_equal(decoded(codec, codec.encode(data), data.nbytes), data)


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_frame_of_nothing_is_refused_for_a_chunk_is_never_empty(name):
    codec = codec_named(name, 1)
    with pytest.raises(ValueError, match="damaged"):
        decoded(codec, codec.encode(np.empty(0, np.uint8)), 0)


def test_raw_encodes_to_its_input_and_can_be_mapped():
    data = sample_bytes(100, "noise")
    assert RawCodec().encode(data) is data
    assert RawCodec().is_raw
    assert not any(codec_named(name, 4).is_raw for name in COMPRESSED)


def test_encoding_is_the_same_twice(codec_name):
    data = sample_bytes(50_000, "smooth")
    codec = codec_named(codec_name, 4)
    assert np.array_equal(codec.encode(data), codec.encode(data.copy()))


def test_threads_encode_and_decode_as_the_main_thread_does(codec_name):
    codec = codec_named(codec_name, 4)
    chunks = [sample_bytes(3 * 2**20, "smooth", seed) for seed in range(4)]
    for chunk in chunks:
        chunk[::3] = sample_bytes(2**20, "noise")
    frames = [codec.encode(chunk) for chunk in chunks]
    with ThreadPoolExecutor(4) as pool:
        again = list(pool.map(codec.encode, chunks))
        back = list(pool.map(decoded, [codec] * 4, again, [3 * 2**20] * 4))
    assert all(np.array_equal(a, b) for a, b in zip(frames, again, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(chunks, back, strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("name", COMPRESSED)
def test_a_process_forked_after_use_still_decodes(name):
    """Blosc keeps a pool of threads, which a fork does not copy."""
    script = f"""
import os, signal, numpy as np
from mmapload.codecs import codec_named
codec = codec_named({name!r}, 4)
data = np.arange(2**20, dtype=np.uint32).view(np.uint8)
out = np.empty_like(data)
codec.decode(codec.encode(data), out)
if (child := os.fork()) == 0:
    signal.alarm(60)
    out[:] = 0
    codec.decode(codec.encode(data), out)
    os._exit(0 if np.array_equal(out, data) else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


def test_decoding_fills_a_part_of_a_larger_buffer_and_nothing_beside_it(codec_name):
    codec = codec_named(codec_name, 4)
    data = sample_bytes(4000, "smooth")
    buffer = np.full(6000, STALE, np.uint8)
    codec.decode(codec.encode(data), buffer[1000:5000])
    assert np.array_equal(buffer[1000:5000], data)
    assert (buffer[:1000] == STALE).all()
    assert (buffer[5000:] == STALE).all()


@pytest.mark.parametrize("difference", [-4000, -1999, -4, -1, 1, 4, 4000])
def test_a_frame_of_another_size_than_the_buffer_is_refused(codec_name, difference):
    codec = codec_named(codec_name, 1)
    frame = codec.encode(sample_bytes(4000 + difference, "smooth"))
    with pytest.raises(ValueError, match="4000"):
        decoded(codec, frame, 4000)


@pytest.mark.parametrize("tail", [b"\0", b"x", b"garbage" * 10, b"\x28\xb5\x2f\xfd"])
def test_bytes_after_a_frame_are_refused(codec_name, tail):
    codec = codec_named(codec_name, 4)
    frame = codec.encode(sample_bytes(4000, "smooth")).tobytes()
    with pytest.raises(ValueError):  # noqa: PT011 - each codec has its own words
        decoded(codec, np.frombuffer(frame + tail, np.uint8), 4000)


@pytest.mark.parametrize("name", COMPRESSED)
def test_two_frames_in_a_row_are_refused(name):
    codec = codec_named(name, 4)
    frame = codec.encode(sample_bytes(2000, "smooth")).tobytes()
    with pytest.raises(ValueError):  # noqa: PT011
        decoded(codec, np.frombuffer(frame + frame, np.uint8), 4000)
    with pytest.raises(ValueError):  # noqa: PT011
        decoded(codec, np.frombuffer(frame + frame, np.uint8), 2000)


@pytest.mark.parametrize("kind", ["noise", "smooth", "zeros"])
def test_every_truncation_is_refused(codec_name, kind):
    codec = codec_named(codec_name, 4)
    frame = codec.encode(sample_bytes(2000, kind))
    for length in {*range(min(40, frame.nbytes)), *range(0, frame.nbytes, 37), frame.nbytes - 1}:
        with pytest.raises(ValueError):  # noqa: PT011
            decoded(codec, frame[:length].copy(), 2000)


@pytest.mark.parametrize("name", COMPRESSED)
def test_no_damage_to_a_frame_leaves_stale_bytes(name):
    """Without a checksum damage may go unseen, but then every byte of the buffer has been written."""
    codec = codec_named(name, 4)
    data = sample_bytes(3000, "smooth")
    frame = codec.encode(data)
    rng = random.Random(0)
    refused = 0
    for position in range(frame.nbytes):
        damaged = frame.copy()
        damaged[position] ^= 1 << rng.randrange(8)
        first, second = np.full(3000, 0x00, np.uint8), np.full(3000, 0xFF, np.uint8)
        try:
            codec.decode(damaged, first)
            codec.decode(damaged, second)
        except ValueError:
            refused += 1
        else:
            assert np.array_equal(first, second), f"byte {position}: some of the buffer was not written"
    assert refused


@pytest.mark.parametrize("name", COMPRESSED)
@given(frame=st.binary(max_size=200))
def test_no_bytes_at_all_crash_a_decoder(name, frame):
    codec = codec_named(name, 4)
    with pytest.raises(ValueError):  # noqa: PT011
        decoded(codec, np.frombuffer(frame, np.uint8), 4096)


def test_a_zstd_frame_without_its_content_size_is_refused():
    # Frame header: magic, descriptor 0 (no content size, window follows), window; then one raw block.
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + (1 | 4 << 3).to_bytes(3, "little") + b"abcd"
    with pytest.raises(ValueError, match="does not say how many bytes it holds"):
        decoded(ZstdCodec(), np.frombuffer(frame, np.uint8), 4)


@pytest.mark.parametrize("nbytes", [1, 255, 256, 257, 65_791, 65_792, 70_000, 2**20])
@pytest.mark.parametrize("with_checksum", [False, True])
def test_the_content_size_of_a_zstd_frame_is_read_in_each_of_its_widths(nbytes, with_checksum):
    data = sample_bytes(nbytes, "smooth")
    frame = np.frombuffer(numcodecs.zstd.compress(data, 1, with_checksum), np.uint8)
    assert np.array_equal(decoded(ZstdCodec(), frame, nbytes), data)
    with pytest.raises(ValueError, match=str(nbytes)):
        decoded(ZstdCodec(), frame, nbytes + 1)


@pytest.mark.parametrize("level", [-5, 0, 1, 9, 19])
def test_frames_of_any_level_decode(level):
    data = sample_bytes(100_000, "smooth")
    assert np.array_equal(decoded(ZstdCodec(), ZstdCodec(level).encode(data), data.nbytes), data)
    blosc = BloscCodec("zstd", 4, clevel=min(9, max(0, level)))
    assert np.array_equal(decoded(BloscCodec("zstd", 4), blosc.encode(data), data.nbytes), data)


def test_a_blosc_frame_holds_the_element_size_and_a_byte_shuffle():
    frame = codec_named("blosc-lz4", 8).encode(sample_bytes(80_000, "smooth"))
    version, _, flags, typesize = frame[:4]
    assert version == 2
    assert flags & 0b101 == 1, "byte shuffle, and not bit shuffle"
    assert typesize == 8


def test_blosc_refuses_more_bytes_than_its_header_can_say():
    data = np.broadcast_to(np.uint8(0), (BLOSC_MAX_BYTES + 1,))
    with pytest.raises(ValueError, match="at most 2147483631 bytes"):
        codec_named("blosc-lz4", 1).encode(data)


def test_the_checksum_is_crc32c_little_endian():
    # RFC 3720, appendix B.4: 32 bytes of zeros, of ones, and rising.
    assert checksum(np.zeros(32, np.uint8)).hex() == "aa36918a"
    assert checksum(np.full(32, 255, np.uint8)).hex() == "43aba862"
    assert checksum(np.arange(32, dtype=np.uint8)).hex() == "4e79dd46"
    assert checksum(np.empty(0, np.uint8)) == bytes(4)


def test_an_unknown_name_lists_the_codecs_there_are():
    with pytest.raises(ValueError, match=r"'lzma'.*raw, zstd, blosc-lz4, blosc-zstd"):
        codec_named("lzma", 1)
