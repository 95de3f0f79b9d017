"""From a store back to `.npz` files: bit by bit, whole or absent, and never over anything."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mmapload
from mmapload.cli import main
from mmapload.errors import ChunkError, MmaploadError, StoreNotFoundError
from mmapload.preprocessing import preprocess
from tests.preprocessing_cases import samples, tree, write_npz
from tests.reading_cases import awkward, same

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = [
    *("bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"),
]


def bits(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Any bits at all: NaNs with payloads, infinities, denormal numbers, and a -0.0."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    found = raw.view(dtype).reshape(shape)
    if found.size and found.dtype.kind in "fc":
        found.flat[0] = -0.0
    return found


def loaded(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc-lz4"])
def test_what_went_in_comes_out_bit_by_bit(tmp_path, codec):
    shapes = {"many": (3, 2, 5), "none": (), "empty": (0, 3), "one": (1,)}
    values = [
        {f"{dtype}.{name}": bits(dtype, shape, 100 * i) for dtype in DTYPES for name, shape in shapes.items()}
        for i in range(7)
    ]
    folder = write_npz(tmp_path / "in" / "sub", values).parent
    preprocess(folder, tmp_path / "store", 2, codec=codec, chunk_bytes=100)
    result = mmapload.export(tmp_path / "store", tmp_path / "out")
    assert (result.files, result.named) == (7, True)
    assert sorted(tree(tmp_path / "out")) == [f"sub/s{i}.npz" for i in range(7)]
    for i, sample in enumerate(values):
        found = loaded(tmp_path / "out" / "sub" / f"s{i}.npz")
        assert list(found) == list(sample)
        assert all(same(found[name], array) for name, array in sample.items())


def test_files_are_those_of_savez_and_a_store_made_of_them_is_the_same(tmp_path):
    write_npz(tmp_path / "in", samples(9))
    preprocess(tmp_path / "in", tmp_path / "store", 2)
    result = mmapload.export(str(tmp_path / "store"), str(tmp_path / "out"))
    assert tree(tmp_path / "out") == tree(tmp_path / "in")  # savez gives all its members one time, too
    assert result.nbytes == sum(map(len, tree(tmp_path / "in").values()))
    preprocess(tmp_path / "out", tmp_path / "again", 2)
    assert tree(tmp_path / "again") == tree(tmp_path / "store")


def test_a_shuffled_store_gives_each_sample_back_under_its_name(tmp_path):
    write_npz(tmp_path / "in", samples(30))
    preprocess(tmp_path / "in", tmp_path / "store", 4, shuffle=3)
    mmapload.export(mmapload.open_store(tmp_path / "store"), tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


def test_big_endian_and_fortran_arrays_come_out_equal(tmp_path):
    values = [{"x": x, "y": np.asfortranarray(np.ones((2, 3)) * x[0])} for x in awkward(4)["big"]]
    write_npz(tmp_path / "in", values)
    preprocess(tmp_path / "in", tmp_path / "store", 2)
    mmapload.export(tmp_path / "store", tmp_path / "out")
    assert all(
        same(loaded(tmp_path / "out" / f"s{i}.npz")[name], values[i][name]) for i in range(4) for name in "xy"
    )


def test_text_times_ragged_and_optional_fields_come_out_equal(tmp_path):
    texts = [
        {
            "text": np.array("é" * (i + 1)),
            "bytes": np.array([b"ab" * i + b"c"]),
            "day": np.datetime64("2020-01-01", "D") + np.arange(2) + i,
            "span": np.timedelta64(i, "ms"),
        }
        for i in range(5)
    ]
    ragged = [{"r": np.arange(2.0 * i).reshape(i, 2), "x": np.arange(2)} for i in range(5)]
    optional = [{"x": np.arange(2)} | ({"o": np.arange(3)} if i % 2 else {}) for i in range(5)]
    for number, (values, options) in enumerate(
        [(texts, {}), (ragged, {"ragged": ["r"]}), (optional, {"optional": ["o"]})]
    ):
        write_npz(tmp_path / f"in{number}", values)
        store = preprocess(tmp_path / f"in{number}", tmp_path / f"store{number}", 2, **options)
        mmapload.export(store, tmp_path / f"out{number}")
        for i, sample in enumerate(values):
            found = loaded(tmp_path / f"out{number}" / f"s{i}.npz")
            assert found.keys() == sample.keys()
            for name, value in sample.items():
                assert found[name].shape == np.shape(value)
                assert found[name].dtype.kind == np.asarray(value).dtype.kind
                assert np.array_equal(found[name], value)


def test_samples_without_names_are_numbered(tmp_path):
    store = preprocess([{"x": i} for i in range(11)], tmp_path / "store", 2)
    assert not mmapload.export(store, tmp_path / "out").named
    assert sorted(os.listdir(tmp_path / "out")) == [f"{i:02d}.npz" for i in range(11)]
    assert [int(loaded(tmp_path / "out" / f"{i:02d}.npz")["x"]) for i in range(11)] == [*range(11)]


def test_names_that_savez_keeps_for_itself_are_fields_like_others(tmp_path):
    store = preprocess([{"file": 1, "args": 2, "allow_pickle": 3}], tmp_path / "store", 1)
    mmapload.export(store, tmp_path / "out")
    found = loaded(tmp_path / "out" / "0.npz")
    assert {name: int(value) for name, value in found.items()} == {"file": 1, "args": 2, "allow_pickle": 3}


class Named:
    """Samples with names of our choice."""

    kind = "named"
    parallel = True

    def __init__(self, names):
        self.names = names

    def __len__(self):
        return len(self.names)

    def name(self, index):
        return self.names[index]

    describe = name

    def schema(self, index):
        return {"x": mmapload.sources.ArraySpec(np.dtype("i8"), ())}

    def read(self, index, into):
        into["x"][...] = index

    def fingerprint(self, index):
        return b""


@pytest.mark.parametrize(
    "names",
    [
        ["../a.npz", "b.npz"],
        ["/a.npz", "b.npz"],
        ["a/../../b.npz", "b.npz"],
        ["a//b.npz", "b.npz"],
        ["a/./b.npz", "b.npz"],
        ["a/", "b.npz"],
        ["a\0", "b.npz"],
        ["", "b.npz"],
        ["a", "a.npz"],
        ["a.npz", "a.npz/b"],
        ["a.npz/c/b", "a"],
        ["x" * 252, "b"],
    ],
)
def test_names_that_are_no_different_files_below_the_folder_give_way_to_numbers(tmp_path, names):
    store = preprocess(Named(names), tmp_path / "in" / "store", 1)
    result = mmapload.export(store, tmp_path / "in" / "out")
    assert not result.named
    assert sorted(tree(tmp_path / "in" / "out")) == ["0.npz", "1.npz"]
    assert sorted(os.listdir(tmp_path)) == ["in"]
    assert sorted(os.listdir(tmp_path / "in")) == ["out", "store"]


def test_names_of_other_suffixes_get_npz_behind_them(tmp_path):
    names = ["cat/1.png", "train.tar/0/1", "x.h5[7]", "UP.NPZ"]
    mmapload.export(preprocess(Named(names), tmp_path / "store", 1), tmp_path / "out")
    assert sorted(tree(tmp_path / "out")) == ["UP.NPZ", "cat/1.png.npz", "train.tar/0/1.npz", "x.h5[7].npz"]


@pytest.fixture
def store(tmp_path):
    return preprocess(samples(5), tmp_path / "store", 2, chunk_bytes=50)


def test_nothing_is_overwritten(tmp_path, store):
    (tmp_path / "empty").mkdir()
    assert mmapload.export(store, tmp_path / "empty").files == 5
    (tmp_path / "file").write_text("mine")
    before = tree(tmp_path)
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("empty", "file", "link", "store"):
        with pytest.raises(MmaploadError, match="nothing is ever overwritten: give a new name"):
            mmapload.export(store, tmp_path / name)
    (tmp_path / "link").unlink()
    assert tree(tmp_path) == before
    with pytest.raises(ValueError, match="out is empty"):
        mmapload.export(store, "")


def test_a_damaged_chunk_leaves_nothing(tmp_path, store):
    path = store.chunk_path(store.field("x"), 1)
    with open(path, "r+b") as file:
        file.write(b"\xff")
    with pytest.raises(ChunkError, match="chunk 1 of field 'x'"):
        mmapload.export(store, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["store"]


def test_an_unfinished_store_in_the_place_is_kept(tmp_path, store):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "journal").write_text("{}")
    with pytest.raises(MmaploadError, match="is an unfinished store: finish or remove it"):
        mmapload.export(store, tmp_path / "out")
    assert (tmp_path / ".out.partial" / "journal").read_text() == "{}"


def test_an_export_that_was_killed_is_absent_and_done_anew(tmp_path):
    store = preprocess(({"x": np.full(1000, i)} for i in range(3000)), tmp_path / "store", 8)
    command = [sys.executable, "-m", "mmapload", "export", str(tmp_path / "store"), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    partial = tmp_path / ".out.partial" / "store"
    while process.poll() is None and not (partial.is_dir() and len(os.listdir(partial)) > 20):
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    mmapload.export(store, tmp_path / "out")
    assert len(os.listdir(tmp_path / "out")) == 3000
    assert sorted(os.listdir(tmp_path)) == ["out", "store"]
    assert loaded(tmp_path / "out" / "2999.npz")["x"][0] == 2999


def test_a_full_disk_leaves_nothing_and_says_what_to_do(tmp_path):
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("mounting a small file system takes root")
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], check=False)
    if made.returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        store = preprocess(({"x": np.full(1000, i)} for i in range(100)), tmp_path / "store", 8)
        with pytest.raises(MmaploadError, match=r"takes 781 KiB, and its file system has .* free: make room"):
            mmapload.export(store, small / "out")
        store = preprocess(({"x": i} for i in range(3000)), tmp_path / "many", 8)  # pages of 4 KiB each
        with pytest.raises(
            OSError,
            match=r"No space left on device.*make room, and run the same command again, which starts anew",
        ):
            mmapload.export(store, small / "out")
        assert os.listdir(small) == []
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_the_command_exports_and_says_so(tmp_path, store, capsys):
    assert main(["export", store.path, str(tmp_path / "out")]) == 0
    printed, told = capsys.readouterr()
    assert printed.startswith(f"{tmp_path / 'out'}: 5 .npz files, ")
    assert "5 of 5 samples" in told
    assert main(["export", store.path, str(tmp_path / "more"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["export", store.path, str(tmp_path / "more")]) == 1
    assert "nothing is ever overwritten" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nowhere"), str(tmp_path / "x")]) == 1
    with pytest.raises(StoreNotFoundError):
        mmapload.export(tmp_path / "nowhere", tmp_path / "x")
