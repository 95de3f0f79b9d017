"""Every kind of store that we write, opened by zarr-python and by tensorstore: equal, bit by bit."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mmapload.codecs import checksum
from mmapload.layout import CORE_DTYPES, RESERVED_GROUP
from mmapload.preprocessing import preprocess
from mmapload.reserved import NAME_ARRAYS

SHAPES = [(), (3,), (2, 5), (1, 2, 3), (2, 1, 1, 2)]
BATCH = 4


def any_bits(samples: int) -> dict[str, np.ndarray]:
    """For every core type and several shapes, arrays of any bits: NaN of every kind, -0.0, infinities."""
    rng = np.random.default_rng(samples)
    arrays = {}
    for number, (name, dtype) in enumerate(CORE_DTYPES.items()):
        shape = (samples, *SHAPES[number % len(SHAPES)])
        bits = rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8)
        arrays[name] = ((bits & 1) if name == "bool" else bits).view(dtype).reshape(shape)
    arrays["zeros"] = np.zeros((samples, 6), "f4")
    return arrays


def written(tmp_path, arrays: dict[str, np.ndarray], codec: str) -> str:
    count = len(next(iter(arrays.values())))
    samples = [{name: array[sample] for name, array in arrays.items()} for sample in range(count)]
    return preprocess(samples, tmp_path / "store", BATCH, codec=codec, chunk_bytes=64).path


def zarr_reads(path: str) -> dict[str, np.ndarray]:
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(path, mode="r")
    return {name: array[...] for name, array in group.arrays()}


def tensorstore_reads(path: str) -> dict[str, np.ndarray]:
    tensorstore = pytest.importorskip("tensorstore")
    found = {}
    for name in os.listdir(path):
        if os.path.isdir(os.path.join(path, name)) and name != RESERVED_GROUP:
            spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": os.path.join(path, name)}}
            found[name] = tensorstore.open(spec, read=True).result().read().result()
    return found


@pytest.mark.parametrize("read", [zarr_reads, tensorstore_reads])
@pytest.mark.parametrize("samples", [1, 3, 4, 5, 8, 11])
def test_others_read_what_we_wrote(tmp_path, codec_name, samples, read):
    arrays = any_bits(samples)
    found = read(written(tmp_path, arrays, codec_name))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("read", [zarr_reads, tensorstore_reads])
def test_others_read_fields_with_an_empty_axis(tmp_path, codec_name, read):
    arrays = {"empty": np.zeros((5, 3, 0), "f4"), "label": np.arange(5)}
    found = read(written(tmp_path, arrays, codec_name))
    assert found["empty"].shape == (5, 3, 0)
    assert found["label"].tolist() == [0, 1, 2, 3, 4]


def test_the_root_opens_as_a_group_with_our_attributes(tmp_path, codec_name):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(written(tmp_path, any_bits(3), codec_name), mode="r")
    assert group.attrs["mmapload"]["samples"] == 3
    assert group.attrs["mmapload"]["batch_size"] == BATCH


def test_a_last_chunk_is_padded_with_zeros(tmp_path):
    arrays = {"x": np.full((5, 16), 7, np.uint8)}
    path = written(tmp_path, arrays, "raw")
    with open(os.path.join(path, "x", "c.1.0"), "rb") as file:
        content = file.read()
    assert content[:64] == bytes([7]) * 16 + bytes(48)
    assert len(content) == 68


def test_chunks_of_zeros_have_their_files(tmp_path, codec_name):
    path = written(tmp_path, {"x": np.zeros((9, 2), "f4")}, codec_name)
    assert sorted(os.listdir(os.path.join(path, "x"))) == ["c.0.0", "c.1.0", "zarr.json"]


def test_names_lie_in_two_plain_arrays(tmp_path):
    """The reserved group, byte for byte, and through zarr-python."""
    zarr = pytest.importorskip("zarr")
    names = ["a/größe.npz", "a/x 1.npz", "b.npz"]
    for name in names:
        (tmp_path / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / "src" / name, x=np.arange(3))
    path = preprocess(tmp_path / "src", tmp_path / "store", 2).path
    texts = [name.encode() for name in names]
    ends = np.cumsum([len(text) for text in texts]).astype("<i8")
    group = zarr.open_group(os.path.join(path, RESERVED_GROUP), mode="r")
    assert group["names"][:].tobytes() == b"".join(texts)
    assert group["ends"][:].tolist() == ends.tolist()
    for name, content in (("names", b"".join(texts)), ("ends", ends.tobytes())):
        padded = np.frombuffer(content.ljust(NAME_ARRAYS[name].chunk_nbytes, b"\0"), np.uint8)
        with open(os.path.join(path, RESERVED_GROUP, name, "c.0"), "rb") as file:
            assert file.read() == padded.tobytes() + checksum(padded)
