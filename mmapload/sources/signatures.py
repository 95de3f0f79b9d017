"""What a file that is no `.npz` is instead, told by its first bytes or by the names in it."""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FIRST_BYTES", "archive_kind", "identify", "kind_of"]

FIRST_BYTES: Final = 512
"""How many leading bytes `identify` looks at."""

_UNPACK: Final = "unpack it first"
_CONVERT: Final = "convert it to .npz"
_AGAIN: Final = "fetch the file again"

# Offset, bytes there, what that is, what to do; from the formats' own specifications. What is listed first
# counts: some begin as others do.
_SIGNATURES: Final[tuple[tuple[int, bytes, str, str], ...]] = (
    (0, b"\x93NUMPY", "a bare .npy array", "save it with np.savez(path, name=array)"),
    (0, b"PK\x07\x08", "the first part of a zip file split over several", "join them first"),
    (0, b"PK\x01\x02", "the end of a zip file without its beginning", _AGAIN),
    (0, b"\x1f\x8b", "gzip data", _UNPACK),
    (0, b"BZh", "bzip2 data", _UNPACK),
    (0, b"\xfd7zXZ\0", "xz data", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "zstd data", _UNPACK),
    (0, b"\x04\x22\x4d\x18", "LZ4 data", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", _UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", _CONVERT),
    (0, b"MATLAB 5.0 MAT-file", "a MATLAB file", _CONVERT),
    (0, b"CDF\x01", "a NetCDF file", _CONVERT),
    (0, b"CDF\x02", "a NetCDF file", _CONVERT),
    (0, b"CDF\x05", "a NetCDF file", _CONVERT),
    (0, b"PAR1", "a Parquet file", _CONVERT),
    (0, b"ARROW1", "an Arrow file", _CONVERT),
    (0, b"SQLite format 3\0", "an SQLite database", _CONVERT),
    (8, b'{"', "a safetensors file", _CONVERT),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG image", _CONVERT),
    (0, b"\xff\xd8\xff", "a JPEG image", _CONVERT),
    (0, b"GIF8", "a GIF image", _CONVERT),
    (0, b"II*\0", "a TIFF image", _CONVERT),
    (0, b"MM\0*", "a TIFF image", _CONVERT),
    (0, b"\x76\x2f\x31\x01", "an OpenEXR image", _CONVERT),
    (0, b"PIEH", "a Middlebury .flo flow field", _CONVERT),
    (0, b"RIFF", "a RIFF file (WAV, AVI or WebP)", _CONVERT),
    (4, b"ftyp", "an MP4 or HEIF file", _CONVERT),
    (0, b"%PDF-", "a PDF document", _AGAIN),
    (0, b"\x7fELF", "a program", _AGAIN),
    (0, b"MZ", "a Windows program, perhaps a self-extracting archive", _UNPACK),
    (0, b"L\0\0\0\x01\x14\x02\0", "a Windows shortcut", "copy the file that it points to"),
    (0, b"\0\x05\x16\x07", "a macOS AppleDouble file (._NAME), which holds none of the data", "delete it"),
    (0, b"\0\x05\x16\0", "a macOS AppleSingle file", _UNPACK),
    (0, b"Salted__", "data encrypted by OpenSSL", "decrypt it first"),
    (
        0,
        b"version https://git-lfs",
        "a Git LFS pointer, which stands for a file not fetched yet",
        "run git lfs pull",
    ),
    (
        0,
        b"/annex/objects/",
        "a git-annex pointer, which stands for a file not fetched yet",
        "run git annex get",
    ),
    (
        0,
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.",
        "a PyTorch file of the old kind, a pickle, which mmapload never reads",
        "save the tensors with np.savez",
    ),
)
_PICKLE: Final = ("a Python pickle, which mmapload never reads", "save the arrays with np.savez")
# PROTO (0x80) and a protocol's number; or, without it, GLOBAL or MARK with LIST, DICT or TUPLE and a PUT.
_PICKLED: Final = re.compile(rb"\x80[\x02-\x05]|c[A-Za-z_][\w.]*\n[A-Za-z_]\w*\n|\([ldt](p\d|q)|[]}]q")
_PAGES: Final = (
    b"<!doctype",
    b"<html",
    b"<head",
    b"<body",
    b"<script",
    b"<meta",
    b"<title",
    b"<!--",
    b"<?xml",
)
_BYTE_ORDER_MARKS: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_LETTERS: Final = 8


def identify(first: bytes, size: int) -> str:
    """Say what a file is that ought to be a zip file and is not, and what to do about it.

    Parameters
    ----------
    first : bytes
        The file's first `FIRST_BYTES` bytes, or all of it where it is shorter.
    size : int
        Bytes in the whole file.

    Returns
    -------
    str
        The cause for an error message, without the file's name.

    Examples
    --------
    >>> identify(b"", 0)
    'the file is empty (0 bytes): fetch or write it again'
    >>> identify(b"<!DOCTYPE html><html>Quota exceeded</html>", 42)
    'not a zip file (42 bytes) but an HTML or XML page, saved in place of the data: fetch the file again'
    """
    if size == 0:
        return "the file is empty (0 bytes): fetch or write it again"
    if b"PK\x03\x04".startswith(first[:4]):
        return (
            f"a zip file cut short ({size} bytes): the directory at its end is missing: "
            "fetch or write the file again"
        )
    what, advice = kind_of(first)
    return f"not a zip file ({size} bytes) but {what}: {advice}"


def kind_of(first: bytes) -> tuple[str, str]:
    """Say what begins with these bytes, and what to do about it.

    Examples
    --------
    >>> kind_of(b"BZh91AY&SY")
    ('bzip2 data', 'unpack it first')
    """
    for offset, signature, what, advice in _SIGNATURES:
        if first.startswith(signature, offset):
            return what, advice
    if first.removeprefix(codecs.BOM_UTF8).lstrip().lower().startswith(_PAGES):
        return "an HTML or XML page, saved in place of the data", _AGAIN
    if _PICKLED.match(first):
        return _PICKLE
    if not first:
        return "nothing (0 bytes)", _AGAIN
    if not first.strip(b"\0"):
        return "zero bytes at least at its start, as an unfinished copy leaves them", _AGAIN
    if (text := _text(first)) is not None:
        what = "JSON" if text.lstrip()[:1] in {"{", "["} else "text"
        return f"{what} that starts with {text[:40]!r}", "fetch the file again, or convert it to .npz"
    return f"something that starts with {first[:16]!r}", "fetch or write the file again"


def _text(first: bytes) -> str | None:
    """Decode what looks like text: no control characters but those that lay lines out."""
    try:
        text = codecs.getincrementaldecoder(_encoding(first))().decode(first)  # the end may cut a character
    except UnicodeDecodeError:
        return None
    return text if text and all(each.isprintable() or each in "\t\n\r" for each in text) else None


def _encoding(first: bytes) -> str:
    """Tell the encoding of text; of UTF-16 without its mark by the zeros between letters of ASCII."""
    if first.startswith(_BYTE_ORDER_MARKS):
        return "utf-16"
    if len(first) >= _LETTERS and not first[1:_LETTERS:2].strip(b"\0"):
        return "utf-16-le"
    if len(first) >= _LETTERS and not first[0:_LETTERS:2].strip(b"\0"):
        return "utf-16-be"
    return "utf-8-sig"


def archive_kind(names: Sequence[str]) -> str | None:
    """Say what a zip file is that holds no array, where the names in it tell; and what to do about it.

    Parameters
    ----------
    names : sequence of str
        Of its members.

    Returns
    -------
    str or None
        The cause for an error message; None where the names tell nothing, or one ends in `.npy`.

    Examples
    --------
    >>> archive_kind(["model/data.pkl", "model/version", "model/data/0"])
    'a PyTorch file, which holds a pickle that mmapload never reads: save the tensors with np.savez'
    >>> archive_kind(["image.npy", "data.pkl"])
    """
    if any(name.endswith(".npy") for name in names):
        return None
    last = {name.rpartition("/")[2] for name in names}
    if {"data.pkl", "version"} <= last:
        return (
            "a PyTorch file, which holds a pickle that mmapload never reads: save the tensors with np.savez"
        )
    if "[Content_Types].xml" in last:
        return "an Office document: convert it to .npz"
    if "model.weights.h5" in last:
        return "a Keras model: convert it to .npz"
    if "MANIFEST.MF" in last:
        return "a Java archive: fetch the file again"
    if any(name.lower().endswith((".npz", ".zip")) for name in names):
        return "a zip file of .npz or zip files: unpack it, and give the folder"
    return None
