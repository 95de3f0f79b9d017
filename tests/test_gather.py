"""Batches equal fancy indexing of the whole array, whichever way their samples come together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.gather import LARGE_SAMPLE_BYTES, VIEW_BYTES, BatchReader
from mmapload.order import Geometry, Use, epoch_order
from mmapload.residency import Residency
from tests.loading_cases import flip_byte, maps_of, open_reader, random_arrays, same_bits, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mmapload.checks import Verify
    from mmapload.store import Store

COUNT, LENGTH = 26, 4
SMALL = {
    "image": ("u1", (5, 3)),
    "flag": ("?", ()),
    "wave": ("c16", (2,)),
    "half": ("f2", (1, 1)),
    "none": ("f4", (3, 0)),
    "label": ("i8", ()),
}
LARGE = {"image": ("u1", (3, LARGE_SAMPLE_BYTES // 2)), "label": ("i4", ())}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Store, dict[str, np.ndarray]]]:
    """Return stores of small and of large samples, raw and compressed, with what they hold."""
    folder = tmp_path_factory.mktemp("gather")
    found = {}
    for name, fields in (("small", SMALL), ("large", LARGE)):
        arrays = random_arrays(COUNT, **fields)
        for codec in ("raw", "blosc-lz4"):
            found[f"{name} {codec}"] = write_store(folder / f"{name}-{codec}", arrays, LENGTH, codec), arrays
    return found


def batch_reader(store: Store, capacity: int | None = None, verify: Verify = "first") -> BatchReader:
    """Make one that can hold `capacity` chunks, or all."""
    layout = store.layout
    capacity = layout.chunks if capacity is None else capacity
    reader = open_reader(store, verify, drop_behind=capacity < layout.chunks)
    residency = Residency(reader, layout.chunk_nbytes, layout.chunks, capacity * layout.chunk_nbytes)
    return BatchReader(residency, layout.fields, layout.chunk_length)


def expect(batch: dict[str, np.ndarray], arrays: dict[str, np.ndarray], indices: np.ndarray) -> None:
    """Compare with fancy indexing, bit by bit."""
    assert list(batch) == list(arrays)
    for name, array in arrays.items():
        assert same_bits(batch[name], array[indices]), name
        assert batch[name].flags.c_contiguous
        assert batch[name].flags.writeable


def as_samples(indices: Iterable[int]) -> np.ndarray:
    return np.fromiter(indices, np.int64)


@pytest.mark.parametrize("kind", ["small raw", "small blosc-lz4", "large raw", "large blosc-lz4"])
@given(
    batches=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=12), min_size=1, max_size=4),
    capacity=st.sampled_from([1, 2, 7]),
    verify=st.sampled_from(["first", "never", "always"]),
)
@settings(max_examples=25)
def test_a_batch_equals_fancy_indexing_for_any_samples_in_any_order(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
    kind: str,
    batches: list[list[int]],
    capacity: int,
    verify: Verify,
) -> None:
    store, arrays = stores[kind]
    reading = batch_reader(store, capacity, verify)
    for indices in batches:
        expect(reading.batch(as_samples(indices)), arrays, as_samples(indices))
    assert (reading.views, reading.copies) == (0, len(batches))


def test_samples_of_chunks_that_are_not_held_are_read_one_by_one_once_the_chunk_has_been_checked(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    store, arrays = stores["small raw"]
    reading = batch_reader(store, 1)
    reader = reading.residency.reader
    everything = np.arange(COUNT)
    expect(reading.batch(everything), arrays, everything)
    assert reader.chunks_loaded == store.layout.chunks
    before = reader.bytes_loaded
    expect(reading.batch(as_samples([1, 17, 5])), arrays, as_samples([1, 17, 5]))
    assert reader.chunks_loaded == store.layout.chunks
    assert reader.bytes_loaded - before == 3 * store.layout.sample_nbytes


def test_samples_of_planned_chunks_come_from_the_chunk_that_is_held(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    store, arrays = stores["small raw"]
    reading = batch_reader(store, 2, "never")
    reading.residency.follow([Use(1, 0, 4, 0, 9)])
    reading.residency.advance(0, 0)
    for _ in range(3):
        expect(reading.batch(as_samples([6, 4, 6])), arrays, as_samples([6, 4, 6]))
    assert reading.residency.reader.chunks_loaded == 1
    assert not reading.wanders


@pytest.mark.parametrize("capacity", [7, 6])
def test_small_samples_of_chunks_in_memory_are_copied_once_with_one_call_for_all_chunks(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]], capacity: int
) -> None:
    store, arrays = stores["small raw"]
    reading = batch_reader(store, capacity)
    residency = reading.residency
    for chunk in range(6):
        residency.get(chunk)
    indices = np.random.default_rng(0).integers(0, 24, 100)
    expect(reading.batch(indices), arrays, indices)
    assert reading.at_once == 1
    expect(reading.batch(as_samples([25, 0])), arrays, as_samples([25, 0]))
    assert reading.at_once == 1
    assert residency.reader.chunks_loaded == 7


def test_a_chunk_loaded_again_while_somebody_reads_it_gives_the_same_samples(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    store, arrays = stores["small raw"]
    reading = batch_reader(store)
    residency = reading.residency
    held = residency.get(3)
    residency._drop(3)  # as another thread may while one gathers
    expect(reading.batch(as_samples([13, 12, 14])), arrays, as_samples([13, 12, 14]))
    assert reading.at_once == 0, "its place is taken"
    assert same_bits(held["wave"], arrays["wave"][12:16])
    del held
    residency._drop(3)
    for at_once in (0, 1):
        expect(reading.batch(as_samples([13, 12, 14])), arrays, as_samples([13, 12, 14]))
        assert reading.at_once == at_once


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, np.ndarray]]:
    """Return a store in which four samples make a view worth while, in chunks of eight."""
    arrays = random_arrays(20, image=("u1", (VIEW_BYTES // 4,)), label=("i8", ()))
    return write_store(tmp_path_factory.mktemp("wide") / "store", arrays, 8), arrays


@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize(
    ("indices", "views"),
    [
        (range(4), 1),
        (range(3, 8), 1),
        (range(8, 16), 1),
        (range(16, 20), 1),
        (range(3), 0),  # too small
        (range(6, 10), 0),  # in two chunks
        ([0, 1, 2, 2, 3], 0),
        ([3, 2, 1, 0], 0),
        ([0, 1, 2, 4], 0),
        ([7, 0, 1, 2, 7], 0),
    ],
)
def test_large_batches_of_neighbours_in_one_chunk_are_mapped_and_all_others_copied(
    wide: tuple[Store, dict[str, np.ndarray]], indices: Iterable[int], views: int, capacity: int
) -> None:
    store, arrays = wide
    reading = batch_reader(store, capacity)
    for _ in range(2):
        expect(reading.batch(as_samples(indices)), arrays, as_samples(indices))
    assert (reading.views, reading.copies) == (2 * views, 2 - 2 * views)


def test_a_batch_that_is_a_whole_compressed_chunk_is_handed_over_unless_the_chunk_is_to_stay(
    tmp_path: Path,
) -> None:
    arrays = random_arrays(20, image=("u1", (VIEW_BYTES // 4,)), label=("i8", ()))
    store = write_store(tmp_path / "store", arrays, 8, "blosc-lz4")
    reading = batch_reader(store, 2)
    residency, whole = reading.residency, np.arange(8, 16)
    first, second = reading.batch(whole), reading.batch(whole)
    for array in first.values():
        array[...] = 1
    expect(second, arrays, whole)
    expect(reading.batch(whole), arrays, whole)
    assert (reading.views, residency.counts.resident_bytes, residency.reader.chunks_loaded) == (3, 0, 3)
    for indices in (np.arange(8, 15), np.arange(16, 20), whole[::-1]):  # no whole chunk, or in another order
        expect(reading.batch(indices), arrays, indices)
    assert (reading.views, reading.copies) == (3, 3)
    expect(reading.batch(whole), arrays, whole)  # the chunk is resident now
    assert reading.views == 3
    for stays in (batch_reader(store, 2), batch_reader(store)):
        stays.residency.follow((), rows_only=True, kept=2)
        for _ in range(2):
            expect(stays.batch(whole), arrays, whole)
        assert (stays.views, stays.residency.reader.chunks_loaded) == (0, 1)


def test_one_sample_of_the_size_of_a_view_is_mapped(tmp_path: Path) -> None:
    arrays = random_arrays(3, x=("u1", (VIEW_BYTES,)))
    reading = batch_reader(write_store(tmp_path / "store", arrays, 2), 1)
    for i in (2, 0, 1):
        expect(reading.batch(as_samples([i])), arrays, as_samples([i]))
    assert reading.views == 3


@pytest.mark.parametrize("capacity", [1, 7])
@pytest.mark.parametrize("kind", ["small raw", "small blosc-lz4", "large raw"])
def test_writing_into_a_batch_reaches_neither_the_store_nor_a_later_or_an_earlier_batch(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]], kind: str, capacity: int
) -> None:
    store, arrays = stores[kind]
    files = {path: path.read_bytes() for path in Path(store.path).rglob("c.*")}
    reading = batch_reader(store, capacity)
    indices = as_samples([5, 5, 0, 20])
    first = reading.batch(indices)
    for _ in range(3):
        written = reading.batch(indices)
        for array in written.values():
            array[...] = 1
    expect(first, arrays, indices)
    expect(reading.batch(indices), arrays, indices)
    assert files == {path: path.read_bytes() for path in Path(store.path).rglob("c.*")}


def test_writing_into_a_mapped_batch_reaches_neither_the_store_nor_a_batch_over_the_same_samples(
    wide: tuple[Store, dict[str, np.ndarray]],
) -> None:
    store, arrays = wide
    path = Path(store.chunk_path(store.field("image"), 0))
    content = path.read_bytes()
    reading = batch_reader(store)
    earlier, written = reading.batch(np.arange(4)), reading.batch(np.arange(4))
    for array in written.values():
        array[...] = 1
    expect(earlier, arrays, np.arange(4))
    expect(reading.batch(np.arange(4)), arrays, np.arange(4))
    expect(reading.batch(np.arange(3)), arrays, np.arange(3))
    assert reading.views == 3
    assert path.read_bytes() == content
    del earlier, written, array
    expect(reading.batch(np.arange(4)), arrays, np.arange(4))
    # The chunk itself, for the batch that was too small to map; and what came back untouched: the whole file,
    # as it was checked, and the four rows. The map that was written to is gone.
    assert maps_of(path) == 3


def test_a_batch_keeps_its_values_when_its_chunk_is_dropped_and_its_memory_is_not_used_again_before_it_dies(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    store, arrays = stores["large blosc-lz4"]
    reading = batch_reader(store, 1)
    orders = [np.random.default_rng(seed).integers(0, COUNT, 6) for seed in range(20)]
    held = [reading.batch(indices) for indices in orders]
    for batch, indices in zip(held, orders, strict=True):
        expect(batch, arrays, indices)
    addresses = {batch["image"].ctypes.data for batch in held}
    assert len(addresses) == 20
    del batch
    held.clear()
    assert reading.batch(orders[0])["image"].ctypes.data in addresses


def test_threads_that_read_batches_at_once_get_the_right_samples(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    for store, arrays in stores.values():
        reading = batch_reader(store, 2)
        wrong: list[BaseException] = []

        def work(
            seed: int,
            reading: BatchReader = reading,
            arrays: dict[str, np.ndarray] = arrays,
            wrong: list[BaseException] = wrong,
        ) -> None:
            rng = np.random.default_rng(seed)
            try:
                for _ in range(30):
                    indices = rng.integers(0, COUNT, 5)
                    batch = reading.batch(indices)
                    expect(batch, arrays, indices)
                    batch["image"][...] = 0
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert not wrong, wrong[0]


def test_damage_is_found_whichever_way_a_batch_is_read(tmp_path: Path) -> None:
    arrays = random_arrays(16, image=("u1", (VIEW_BYTES // 4,)))
    store = write_store(tmp_path / "store", arrays, 8)
    flip_byte(store.chunk_path(store.field("image"), 1), 5 * VIEW_BYTES // 4)  # in sample 13
    for indices in ([8, 9, 10, 11], [8], [0, 15]):
        for capacity in (1, 2):
            with pytest.raises(OSError, match="checksum"):
                batch_reader(store, capacity).batch(as_samples(indices))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a store of fifty chunks of eight samples."""
    arrays = random_arrays(400, x=("i4", (3,)))
    return write_store(tmp_path_factory.mktemp("many") / "store", arrays, 8)


def chunk_wise(count: int, length: int, seed: int) -> np.ndarray:
    """Put the chunks in random order, the samples of each in order."""
    chunks = np.random.default_rng(seed).permutation(-(-count // length))
    samples = (chunks[:, np.newaxis] * length + np.arange(length)).ravel()
    return samples[samples < count]


def read_all(reading: BatchReader, samples: np.ndarray, batch: int, every: int = 1) -> None:
    """Read batch by batch, or every so-manieth batch, as one of several workers does."""
    for number, start in enumerate(range(0, len(samples), batch)):
        if number % every == 0:
            reading.batch(samples[start : start + batch])


@pytest.mark.parametrize("batch", [1, 2, 5, 8, 32, 100])
def test_random_access_to_more_than_fits_in_memory_wanders(many: Store, batch: int) -> None:
    for seed in range(5):
        reading = batch_reader(many, 2, "never")
        read_all(reading, np.random.default_rng(seed).permutation(400), batch)
        assert reading.wanders


@pytest.mark.parametrize("batch", [1, 3, 8, 12, 32])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_access_in_order_does_not_wander_nor_does_each_worker_s_share_of_it(
    many: Store, batch: int, workers: int
) -> None:
    reading = batch_reader(many, 2, "never")
    for _ in range(3):
        read_all(reading, np.arange(400), batch, workers)
        assert not reading.wanders


@pytest.mark.parametrize("batch", [4, 8, 12, 16, 32])
@pytest.mark.parametrize("workers", [1, 2])
def test_chunks_in_random_order_do_not_wander(many: Store, batch: int, workers: int) -> None:
    for seed in range(5):
        reading = batch_reader(many, 2, "never")
        read_all(reading, chunk_wise(400, 8, seed), batch, workers)
        assert not reading.wanders


def test_what_is_planned_or_fits_in_memory_does_not_wander(tmp_path: Path) -> None:
    arrays = random_arrays(200, x=("i4", (3,)))
    store = write_store(tmp_path / "store", arrays, 8)
    fits = batch_reader(store)
    read_all(fits, np.random.default_rng(0).permutation(200), 8)
    assert not fits.wanders
    order = epoch_order(Geometry(200, 8, 8), global_batch=8, window=32)
    planned = batch_reader(store, 10)
    planned.residency.follow(order.uses(0, 1))
    for step, batch in enumerate(order.rank_batches(0, 1)):
        planned.residency.advance(step, step + 4)
        expect(planned.batch(batch), arrays, batch)
    assert not planned.wanders


def test_an_empty_batch_has_the_fields_and_no_samples(
    stores: dict[str, tuple[Store, dict[str, np.ndarray]]],
) -> None:
    store, arrays = stores["small raw"]
    expect(batch_reader(store).batch(np.empty(0, np.int64)), arrays, np.empty(0, np.int64))


def test_a_store_whose_samples_have_no_bytes_gives_empty_arrays(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {"x": np.empty((5, 0), np.float32)}
    reading = batch_reader(write_store(tmp_path / "store", arrays, 2))
    expect(reading.batch(as_samples([4, 0, 4])), arrays, as_samples([4, 0, 4]))
