"""Files of torch.save: tensors and dicts of tensors; nothing else in them is unpickled."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.kinds import Request, open_files
from tests.preprocessing_cases import stored
from tests.reading_cases import awkward, read_sample, same

if TYPE_CHECKING:
    import numpy as np

    from mmapload.sources import IndexedSource


def opened(path: Any, samples="files", fields=None) -> IndexedSource:
    return open_files([path], None, Request(fields, (), samples))[0]


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(array.astype(array.dtype.newbyteorder("="))) for name, array in arrays.items()
    }


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_are_read_bit_by_bit(tmp_path, zipped):
    arrays = awkward(5)
    value = tensors(arrays) | {
        "deep": {"x": torch.ones(2).requires_grad_()},
        "turned": torch.arange(6).view(2, 3).T,
    }
    torch.save(value, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped)
    names = {name: name for name in arrays} | {"deep/x": "x", "turned": "turned"}
    found = read_sample(opened(tmp_path / "a.pt", fields=names), 0)
    assert all(same(found[name], arrays[name]) for name in arrays)
    assert found["x"].tolist() == [1, 1]
    assert found["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_a_tensor_alone_and_numbers_are_fields_too(tmp_path):
    for number in range(3):
        torch.save(torch.full((2,), number), tmp_path / f"{number}.pth")
    store = preprocess(tmp_path, tmp_path / "out", 1)
    assert stored(store, store.fields[0]).tolist() == [[0, 0], [1, 1], [2, 2]]
    torch.save({"n": 3, "x": 0.5, "flag": True}, tmp_path / "a.pt")
    found = read_sample(opened(tmp_path / "a.pt"), 0)
    assert [same(found["n"], 3), same(found["x"], 0.5), same(found["flag"], True)] == [True] * 3


def test_rows_and_groups_are_samples(tmp_path):
    torch.save({"x": torch.arange(12).view(4, 3), "y": torch.arange(4)}, tmp_path / "rows.pt")
    source = opened(tmp_path / "rows.pt", "rows")
    assert [int(read_sample(source, i)["y"]) for i in range(len(source))] == [0, 1, 2, 3]
    torch.save({f"s{n}": {"x": torch.tensor(n)} for n in (10, 9)}, tmp_path / "keys.pt")
    source = opened(tmp_path / "keys.pt", "keys")
    assert [int(read_sample(source, i)["x"]) for i in range(len(source))] == [9, 10]


def test_what_is_neither_tensor_nor_number_is_refused_unless_left_out(tmp_path):
    torch.save({"x": torch.ones(2), "note": "text", "list": [torch.ones(1)]}, tmp_path / "a.pt")
    for name in ("note", "list"):
        with pytest.raises(
            SourceError, match=rf"a\.pt, member '{name}': is neither a tensor nor a number but"
        ):
            opened(tmp_path / "a.pt", fields={name: "x"}).schema(0)
    assert read_sample(opened(tmp_path / "a.pt", fields={"x": "x"}), 0)["x"].tolist() == [1, 1]
    torch.save({1: torch.ones(2)}, tmp_path / "b.pt")
    with pytest.raises(SourceError, match="a dict with the key 1: the keys have to be text"):
        opened(tmp_path / "b.pt").schema(0)
    torch.save({"x": torch.sparse_coo_tensor([[0]], [1.0], (4,))}, tmp_path / "c.pt")
    with pytest.raises(SourceError, match=r"c\.pt, member 'x'"):
        opened(tmp_path / "c.pt").schema(0)


class Armed:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_never_run_and_the_refusal_says_so(tmp_path, zipped):
    ran = tmp_path / "ran"
    torch.save(
        {"x": torch.ones(1), "y": Armed(str(ran))}, tmp_path / "a.pt", _use_new_zipfile_serialization=zipped
    )
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Armed(str(ran))))
    torch.save(torch.nn.Linear(2, 2), tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    for name in "abc":
        with pytest.raises(
            SourceError, match=rf"{name}\.pt: holds Python objects .*never unpickled.*torch\.save"
        ):
            opened(tmp_path / f"{name}.pt").schema(0)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not a file of torch.save but nothing"),
        (lambda data: b"<html>" * 99, "not a file of torch.save but an HTML"),
        (lambda data: b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer.*git lfs pull"),
        (lambda data: data[:-100], "cannot be read: RuntimeError"),
        (lambda data: b"\x80\x02" + bytes(100), "never unpickled"),
    ],
)
def test_a_file_that_is_none_is_named_for_what_it_is(tmp_path, damage, words):
    torch.save({"x": torch.ones(100)}, tmp_path / "a.pt")
    (tmp_path / "a.pt").write_bytes(damage((tmp_path / "a.pt").read_bytes()))
    with pytest.raises(SourceError, match=rf"a\.pt: .*{words}"):
        opened(tmp_path / "a.pt").schema(0)


def test_an_old_torch_is_refused_for_it_can_be_made_to_unpickle(tmp_path, monkeypatch):
    torch.save(torch.ones(1), tmp_path / "a.pt")
    monkeypatch.setattr(torch, "__version__", "2.5.1+cpu")
    with pytest.raises(SourceError, match=r"takes torch 2\.6, and 2\.5\.1\+cpu is there"):
        opened(tmp_path / "a.pt").schema(0)
