"""Makers of small `.npz` files, good and bad, for the tests of the sources."""

import io
import os
import struct
import zipfile
import zlib

import numpy as np

REAL = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "real_npz")


class Unseekable(io.RawIOBase):
    """A stream that can only be written on: zipfile then puts the sizes behind the contents."""

    def __init__(self):
        self.data = bytearray()

    def writable(self):
        return True

    def seekable(self):
        return False

    def write(self, block):
        self.data += block
        return len(block)


def npy_bytes(array, version=None):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), version=version, allow_pickle=True)
    return buffer.getvalue()


def zip_bytes(members, *, deflate=False, zip64=False, comment=b"", stream=False):
    """Zip pairs of name and bytes."""
    buffer = Unseekable() if stream else io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED) as archive:
        archive.comment = comment
        for name, data in members:
            info = zipfile.ZipInfo(name)
            info.compress_type = archive.compression
            with archive.open(info, "w", force_zip64=zip64) as member:
                member.write(data)
    return bytes(buffer.data) if stream else buffer.getvalue()


def npz_bytes(arrays, **options):
    return zip_bytes([(key + ".npy", npy_bytes(array)) for key, array in arrays.items()], **options)


def full_zip64_bytes(members):
    """A zip file whose every 32-bit figure is full, the true ones being in the zip64 fields."""
    blob, directory = b"", b""
    for name, data in members:
        raw, crc = name.encode(), zlib.crc32(data)
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 33, crc, 0xFFFFFFFF, 0xFFFFFFFF,
                                 len(raw), 28, 0, 0, 0, 0, 0xFFFFFFFF)  # fmt: skip
        directory += raw + struct.pack("<HHQQQ", 1, 24, len(data), len(data), len(blob))
        blob += struct.pack(
            "<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 33, crc, 0xFFFFFFFF, 0xFFFFFFFF, len(raw), 20
        )
        blob += raw + struct.pack("<HHQQ", 1, 16, len(data), len(data)) + data
    start, count = len(blob), len(members)
    blob += directory
    blob += struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start)
    blob += struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1)
    return blob + struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)


def put(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
    return str(path)


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def count_reads(monkeypatch):
    """Collect the arguments of every read by position from now on."""
    calls = []
    pread, preadv = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda *args: calls.append(args) or pread(*args))
    monkeypatch.setattr(os, "preadv", lambda *args: calls.append(args) or preadv(*args))
    return calls
