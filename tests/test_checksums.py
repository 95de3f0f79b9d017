"""The list of checksums: chunk files that stand in each other's places are noticed, and named."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload import checksums
from mmapload.codecs import checksum
from mmapload.errors import ChunkError
from mmapload.layout import RESERVED_GROUP
from mmapload.reserved import checksums_array
from mmapload.store import Store, open_store
from tests.loading_cases import (
    flip_byte,
    open_reader,
    random_arrays,
    same_bits,
    swap,
    unseal,
    write_store,
)

FIELDS = {"first": ("u1", (3, 5)), "empty": ("f4", (0,)), "second": ("i1", (15,)), "label": ("i8", ())}


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    return random_arrays(20, **FIELDS)


@pytest.fixture(params=["raw", "zstd"])
def store(request: pytest.FixtureRequest, tmp_path: Path, arrays: dict[str, np.ndarray]) -> Store:
    """Two fields of one size among others, in five chunks."""
    return write_store(tmp_path / "store", arrays, 4, request.param)


def chunk_file(store: Store, field: str, chunk: int) -> Path:
    return Path(store.chunk_path(store.field(field), chunk))


def list_file(store: Store, piece: int = 0) -> Path:
    return Path(store.path, RESERVED_GROUP, "checksums", f"c.{piece}.0")


def fault(store: Store, field: str, chunk: int) -> ChunkError:
    """Read a chunk in every way that computes checksums: one and the same error."""
    told = []
    ways: list[Any] = [lambda: open_store(store.path).read_chunk(field, chunk)]
    for verify in ("first", "always"):
        reader = open_reader(store, verify)
        ways += [lambda reader=reader: reader.load(chunk), lambda reader=reader: reader.load(chunk, 1, 2)]
        ways += [lambda reader=reader: reader.warm(chunk)] if reader.maps else []
    for way in ways:
        with pytest.raises(ChunkError) as caught:
            way()
        assert (caught.value.field, caught.value.chunk) == (field, chunk)
        assert caught.value.path == str(chunk_file(store, field, chunk))
        told.append(str(caught.value))
    assert len(set(told)) == 1
    return caught.value


def faults(store: Store, threads: int = 2) -> list[ChunkError]:
    return [found for found in store.verify(threads) if found is not None]


def test_two_files_of_a_field_that_were_swapped_are_each_said_to_be_the_other(store: Store) -> None:
    swap(chunk_file(store, "first", 1), chunk_file(store, "first", 4))
    sums = {
        chunk: chunk_file(store, "first", chunk).read_bytes()[:-5:-1].hex() for chunk in (1, 4)
    }  # as they lie now
    for chunk, other in ((1, 4), (4, 1)):
        error = fault(store, "first", chunk)
        assert error.expected == f"checksum {sums[other]}"
        assert error.found == (
            f"{sums[chunk]}, which is that of chunk {other} of this field: the files were swapped"
        )
        assert error.samples == range(4 * chunk, 4 * chunk + 4)
        assert "give the files their names back" in str(error)
    assert [(each.field, each.chunk) for each in faults(store)] == [("first", 1), ("first", 4)]


def test_files_of_two_fields_of_one_size_that_were_swapped_are_named_with_their_fields(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    store = write_store(tmp_path / "store", arrays, 4)
    swap(chunk_file(store, "first", 1).with_name("c.1.0.0"), chunk_file(store, "second", 2))
    assert "which is that of chunk 2 of field 'second'" in fault(store, "first", 1).found
    assert "which is that of chunk 1 of field 'first'" in fault(store, "second", 2).found
    assert [(each.field, each.chunk) for each in faults(store)] == [("first", 1), ("second", 2)]


def test_a_file_of_another_store_is_said_to_be_none_of_this_one(store: Store, tmp_path: Path) -> None:
    codec = store.field("label").codec.name
    other = write_store(tmp_path / "other", random_arrays(20, 1, **FIELDS), 4, codec)
    shutil.copy(chunk_file(other, "label", 3), chunk_file(store, "label", 3))
    assert "lists for no file: it belongs to another store" in fault(store, "label", 3).found


def test_checksums_that_are_never_computed_are_not_compared_either(
    store: Store, arrays: dict[str, np.ndarray]
) -> None:
    swap(chunk_file(store, "label", 0), chunk_file(store, "label", 1))
    list_file(store).unlink()
    loaded = open_reader(store, "never").load(0)
    assert same_bits(loaded["label"], arrays["label"][4:8])


@given(st.permutations(range(5)), st.sampled_from(["raw", "blosc-lz4"]))
@settings(max_examples=15)
def test_just_the_files_that_moved_are_faults_whatever_the_order(order: list[int], codec: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(f"{folder}/store", random_arrays(18, x=("u2", (3,))), 4, codec)
        for chunk in range(5):
            os.rename(chunk_file(store, "x", chunk), f"{folder}/{chunk}")
        for place, chunk in enumerate(order):
            os.rename(f"{folder}/{chunk}", chunk_file(store, "x", place))
        found = {each.chunk: each.found for each in faults(store)}
        assert found.keys() == {place for place, chunk in enumerate(order) if place != chunk}
        for place, text in found.items():
            assert f"that of chunk {order[place]} of this field" in text


def test_files_with_equal_contents_may_be_swapped(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"x": np.zeros((12, 3), np.uint8)}, 4)
    swap(chunk_file(store, "x", 0), chunk_file(store, "x", 2))
    assert faults(store) == []


@pytest.mark.parametrize("harm", ["missing", "short", "damaged", "zeros", "link", "folder"])
def test_a_list_that_cannot_be_read_is_an_error_that_names_its_file(store: Store, harm: str) -> None:
    path = list_file(store)
    size = path.stat().st_size
    if harm == "damaged":
        flip_byte(path, 5)
    elif harm in {"short", "zeros"}:
        os.truncate(path, 0 if harm == "zeros" else size - 1)
        os.truncate(path, size if harm == "zeros" else size - 1)
    else:
        path.rename(path.with_name("aside"))
        if harm == "link":
            path.symlink_to("aside")
        elif harm == "folder":
            path.mkdir()
    ways: list[Any] = [lambda: open_store(store.path).read_chunk("label", 2)]
    ways += [lambda: open_reader(store).load(2), lambda: open_reader(store, "always").load(2)]
    for way in ways:
        with pytest.raises(ChunkError) as caught:
            way()
        assert (caught.value.field, caught.value.path) == ("checksums", str(path))
        assert str(path) in str(caught.value)
    (only,) = faults(store)
    assert only.path == str(path)


def test_a_damaged_chunk_file_is_damaged_and_not_swapped(store: Store) -> None:
    path = chunk_file(store, "label", 2)
    for place in (0, path.stat().st_size - 1):
        flip_byte(path, place)
        assert fault(store, "label", 2).found.endswith(": the file is damaged")
        flip_byte(path, place)


def test_a_store_without_a_list_reads_as_before(store: Store, arrays: dict[str, np.ndarray]) -> None:
    shutil.rmtree(Path(store.path, RESERVED_GROUP))
    unseal(store.path)
    root = Path(store.path, "zarr.json")
    document = json.loads(root.read_text())
    assert document["attributes"]["mmapload"].pop("checksums") is True
    root.write_text(json.dumps(document))
    before = open_store(store.path)
    assert not before.layout.has_checksums
    assert before.fingerprint == store.fingerprint
    assert faults(before) == []
    swap(chunk_file(before, "label", 0), chunk_file(before, "label", 1))
    assert same_bits(before.read_chunk("label", 0), arrays["label"][4:8])
    assert same_bits(open_reader(before).load(1)["label"], arrays["label"][:4])
    document["attributes"]["mmapload"]["checksums"] = False
    root.write_text(json.dumps(document))
    assert open_store(store.path).layout == before.layout


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that grows by the rows that are read of the list of checksums."""
    read: list[tuple[int, int]] = []
    real = checksums.read_elements

    def note(path: str, array: Any, start: int, stop: int) -> Any:
        read.append((start, stop))
        return real(path, array, start, stop)

    monkeypatch.setattr(checksums, "read_elements", note)
    return read


def test_the_list_is_read_once_and_not_when_nothing_is_due(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = counted(monkeypatch)
    reader = open_reader(store)
    for chunk in (3, 1, 3, 0, 4):
        reader.load(chunk)
    assert read == [(0, 5)]
    assert [*store.verify(3)] == [None] * 16
    store.read_chunk("label", 2)
    assert read == [(0, 5)]
    again = open_store(store.path)
    open_reader(again, "never").load(0)
    assert read == [(0, 5)]
    again.read_chunk("label", 2)
    assert read == [(0, 5)] * 2


def test_a_list_of_several_pieces_is_read_piece_by_piece_and_searched_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = checksums_array(1).chunk_length
    layout = write_store(tmp_path / "store", {"x": np.arange(3, dtype=np.int16)}, 1).layout
    values = np.arange(2 * rows, dtype="<u4") + 7
    for piece in range(2):
        data = values[piece * rows : (piece + 1) * rows].view(np.uint8)
        list_file(open_store(tmp_path / "store"), piece).write_bytes(data.tobytes() + checksum(data))
    long = type(layout)(2 * rows, 1, 1, layout.fields, has_checksums=True)
    listed = checksums.ChecksumList(str(tmp_path / "store"), long)
    field = layout.fields[0]
    read = counted(monkeypatch)
    for chunk in (rows, rows + 5, 2 * rows - 1, rows):
        listed.expect(field, chunk, "x", values[chunk].tobytes())
    assert read == [(rows, 2 * rows)]
    with pytest.raises(ChunkError, match=f"that of chunk {rows + 5} of this field"):
        listed.expect(field, 3, "x", values[rows + 5].tobytes())
    with pytest.raises(ChunkError, match="that of chunk 3 of this field"):
        listed.expect(field, rows + 5, "x", values[3].tobytes())
    list_file(open_store(tmp_path / "store"), 1).unlink()
    again = checksums.ChecksumList(str(tmp_path / "store"), long)
    with pytest.raises(ChunkError, match="lists for no file"):  # as far as it can be read
        again.expect(field, 3, "x", values[rows + 5].tobytes())


def test_a_store_that_has_read_its_list_pickles_as_small_and_compares_equal(store: Store) -> None:
    fresh = open_store(store.path)
    used = open_store(store.path)
    used.read_chunk("label", 0)
    assert len(pickle.dumps(used)) == len(pickle.dumps(fresh)) < 2000
    assert pickle.loads(pickle.dumps(used)) == used == fresh
    swap(chunk_file(store, "label", 0), chunk_file(store, "label", 1))
    with pytest.raises(ChunkError, match="swapped"):
        pickle.loads(pickle.dumps(used)).read_chunk("label", 0)


def test_no_field_with_files_leaves_a_list_of_zeros(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", {"x": np.zeros((5, 0), np.float32)}, 2)
    assert faults(store) == []
    assert not any(list_file(store).read_bytes()[:-4])
    assert store.read_chunk("x", 2).shape == (1, 0)
