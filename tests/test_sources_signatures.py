import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import struct
import tarfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.sources.signatures import FIRST_BYTES, archive_kind, identify, kind_of
from tests.npz_files import REAL, npy_bytes, npz_bytes


def tar_bytes():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return buffer.getvalue()


def safetensors_bytes():
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty (0 bytes)"),
        (b"P", "cut short (1 bytes)"),
        (b"PK\x03", "cut short (3 bytes)"),
        (npz_bytes({"x": np.arange(9)})[:200], "cut short (200 bytes)"),
        (b"PK\x07\x08PK\x03\x04", "the first part of a zip file split over several: join them first"),
        (b"PK\x01\x02" + bytes(90), "the end of a zip file without its beginning"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n", "git lfs pull"),
        (b"/annex/objects/SHA256E-s7--ab.npz\n", "git annex get"),
        (b"<!DOCTYPE html>\n<html>Quota exceeded</html>", "an HTML or XML page"),
        (b"\xef\xbb\xbf \n<HTML>", "an HTML or XML page"),
        (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an HTML or XML page"),
        (b'{"message": "Bad credentials"}', 'JSON that starts with \'{"message"'),
        (b"id,label\n1,2\n", "text that starts with 'id,label"),
        ("größe;maß\r\n".encode() * 90, "text that starts with 'größe;maß"),
        (("ä" * 400).encode()[:511], "text that starts with 'ää"),
        ("a\tb\n".encode("utf-16"), "text that starts with 'a\\tb"),
        (npy_bytes(np.arange(3)), "a bare .npy array: save it with np.savez"),
        *((pickle.dumps([1, "b"], protocol=protocol), "a Python pickle") for protocol in range(6)),
        *((pickle.dumps({"a": 1}, protocol=protocol), "a Python pickle") for protocol in range(6)),
        *((pickle.dumps(np.arange(3), protocol=protocol), "a Python pickle") for protocol in range(6)),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03", "a PyTorch file of the old kind"),
        (safetensors_bytes(), "a safetensors file"),
        (gzip.compress(b"x", mtime=0), "gzip data: unpack it first"),
        (bz2.compress(b"x"), "bzip2 data"),
        (lzma.compress(b"x"), "xz data"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd data"),
        (b"\x04\x22\x4d\x18", "LZ4 data"),
        (b"7z\xbc\xaf\x27\x1c\0\4", "a 7-Zip archive"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
        (tar_bytes(), "a tar archive"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
        (b"MATLAB 5.0 MAT-file, Platform: GLNXA64", "a MATLAB file"),
        (b"CDF\x05\0", "a NetCDF file"),
        (b"PAR1\x15\0", "a Parquet file"),
        (b"ARROW1\0\0", "an Arrow file"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
        (b"GIF89a", "a GIF image"),
        (b"II*\0\x08\0\0\0", "a TIFF image"),
        (b"PIEH\x02\0\0\0", "a Middlebury .flo flow field"),
        (b"\0\0\0\x20ftypisom", "an MP4 or HEIF file"),
        (b"RIFF\x24\0\0\0WEBP", "a RIFF file"),
        (b"%PDF-1.7", "a PDF document"),
        (b"MZ\x90\0", "a Windows program"),
        (b"\x7fELF\x02", "a program"),
        (b"L\0\0\0\x01\x14\x02\0\0\0\0\0\xc0", "a Windows shortcut: copy the file that it points to"),
        (b"\0\x05\x16\x07\0\x02\0\0Mac OS X", "a macOS AppleDouble file (._NAME)"),
        (b"Salted__abcdefgh", "data encrypted by OpenSSL"),
        (bytes(4096), "zero bytes at least at its start"),
        (bytes(range(200, 256)), "something that starts with b'\\xc8"),
    ],
)
def test_a_file_that_is_no_zip_is_named_for_what_it_is(data, said):
    cause = identify(data[:FIRST_BYTES], len(data))
    assert said in cause
    assert "allow_pickle" not in cause
    assert cause.isprintable()
    assert len(cause) < 300
    assert f"({len(data)} bytes)" in cause
    assert ": " in cause, "what to do follows"


@given(st.binary(max_size=FIRST_BYTES))
def test_whatever_the_bytes_a_kind_and_an_advice_are_found(first):
    for text in (*kind_of(first), identify(first, len(first))):
        assert text.isprintable()
        assert len(text) < 400


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["archive/data.pkl", "archive/version", "archive/data/0"], "a PyTorch file"),
        (["data.pkl", "version"], "a PyTorch file"),
        (["data.pkl"], None),
        (["x.npy", "data.pkl", "version", "inner.npz"], None),
        (["x", "y"], None),
        ([], None),
        (["train/S0.NPZ"], "unpack it"),
        (["[Content_Types].xml"], "an Office document"),
        (["META-INF/MANIFEST.MF"], "a Java archive"),
        (["model.weights.h5"], "a Keras model"),
    ],
)
def test_a_zip_file_without_arrays_is_named_by_what_is_in_it(names, said):
    kind = archive_kind(names)
    assert kind is None if said is None else said in kind


@pytest.mark.skipif(not os.path.isdir(REAL), reason="the real files are not on this machine")
def test_real_files_of_other_kinds_are_named():
    for name in sorted(os.listdir(REAL)):
        with open(os.path.join(REAL, name), "rb") as file:
            first = file.read(FIRST_BYTES)
        what, _ = kind_of(first)
        if name.endswith(".npy"):
            assert what == "a bare .npy array"
        elif "lfs" in name:
            assert what.startswith("a Git LFS pointer")
