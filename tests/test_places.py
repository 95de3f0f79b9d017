"""A store is the same wherever it lies: copied, moved, on odd paths, read-only, and opened by many."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mmapload import ChunkDataset
from mmapload.cli import main
from mmapload.store import open_store
from tests import ragged_cases
from tests.loading_cases import run_python


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(ragged_cases.write(tmp_path / "store").path)


def expect_whole(path: Path) -> None:
    """Read and verify everything, from Python and by the command."""
    store = open_store(path)
    assert [fault for fault in store.verify() if fault] == []
    dataset = ChunkDataset(path)
    for number, wanted in enumerate(ragged_cases.samples()):
        assert ragged_cases.same(dataset[number], wanted)
    assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize("command", ["cp -r", "cp -r --sparse=always", "cp -r --sparse=never", "mv"])
@pytest.mark.parametrize("name", ["a place with spaces", "größe [*] $HOME", "line\nend", "-x"])
def test_a_store_that_is_copied_or_moved_anywhere_is_the_same(path: Path, command: str, name: str) -> None:
    fingerprint = open_store(path).fingerprint
    place = path.parent / name / "to"
    place.parent.mkdir()
    subprocess.run([*command.split(), str(path), str(place)], check=True)
    if command == "mv":
        assert not path.exists()
    expect_whole(place)
    assert open_store(place).fingerprint == fingerprint


def test_a_store_is_made_on_a_path_with_spaces(tmp_path: Path) -> None:
    source, out = tmp_path / "my samples", tmp_path / "my store"
    source.mkdir()
    np.savez(source / "one sample.npz", x=np.arange(3))
    assert main(["preprocess", str(source), str(out), "--batch-size", "1", "--quiet"]) == 0
    assert main(["info", str(out), "--sample", "0"]) == 0
    assert main(["export", str(out), str(tmp_path / "and back"), "--quiet"]) == 0
    assert np.load(tmp_path / "and back" / "one sample.npz")["x"].tolist() == [0, 1, 2]


def test_a_store_without_write_permission_is_read(path: Path) -> None:
    for where, folders, files in os.walk(path, topdown=False):
        for name in (*folders, *files):
            Path(where, name).chmod(0o555 if name in folders else 0o444)
    path.chmod(0o555)
    before = {each: each.stat().st_mtime_ns for each in path.rglob("*")}
    expect_whole(path)
    assert {each: each.stat().st_mtime_ns for each in path.rglob("*")} == before
    for folder in (path, *filter(Path.is_dir, path.rglob("*"))):
        folder.chmod(0o755)


def test_a_store_on_a_file_system_that_is_read_only_is_read(path: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        shutil.copytree(path, disk / "store")
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        expect_whole(disk / "store")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


MANY = """
import os, sys
from mmapload import ChunkDataset
from tests import ragged_cases
reading, writing = os.pipe()
children = []
for _ in range(64):
    child = os.fork()
    if not child:
        try:
            os.close(writing)
            os.read(reading, 1)  # all begin when the other end is closed
            dataset = ChunkDataset(sys.argv[1])
            wanted = ragged_cases.samples()
            assert all(ragged_cases.same(dataset[number], each) for number, each in enumerate(wanted))
            assert len(dataset.read(range(len(wanted))).tensors["words"]) == len(wanted)
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    children.append(child)
os.close(writing)
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 64
print("64")
"""


def test_sixty_four_processes_open_and_read_a_store_at_once(path: Path) -> None:
    assert run_python(MANY, path).strip() == "64"
