"""What a file that is no zip is instead, told by its first bytes."""

from __future__ import annotations

__all__ = ["FIRST_BYTES", "identify"]

FIRST_BYTES = 512
"""How many leading bytes `identify` looks at."""

# From the formats' own specifications; the order matters only where one prefix contains another.
_PREFIXES = (
    (b"\x93NUMPY", "a bare .npy array: save it with np.savez(path, name=array)"),
    (b"\x1f\x8b", "gzip data: unpack it first"),
    (b"BZh", "bzip2 data: unpack it first"),
    (b"\xfd7zXZ\0", "xz data: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive: unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive: unpack it first"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file: convert it to .npz"),
    (b"MATLAB 5.0 MAT-file", "a MATLAB file: convert it to .npz"),
    (b"CDF\x01", "a NetCDF file: convert it to .npz"),
    (b"CDF\x02", "a NetCDF file: convert it to .npz"),
    (b"\x89PNG\r\n\x1a\n", "a PNG image: convert it to .npz"),
    (b"\xff\xd8\xff", "a JPEG image: convert it to .npz"),
    (b"%PDF-", "a PDF document"),
    (
        b"version https://git-lfs",
        "a Git LFS pointer, which stands for a file not fetched yet: run git lfs pull",
    ),
)
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<?xml")


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
    if first.startswith(b"PK\x03\x04"):
        return (
            f"a zip file cut short ({size} bytes): the directory at its end is missing: "
            "fetch or write the file again"
        )
    return f"not a zip file ({size} bytes) but {_kind(first)}"


def _kind(first: bytes) -> str:
    for prefix, kind in _PREFIXES:
        if first.startswith(prefix):
            return kind
    if first.removeprefix(b"\xef\xbb\xbf").lstrip().lower().startswith(_PAGES):
        return "an HTML or XML page, saved in place of the data: fetch the file again"
    # A pickle of protocol 2 or later opens with PROTO (0x80) and the protocol's number.
    if first[:1] == b"\x80" and first[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return "a Python pickle, which mmapload never reads: save the arrays with np.savez"
    if first[257:262] == b"ustar":
        return "a tar archive: unpack it first"
    if not first.strip(b"\0"):
        return "zero bytes at least at its start, as an unfinished copy leaves them: fetch the file again"
    return f"something that starts with {first[:16]!r}"
