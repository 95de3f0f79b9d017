"""Stores written once and kept as bytes: later versions read them, and write the latest raw one as it was."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.codecs import CODEC_NAMES
from mmapload.store import Store, open_store
from tests.golden.make import CODECS, GOLDEN, LISTED, SEALED, expected, main

if TYPE_CHECKING:
    from pathlib import Path

FINGERPRINTS = {
    "raw": "ad93a11aeea7220a",
    "zstd": "345efff4e0a24f7e",
    "blosc-lz4": "bc36b6bb810ce146",
    "blosc-zstd": "a1d37f9bc758ef7f",
}


def golden(codec: str, form: Path = GOLDEN) -> Path:
    path = form / codec
    assert path.is_dir(), f"the golden store {path} is missing: restore it, do not make it anew"
    return path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=[GOLDEN, LISTED, SEALED], ids=["first", "listed", "sealed"])
def form(request) -> Path:
    """Each form that stores have had."""
    return request.param


@pytest.fixture
def store(codec_name, form) -> Store:
    return open_store(golden(codec_name, form))


def test_there_is_a_golden_store_of_every_codec():
    assert CODECS == CODEC_NAMES
    folders = {path.name for path in GOLDEN.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {*CODECS, "listed", "sealed", "ragged", "noted"}
    for form in (LISTED, SEALED):
        assert {path.name for path in form.iterdir()} == {*CODECS}


def test_a_golden_store_reads_as_it_was_written(store):
    fields = expected()
    assert store.fields == tuple(fields)
    assert (len(store), store.layout.batch_size, store.layout.chunk_length) == (5, 2, 2)
    assert store.layout.source == {"kind": "sequence", "skipped": 0, "shuffle": None}
    for name, array in fields.items():
        read = np.concatenate([store.read_chunk(name, chunk) for chunk in range(3)])
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes(), name


def test_a_golden_store_is_whole(store):
    assert [*store.verify()] == [None] * (21 + store.layout.has_checksums)
    assert store.missing_chunks() == []


def test_a_golden_store_has_the_fingerprint_that_saved_states_know(store, codec_name):
    assert store.fingerprint == FINGERPRINTS[codec_name]


def test_only_the_later_ones_list_checksums(store, form):
    assert store.layout.has_checksums == (form != GOLDEN)


def test_zarr_reads_a_golden_store(codec_name, form):
    zarr = pytest.importorskip("zarr")
    group = zarr.open_group(golden(codec_name, form), mode="r")
    found = {name: array[...] for name, array in group.arrays()}
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected().items()
    }


def test_the_special_values_are_in_it_bit_by_bit():
    read = open_store(golden("raw")).read_chunk("flow", 0)[0]
    assert read.view("u4").ravel().tolist() == [
        0x80000000,
        0x7FC00123,
        0x7F800456,
        0xFFC00789,
        0x7F800000,
        0xFF800000,
        0x00000001,
        0x3F800000,
    ]


def test_the_first_chunk_of_the_raw_store_is_these_bytes():
    """Two samples of 3 x 4 bytes and the checksum."""
    assert (golden("raw") / "image" / "c.0.0.0").read_bytes().hex(" ", 4) == (
        "00010203 10111213 20212223 32333435 42434445 52535455 11256357"
    )


def test_stores_are_still_written_as_they_were(tmp_path):
    """Byte for byte; but frames may differ from one release of a compressor to the next."""
    main(tmp_path)
    for codec in CODECS:
        now, then = tree(tmp_path / codec), tree(golden(codec, SEALED))
        assert now.keys() == then.keys()
        for name, content in then.items():
            if codec == "raw" or os.path.basename(name) == "zarr.json":
                assert now[name] == content, f"{codec}/{name}"


def test_the_chunk_files_are_the_same_with_and_without_a_list(codec_name):
    first, later = tree(golden(codec_name)), tree(golden(codec_name, LISTED))
    del first["zarr.json"]
    assert {name: content for name, content in later.items() if name in first} == first
    assert {*later} - {*first} == {
        "zarr.json",
        "__mmapload__/zarr.json",
        "__mmapload__/checksums/zarr.json",
        "__mmapload__/checksums/c.0.0",
    }


def test_only_the_root_differs_in_a_store_with_a_checksum_of_its_metadata(codec_name):
    listed, later = tree(golden(codec_name, LISTED)), tree(golden(codec_name, SEALED))
    assert listed.keys() == later.keys()
    assert [name for name in listed if listed[name] != later[name]] == ["zarr.json"]
    root = json.loads(later["zarr.json"])
    assert isinstance(root["attributes"]["mmapload"].pop("metadata_checksum"), int)
    assert root == json.loads(listed["zarr.json"])


def test_the_list_has_the_last_bytes_of_every_chunk_file(codec_name):
    path = golden(codec_name, LISTED)
    content = (path / "__mmapload__" / "checksums" / "c.0.0").read_bytes()
    assert len(content) == 2048 * 8 * 4 + 4
    listed = np.frombuffer(content[:-4], "<u4").reshape(2048, 8)
    assert not listed[3:].any()
    for column, name in enumerate(expected()):
        files = sorted((path / name).glob("c.*"))
        ends = [int.from_bytes(file.read_bytes()[-4:], "little") for file in files]
        assert listed[:3, column].tolist() == (ends or [0, 0, 0])
        assert bool(ends) == (name != "none")
