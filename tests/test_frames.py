"""What frames say of themselves before anything is decoded, and the most that they can hold."""

from __future__ import annotations

import numpy as np
import pytest

from mmapload.codecs import CODEC_NAMES, BloscCodec, ZstdCodec, codec_named
from mmapload.frames import EXPANSION, blosc_content_nbytes, zstd_content_nbytes

CONTENT = {"zstd": zstd_content_nbytes, "blosc-lz4": blosc_content_nbytes, "blosc-zstd": blosc_content_nbytes}


def zstd_frame_of_repeats(blocks: int) -> np.ndarray:
    """The densest frame there is: every block says that one byte is repeated 128 KiB times (RFC 8878)."""
    head = b"\x28\xb5\x2f\xfd" + bytes([0b10100000]) + (blocks * 2**17).to_bytes(4, "little")
    each = [(last | 1 << 1 | 2**17 << 3).to_bytes(3, "little") + b"\x07" for last in (0, 1)]
    return np.frombuffer(head + each[0] * (blocks - 1) + each[1], np.uint8)


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("nbytes", [1, 2, 255, 256, 4096, 65_791, 65_792, 2**20 + 1])
def test_a_frame_says_how_many_bytes_it_holds(name, nbytes):
    frame = codec_named(name, 1).encode(np.arange(nbytes, dtype=np.uint8))
    assert CONTENT[name](frame) == codec_named(name, 1).content_nbytes(frame) == nbytes


@pytest.mark.parametrize("name", CONTENT)
def test_no_frame_of_anything_is_denser_than_is_taken_to_be_possible(name):
    zeros = np.zeros(2**24, np.uint8)
    for itemsize in (1, 4, 16):
        assert zeros.nbytes / codec_named(name, itemsize).encode(zeros).nbytes < EXPANSION[name]
    if name.startswith("blosc"):
        densest = BloscCodec(name.removeprefix("blosc-"), 1, clevel=9, blocksize=2**24).encode(zeros)
        assert EXPANSION[name] * 0.8 < zeros.nbytes / densest.nbytes < EXPANSION[name]


def test_the_densest_zstd_frame_comes_close_and_decodes():
    frame = zstd_frame_of_repeats(256)
    out = np.empty(256 * 2**17, np.uint8)
    codec_named("zstd", 1).decode(frame, out)
    assert (out == 7).all()
    assert 0.99 * EXPANSION["zstd"] < out.nbytes / frame.nbytes < EXPANSION["zstd"]


def test_every_codec_has_its_bound():
    assert tuple(EXPANSION) == CODEC_NAMES


@pytest.mark.parametrize(
    ("frame", "told"),
    [
        (b"", "no zstd frame"),
        (b"PK\x03\x04 and more", "no zstd frame"),
        (b"\x28\xb5\x2f\xfd", "no zstd frame"),
        (b"\x28\xb5\x2f\xfd\x00\x58" + bytes(20), "does not say"),
        (b"\x28\xb5\x2f\xfd\xe0\x01", "does not say"),
    ],
)
def test_what_is_no_zstd_frame_is_refused(frame, told):
    with pytest.raises(ValueError, match=told):
        zstd_content_nbytes(np.frombuffer(frame, np.uint8))


EMPTY = b"\x28\xb5\x2f\xfd\x20\x00\x01\x00\x00"
TO_BE_SKIPPED = b"\x50\x2a\x4d\x18\x04\x00\x00\x00skip"


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("level", [-5, 3, 19])
@pytest.mark.parametrize("nbytes", [1, 300, 2**17, 2**17 + 1, 2**20 + 7])
@pytest.mark.parametrize("kind", ["zeros", "text", "noise"])
def test_exactly_one_zstd_frame_is_decoded(checksum, level, nbytes, kind):
    content = {
        "zeros": np.zeros(nbytes, np.uint8),
        "text": np.resize(np.frombuffer(b"some text, again and again; ", np.uint8), nbytes),
        "noise": np.random.default_rng(0).integers(0, 256, nbytes, np.uint8),
    }[kind]
    codec = ZstdCodec(level, checksum)
    frame = codec.encode(content)
    out = np.empty_like(content)
    codec.decode(frame, out)
    assert (out == content).all()
    for more in (EMPTY, TO_BE_SKIPPED, frame.tobytes(), b"\0"):
        with pytest.raises(
            ValueError, match=f"ends at byte {frame.nbytes:,}, in {frame.nbytes + len(more):,}"
        ):
            codec.decode(np.frombuffer(frame.tobytes() + more, np.uint8), out)
    for less in (1, 4, frame.nbytes // 2):
        with pytest.raises(ValueError, match="zstd frame"):
            codec.decode(frame[:-less], out)


@pytest.mark.parametrize(("frame", "told"), [(bytes(15), "header of 16"), (bytes(17), "of 0 bytes in 17")])
def test_what_is_no_blosc_frame_is_refused(frame, told):
    with pytest.raises(ValueError, match=told):
        blosc_content_nbytes(np.frombuffer(frame, np.uint8))
