"""HDF5 files written by h5py: rows, groups or files as samples, and what is refused by name."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.errors import SourceError
from mmapload.preprocessing import plan_preprocess, preprocess
from mmapload.sources.kinds import Request, open_files
from tests.preprocessing_cases import stored
from tests.reading_cases import awkward, read_sample, same

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.sources import IndexedSource

h5py = pytest.importorskip("h5py", reason="h5py is not installed")


def opened(path: Path, samples="rows", fields=None, optional=()) -> IndexedSource:
    return open_files([path], None, Request(fields, optional, samples))[0]


@pytest.mark.parametrize(
    "written",
    [{}, {"chunks": True}, {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True}],
)
def test_rows_are_read_bit_by_bit_in_any_order(tmp_path, written):
    arrays = awkward(50)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, array in arrays.items():
            options = written if array.size and "i8" not in name else {}
            file.create_dataset(name, data=array, **options)
    source = opened(tmp_path / "a.h5")
    assert (len(source), source.name(7)) == (50, "a.h5[7]")
    for index in (*range(50), 3, 49, 0):
        found = read_sample(source, index)
        assert found.keys() == arrays.keys()
        assert all(same(found[name], arrays[name][index]) for name in arrays)


def test_rows_of_several_files_follow_one_another_in_natural_order(tmp_path):
    for number, rows in ((10, 2), (9, 3), (2, 1)):
        with h5py.File(tmp_path / f"part{number}.hdf5", "w") as file:
            file["x"] = np.arange(rows) + 100 * number
    source = opened(tmp_path)
    assert [int(read_sample(source, i)["x"]) for i in range(len(source))] == [200, 900, 901, 902, 1000, 1001]
    assert [source.name(i) for i in (0, 3, 4)] == ["part2.hdf5[0]", "part9.hdf5[2]", "part10.hdf5[0]"]


def test_a_compressed_chunk_is_decoded_once_where_rows_are_read_in_order(tmp_path, monkeypatch):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(4000.0).reshape(1000, 4), chunks=(100, 4), compression="gzip")
        file["y"] = np.arange(1000)
    reads = []
    read = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, at: reads.append(at) or read(self, at))
    source = opened(tmp_path / "a.h5")
    for index in range(len(source)):
        into = {"x": np.empty(4), "y": np.empty((), "i8")}
        source.fingerprint(index)
        source.read(index, into)
        assert into["y"] == index
    assert len(reads) == 10 + 2  # y: its first row alone, then all


def test_arrays_without_a_common_number_of_rows_are_refused_by_name_unless_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["train/y"], file["mean"], file["z"] = np.zeros((5, 2)), np.zeros(5), 0.5, np.zeros(3)
    fields = {"x": "x", "train/y": "y"}
    assert len(opened(tmp_path / "a.h5", fields=fields)) == 5
    with pytest.raises(SourceError, match=r"'mean' has no rows: a single value; leave it out .*--fields"):
        opened(tmp_path / "a.h5")
    with pytest.raises(SourceError, match=r"differ .*'x' \(5, 2\), 'z' \(3,\); leave some out.*--fields"):
        opened(tmp_path / "a.h5", fields={"x": "x", "z": "z"})
    with pytest.raises(SourceError, match=r"no array 'w'; it has 'mean', 'train/y', 'x', 'z'"):
        opened(tmp_path / "a.h5", fields={"x": "x", "w": "w"}).schema(0)


def test_each_group_is_a_sample_with_nested_names(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for number in (10, 9):
            file[f"data/demo_{number}/actions"] = np.full(3, number)
            file[f"data/demo_{number}/obs/image"] = np.full((2, 2), number, "u1")
    source = opened(tmp_path / "a.h5", "keys", {"actions": "actions", "obs/image": "image"})
    assert [source.name(i) for i in range(len(source))] == ["a.h5/data/demo_9", "a.h5/data/demo_10"]
    assert read_sample(source, 1)["image"].tolist() == [[10, 10], [10, 10]]
    assert [*opened(tmp_path / "a.h5", "keys").schema(0)] == ["actions", "obs/image"]


def test_each_file_is_a_sample_and_one_file_alone_is_refused_with_what_to_type(tmp_path):
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.full((2, 3), number)
    source = opened(tmp_path, "files")
    assert [read_sample(source, i)["x"].tolist() for i in range(2)] == [[[0] * 3] * 2, [[1] * 3] * 2]
    with pytest.raises(SourceError, match=r"one file, .*--samples rows.*--samples keys"):
        opened(tmp_path / "0.h5", "files")


def test_fields_may_be_missing_in_some_groups(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a/x"], file["b/x"], file["b/y"] = 1, 2, 3
    store = preprocess(tmp_path / "a.h5", tmp_path / "out", 1, samples="keys", fill={"y": -1})
    assert stored(store, "y").tolist() == [-1, 3]
    assert [store.sample_name(i) for i in range(2)] == ["a.h5/a", "a.h5/b"]


def test_what_leads_to_other_files_or_holds_no_numbers_is_refused_where_it_is_taken(tmp_path):
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros(4)
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource(other, "x", shape=(4,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["ok"] = np.zeros(4)
        file["linked"] = h5py.ExternalLink(other, "/x")
        file["gone"] = h5py.SoftLink("/nowhere")
        file["nothing"] = h5py.Empty("f4")
        file.create_virtual_dataset("virtual", layout)
        outside = str(tmp_path / "raw.bin")
        file.create_dataset("outside", shape=(4,), dtype="f8", external=[(outside, 0, 32)])
        file.create_dataset("objects", shape=(4,), dtype=h5py.ref_dtype)
        file["loop"] = file["/"]
    causes = {
        "linked": "a link to .*other.h5, which leads to another file",
        "gone": "a link that leads nowhere",
        "nothing": "an empty dataset",
        "virtual": "a virtual dataset, which leads to another file",
        "outside": "data lie outside, which leads to another file",
    }
    for name, cause in causes.items():
        with pytest.raises(SourceError, match=rf"a\.h5, member '{name}': .*{cause}"):
            opened(tmp_path / "a.h5", fields={name: "x"}).schema(0)
    with pytest.raises(SourceError, match=r"a\.h5\[0\], member 'x': .*objects"):
        opened(tmp_path / "a.h5", fields={"objects": "x"}).schema(0)
    assert [*opened(tmp_path / "a.h5", fields={"ok": "ok"}).schema(0)] == ["ok"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an HDF5 file but nothing"),
        (b"<!DOCTYPE html><html>" * 9, "not an HDF5 file but an HTML"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer.*git lfs pull"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "cannot be read: OSError"),
    ],
)
def test_a_file_that_is_none_is_named_for_what_it_is(tmp_path, data, words):
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(SourceError, match=rf"a\.h5: .*{words}"):
        opened(tmp_path / "a.h5")


def test_a_damaged_chunk_is_told_with_its_row_and_can_be_left_out(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", data=np.arange(40).reshape(10, 4), chunks=(5, 4), fletcher32=True)
        at = data.id.get_chunk_info(1).byte_offset
    raw = bytearray((tmp_path / "a.h5").read_bytes())
    raw[at] ^= 1
    (tmp_path / "a.h5").write_bytes(raw)
    with pytest.raises(SourceError, match=r"a\.h5, member 'x': cannot be read: OSError"):
        read_sample(opened(tmp_path / "a.h5"), 5)
    store = preprocess(tmp_path / "a.h5", tmp_path / "out", 1, samples="rows", on_error="skip")
    assert stored(store, "x").tolist() == np.arange(20).reshape(5, 4).tolist()


def test_a_run_that_was_interrupted_sees_that_a_row_has_changed(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(8)
    source = opened(tmp_path / "a.h5")
    before = [source.fingerprint(i) for i in range(8)]
    del source  # it keeps the file open
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        file["x"][3] = 33
    source = opened(tmp_path / "a.h5")
    after = [source.fingerprint(i) for i in range(8)]
    assert [i for i in range(8) if before[i] != after[i]] == [3]
    assert len(set(before)) == 8


def test_without_h5py_it_is_said_what_to_install(tmp_path):
    (tmp_path / "a.h5").write_bytes(b"")
    script = f"""
import sys; sys.modules["h5py"] = None
from mmapload.cli import main
sys.exit(main(["preprocess", {str(tmp_path / "a.h5")!r}, {str(tmp_path / "out")!r}, "--batch-size", "1",
               "--samples", "rows"]))"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert 'pip install "mmapload[hdf5]"' in ended.stderr


def test_the_kind_is_kept_in_the_store_and_shown_in_the_plan(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.zeros((6, 2), "f4")
    plan = plan_preprocess(tmp_path / "a.h5", tmp_path / "out", 2, samples="rows")
    assert "hdf5: 6 samples" in plan.describe()
    assert preprocess(tmp_path / "a.h5", tmp_path / "out", 2, samples="rows").layout.source["kind"] == "hdf5"
