"""From a store back to `.npz` files: bit by bit, whole or absent, and never over anything."""

from __future__ import annotations

import os
import re
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
from mmapload.exporting import export_store, npz_bytes
from mmapload.preprocessing import preprocess
from mmapload.progress import SilentProgress
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


def test_an_export_that_meets_a_damaged_chunk_goes_on_once_the_store_is_mended(tmp_path, store):
    path = store.chunk_path(store.field("x"), 1)
    with open(path, "r+b") as file:
        sound = file.read(1)
        file.seek(0)
        file.write(bytes([sound[0] ^ 1]))
    with pytest.raises(ChunkError, match="chunk 1 of field 'x'"):
        mmapload.export(store, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [".out.partial", "store"]
    there = tmp_path / ".out.partial" / "store"
    kept = {name: os.stat(there / name).st_ino for name in os.listdir(there)}
    assert kept
    with open(path, "r+b") as file:
        file.write(sound)
    mmapload.export(store, tmp_path / "out")
    assert kept.items() <= {name: os.stat(tmp_path / "out" / name).st_ino for name in kept}.items()
    assert sorted(os.listdir(tmp_path)) == ["out", "store"]


def test_something_that_came_to_be_at_the_target_meanwhile_takes_no_file_away(tmp_path, store):
    class Intruding(SilentProgress):
        def at(self, done: int) -> None:
            if done == len(store):
                (tmp_path / "out").write_text("mine")

    with pytest.raises(MmaploadError, match="out is there already, and nothing is ever overwritten"):
        export_store(store, tmp_path / "out", Intruding())
    assert len(os.listdir(tmp_path / ".out.partial" / "store")) == len(store)
    (tmp_path / "out").unlink()
    mmapload.export(store, tmp_path / "out")
    assert len(os.listdir(tmp_path / "out")) == len(store)


def test_preprocessing_to_the_place_of_an_unfinished_export_is_refused_and_keeps_it(tmp_path, store):
    partial = tmp_path / ".out.partial"
    partial.mkdir()
    (partial / "export").write_text("{}")
    for source in ([{"x": 1}], ({"x": each} for each in range(3))):
        with pytest.raises(MmaploadError, match=r"is an unfinished export: finish or remove it, or give"):
            preprocess(source, tmp_path / "out", 1)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(MmaploadError, match="a folder with other things in it"):
        preprocess([{"x": 1}], tmp_path / "out", 1)
    assert (partial / "export").read_text() == "{}"


def test_an_unfinished_store_in_the_place_is_kept(tmp_path, store):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "journal").write_text("{}")
    with pytest.raises(MmaploadError, match="is an unfinished store: finish or remove it"):
        mmapload.export(store, tmp_path / "out")
    assert (tmp_path / ".out.partial" / "journal").read_text() == "{}"


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_an_export_that_was_stopped_is_absent_and_goes_on_with_the_files_that_are_there(tmp_path, end):
    preprocess(({"x": np.full(9, i)} for i in range(COUNT)), tmp_path / "store", 8)
    command = [sys.executable, "-m", "mmapload", "export", str(tmp_path / "store"), str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    partial = tmp_path / ".out.partial" / "store"
    while process.poll() is None and not (partial.is_dir() and len(os.listdir(partial)) > 20):
        time.sleep(0.001)
    process.send_signal(end)
    told = process.communicate()[1]
    assert process.returncode == (-end if end == signal.SIGKILL else 130)
    assert not (tmp_path / "out").exists()
    if end == signal.SIGINT:
        assert re.search(
            rf"{HOW_MANY} are kept in {partial.parent}: the same command continues:\n  mmapl", told
        )
    there = inodes(partial)
    assert there
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert re.search(f"resuming: {HOW_MANY} are there, and are compared", done.stderr)
    now = inodes(tmp_path / "out")
    assert {name: now[name] for name in there} == there  # not written again
    assert sorted(os.listdir(tmp_path)) == ["out", "store"]
    undisturbed = {f"{i:03d}.npz": bytes(npz_bytes({"x": np.full(9, i)})) for i in range(COUNT)}
    assert tree(tmp_path / "out") == undisturbed


COUNT = 600
HOW_MANY = f"[0-9]+ of {COUNT} files"


def inodes(folder: Path) -> dict[str, int]:
    return {name: os.stat(folder / name).st_ino for name in os.listdir(folder) if name.endswith(".npz")}


class Stopping(SilentProgress):
    """A Ctrl-C after so many samples; keeps what it is told."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.told: list[str] = []

    def at(self, samples):
        if samples == self.after:
            raise KeyboardInterrupt

    def note(self, text):
        self.told.append(text)


@pytest.fixture
def stopped(tmp_path):
    """A source in two folders, its store, and an export of it that was stopped after 11 of 20 samples."""
    write_npz(tmp_path / "in" / "a", samples(10))
    write_npz(tmp_path / "in" / "b", samples(10))
    store = preprocess(tmp_path / "in", tmp_path / "store", 2)
    with pytest.raises(
        KeyboardInterrupt, match=r"interrupted; 11 of 20 files are kept in .*out\.partial: the"
    ):
        export_store(store, tmp_path / "out", Stopping(11))
    return store


def test_what_was_damaged_since_is_written_again_and_what_does_not_belong_there_is_removed(tmp_path, stopped):
    left = tmp_path / ".out.partial" / "store"
    mine = tmp_path / "mine"
    mine.write_bytes(b"mine")
    files = [left / "a" / f"s{i}.npz" for i in range(7)]
    files[0].write_bytes(files[0].read_bytes()[:-1])
    files[1].write_bytes(files[1].read_bytes().replace(b"x.npy", b"y.npy"))
    files[2].write_bytes(b"")
    os.replace(files[3], left / "a" / "s3.npz.tmp")
    files[4].unlink()
    files[4].symlink_to(mine)
    files[5].unlink()
    files[5].mkdir()
    files[6].unlink()
    os.mkfifo(files[6])
    (left / "c").mkdir()
    (left / "c" / "s0.npz").write_bytes(b"no sample")
    shutil.rmtree(left / "b")
    (left / "b").symlink_to(tmp_path / "in" / "b")
    told = Stopping(-1)
    assert export_store(stopped, tmp_path / "out", told).files == 20
    assert told.told == [
        "resuming: 6 of 20 files are there, and are compared with the store",
        "3 files were not as they have to be, and were written again",
    ]
    assert tree(tmp_path / "out") == tree(tmp_path / "in")
    assert not (tmp_path / "out" / "b").is_symlink()
    assert mine.read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == ["in", "mine", "out", "store"]


def test_of_a_store_that_changed_since_the_export_starts_anew_and_says_so(tmp_path, stopped):
    shutil.rmtree(tmp_path / "in")
    write_npz(tmp_path / "in" / "a", samples(10))
    write_npz(tmp_path / "in" / "b", [{**each, "x": each["x"] + 1} for each in samples(10)])
    store = preprocess(tmp_path / "in", tmp_path / "store", 2, overwrite=True)  # only values differ
    told = Stopping(-1)
    export_store(store, tmp_path / "out", told)
    assert told.told == ["the store is not as it was when this export was begun: it starts anew"]
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


def test_a_store_that_moved_is_the_same_to_an_export_that_goes_on(tmp_path, stopped):
    os.rename(stopped.path, tmp_path / "elsewhere")
    told = Stopping(1)
    with pytest.raises(KeyboardInterrupt, match=r"interrupted; 1\d of 20 files are kept"):
        export_store(mmapload.open_store(tmp_path / "elsewhere"), tmp_path / "out", told)
    assert "resuming: " in told.told[0]
    mmapload.export(tmp_path / "elsewhere", tmp_path / "out")
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


def test_stopped_before_the_first_file_nothing_is_left(tmp_path, store):
    class AtOnce(SilentProgress):
        def start(self, *_):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="interrupted; nothing was written yet"):
        export_store(store, tmp_path / "out", AtOnce())
    assert sorted(os.listdir(tmp_path)) == ["store"]


def test_a_full_disk_says_what_to_do_and_with_more_room_the_export_goes_on(tmp_path):
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
        assert os.listdir(small) == []
        store = preprocess(({"x": i} for i in range(3000)), tmp_path / "many", 8)  # pages of 4 KiB each
        with pytest.raises(
            OSError,
            match=r"No space left on device.*make room, and run the same command again to continue",
        ):
            mmapload.export(store, small / "out")
        there = inodes(small / ".out.partial" / "store")
        assert len(there) > 20
        subprocess.run(["mount", "-o", "remount,size=32m", str(small)], check=True)
        mmapload.export(store, small / "out")
        assert os.listdir(small) == ["out"]
        now = inodes(small / "out")
        assert len(now) == 3000
        assert {name: now[name] for name in there} == there
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
