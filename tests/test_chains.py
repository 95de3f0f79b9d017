"""Chains of codecs: each is read as the codec that it was written for, and any other is refused by name."""

from __future__ import annotations

import pytest

from mmapload.chains import codec_chain, parse_chain
from mmapload.codecs import RawCodec, codec_named


@pytest.mark.parametrize("itemsize", [1, 2, 4, 8, 16])
def test_a_chain_reads_back_as_the_codec_it_was_written_for(codec_name, itemsize):
    codec = codec_named(codec_name, itemsize)
    assert parse_chain(codec_chain(codec, itemsize), itemsize) == codec
    assert codec.name == codec_name


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}


def blosc(**changes: object) -> dict[str, object]:
    settings = {"typesize": 4, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0}
    return {"name": "blosc", "configuration": settings | changes}


@pytest.mark.parametrize(
    ("chain", "told"),
    [
        (None, "list"),
        ({}, "list"),
        ([], "bytes"),
        (["bytes", "crc32c"], "objects"),
        ([BYTES], "crc32c"),
        ([CRC], "bytes"),
        ([CRC, BYTES], "crc32c"),
        ([BYTES, {"name": "gzip", "configuration": {"level": 5}}, CRC], "gzip"),
        ([BYTES, {"name": "numcodecs.pickle"}, CRC], "pickle"),
        ([BYTES, {"name": ["zstd"]}, CRC], "zstd"),
        ([BYTES, {}, CRC], "None"),
        ([{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES, CRC], "transpose"),
        ([{"name": "sharding_indexed", "configuration": {}}], "sharding_indexed"),
        ([BYTES, CRC, CRC, CRC], "crc32c"),
        ([{"name": "bytes", "configuration": {"endian": "big"}}, CRC], "big"),
        ([{"name": "bytes"}, CRC], "little-endian"),
        ([{"name": "bytes", "configuration": 5}, CRC], "configuration"),
        ([BYTES, {"name": "zstd", "configuration": {"level": "3"}}, CRC], "level"),
        ([BYTES, {"name": "zstd", "configuration": {"level": True}}, CRC], "level"),
        ([BYTES, {"name": "zstd", "configuration": {"level": 3, "checksum": 1}}, CRC], "checksum"),
        ([BYTES, {"name": "zstd"}, CRC], "level"),
        ([BYTES, blosc(cname="zlib"), CRC], "zlib"),
        ([BYTES, blosc(cname="blosclz"), CRC], "blosclz"),
        ([BYTES, blosc(shuffle="bitshuffle"), CRC], "bitshuffle"),
        ([BYTES, blosc(shuffle="noshuffle"), CRC], "noshuffle"),
        ([BYTES, blosc(typesize=0), CRC], "typesize"),
        ([BYTES, blosc(typesize=1.0), CRC], "typesize"),
        ([BYTES, blosc(clevel=None), CRC], "clevel"),
        ([BYTES, blosc(blocksize="0"), CRC], "blocksize"),
        ([BYTES, blosc(blocksize=-1), CRC], "blocksize from 0"),
        ([BYTES, blosc(typesize=256), CRC], "typesize from 1 to 255, found 256"),
        ([BYTES, blosc(clevel=10), CRC], "clevel from 0 to 9, found 10"),
        ([BYTES, blosc(tuning=1), CRC], "'tuning' is no setting of blosc"),
        (
            [BYTES, {"name": "zstd", "configuration": {"level": 23}}, CRC],
            "level from -131072 to 22, found 23",
        ),
        (
            [BYTES, {"name": "zstd", "configuration": {"level": 3, "dict": 1}}, CRC],
            "'dict' is no setting of zstd",
        ),
        ([BYTES, {"name": "crc32c", "evil": 1}], "'evil' beside the configuration of crc32c"),
        ([BYTES, blosc() | {"must_understand": False}, CRC], "'must_understand' beside .* of blosc"),
        ([BYTES | {"evil": 1}, CRC], "'evil' beside the configuration of bytes"),
        ([BYTES, {"name": "zstd", "configuration": []}, CRC], "configuration of zstd must be an object"),
        (
            [BYTES, {"name": "crc32c", "configuration": {"location": "start"}}],
            "'location' is no setting of crc32c",
        ),
    ],
)
def test_a_foreign_chain_is_refused_and_says_what_is_foreign(chain, told):
    with pytest.raises(ValueError, match=told):
        parse_chain(chain, 4)


def test_single_bytes_need_no_byte_order():
    assert parse_chain([{"name": "bytes"}, CRC], 1) == RawCodec()
