"""Zarr folders written by zarr-python, of both versions: rows, groups or folders as samples."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import numcodecs
import numpy as np
import pytest
import zarr

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.kinds import Request, open_files
from tests.preprocessing_cases import stored, write_npz
from tests.reading_cases import awkward, read_sample, same

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.sources import IndexedSource


def opened(path: Any, samples="rows", fields=None) -> IndexedSource:
    return open_files([path], None, Request(fields, (), samples))[0]


def write(path: Path, arrays: dict[str, Any], version: int, **options: Any) -> None:
    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, value in arrays.items():
        array = np.asarray(value)
        chunks = tuple(max(1, min(7, length)) for length in array.shape)
        made = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks, **options)
        if array.size:
            made[...] = array


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_rows_are_read_bit_by_bit_in_any_order(tmp_path, version, compressors):
    arrays = {name: array for name, array in awkward(20).items() if name != "empty"}
    write(tmp_path / "a.zarr", arrays, version, compressors=compressors)
    source = opened(tmp_path / "a.zarr")
    assert (len(source), source.name(7)) == (20, "a.zarr[7]")
    for index in (*range(20), 3, 19, 0):
        found = read_sample(source, index)
        assert found.keys() == arrays.keys()
        assert all(same(found[name], arrays[name][index]) for name in arrays)


def test_sharded_arrays_nested_groups_and_single_arrays_are_read(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("x", shape=(10, 3), dtype="f4", chunks=(2, 3), shards=(4, 3))[...] = np.ones((10, 3))
    group.create_array("obs/y", shape=(10,), dtype="i4")[...] = np.arange(10)
    source = opened(tmp_path / "a.zarr")
    assert {name: str(spec) for name, spec in source.schema(0).items()} == {
        "obs/y": "int32 ()",
        "x": "float32 (3,)",
    }
    assert read_sample(source, 9)["obs/y"] == 9
    zarr.save_array(tmp_path / "single.zarr", np.arange(4.0))
    assert [float(*read_sample(opened(tmp_path / "single.zarr"), i).values()) for i in range(4)] == [
        0,
        1,
        2,
        3,
    ]


def test_a_shard_is_decoded_once_where_rows_are_read_in_order(tmp_path, monkeypatch):
    array = zarr.create_array(tmp_path / "a.zarr", shape=(100,), dtype="i4", chunks=(5,), shards=(20,))
    array[...] = np.arange(100)
    source = opened(tmp_path / "a.zarr")
    reads = []
    read = zarr.Array.__getitem__
    monkeypatch.setattr(zarr.Array, "__getitem__", lambda self, at: reads.append(at) or read(self, at))
    assert [int(*read_sample(source, i).values()) for i in range(100)] == [*range(100)]
    assert len(reads) == 5


def test_groups_are_samples(tmp_path):
    for version in (2, 3):
        arrays = {f"s{number}/{name}": [number, 1] for number in (10, 9) for name in "xy"}
        write(tmp_path / "a.zarr", arrays, version)
        source = opened(tmp_path / "a.zarr", "keys")
        assert [source.name(i) for i in range(len(source))] == ["a.zarr/s9", "a.zarr/s10"]
        assert read_sample(source, 1)["y"].tolist() == [10, 1]


def test_folders_are_samples_listed_by_a_glob_or_by_the_folder_above(tmp_path):
    for number in (10, 9):
        write(tmp_path / "in" / f"{number}.zarr", {"x": [number]}, 2)
    for path in (tmp_path / "in", str(tmp_path / "in" / "*.zarr")):
        store = preprocess(path, tmp_path / "out", 1, overwrite=True)
        assert stored(store, "x").tolist() == [[9], [10]]
    with pytest.raises(SourceError, match=r"9\.zarr: is one file, .*--samples rows.*--samples keys"):
        preprocess(tmp_path / "in" / "9.zarr", tmp_path / "out", 1)


def test_a_store_in_the_source_folder_is_no_part_of_the_source(tmp_path):
    write_npz(tmp_path / "in", [{"x": np.arange(3)}] * 2)
    preprocess(tmp_path / "in", tmp_path / "in" / "out", 1)
    assert len(preprocess(tmp_path / "in", tmp_path / "other", 1)) == 2


def test_a_codec_that_might_run_what_the_data_say_is_refused_before_it_is_made(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("x", shape=(4,), dtype="i4", compressors=numcodecs.Zlib())[...] = np.arange(4)
    group.create_array("p", shape=(4,), dtype="i4", filters=[numcodecs.Pickle()])
    with pytest.raises(SourceError, match=r"a\.zarr, member 'p': was written with the codec 'pickle'"):
        opened(tmp_path / "a.zarr")
    assert read_sample(opened(tmp_path / "a.zarr", fields={"x": "x"}), 3)["x"] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write(tmp_path / "b.zarr", {"x": np.arange(4)}, 3)
    path = tmp_path / "b.zarr" / "x" / "zarr.json"
    document = json.loads(path.read_text())
    document["codecs"].insert(0, {"name": "numcodecs.pickle", "configuration": {}})
    path.write_text(json.dumps(document))
    with pytest.raises(SourceError, match=r"b\.zarr, member 'x': was written with the codec 'pickle'"):
        opened(tmp_path / "b.zarr")


def test_damaged_metadata_and_chunks_are_told_by_name(tmp_path):
    write(tmp_path / "a.zarr", {"x": np.arange(40)}, 3)
    (tmp_path / "a.zarr" / "x" / "c" / "2").write_bytes(b"damaged")
    source = opened(tmp_path / "a.zarr")
    assert read_sample(source, 13)["x"] == 13
    with pytest.raises(SourceError, match=r"a\.zarr/x: cannot be read"):
        source.schema(14)
    (tmp_path / "a.zarr" / "x" / "zarr.json").write_text("{")
    with pytest.raises(SourceError, match=r"a\.zarr/x: .*zarr\.json: not JSON"):
        opened(tmp_path / "a.zarr")


def test_text_is_refused_by_name_unless_left_out(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("t", shape=(2,), dtype=str)[...] = np.array(["a", "b"], object)
    group.create_array("x", shape=(2,), dtype="i4")[...] = np.arange(2)
    assert [*opened(tmp_path / "a.zarr", fields={"x": "x"}).schema(0)] == ["x"]
