"""Which chunk files are there: by name, whatever else lies in the folder, and however many are claimed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.codecs import RawCodec
from mmapload.layout import FieldLayout
from mmapload.presence import MOST_MISSING, chunks_there, missing_chunks


def field(axes: int) -> FieldLayout:
    return FieldLayout("x", np.dtype("u1"), (2,) * axes, 4, RawCodec())


@pytest.mark.parametrize("axes", [0, 1, 3])
def test_files_of_other_names_and_numbers_are_no_chunks(tmp_path, axes):
    layout = field(axes)
    for number in (0, 2, 9, 10, 2**53):
        (tmp_path / layout.chunk_key(number)).touch()
    others = [
        "zarr.json",
        "c",
        "c.",
        "c.-1",
        "c.01",
        "c.1.0.0",
        "c.1.1",
        "c.3.tmp",
        "d.4",
        "c.5.0.0.0.0.0",
        "C.6",
    ]
    for name in others:
        (tmp_path / name).touch()
    assert chunks_there(str(tmp_path), layout, 10) == {0, 2, 9}
    assert chunks_there(str(tmp_path), layout, 2**53) == {0, 2, 9, 10}


def test_no_folder_has_no_chunks(tmp_path):
    assert chunks_there(str(tmp_path / "nowhere"), field(1), 5) == set()
    (tmp_path / "file").touch()
    assert chunks_there(str(tmp_path / "file"), field(1), 5) == set()


@given(st.integers(0, 40), st.data())
def test_what_is_not_there_is_missing(chunks, data):
    there = data.draw(st.sets(st.integers(0, max(0, chunks - 1)), max_size=chunks))
    assert missing_chunks(there, chunks) == [chunk for chunk in range(chunks) if chunk not in there]


def test_of_very_many_the_first_are_told():
    assert missing_chunks({0, 5}, 2**53) == [*range(1, 5), *range(6, MOST_MISSING + 2)]
