"""What a compressed frame says of itself in its header, and how much a frame can hold at most.

Sources: RFC 8878 (Zstandard); the c-blosc 1 header; the LZ4 block format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["EXPANSION", "blosc_content_nbytes", "expect_one_zstd_frame", "zstd_content_nbytes"]

_ZSTD: Final = 2**17 // 4
_LZ4: Final = 255
EXPANSION: Final = {"raw": 1, "zstd": _ZSTD, "blosc-lz4": _LZ4, "blosc-zstd": _ZSTD}
"""By codec, the most bytes of content that a byte of its frame can stand for.

Zstandard: a block holds at most 128 KiB, and one that holds anything takes at least four bytes, three of them
its header (RFC 8878, section 3.1.1.2). LZ4: a byte lengthens a match by at most 255, and the token and the
offset before it stand for less (LZ4 block format, "Sequences"). What Blosc adds only makes frames longer.
"""

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_BLOSC_HEADER: Final = 16


def zstd_content_nbytes(frame: npt.NDArray[np.uint8]) -> int:
    """Read how many bytes a Zstandard frame holds (RFC 8878, section 3.1.1.1).

    Raises
    ------
    ValueError
        If it is no such frame, or does not say.
    """
    start, width = _zstd_content_place(frame)
    return int.from_bytes(frame[start : start + width].tobytes(), "little") + (256 if width == 2 else 0)


def expect_one_zstd_frame(frame: npt.NDArray[np.uint8]) -> None:
    """See to it that a Zstandard frame ends where its bytes do, by its blocks' headers (section 3.1.1.2).

    Decoders go on with what follows a frame: another one, even of no content, or one to be skipped.

    Raises
    ------
    ValueError
        If bytes follow it, or some are missing.
    """
    at = sum(_zstd_content_place(frame))
    last, view = False, memoryview(frame)
    while not last and at + 3 <= frame.nbytes:
        block = int.from_bytes(view[at : at + 3], "little")
        last = bool(block & 1)
        # A block of one byte that is repeated has this byte alone.
        at += 3 + (1 if block >> 1 & 3 == 1 else block >> 3)
    at += 4 * (int(frame[4]) >> 2 & 1)  # the content's checksum
    if not last or at != frame.nbytes:
        raise ValueError(f"a zstd frame that ends at byte {at:,}, in {frame.nbytes:,} bytes")


def _zstd_content_place(frame: npt.NDArray[np.uint8]) -> tuple[int, int]:
    """Return where the content size stands in a frame's header, and its width: it ends the header."""
    header = frame[:18].tobytes()
    if header[:4] != _ZSTD_MAGIC or len(header) < 6:
        raise ValueError("no zstd frame")
    descriptor = header[4]
    single_segment = descriptor >> 5 & 1
    width = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    start = 5 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if width == 0 or start + width > len(header):
        raise ValueError("a zstd frame that does not say how many bytes it holds")
    return start, width


def blosc_content_nbytes(frame: npt.NDArray[np.uint8]) -> int:
    """Read how many bytes a Blosc 1 frame holds.

    Raises
    ------
    ValueError
        If it is no such frame, or not whole.
    """
    if frame.nbytes < _BLOSC_HEADER:
        raise ValueError(f"a blosc frame has a header of {_BLOSC_HEADER} bytes, found {frame.nbytes}")
    # Bytes 4 to 16 are the sizes of content, block and frame.
    content, _, whole = (int(size) for size in frame[4:_BLOSC_HEADER].view("<u4"))
    if whole != frame.nbytes:
        raise ValueError(f"a blosc frame of {whole} bytes in {frame.nbytes} bytes")
    return content
