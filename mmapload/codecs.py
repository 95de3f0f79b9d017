"""How a chunk's array becomes the bytes of its file, and back: a closed table of four codecs.

Every chain ends in `crc32c`: the last four bytes of a file are the CRC-32C (Castagnoli) of all bytes
before them, little-endian. What precedes them is the array itself (`raw`) or one compressed frame.
A codec is never looked up in an open registry, so a store cannot name code to be run.

Sources: Zarr v3 codec specifications `bytes`, `crc32c`, `zstd`, `blosc`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from mmapload.frames import blosc_content_nbytes, expect_one_zstd_frame, zstd_content_nbytes

__all__ = [
    "CHECKSUM_BYTES",
    "CODEC_NAMES",
    "BloscCodec",
    "Codec",
    "RawCodec",
    "ZstdCodec",
    "checksum",
    "codec_named",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]
"""A one-dimensional, contiguous array of bytes."""

CHECKSUM_BYTES: Final = 4
BLOSC_MAX_BYTES: Final = 2**31 - 1 - 16


def checksum(data: Bytes) -> bytes:
    """Return the four bytes that end a chunk file: CRC-32C of `data`, little-endian.

    Examples
    --------
    >>> checksum(np.frombuffer(b"123456789", np.uint8)).hex()  # check value e3069283 of the algorithm
    '839206e3'
    """
    return int(crc32c(data)).to_bytes(CHECKSUM_BYTES, "little")


class Codec(Protocol):
    """Turns the bytes of one chunk into what its file holds before the checksum, and back."""

    @property
    def name(self) -> str:
        """The name on the command line: raw, zstd, blosc-lz4 or blosc-zstd."""

    @property
    def is_raw(self) -> bool:
        """Whether the file's bytes are the array's bytes, so that it can be mapped."""

    @property
    def configuration(self) -> dict[str, Any] | None:
        """The codec's entry in `zarr.json`, or None where the chain has none."""

    def encode(self, data: Bytes) -> Bytes:
        """Return `data` encoded; `raw` returns `data` itself. Thread-safe; releases the GIL."""

    def content_nbytes(self, encoded: Bytes) -> int:
        """Read how many bytes `encoded` says that it holds; nothing is decoded.

        Raises
        ------
        ValueError
            If `encoded` is no frame, or does not say.
        """

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Decode into `out`, filling it exactly. Thread-safe; releases the GIL.

        Raises
        ------
        ValueError
            If `encoded` is no whole frame, or holds another number of bytes than `out`.
        """


@dataclass(frozen=True, slots=True)
class RawCodec:
    """The array's own bytes."""

    name: str = "raw"
    is_raw: bool = True
    configuration: None = None

    def encode(self, data: Bytes) -> Bytes:
        """Return `data` itself."""
        return data

    def content_nbytes(self, encoded: Bytes) -> int:
        """Count them."""
        return encoded.nbytes

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Copy."""
        _expect_nbytes(self, encoded, out)
        np.copyto(out, encoded)


@dataclass(frozen=True, slots=True)
class ZstdCodec:
    """One Zstandard frame that states its content size."""

    level: int = 3
    checksum: bool = False

    @property
    def name(self) -> str:
        """Name on the command line."""
        return "zstd"

    @property
    def is_raw(self) -> bool:
        """A frame cannot be mapped."""
        return False

    @property
    def configuration(self) -> dict[str, Any]:
        """Entry in `zarr.json`."""
        return {"name": "zstd", "configuration": {"level": self.level, "checksum": self.checksum}}

    def encode(self, data: Bytes) -> Bytes:
        """Compress into one frame."""
        from numcodecs import zstd

        return np.frombuffer(zstd.compress(data, self.level, self.checksum), np.uint8)

    def content_nbytes(self, encoded: Bytes) -> int:
        """Read the frame's header."""
        return zstd_content_nbytes(encoded)

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Decompress one frame."""
        from numcodecs import zstd

        # numcodecs leaves the rest of `out` as it was when a frame is smaller, so its size is read first.
        _expect_nbytes(self, encoded, out)
        expect_one_zstd_frame(encoded)
        try:
            zstd.decompress(encoded, out)
        except RuntimeError as error:
            raise ValueError(f"a damaged zstd frame ({error})") from error


@dataclass(frozen=True, slots=True)
class BloscCodec:
    """One Blosc 1 frame: bytes shuffled by element size, then lz4 or zstd."""

    cname: str
    typesize: int
    clevel: int = 5
    blocksize: int = 0

    @property
    def name(self) -> str:
        """Name on the command line."""
        return f"blosc-{self.cname}"

    @property
    def is_raw(self) -> bool:
        """A frame cannot be mapped."""
        return False

    @property
    def configuration(self) -> dict[str, Any]:
        """Entry in `zarr.json`."""
        settings = {
            "typesize": self.typesize,
            "cname": self.cname,
            "clevel": self.clevel,
            "shuffle": "shuffle",
            "blocksize": self.blocksize,
        }
        return {"name": "blosc", "configuration": settings}

    def encode(self, data: Bytes) -> Bytes:
        """Compress into one frame."""
        from numcodecs import blosc

        if data.nbytes > BLOSC_MAX_BYTES:
            raise ValueError(f"blosc takes at most {BLOSC_MAX_BYTES} bytes at once, not {data.nbytes}")
        frame = blosc.compress(
            data.view(f"V{self.typesize}"), self.cname.encode(), self.clevel, blosc.SHUFFLE, self.blocksize
        )
        return np.frombuffer(frame, np.uint8)

    def content_nbytes(self, encoded: Bytes) -> int:
        """Read the frame's header."""
        return blosc_content_nbytes(encoded)

    def decode(self, encoded: Bytes, out: Bytes) -> None:
        """Decompress one frame."""
        from numcodecs import blosc

        _expect_nbytes(self, encoded, out)
        try:
            blosc.decompress(encoded, out)
        except RuntimeError as error:
            raise ValueError(f"a damaged blosc frame ({error})") from error


def _expect_nbytes(codec: Codec, encoded: Bytes, out: Bytes) -> None:
    found = codec.content_nbytes(encoded)
    if found != out.nbytes:
        raise ValueError(f"{codec.name}: {out.nbytes} bytes expected, found {found}")


CODEC_NAMES: Final = ("raw", "zstd", "blosc-lz4", "blosc-zstd")


def codec_named(name: str, itemsize: int) -> Codec:
    """Return the codec of this name with its default settings, for elements of `itemsize` bytes.

    Raises
    ------
    ValueError
        If there is none of this name.

    Examples
    --------
    >>> codec_named("blosc-lz4", itemsize=4)
    BloscCodec(cname='lz4', typesize=4, clevel=5, blocksize=0)
    """
    if name == "raw":
        return RawCodec()
    if name == "zstd":
        return ZstdCodec()
    if name in CODEC_NAMES:
        return BloscCodec(name.removeprefix("blosc-"), itemsize)
    raise ValueError(f"there is no codec {name!r}; choose one of {', '.join(CODEC_NAMES)}")
