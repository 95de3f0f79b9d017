"""Chunks of ragged fields on the disk: pieces with holes, as if their zeros had been written."""

from __future__ import annotations

import os

import numpy as np
import pytest

from mmapload.codecs import CODEC_NAMES, checksum, codec_named
from mmapload.layout import FieldLayout, StoreLayout
from mmapload.ragged import read_extents, read_values
from mmapload.reserved import elements_array, read_elements
from mmapload.writer.chunks import RaggedChunk, is_intact, write_chunk
from mmapload.writer.ragged import write_ragged


def ragged(codec="raw", piece=6, length=4):
    return FieldLayout("x", np.dtype("<f4"), (-1, -1), length, codec_named(codec, 4), piece)


def make_folders(folder):
    for name in ("x", "__mmapload__/extents/x"):
        os.makedirs(folder / name)


def chunk(shapes, dtype="<f4"):
    array = np.array(shapes, np.int64)
    return RaggedChunk(np.arange(1, 1 + array.prod(axis=1).sum(), dtype=dtype), array)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_what_is_written_is_read(tmp_path, codec):
    make_folders(tmp_path)
    field, rows = ragged(codec), chunk([(2, 4), (0, 3), (1, 5)])
    (files,) = write_chunk(str(tmp_path), [field], 2, {"x": rows})
    assert len(files) == 4
    into = np.zeros(18, "<f4")
    read_values(str(tmp_path), field, 2, 13, into.view(np.uint8))
    assert into.tolist() == [*range(1, 14), 0, 0, 0, 0, 0]
    extents, _ = read_extents(str(tmp_path), field, 2, 3, 13)
    assert extents.shapes.tolist() == rows.shapes.tolist()
    assert extents.offsets.tolist() == [0, 8, 8, 13]
    for number, name in enumerate(["__mmapload__/extents/x/c.2.0", "x/c.2.0", "x/c.2.1", "x/c.2.2"]):
        assert is_intact(str(tmp_path / name), files[number])


def test_a_chunk_without_values_has_no_piece(tmp_path):
    make_folders(tmp_path)
    (files,) = write_chunk(str(tmp_path), [ragged()], 0, {"x": chunk([(0, 3), (0, 0)])})
    assert len(files) == 1
    assert os.listdir(tmp_path / "x") == []


def test_zeros_behind_the_values_are_a_hole_with_the_checksum_of_zeros(tmp_path):
    make_folders(tmp_path)
    field = ragged(piece=2**20)
    write_chunk(str(tmp_path), [field], 0, {"x": chunk([(3, 5)])})
    path = tmp_path / "x" / "c.0.0"
    content = path.read_bytes()
    assert len(content) == 2**22 + 4
    assert not any(content[60:-4])
    assert checksum(np.frombuffer(content[:-4], np.uint8)) == content[-4:]
    (tmp_path / "probe").write_bytes(b"")
    os.truncate(tmp_path / "probe", 2**22)
    if (tmp_path / "probe").stat().st_blocks:
        pytest.skip("this file system makes no holes")
    assert path.stat().st_blocks * 512 <= 2 * 2**16


def test_the_numbers_of_values_are_those_of_the_last_samples(tmp_path):
    make_folders(tmp_path)
    field = ragged()
    layout = StoreLayout(6, 2, 4, (field,))
    write_chunk(str(tmp_path), [field], 0, {"x": chunk([(1, 1), (2, 2), (3, 3), (0, 1)])})
    write_chunk(str(tmp_path), [field], 1, {"x": chunk([(2, 1), (1, 1)])})
    write_ragged(str(tmp_path), layout)
    found = read_elements(str(tmp_path), elements_array(1), 0, 2).view("<i8")
    assert found.tolist() == [14, 3]
