"""Long looking tells how far it is: files found, headers read, and the time that is left."""

from __future__ import annotations

import os
import threading
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.cli import main, waiting
from mmapload.preprocessing import headers
from mmapload.sources.listing import list_files
from mmapload.sources.npz import NpzSource
from mmapload.stages import Stage, reached

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five thousand names of one file, with a text in it, in two folders."""
    folder = tmp_path / "in"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    first = folder / "a" / "0.npz"
    np.savez(first, x=np.zeros(2), text=np.array("word"))
    for number in range(1, 5000):
        os.link(first, folder / "ab"[number % 2] / f"{number}.npz")
    return folder


def test_listing_says_how_many_files_it_has_found(folder: Path) -> None:
    stage = Stage()
    with stage.heard():
        list_files([folder])
    assert str(stage) == "4,096 files found"
    assert stage.seconds_left is None


def test_reading_of_headers_says_how_many_are_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headers, "_AT_ONCE", 1000)
    stage = Stage()
    with stage.heard():
        for index, _ in headers.schemas(NpzSource(list_files([folder])), range(5000)):
            assert index != 3500 or str(stage) == "3,000 of 5,000 headers read"
    left = stage.seconds_left
    assert left is not None
    assert left > 0


def test_only_the_thread_that_works_is_heard() -> None:
    stage = Stage()
    with stage.heard():
        other = threading.Thread(target=reached, args=("others", 1))
        other.start()
        other.join()
        assert str(stage) == ""
        reached("own", 1)
    reached("later", 1)
    assert str(stage) == "1 own"


@pytest.mark.parametrize("command", ["check", "preprocess"])
def test_the_command_tells_it_on_standard_error(
    folder: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(waiting, "_MOST_SECONDS", 0.001)
    options = {"check": [], "preprocess": [str(folder.parent / "out"), "--batch-size", "2", "--dry-run"]}
    assert main([command, str(folder), *options[command]]) == 0
    told = capsys.readouterr().err
    assert "looking at the source: 1,024 files found, 0 s\n" in told
    assert main([command, str(folder), *options[command], "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_file_takes_little_more_memory_than_its_name_while_it_is_listed(folder: Path) -> None:
    list_files([folder])
    tracemalloc.start()
    try:
        found = list_files([folder])
        assert len(found) == 5000
        assert tracemalloc.get_traced_memory()[1] < 5000 * 300
    finally:
        tracemalloc.stop()


def test_links_to_folders_are_seen_through_as_ever(folder: Path) -> None:
    os.symlink("a", folder / "c")
    with pytest.raises(ValueError, match=r"c/0.npz: the same file is listed before, as .*a/0.npz"):
        list_files([folder])
