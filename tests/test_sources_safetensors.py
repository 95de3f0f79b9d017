"""Safetensors files, written by that library: read bit by bit, and never beyond what the header may say."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from mmapload.errors import MmaploadError, SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.kinds import Request, open_files
from tests.preprocessing_cases import stored
from tests.reading_cases import awkward, read_sample, same

if TYPE_CHECKING:
    from mmapload.sources import IndexedSource


def opened(path: Any, samples="files", fields=None) -> IndexedSource:
    return open_files([path], None, Request(fields, (), samples))[0]


def arrays(rows: int) -> dict[str, np.ndarray]:
    return {
        name: array.astype(array.dtype.newbyteorder("="))
        for name, array in awkward(rows).items()
        if name != "c16"
    }


def test_tensors_are_read_bit_by_bit(tmp_path):
    expected = arrays(5) | {"scalar": np.array(7, "u8")}
    save_file(expected, tmp_path / "a.safetensors", metadata={"format": "np"})
    found = read_sample(opened(tmp_path / "a.safetensors"), 0)
    assert found.keys() == expected.keys()
    assert all(same(found[name], expected[name]) for name in expected)


def test_rows_are_read_in_any_order(tmp_path):
    expected = arrays(50)
    save_file(expected, tmp_path / "a.safetensors")
    source = opened(tmp_path / "a.safetensors", "rows")
    for index in (*range(50), 3, 49, 0):
        found = read_sample(source, index)
        assert all(same(found[name], expected[name][index]) for name in expected)


def test_files_are_samples_in_natural_order(tmp_path):
    for number in (10, 9):
        save_file({"x": np.full(2, number)}, tmp_path / f"{number}.safetensors")
    assert stored(preprocess(tmp_path, tmp_path / "out", 1), "x").tolist() == [[9, 9], [10, 10]]


def test_a_type_that_numpy_lacks_is_refused_by_name_unless_left_out(tmp_path):
    import torch

    save_torch({"x": torch.ones(2), "f8": torch.ones(2).to(torch.float8_e4m3fn)}, tmp_path / "a.safetensors")
    with pytest.raises(SourceError, match=r"member 'f8': of type 'F8_E4M3', which a store cannot hold"):
        opened(tmp_path / "a.safetensors").schema(0)
    assert read_sample(opened(tmp_path / "a.safetensors", fields={"x": "x"}), 0)["x"].tolist() == [1, 1]


def test_bfloat16_is_stored_with_its_bits(tmp_path):
    import torch

    value = torch.tensor([1.5, -0.0, float("nan")]).to(torch.bfloat16)
    save_torch({"x": value}, tmp_path / "a.safetensors")
    store = preprocess(tmp_path / "a.safetensors", tmp_path / "out", 1)
    assert store.field("x").values_name == "bfloat16"
    assert stored(store, "x")[0].tolist() == value.view(torch.uint16).tolist()


def file_of(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), begin: Any = 0, end: Any = 8) -> dict[str, Any]:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a safetensors file .0 bytes. but nothing"),
        (b"<html>" * 9, "not a safetensors file .54 bytes. but an HTML"),
        ((2**62).to_bytes(8, "little") + b"{}", "its header has .* bytes, more than are there"),
        (file_of(b"{" + b" " * 9 + b'"x"'), "not JSON"),
        (file_of(b'{"x": 1, "x": 2}'), "the key 'x' is there twice"),
        (file_of({"x": 1}), "member 'x': its entry in the header is damaged"),
        (file_of(entry(shape=[-2]), bytes(8)), "its entry in the header is damaged"),
        (file_of(entry(shape=[True]), bytes(8)), "its entry in the header is damaged"),
        (file_of(entry(begin=8, end=0), bytes(8)), "its entry in the header is damaged"),
        (file_of(entry(), bytes(7)), "its tensors end at byte .*cut short"),
        (file_of(entry(), bytes(9)), "its tensors end at byte"),
        (file_of(entry(shape=[3]), bytes(8)), r"F32 \(3,\) does not take the 8 bytes"),
        (file_of(entry(shape=[2**62, 2**62]), bytes(8)), "does not take the 8 bytes"),
        (file_of(entry(begin=1, end=9), bytes(9)), "lies at byte .*, expected"),
        (file_of({**entry(), "y": entry()["x"]}, bytes(8)), "member '[xy]': lies at byte .*, expected"),
    ],
)
def test_a_file_that_lies_about_itself_is_refused_before_anything_is_allocated(tmp_path, data, words):
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(SourceError, match=rf"a\.safetensors.*{words}"):
        opened(tmp_path / "a.safetensors").schema(0)


def test_damaged_files_give_errors_of_ours_or_tensors(tmp_path):
    save_file(arrays(3), tmp_path / "a.safetensors")
    good = (tmp_path / "a.safetensors").read_bytes()
    rng = random.Random(0)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "a.safetensors").write_bytes(
            data[: rng.randrange(len(data)) if rng.random() < 0.1 else None]
        )
        try:
            read_sample(opened(tmp_path / "a.safetensors"), 0)
        except MmaploadError:
            continue
