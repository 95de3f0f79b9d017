"""Stores with samples that differ in shape, kept as bytes: read by later versions, and still written so."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mmapload.codecs import CODEC_NAMES
from mmapload.store import open_store
from tests.golden.make_ragged import CODECS, RAGGED, main, samples
from tests.test_golden import tree


@pytest.fixture
def path(codec_name):
    found = RAGGED / codec_name
    assert found.is_dir(), f"the golden store {found} is missing: restore it, do not make it anew"
    return found


def test_there_is_one_of_every_codec():
    assert CODECS == CODEC_NAMES
    assert {each.name for each in RAGGED.iterdir()} == {*CODECS}


def test_it_reads_as_it_was_written_and_is_whole(path):
    store = open_store(path)
    assert store.fields == ("words", "boxes", "label", "words_present")
    for number, wanted in enumerate(samples()):
        found = {name: np.asarray(store.read_chunk(name, number // 2)[number % 2]) for name in store.fields}
        assert bool(found.pop("words_present")) == ("words" in wanted)
        wanted.setdefault("words", np.empty(0, np.float32))
        for name, value in wanted.items():
            expected = np.asarray(value)
            assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
            assert found[name].tobytes() == expected.tobytes()
    assert not [fault for fault in store.verify() if fault]
    assert store.missing_chunks() == []


def test_the_second_chunk_of_the_raw_store_is_these_bytes():
    """One sample without values, for it lacks the field, and one of twenty, in pieces."""
    store = open_store(RAGGED / "raw")
    field = store.field("words")
    assert store.values(field).tolist() == [3, 20, 6]
    extents = (RAGGED / "raw" / "__mmapload__" / "extents" / "words" / "c.1.0").read_bytes()
    assert extents[:-4] == np.array([0, 20], "<i8").tobytes()
    names = sorted(os.listdir(RAGGED / "raw" / "words"))
    assert names == sorted(
        ["zarr.json", *(f"c.0.{i}" for i in range(-(-3 // field.piece_length)))]
        + [f"c.1.{i}" for i in range(-(-20 // field.piece_length))]
        + [f"c.2.{i}" for i in range(-(-6 // field.piece_length))]
    )


def test_such_stores_are_still_written_as_they_were(tmp_path):
    """Byte for byte; but frames may differ from one release of a compressor to the next."""
    main(tmp_path)
    for codec in CODECS:
        now, then = tree(tmp_path / codec), tree(RAGGED / codec)
        assert now.keys() == then.keys()
        for name, content in then.items():
            if codec == "raw" or os.path.basename(name) == "zarr.json":
                assert now[name] == content, f"{codec}/{name}"
