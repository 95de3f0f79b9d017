"""Files of many samples that are bad: all are named at once, and `check` lists each."""

from __future__ import annotations

import io
import os
import tarfile
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

import mmapload
from mmapload.checking import check
from mmapload.errors import SourceError
from mmapload.sources.badfiles import MOST_LOOKED_AT
from tests.npz_files import npy_bytes, npz_bytes

if TYPE_CHECKING:
    from pathlib import Path


def tar_bytes() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for key in range(3):
            data = npy_bytes(np.zeros(2, "f4"))
            member = tarfile.TarInfo(f"{key}.x.npy")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def hdf5_bytes() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as group:
        group["a/x"], group["b/x"] = np.zeros(2), np.zeros(2)
    return file.getvalue()


def rows_in_hdf5() -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as group:
        group["x"] = np.zeros((3, 2))
    return file.getvalue()


KINDS: dict[str, tuple[str, str, bytes]] = {
    "npz rows": (".npz", "rows", npz_bytes({"x": np.zeros((3, 2))})),
    "npy rows": (".npy", "rows", npy_bytes(np.zeros((3, 2)))),
    "npz keys": (".npz", "keys", npz_bytes({"a": np.zeros(2), "b": np.zeros(2)})),
    "hdf5 rows": (".h5", "rows", rows_in_hdf5()),
    "hdf5 keys": (".h5", "keys", hdf5_bytes()),
    "tar": (".tar", "files", tar_bytes()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_bad_files_are_named_at_once_and_checked_one_by_one(tmp_path: Path, kind: str) -> None:
    suffix, samples, sound = KINDS[kind]
    bad = {3: b"", 5: b"<!DOCTYPE html><html>Quota exceeded</html>", 6: b"", 8: b""}
    (tmp_path / "in").mkdir()
    for number in range(10):
        (tmp_path / "in" / f"s{number}{suffix}").write_bytes(bad.get(number, sound))
    options: Any = {"samples": samples}
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, **options)
    assert os.path.basename(caught.value.file) == f"s3{suffix}"
    told = caught.value.cause
    assert "3 others of 10 files are bad too, as far as headers tell: " in told
    assert f"s6{suffix}, s8{suffix}: the same" in told
    assert f"s5{suffix}: " in told
    assert os.listdir(tmp_path) == ["in"]
    report = check(tmp_path / "in", **options)
    assert [os.path.basename(fault.file) for fault in report.faults] == [f"s{n}{suffix}" for n in bad]
    assert "are bad too" not in str(report.faults)
    mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, on_error="skip", **options)
    for number in bad:
        (tmp_path / "in" / f"s{number}{suffix}").unlink()
    assert check(tmp_path / "in", **options).sound


def test_files_whose_arrays_are_unlike_those_of_the_first_are_all_named(tmp_path: Path) -> None:
    odd = {1: {"x": np.zeros((3, 3))}, 2: {"y": np.zeros((3, 2))}, 4: {"x": np.zeros((3, 3))}}
    for number in range(6):
        np.savez(tmp_path / f"s{number}.npz", **odd.get(number, {"x": np.zeros((3, 2))}))  # type: ignore[arg-type]
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path, tmp_path / "out", 2, samples="rows")
    told = caught.value.cause
    assert told.startswith("rows of 'x' are float64 (3,), expected float64 (2,); 2 others of 6 files")
    assert "s4.npz: the same" in told
    assert "s2.npz: lacks 'x'" in told


def test_of_very_many_bad_files_some_are_looked_at_and_the_rest_is_counted(tmp_path: Path) -> None:
    (tmp_path / "0.npz").write_bytes(b"")
    for number in range(1, MOST_LOOKED_AT + 30):
        os.link(tmp_path / "0.npz", tmp_path / f"{number}.npz")
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path, tmp_path / "out", 2, samples="keys")
    few = "1.npz, 2.npz, 3.npz, 4.npz, 5.npz and 4,091 more: the same"
    looked_at = "4,096 others of the 4,097 files looked at, of 4,126, are bad too"
    assert caught.value.cause.endswith(f"{looked_at}, as far as headers tell: {few}")


def test_texts_of_another_length_are_not_told_as_bad_where_shapes_may_differ(tmp_path: Path) -> None:
    for number in range(6):
        np.savez(tmp_path / f"s{number}.npz", text="a" * (1 + number), x=np.zeros(number))
    for number in (2, 4):
        np.savez(tmp_path / f"s{number}.npz", text="b", x=np.zeros(3, "i1"))
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path, tmp_path / "out", 2, ragged="auto")
    assert caught.value.file.endswith("s2.npz")
    assert "1 other of 6 samples is bad too, as far as headers tell: s4.npz: " in caught.value.cause
