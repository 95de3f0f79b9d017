"""Stores with a note of each kind, kept as bytes: read by later versions and Zarr, and still written so."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import zarr

from mmapload.codecs import CODEC_NAMES
from mmapload.notes import BFLOAT16
from mmapload.store import open_store
from tests.golden.make_noted import CODECS, NOTED, expected, main
from tests.test_golden import tree

FINGERPRINTS = {
    "raw": "1f7aa4bbab55dcf9",
    "zstd": "190a8c4e49b15a9b",
    "blosc-lz4": "2dd63e8d8d44a2a7",
    "blosc-zstd": "0982cf0d4b414d48",
}


@pytest.fixture
def path(codec_name):
    found = NOTED / codec_name
    assert found.is_dir(), f"the golden store {found} is missing: restore it, do not make it anew"
    return found


def test_there_is_one_of_every_codec():
    assert CODECS == CODEC_NAMES
    assert {each.name for each in NOTED.iterdir()} == {*CODECS}


def test_it_reads_as_it_was_written_and_is_whole(path):
    store = open_store(path)
    fields = expected()
    assert store.fields == tuple(fields)
    for name, array in fields.items():
        found = np.concatenate([store.read_chunk(name, chunk) for chunk in range(3)])
        wanted = array.view(np.uint16) if array.dtype == BFLOAT16 else array
        assert (found.dtype, found.shape, found.tobytes()) == (
            wanted.dtype,
            wanted.shape,
            wanted.tobytes(),
        ), name
    assert not [fault for fault in store.verify() if fault]
    assert store.missing_chunks() == []
    assert store.fingerprint == FINGERPRINTS[path.name]


def test_its_notes_are_literally_these(path):
    root = json.loads((path / "zarr.json").read_text())
    assert root["attributes"]["mmapload"]["fields"] == {
        "half": {"dtype": "bfloat16"},
        "when": {"dtype": "datetime64[ms]"},
        "day": {"dtype": "datetime64[D]"},
        "span": {"dtype": "timedelta64[25s]"},
        "bare": {"dtype": "timedelta64"},
        "name": {"dtype": "<U4"},
        "pair": {"dtype": "<U4"},
        "code": {"dtype": "|S3"},
        "none": {"dtype": "<U2"},
    }


def test_zarr_reads_it_with_a_few_lines(path):
    group = zarr.open_group(path, mode="r")
    notes = group.attrs["mmapload"]["fields"]
    for name, array in expected().items():
        stored, dtype = np.ascontiguousarray(group[name][:]), notes[name]["dtype"]
        if dtype == "bfloat16":
            found = stored.view(BFLOAT16)
        elif dtype[0] in "<|":
            found = stored.view(dtype)[..., 0]
        else:
            found = stored.view(dtype)
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes()), (
            name
        )


def test_a_chunk_of_text_is_these_bytes():
    text = (NOTED / "raw" / "name" / "c.1.0").read_bytes()
    assert text[:-4].hex(" ", 4) == "fc000000 00f60100 00000000 00000000 61000000 00000000 62000000 00000000"


def test_such_stores_are_still_written_as_they_were(tmp_path):
    """Byte for byte; but frames may differ from one release of a compressor to the next."""
    main(tmp_path)
    for codec in CODECS:
        now, then = tree(tmp_path / codec), tree(NOTED / codec)
        assert now.keys() == then.keys()
        for name, content in then.items():
            if codec == "raw" or os.path.basename(name) == "zarr.json":
                assert now[name] == content, f"{codec}/{name}"
