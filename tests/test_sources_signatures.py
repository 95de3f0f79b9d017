import gzip
import io
import pickle
import tarfile

import numpy as np
import pytest

from mmapload.sources.signatures import FIRST_BYTES, identify
from tests.npz_files import npy_bytes, npz_bytes


def tar_bytes():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty (0 bytes)"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 7\n", "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>Quota exceeded</html>", "HTML"),
        (b"\xef\xbb\xbf \n<HTML>", "HTML"),
        (npy_bytes(np.arange(3)), "np.savez"),
        (pickle.dumps([1, 2], protocol=2), "pickle"),
        (pickle.dumps([1, 2], protocol=5), "pickle"),
        (gzip.compress(b"x", mtime=0), "gzip"),
        (tar_bytes(), "tar"),
        (b"\x89HDF\r\n\x1a\n", "HDF5"),
        (bytes(4096), "zero bytes"),
        (npz_bytes({"x": np.arange(9)})[:200], "cut short (200 bytes)"),
        (b"id,label\n1,2\n", "text that starts with 'id,label"),
    ],
)
def test_a_file_that_is_no_zip_is_named_for_what_it_is(data, said):
    cause = identify(data[:FIRST_BYTES], len(data))
    assert said in cause
    assert "allow_pickle" not in cause
