"""Fields in groups: nested dicts from Python, and names with slashes in files."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mmapload
from mmapload.cli import main
from mmapload.errors import LayoutError, SourceError
from mmapload.fieldnames import check_field_names, renaming_all
from mmapload.preprocessing.opening import parse_fields


def sample(number: int) -> dict[str, Any]:
    """Return a sample with groups in a group, one field of them ragged."""
    boxes = np.arange(4 * (number % 3), dtype="f4").reshape(-1, 4)
    return {"image": np.full((2, 3), number, "u1"), "target": {"label": number, "of": {"boxes": boxes}}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> mmapload.Store:
    """Return a store of nested samples."""
    out = tmp_path_factory.mktemp("nested") / "store"
    return mmapload.preprocess([sample(i) for i in range(7)], out, 2, ragged="auto", chunk_bytes=1)


def test_dicts_in_a_sample_become_groups_of_fields(store: mmapload.Store) -> None:
    assert store.fields == ("image", "target/label", "target/of/boxes")
    group = zarr.open_group(store.path, mode="r")
    assert group["target"]["label"][:7].tolist() == list(range(7))
    assert isinstance(group["target/of"], zarr.Group)
    assert group["__mmapload__/extents/target/of/boxes"].shape == (7, 3)
    assert not any(store.verify())


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_have_the_whole_names(store: mmapload.Store, workers: int) -> None:
    loaders = [
        mmapload.ChunkDataLoader(store.path, batch_size=7, num_workers=workers),
        DataLoader(mmapload.ChunkDataset(store.path), batch_size=7, num_workers=workers),
    ]
    for loader in loaders:
        batch = next(iter(loader))
        assert list(batch) == ["image", "target/label", "target/of/boxes"]
        assert batch["target/label"].tolist() == list(range(7))
        assert [len(boxes) for boxes in batch["target/of/boxes"]] == [0, 1, 2, 0, 1, 2, 0]
    dataset = mmapload.ChunkDataset(store.path, fields=["target/label"])
    assert dict(dataset[3]) == {"target/label": 3}


def test_names_with_slashes_in_a_file_become_groups_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.savez(tmp_path / "in" / f"{i}.npz", **{"enc/W": np.full(2, i), "enc/b": i, "x": 1.5})
    store = mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2)
    assert set(store.fields) == {"enc/W", "enc/b", "x"}
    mmapload.export(store.path, tmp_path / "back")
    with np.load(tmp_path / "back" / "2.npz") as found:
        assert set(found.files) == {"enc/W", "enc/b", "x"}
        assert found["enc/W"].tolist() == [2, 2]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["enc", "enc/W"], "'enc/W' makes 'enc' a group, and 'enc' is a field"),
        (["enc/W", "enc"], "'enc' is that of a group, of which 'enc/W' is a part"),
        (["Enc/W", "enc/b"], "'enc/b' is in a group that differs from 'Enc' only by case"),
        (["enc/W", "ENC/w"], "only by case"),
        (["../x"], "consists of dots"),
        (["a/../../x"], "consists of dots"),
        (["/abs"], "has an empty part"),
        (["a/"], "has an empty part"),
        (["a\\b"], "contains"),
        (["x/c.0.0/y/zarr.json"], "file of the store"),
    ],
)
def test_names_that_cannot_be_groups_are_refused_and_nothing_is_written(tmp_path: Path, names, words) -> None:
    with pytest.raises(ValueError, match=words):
        mmapload.preprocess([dict.fromkeys(names, 1)], tmp_path / "out", 1)
    assert not os.listdir(tmp_path)


PATHS = ["enc/conv1/W", "enc/conv1", "/abs/path", "../../escape", "win\\back", "escape"]


def test_paths_for_names_are_taken_by_typing_what_the_error_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is array and group, absolute paths, paths upwards, backslashes, one that is taken."""
    (tmp_path / "here" / "in").mkdir(parents=True)
    for i in range(3):
        arrays = {name: np.full(length, i) for length, name in enumerate(PATHS)}
        np.savez(tmp_path / "here" / "in" / f"{i}.npz", **arrays)  # type: ignore[arg-type]
    command = [
        "preprocess",
        str(tmp_path / "here" / "in"),
        str(tmp_path / "here" / "out"),
        "--batch-size",
        "2",
    ]
    assert main([*command, "--quiet"]) == 2
    said = capsys.readouterr().err
    words = shlex.split(said.partition("all of them in one option: ")[2])
    assert words == [
        "--fields",
        "enc/conv1/W,enc/conv1=enc_conv1_2,/abs/path=abs_path,../../escape=escape_2,win\\back=win_back,escape",
    ]
    assert main([*command, "--quiet", *words]) == 0
    store = mmapload.open_store(tmp_path / "here" / "out")
    assert list(store.fields) == ["enc/conv1/W", "enc_conv1_2", "abs_path", "escape_2", "win_back", "escape"]
    for length, name in enumerate(store.fields):
        assert store.read_chunk(name, 0).tolist() == [[i] * length for i in range(3)]
    assert os.listdir(tmp_path) == ["here"]
    assert sorted(os.listdir(tmp_path / "here")) == ["in", "out"]


@given(st.lists(st.text("aA/.\\_ 2é", max_size=6), unique=True, min_size=1, max_size=6))
def test_all_fields_under_the_names_of_the_one_option_can_stand_beside_each_other(names: list[str]) -> None:
    option = renaming_all(names)
    if option:
        (_, typed) = shlex.split(option)
        chosen = parse_fields(typed)
        assert chosen is not None
        assert list(chosen) == names
        assert check_field_names(chosen.values()) == []
    else:
        assert any(name != name.strip() or not name for name in names)


def test_two_values_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="member 'a'"):
        mmapload.preprocess([{"a/b": 1, "a": {"b": 2}}], tmp_path / "out", 1)


def test_a_group_that_is_damaged_or_led_elsewhere_is_refused(tmp_path: Path, store: mmapload.Store) -> None:
    path = str(mmapload.preprocess([{"a": {"b": 1}}], tmp_path / "out", 1).path)
    document = Path(path, "a", "zarr.json")
    text = document.read_bytes()
    for damaged, words in [
        (b"{", "not JSON"),
        (text.replace(b'"group"', b'"array"'), "node_type"),
        (None, "missing"),
    ]:
        document.unlink() if damaged is None else document.write_bytes(damaged)
        with pytest.raises(LayoutError, match=rf"a/zarr.json: .*{words}"):
            mmapload.open_store(path)
    document.write_bytes(json.dumps(json.loads(text)).encode())
    assert "a/zarr.json: was damaged" in str([*filter(None, mmapload.open_store(path).verify())])
    document.write_bytes(text)
    os.rename(Path(path, "a"), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", Path(path, "a"))
    with pytest.raises(LayoutError, match="a: a symbolic link"):
        mmapload.open_store(path)


def test_samples_are_appended_and_stores_replaced_with_groups(tmp_path: Path) -> None:
    fixed = [{"a": {"b": np.arange(3) + i}, "c": i} for i in range(5)]
    mmapload.preprocess(fixed[:3], tmp_path / "out", 2, chunk_bytes=1)
    store = mmapload.preprocess(fixed[3:], tmp_path / "out", 2, append=True)
    assert len(store) == 5
    assert not any(store.verify())
    assert store.read_chunk("a/b", 2)[0].tolist() == [4, 5, 6]
    mmapload.preprocess(fixed[:2], tmp_path / "out", 2, overwrite=True)
    assert len(mmapload.open_store(tmp_path / "out")) == 2
