"""`--allow-pickle`: arrays of objects become fields of a store, with a warning, and never unasked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.cli import main
from mmapload.errors import SourceError, StateMismatchError
from mmapload.preprocessing import plan_preprocess, preprocess
from mmapload.store import open_store
from tests.preprocessing_cases import damage, stored

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six samples: an array of two arrays each, and a plain one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(6):
        strokes = np.empty(2, object)
        strokes[0], strokes[1] = np.full((3, 2), number, "i2"), np.full((3, 2), -number, "i2")
        np.savez(folder / f"s{number}.npz", strokes=strokes, y=np.int64(number))
    return folder


def test_regular_arrays_of_objects_are_stored_with_a_warning(folder: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="only for files that you trust"):
        store = preprocess(folder, tmp_path / "out", 2, allow_pickle=True)
    assert store.fields == ("strokes", "y")
    assert stored(store, "strokes")[:, :, 0, 0].tolist() == [[n, -n] for n in range(6)]
    assert stored(store, "y").tolist() == list(range(6))


def test_by_default_they_are_refused_with_what_to_do(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        preprocess(folder, tmp_path / "out", 2)
    for said in ("s0.npz", "member 'strokes.npy'", "an object array", "one under each key", "dtype=str"):
        assert said in str(caught.value)
    assert "allow_pickle" not in str(caught.value)


def test_the_command_warns_and_stores_a_dict_by_its_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkdir(tmp_path / "in")
    for number in range(3):
        np.savez(tmp_path / "in" / f"p{number}.npz", {"emb": np.full(4, number, "f4"), "n": number})
    command = ["preprocess", str(tmp_path / "in"), str(tmp_path / "out"), "--batch-size", "1"]
    assert main(command) == 1
    assert "a dict with np.savez(path, **dict)" in capsys.readouterr().err
    assert main([*command, "--allow-pickle"]) == 0
    assert "WARNING: arrays of objects are read from their pickles" in capsys.readouterr().err
    assert stored(open_store(tmp_path / "out"), "n").tolist() == [0, 1, 2]
    assert main(["check", str(tmp_path / "in"), "--quiet", "--allow-pickle"]) == 0
    printed = capsys.readouterr().out
    assert "emb  float32 (4,)" in printed
    assert main(["check", str(tmp_path / "in"), "--quiet"]) == 1


def test_an_unfinished_store_goes_on_only_with_the_same_choice(folder: Path, tmp_path: Path) -> None:
    good = (folder / "s5.npz").read_bytes()
    damage(folder / "s5.npz")
    options: dict[str, Any] = {"chunk_bytes": 1, "jobs": 1}
    for name in os.listdir(folder):
        if name != "s5.npz":
            np.savez(folder / name, y=np.int64(name[1]))
    with pytest.raises(SourceError):
        preprocess(folder, tmp_path / "out", 2, **options)
    (folder / "s5.npz").write_bytes(good)
    other = pytest.raises(StateMismatchError, match="another allow pickle")
    with pytest.warns(UserWarning, match="trust"), other:
        preprocess(folder, tmp_path / "out", 2, allow_pickle=True, **options)


def test_it_is_for_npz_files_of_one_sample_each(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not for samples from Python"):
        plan_preprocess([{"x": 1}], tmp_path / "out", 2, allow_pickle=True)
    with pytest.raises(ValueError, match="no rows"):
        plan_preprocess(folder, tmp_path / "out", 2, allow_pickle=True, samples="rows")
