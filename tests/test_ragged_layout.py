"""Where the values of ragged fields lie: pieces, extents, checksums over zeros that were not read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.codecs import CHECKSUM_BYTES, RawCodec, checksum
from mmapload.errors import ChunkError
from mmapload.extents import Extents, RaggedArray, extents_rows, parse_extents
from mmapload.layout import FieldLayout, StoreLayout
from mmapload.padding import padded_checksum
from mmapload.ragged import (
    PADDING_SHARE,
    chunk_files,
    combined_checksum,
    piece_count,
    piece_length_for,
    read_values,
)

SHAPES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), min_size=1, max_size=20)


def field(axes=1, piece=10, codec=None, length=4):
    return FieldLayout("x", np.dtype("<u2"), (-1,) * axes, length, codec or RawCodec(), piece)


@given(st.binary(max_size=200), st.integers(0, 3000))
def test_a_checksum_with_zeros_behind_is_that_of_data_and_zeros(data, zeros):
    whole = np.frombuffer(data + bytes(zeros), np.uint8)
    assert padded_checksum(np.frombuffer(data, np.uint8), zeros) == checksum(whole)


def test_many_zeros_are_as_many_few():
    data = np.arange(7, dtype=np.uint8)
    once = int.from_bytes(padded_checksum(data, 2**40), "little")
    assert once == int.from_bytes(padded_checksum(data, 2**40 - 1 + 1), "little")
    assert padded_checksum(data, 2**21) == checksum(np.concatenate([data, np.zeros(2**21, np.uint8)]))


@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=40),
    st.sampled_from([1, 2, 4, 8, 16]),
    st.integers(2**10, 2**31),
)
def test_padding_is_at_most_a_tenth_and_pieces_as_long_as_asked(values, itemsize, most):
    counts = np.array(values, np.int64)
    length = piece_length_for(counts, itemsize, most)
    layout = FieldLayout("x", np.dtype("u1"), (-1,), 4, RawCodec(), length)
    pieces = sum(piece_count(layout, count) for count in values)
    assert length >= 1
    assert length * itemsize <= most
    assert pieces * length - counts.sum() <= PADDING_SHARE * counts.sum()
    if most >= 2**28:
        assert pieces <= 13 * len(values)


def test_chunks_that_are_about_as_long_have_one_piece_each():
    counts = np.random.default_rng(0).integers(950, 1001, 50)
    assert piece_length_for(counts, 4, 2**30) == counts.max()


def test_long_pieces_are_whole_blocks():
    """So that they can be mapped one behind the other on machines with pages of up to 64 KiB."""
    counts = np.array([16, 16, 16, 3]) * 2**20
    length = piece_length_for(counts, 4, 2**40)
    assert length < counts.max()
    assert length * 4 % 2**16 == 0


@given(SHAPES)
def test_extents_are_read_as_they_are_written(shapes):
    array = np.array(shapes, np.int64)
    layout = field(axes=2, length=len(shapes) + 3)
    rows = extents_rows(array, layout.chunk_length)
    values = int(array.prod(axis=1).sum())
    found = parse_extents(layout, 0, "", rows.view(np.uint8).ravel(), len(shapes), values)
    expected = Extents.of(array)
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.shapes.tolist() == array.tolist()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_of_one_axis_the_end_says_all(lengths):
    array = np.array(lengths, np.int64)[:, None]
    rows = extents_rows(array, 24)
    assert rows.shape == (24, 1)
    found = parse_extents(field(length=24), 0, "", rows.view(np.uint8).ravel(), len(lengths), sum(lengths))
    assert found.shapes.tolist() == array.tolist()


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([[3], [2]], 2),
        ([[-1], [2]], 2),
        ([[1], [3]], 2),
        ([[4, 2, 2], [6, 2, 2]], 6),
        ([[4, 2, 2], [6, -1, -2]], 6),
        ([[4, 2**32 + 1, 2**32], [4, 0, 7]], 4),  # the product is 2**32 in 64 bits; see the next
        ([[4, 2**62, 2], [4, 0, 7]], 4),
        ([[0, 2**63 - 1, 2**62], [4, 2, 2]], 4),
    ],
)
def test_extents_that_cannot_be_are_refused(rows, values):
    array = np.array(rows, np.int64)
    layout = field(axes=max(1, array.shape[1] - 1), length=2)
    with pytest.raises(ChunkError, match="chunk 3"):
        parse_extents(layout, 3, "file", array.view(np.uint8).ravel(), 2, values)


@given(SHAPES, st.data())
def test_a_ragged_array_gives_its_samples_and_parts(shapes, data):
    array = np.array(shapes, np.int64)
    extents = Extents.of(array)
    values = np.arange(int(extents.offsets[-1]))
    whole = RaggedArray(values, extents)
    expected = np.split(values, extents.offsets[1:-1])
    assert [each.tolist() for each in whole] == [
        each.reshape(shape).tolist() for each, shape in zip(expected, shapes, strict=True)
    ]
    start = data.draw(st.integers(0, len(shapes)))
    stop = data.draw(st.integers(0, len(shapes)))
    part = whole[start:stop]
    assert [each.tolist() for each in part] == [each.tolist() for each in [*whole][start:stop]]
    assert part.own_values.tolist() == [value for each in expected[start:stop] for value in each]
    moved = RaggedArray(part.own_values, part.extents, int(part.extents.offsets[0]))
    assert [each.tolist() for each in moved] == [each.tolist() for each in part]


def test_the_files_of_a_chunk_are_its_extents_and_its_pieces():
    files = chunk_files("/s", field(axes=2, piece=10), 7, 21)
    assert [path for _, path in files] == [
        "/s/__mmapload__/extents/x/c.7.0",
        "/s/x/c.7.0",
        "/s/x/c.7.1",
        "/s/x/c.7.2",
    ]
    assert [layout.chunk_nbytes for layout, _ in files] == [4 * 3 * 8, 20, 20, 20]
    assert len(chunk_files("/s", field(), 7, 0)) == 1


def test_the_notes_of_a_field_say_how_many_axes_its_samples_have():
    layout = StoreLayout(5, 2, 4, (field(axes=3), FieldLayout("y", np.dtype("u1"), (), 4, RawCodec())))
    assert layout.root_attributes()["mmapload"]["fields"] == {"x": {"ragged": 3}, "y": {}}
    assert [each.name for each in layout.ragged] == ["x"]
    assert layout.sample_nbytes == 1


def test_raw_values_are_read_without_the_zeros_behind_them_and_checked_with_them(tmp_path):
    layout = field(piece=4)
    (tmp_path / "x").mkdir()
    values = np.arange(7, dtype="<u2")
    for piece, content in enumerate([values[:4], np.append(values[4:], 0).astype("<u2")]):
        data = content.tobytes()
        (tmp_path / "x" / f"c.0.{piece}").write_bytes(data + checksum(np.frombuffer(data, np.uint8)))
    into = np.full(16, 0xAA, np.uint8)
    trailers, nbytes = read_values(str(tmp_path), layout, 0, 7, into)
    assert into[:14].view("<u2").tolist() == values.tolist()
    assert into[14:].tolist() == [0xAA, 0xAA]
    assert nbytes == 14 + 2 * CHECKSUM_BYTES
    assert combined_checksum(trailers) == checksum(np.frombuffer(b"".join(trailers), np.uint8))
    content = bytearray((tmp_path / "x" / "c.0.1").read_bytes())
    content[1] ^= 1
    (tmp_path / "x" / "c.0.1").write_bytes(content)
    with pytest.raises(ChunkError, match=r"damaged in .*c\.0\.1"):
        read_values(str(tmp_path), layout, 0, 7, into)
    assert read_values(str(tmp_path), layout, 0, 7, into, verify=False)[1] == nbytes
