"""One file of every bad kind, each with what has to be said of it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import pickle
import socket
import struct
import warnings
import zipfile
from typing import TYPE_CHECKING

import numpy as np

from tests.npz_files import npy_bytes, npz_bytes, zip_bytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["BAD_FILES", "SOUND", "write_special"]

ARRAYS = {"x": np.arange(6, dtype="f4").reshape(2, 3), "label": np.int64(3)}
X, LABEL = ("x.npy", npy_bytes(ARRAYS["x"])), ("label.npy", npy_bytes(ARRAYS["label"]))
SOUND = npz_bytes(ARRAYS)


def damaged() -> bytes:
    data = bytearray(SOUND)
    data[data.index(b"\n") + 5] ^= 0xFF
    return bytes(data)


def twice() -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")  # zipfile warns of what is made here
        for name, data in (X, X, LABEL):
            archive.writestr(name, data)
    return buffer.getvalue()


def compressed(method: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in (X, LABEL):
            archive.writestr(name, data)
    return buffer.getvalue()


def patched(in_entry: int, in_header: int, value: int) -> bytes:
    """Change two bytes in every entry of the directory, and in every local header."""
    data = bytearray(SOUND)
    for signature, offset in ((b"PK\1\2", in_entry), (b"PK\3\4", in_header)):
        at = data.find(signature)
        while at >= 0:
            struct.pack_into("<H", data, at + offset, value)
            at = data.find(signature, at + 4)
    return bytes(data)


def with_x(data: bytes) -> bytes:
    return zip_bytes([("x.npy", data), LABEL])


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty (0 bytes)"),
    "cut": (SOUND[:-40], "a zip file cut short"),
    "crc": (damaged(), "their CRC-32 is"),
    "zeros": (bytes(700), "zero bytes at least at its start"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n", "a Git LFS pointer"),
    "html": (b"<!DOCTYPE html><html>Quota exceeded</html>", "an HTML or XML page"),
    "script": (b"\n\n<script>location = 'login'</script>", "an HTML or XML page"),
    "json": (b'{"message": "Bad credentials"}', "JSON that starts with"),
    "csv": (b"id,label\n1,2\n", "text that starts with 'id,label"),
    "utf16": ("id;label\n1;2\n".encode("utf-16"), "text that starts with 'id;label"),
    "utf16le": ("id;label\n1;2\n".encode("utf-16-le"), "text that starts with 'id;label"),
    "utf16be": ("id;label\n1;2\n".encode("utf-16-be"), "text that starts with 'id;label"),
    "pickle": (pickle.dumps(ARRAYS), "a Python pickle, which mmapload never reads"),
    "objects": (npz_bytes({"x": np.array([None, "a"]), "label": 1}), "an object array, Python objects in a"),
    "dict": (npz_bytes({"arr_0": np.array({"x": 1})}), "a dict with np.savez(path, **dict)"),
    "twice": (twice(), "occurs more than once in the zip directory"),
    "one_key": (zip_bytes([X, ("x", X[1]), LABEL]), "two members have the key 'x'"),
    "readme": (zip_bytes([X, LABEL, ("readme.txt", b"hello")]), "not a .npy array but text that starts"),
    "macos": (zip_bytes([X, LABEL, ("__MACOSX/._x.npy", b"\0\5\x16\7")]), "a macOS AppleDouble file"),
    "lie": (with_x(X[1].replace(b"(2, 3)", b"(2, 9)")), "takes 72 bytes, and 24 are there"),
    "header": (with_x(X[1].replace(b"(2, 3)", b"(2, 3 ")), ".npy header is damaged"),
    "structured": (npz_bytes({"x": np.zeros(2, "i4,f4"), "label": 1}), "a structured dtype"),
    "npy": (X[1], "a bare .npy array"),
    "gzip": (gzip.compress(SOUND), "gzip data: unpack it first"),
    "bzip2": (bz2.compress(SOUND), "bzip2 data: unpack it first"),
    "xz": (lzma.compress(SOUND), "xz data: unpack it first"),
    "7z": (b"7z\xbc\xaf\x27\x1c\0\4" + bytes(90), "a 7-Zip archive"),
    "rar": (b"Rar!\x1a\x07\x01\0" + bytes(90), "a RAR archive"),
    "png": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(90), "a PNG image"),
    "of_bzip2": (compressed(zipfile.ZIP_BZIP2), "compressed by bzip2 (zip method 12"),
    "of_lzma": (compressed(zipfile.ZIP_LZMA), "compressed by LZMA (zip method 14"),
    "of_zstd": (patched(10, 8, 93), "compressed by zstd (zip method 93"),
    "of_nothing": (patched(10, 8, 77), "compressed by an unknown method (zip method 77"),
    "encrypted": (patched(8, 6, 1), "encrypted: write the file again without a password"),
    "stub": (b"MZ" + bytes(90) + SOUND, "92 bytes were put in front of it"),
    "behind": (SOUND + b"xyz", "3 more bytes behind its end"),
    "nested": (zip_bytes([("s0.npz", SOUND), ("s1.npz", SOUND)]), "a zip file of .npz or zip files"),
    "torch": (zip_bytes([("s/data.pkl", b"\x80\2N."), ("s/version", b"3")]), "a PyTorch file"),
    "no_array": (zip_bytes([]), "an .npz file without arrays"),
    "text_only": (zip_bytes([("notes.txt", b"hello")]), "not a .npy array but text that starts"),
}
"""By the name of the file: its bytes, and words of what is said."""


def write_special(folder: Path) -> dict[str, str]:
    """Put what is no file at all into a folder; returns words of what is to be said, by name."""
    os.mkfifo(folder / "pipe.npz")
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(folder)  # the paths of sockets are short
        try:
            listening.bind("socket.npz")
        finally:
            os.chdir(here)
    os.symlink("loop.npz", folder / "loop.npz")
    os.symlink("gone/s.npz", folder / "dangling.npz")
    os.symlink("/dev/zero", folder / "device.npz")
    os.symlink(".", folder / "again")
    return {
        "pipe": "not a file but a named pipe",
        "socket": "not a file but a socket",
        "loop": "a link that leads to itself",
        "dangling": "a link to 'gone/s.npz', which is not there",
        "device": "not a file but a device",
    }
