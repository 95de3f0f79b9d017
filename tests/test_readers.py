"""Chunks come into memory bit by bit as they were stored, whichever way, or an error says what is wrong."""

from __future__ import annotations

import json
import math
import os
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.checks import Checks
from mmapload.codecs import CODEC_NAMES
from mmapload.errors import ChunkError
from mmapload.layout import CORE_DTYPES
from mmapload.readers import BufferedReader, MappedReader, mapped, reader_for
from mmapload.store import open_store
from tests.loading_cases import (
    cached_pages,
    evictable_folder,
    flip_byte,
    maps_of,
    open_reader,
    random_arrays,
    same_bits,
    undisturbed,
    write_store,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.checks import Verify
    from mmapload.readers import ChunkReader
    from mmapload.store import Store

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
FIELDS = {"image": ("u1", (3, 5)), "flow": ("f4", (2, 3)), "label": ("i8", ())}


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    """Return ten samples of three fields."""
    return random_arrays(10, **FIELDS)


@pytest.fixture
def store(tmp_path: Path, arrays: dict[str, np.ndarray]) -> Store:
    """Write them raw, in chunks of four."""
    return write_store(tmp_path / "store", arrays, 4)


@pytest.fixture(params=["raw", "zstd"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path, arrays: dict[str, np.ndarray]) -> Store:
    """Write them so that they are mapped, and so that they are decoded."""
    return write_store(tmp_path / "store", arrays, 4, request.param)


def both_readers(store: Store, verify: Verify = "first") -> list[ChunkReader]:
    """Make every reader that can read the store."""
    fields = store.layout.fields
    kinds = [MappedReader, BufferedReader] if all(f.codec.is_raw for f in fields) else [BufferedReader]
    checks = [Checks(verify, len(fields), store.layout.chunks) for _ in kinds]
    return [kind(store, fields, check, drop_behind=False) for kind, check in zip(kinds, checks, strict=True)]


def chunk_file(store: Store, field: str, chunk: int) -> Path:
    return Path(store.chunk_path(store.field(field), chunk))


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], int, str]:
    """Fields of random bits, a chunk length, and a codec."""
    length = draw(st.sampled_from([1, 2, 5, 8]))
    count = draw(st.sampled_from([1, max(1, length - 1), length, length + 1, 2 * length, 13]))
    fields = {
        name: (draw(st.sampled_from(sorted(CORE_DTYPES))), draw(SHAPES))
        for name in draw(st.sampled_from([["x"], ["b", "a"]]))
    }
    return (
        random_arrays(count, draw(st.integers(0, 99)), **fields),
        length,
        draw(st.sampled_from(CODEC_NAMES)),
    )


@given(data_sets(), st.data())
@settings(max_examples=15)
def test_mapped_and_buffered_readers_and_zarr_python_give_equal_bits(
    case: tuple[dict[str, np.ndarray], int, str], data: st.DataObject
) -> None:
    zarr = pytest.importorskip("zarr")
    arrays, length, codec = case
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(f"{folder}/store", arrays, length, codec)
        witness = zarr.open_group(store.path, mode="r")
        for reader in both_readers(store):
            for chunk in range(store.layout.chunks):
                there = store.layout.chunk_samples(chunk)
                start = data.draw(st.integers(0, there))
                stop = data.draw(st.integers(start, there))
                whole, rows = reader.load(chunk), reader.load(chunk, start, stop)
                assert list(whole) == list(rows) == list(arrays)
                for name, array in arrays.items():
                    wanted = array[chunk * length : (chunk + 1) * length]
                    assert same_bits(whole[name], wanted)
                    assert same_bits(whole[name], witness[name][chunk * length : (chunk + 1) * length])
                    assert same_bits(rows[name], wanted[start:stop])
                    assert whole[name].flags.writeable


def test_every_type_of_every_codec_comes_back_bit_by_bit(tmp_path: Path, codec_name: str) -> None:
    shapes = [(), (3,), (2, 0), (1, 2, 3)]
    fields = {f"{dtype}-{len(shape)}": (dtype, shape) for dtype in CORE_DTYPES for shape in shapes}
    arrays = random_arrays(7, **fields)
    store = write_store(tmp_path / "store", arrays, 4, codec_name)
    for reader in both_readers(store):
        for chunk in range(2):
            for name, array in reader.load(chunk).items():
                assert same_bits(array, arrays[name][4 * chunk : 4 * chunk + 4])


def test_the_reader_that_suits_the_store_is_chosen(any_store: Store) -> None:
    raw = all(field.codec.is_raw for field in any_store.layout.fields)
    assert open_reader(any_store).maps == raw


def test_a_store_of_one_raw_and_one_compressed_field_is_read(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    store = write_store(tmp_path / "store", {"image": arrays["image"]}, 4)
    other = write_store(tmp_path / "other", {"flow": arrays["flow"]}, 4, "blosc-lz4")
    Path(other.path, "flow").rename(Path(store.path, "flow"))
    root = Path(store.path, "zarr.json")
    document = json.loads(root.read_text())
    document["attributes"]["mmapload"]["fields"]["flow"] = {}
    document["attributes"]["mmapload"]["checksums"] = False  # the list knows one field
    del document["attributes"]["mmapload"]["metadata_checksum"]
    root.write_text(json.dumps(document))
    mixed = open_store(store.path)
    reader = open_reader(mixed)
    assert not reader.maps
    for chunk in range(mixed.layout.chunks):
        loaded = reader.load(chunk)
        for name in ("image", "flow"):
            assert same_bits(loaded[name], arrays[name][4 * chunk : 4 * chunk + 4])
    raw_only = reader_for(mixed, mixed.layout.fields[:1], Checks("first", 1, 3), drop_behind=False)
    assert raw_only.maps
    assert same_bits(raw_only.load(1)["image"], arrays["image"][4:8])


def test_writing_into_what_was_loaded_reaches_neither_the_file_nor_a_later_load(
    any_store: Store, arrays: dict[str, np.ndarray]
) -> None:
    before = {path: path.read_bytes() for path in Path(any_store.path).rglob("c.*")}
    for reader in both_readers(any_store):
        first, second = reader.load(0), reader.load(0)
        for array in first.values():
            array[...] = 1
        for name in arrays:
            assert same_bits(second[name], arrays[name][:4])
            assert same_bits(reader.load(0)[name], arrays[name][:4])
    assert before == {path: path.read_bytes() for path in Path(any_store.path).rglob("c.*")}


@pytest.mark.parametrize("verify", ["first", "always"])
@pytest.mark.parametrize("place", [0, 29, -4, -1])
@pytest.mark.parametrize("rows", [(), (1, 2)])
def test_a_damaged_byte_is_found_by_the_first_load_of_any_rows(
    any_store: Store, verify: Verify, place: int, rows: tuple[int, ...]
) -> None:
    path = chunk_file(any_store, "flow", 1)
    flip_byte(path, place % path.stat().st_size)
    for reader in both_readers(any_store, verify):
        reader.load(0)
        for _ in range(2):
            with pytest.raises(ChunkError, match="checksum") as caught:
                reader.load(1, *rows)
            assert (caught.value.field, caught.value.chunk, caught.value.path) == ("flow", 1, str(path))
    assert maps_of(path) == 0


def test_a_byte_damaged_after_the_first_load_is_found_if_checksums_are_always_computed(
    any_store: Store, arrays: dict[str, np.ndarray]
) -> None:
    first, always = both_readers(any_store), both_readers(any_store, "always")
    for reader in first + always:
        reader.load(0)
    flip_byte(chunk_file(any_store, "label", 0), -1 % chunk_file(any_store, "label", 0).stat().st_size)
    for reader in always:
        with pytest.raises(ChunkError, match="checksum"):
            reader.load(0)
    for reader in first:
        assert same_bits(reader.load(0)["label"], arrays["label"][:4])


def test_checksums_that_are_never_computed_find_nothing(store: Store, arrays: dict[str, np.ndarray]) -> None:
    flip_byte(chunk_file(store, "image", 0))
    for reader in both_readers(store, "never"):
        assert (reader.load(0)["image"] != arrays["image"][:4]).sum() == 1


def test_a_damaged_frame_is_found_by_its_decoder_even_if_checksums_are_never_computed(
    tmp_path: Path, arrays: dict[str, np.ndarray]
) -> None:
    store = write_store(tmp_path / "store", arrays, 4, "zstd")
    flip_byte(chunk_file(store, "image", 0))
    with pytest.raises(ChunkError, match="zstd"):
        open_reader(store, "never").load(0)


def test_bringing_a_chunk_into_the_page_cache_checks_it_once_where_it_is_mapped(store: Store) -> None:
    flip_byte(chunk_file(store, "image", 0))
    reader = open_reader(store)
    with pytest.raises(ChunkError, match="checksum"):
        reader.warm(0, 1, 2)
    reader.warm(1, 1, 2)
    flip_byte(chunk_file(store, "image", 1))
    reader.load(1)


def test_a_chunk_checked_in_a_forked_process_is_not_checked_again(any_store: Store) -> None:
    forked = both_readers(any_store)
    for reader in forked:
        child = os.fork()
        if child == 0:
            reader.load(0)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    path = chunk_file(any_store, "image", 0)
    flip_byte(path, path.stat().st_size - 1)  # in the checksum
    for reader in forked:
        reader.load(0)
    for reader in both_readers(any_store):
        with pytest.raises(ChunkError):
            reader.load(0)


@pytest.mark.parametrize("fault", ["missing", "empty", "short", "long", "folder", "pipe"])
def test_a_file_of_the_wrong_size_is_refused_by_name_before_it_is_mapped(
    store: Store, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    path = chunk_file(store, "flow", 2)
    content = path.read_bytes()
    path.unlink()
    if fault == "folder":
        path.mkdir()
    elif fault == "pipe":
        os.mkfifo(path)
    elif fault != "missing":
        path.write_bytes({"empty": b"", "short": content[:-1], "long": content + b"\0"}[fault])
    seen = []
    real = mapped.map_private

    def note(fd: int, *arguments: Any, **options: Any) -> np.ndarray:
        seen.append(os.readlink(f"/proc/self/fd/{fd}"))
        return real(fd, *arguments, **options)

    monkeypatch.setattr(mapped, "map_private", note)
    one = np.array([0])
    into = {name: np.empty((1, *shape), dtype) for name, (dtype, shape) in FIELDS.items()}
    never = open_reader(store, "never")
    accesses: list[Callable[[], object]] = [lambda: never.read_rows(2, one, into, one)]
    for reader in (*both_readers(store), *both_readers(store, "never")):
        accesses += [partial(reader.load, 2), partial(reader.load, 2, 1, 2), partial(reader.warm, 2)]
    for access in accesses:
        with pytest.raises(ChunkError) as caught:
            access()
        assert (caught.value.field, caught.value.chunk, caught.value.path) == ("flow", 2, str(path))
        assert "chunk 2 of field 'flow', samples 8 to 9: expected" in str(caught.value)
    assert str(path) not in seen


def test_a_file_that_shrinks_after_its_size_was_checked_is_an_error_and_kills_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = write_store(tmp_path / "store", random_arrays(2, x=("u1", (20_000,))), 2)
    path = chunk_file(store, "x", 0)
    content = path.read_bytes()
    real = mapped.open_chunk_file

    def open_and_shrink(*arguments: Any) -> tuple[int, int]:
        found = real(*arguments)
        os.truncate(path, 5000)
        return found

    monkeypatch.setattr(mapped, "open_chunk_file", open_and_shrink)
    for verify in ("first", "never"):
        path.write_bytes(content)
        with pytest.raises(ChunkError, match="shrank"):
            open_reader(store, verify).load(0)
    path.write_bytes(content)
    with pytest.raises(ChunkError, match="end of the file"):
        open_reader(store, "never").read_rows(
            0, np.array([1]), {"x": np.empty((1, 20_000), np.uint8)}, np.array([0])
        )
    assert maps_of(path) == 0


def test_errors_leave_no_descriptor_open(store: Store) -> None:
    chunk_file(store, "label", 0).unlink()
    flip_byte(chunk_file(store, "label", 1))
    before = len(os.listdir("/proc/self/fd"))
    for reader in both_readers(store):
        for chunk in (0, 1):
            for access in (reader.load, reader.warm):
                if not (access == reader.warm and not reader.maps and chunk == 1):
                    with pytest.raises(ChunkError):
                        access(chunk)
    assert len(os.listdir("/proc/self/fd")) == before


@given(data_sets(), st.data())
@settings(max_examples=12)
def test_rows_read_alone_equal_rows_of_the_loaded_chunk(
    case: tuple[dict[str, np.ndarray], int, str], data: st.DataObject
) -> None:
    arrays, length, _ = case
    with tempfile.TemporaryDirectory() as folder:
        store = write_store(f"{folder}/store", arrays, length)
        reader = open_reader(store)
        chunk = data.draw(st.integers(0, store.layout.chunks - 1))
        row = st.integers(0, store.layout.chunk_samples(chunk) - 1)
        rows = np.array(data.draw(st.lists(row, min_size=1, max_size=9)))
        places = np.array(data.draw(st.permutations(range(len(rows)))))
        into = {name: np.empty((len(rows), *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        if store.layout.chunk_nbytes:
            assert not reader.read_rows(chunk, rows, into, places)  # it has not been checked yet
        loaded = reader.load(chunk)
        before = reader.bytes_loaded
        assert reader.read_rows(chunk, rows, into, places)
        assert reader.bytes_loaded - before == len(rows) * store.layout.sample_nbytes
        for name, array in loaded.items():
            assert same_bits(into[name][places], array[rows])


def test_rows_of_compressed_or_always_checked_chunks_are_not_read_alone(any_store: Store) -> None:
    into = {name: np.zeros((1, *shape), dtype) for name, (dtype, shape) in FIELDS.items()}
    for reader in both_readers(any_store, "always" if open_reader(any_store).maps else "first"):
        reader.load(0)
        assert not reader.read_rows(0, np.array([1]), into, np.array([0]))
    assert not any(array.any() for array in into.values())


def test_what_was_loaded_is_counted(any_store: Store) -> None:
    files = sum(path.stat().st_size for path in Path(any_store.path).glob("[!_]*/c.0*"))
    for reader in both_readers(any_store):
        reader.load(0)
        assert (reader.chunks_loaded, reader.bytes_loaded) == (1, files)
        reader.load(0, 1, 3)
        rows = 2 * any_store.layout.sample_nbytes if reader.maps else files
        assert (reader.chunks_loaded, reader.bytes_loaded) == (2, files + rows)
        reader.warm(0)
        assert (reader.chunks_loaded, reader.bytes_loaded) == (2, files + rows)


def test_threads_that_load_at_once_get_their_own_chunks_and_every_load_counts(
    any_store: Store, arrays: dict[str, np.ndarray]
) -> None:
    for reader in both_readers(any_store):
        wrong = []

        def work(seed: int, reader: ChunkReader = reader, wrong: list[int] = wrong) -> None:
            for chunk in np.random.default_rng(seed).integers(0, 3, 50).tolist():
                loaded = reader.load(chunk)
                for name, array in arrays.items():
                    if not same_bits(loaded[name], array[4 * chunk : 4 * chunk + 4]):
                        wrong.append(chunk)
                    loaded[name][...] = 0

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (wrong, reader.chunks_loaded) == ([], 400)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_pages_of_a_chunk_are_dropped_behind_it_only_if_that_is_wanted(tmp_path: Path, codec: str) -> None:
    with evictable_folder(tmp_path) as folder:
        arrays = random_arrays(4, x=("u1", (3, 7001)), y=("f4", (5000,)))
        store = write_store(folder / "store", arrays, 4, codec)
        paths = [chunk_file(store, "x", 0), chunk_file(store, "y", 0)]

        @undisturbed
        def check() -> None:
            keeps, drops = open_reader(store), open_reader(store, drop_behind=True)
            kept = keeps.load(0)
            in_full = [cached_pages(path) for path in paths]
            assert in_full == [math.ceil(path.stat().st_size / 4096) for path in paths]
            del kept
            assert [cached_pages(path) for path in paths] == in_full
            del keeps  # and with it the maps that it would use again
            loaded = drops.load(0)
            if drops.maps:
                assert [cached_pages(path) for path in paths] == in_full
            del loaded
            assert [cached_pages(path) for path in paths] == [0, 0]
            loaded = drops.load(0)  # no checksum is due any more
            del loaded
            assert [cached_pages(path) for path in paths] == [0, 0]
            drops.warm(0)
            if drops.maps:
                assert [cached_pages(path) for path in paths] == in_full

        check()


def test_memory_of_chunks_that_are_dropped_together_is_used_again_for_chunks_and_for_what_is_read(
    tmp_path: Path,
) -> None:
    arrays = random_arrays(80, image=("u1", (3, 50)), label=("i8", ()))
    store = write_store(tmp_path / "store", arrays, 8, "zstd")
    fields = store.layout.fields
    reader = reader_for(store, fields, Checks("never", 2, 10), drop_behind=False, held=7)
    assert isinstance(reader, BufferedReader)
    for epoch in range(4):
        held = [reader.load((epoch + chunk) % 10) for chunk in range(7)]
        assert same_bits(held[3]["image"], arrays["image"][8 * (epoch + 3) : 8 * (epoch + 4)])
        del held
    assert [pool.made for pool in reader._pools] == [7, 7]
    assert [pool.made for pool in reader._scratch] == [1, 1]
