"""ChunkDataLoader: torch's class, the same batches, threads and memory that end, and what is loaded."""

from __future__ import annotations

import gc
import os
import signal
import threading
import traceback
from itertools import islice, product
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkError, ChunkSampler, WorkerError
from tests.numbered_samples import (
    SAMPLE_BYTES,
    Negated,
    collate_numbers,
    damage,
    digest,
    double_in_place,
    flat,
    numbers,
    numbers_of,
    write_store,
)

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 8 * SAMPLE_BYTES


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """101 samples (a prime) in 13 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 101)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """22 samples of 300 KB, so that a batch of 4 in one piece is served as a view."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 22, image=(3, 100_000))


# ---- torch's class


def test_it_is_a_dataloader_with_the_attributes_that_people_read(path: str) -> None:
    loader = ChunkDataLoader(path, batch_size=4, shuffle=True, drop_last=True, num_workers=0)
    assert isinstance(loader, DataLoader)
    assert isinstance(loader.dataset, ChunkDataset)
    assert (loader.batch_size, loader.drop_last, loader.num_workers, len(loader)) == (4, True, 0, 25)
    assert isinstance(loader.sampler, ChunkSampler)
    assert isinstance(loader.batch_sampler, ChunkBatchSampler)
    assert loader.batch_sampler.sampler is loader.sampler
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (4, True)


def test_defaults_are_torchs(path: str) -> None:
    ours, torchs = ChunkDataLoader(path), DataLoader(ChunkDataset(path))
    for name in (
        "batch_size",
        "drop_last",
        "num_workers",
        "pin_memory",
        "timeout",
        "collate_fn",
        "worker_init_fn",
        "generator",
        "prefetch_factor",
        "persistent_workers",
        "multiprocessing_context",
    ):
        assert getattr(ours, name) == getattr(torchs, name), name
    assert len(ours) == len(torchs) == 101
    assert numbers(ours) == numbers(torchs)


def test_torchs_arguments_stand_in_torchs_places(path: str) -> None:
    ds = ChunkDataset(path)
    places = (ds, 4, None, None, None, 0, collate_numbers, False, True, 0, None, None, None)
    ours, torchs = ChunkDataLoader(*places), DataLoader(*places)
    assert list(ours) == list(torchs)
    assert len(ours) == len(torchs) == 25


def test_a_path_and_a_dataset_give_the_same(path: str, tmp_path: Path) -> None:
    from pathlib import Path as AnyPath

    by_path = numbers(ChunkDataLoader(path, 4, shuffle=True))
    assert numbers(ChunkDataLoader(AnyPath(path), 4, shuffle=True)) == by_path
    assert numbers(ChunkDataLoader(ChunkDataset(path), 4, shuffle=True)) == by_path
    assert ChunkDataLoader(path, memory="1MiB").dataset.memory == 2**20


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"memory": "1MiB", "dataset": "ds"}, r"ChunkDataset\(memory=...\)"),
        ({"drop_last": True, "remainder": "pad"}, "drop_last=True means remainder='drop', not 'pad'"),
        ({"shuffle": "windows"}, "shuffle is"),
        ({"batch_size": 0}, "batch_size"),
        ({"prefetch_factor": 0}, "prefetch_factor"),
        ({"prefetch_factor": -1}, "prefetch_factor"),
        ({"prefetch_factor": 1.5}, "prefetch_factor"),
        ({"num_workers": -1}, "num_workers"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"sampler": range(101), "shuffle": "window"}, "give them to the sampler"),
        ({"sampler": range(101), "shuffle": True}, "mutually exclusive"),
        ({"sampler": range(101), "window": 8}, "window"),
        ({"sampler": range(101), "remainder": "pad"}, "remainder"),
        ({"batch_sampler": [[1]], "lanes": 2, "batch_size": 1}, "lanes"),
        ({"batch_sampler": [[1]]}, "mutually exclusive"),
        ({"batch_size": None, "shuffle": "batch"}, "batch_size=None"),
        ({"window": 8}, "window and lanes belong to shuffle='window'"),
        ({"shuffle": True, "window": 0}, "window is"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    path: str, arguments: dict[str, Any], message: str
) -> None:
    arguments = {"dataset": path, "batch_size": 4, **arguments}
    if arguments["dataset"] == "ds":
        arguments["dataset"] = ChunkDataset(path)
    with pytest.raises(ValueError, match=message):
        ChunkDataLoader(**arguments)


def test_an_unknown_argument_is_refused(path: str) -> None:
    with pytest.raises(TypeError, match="windows"):
        ChunkDataLoader(path, windows=8)


def test_another_dataset_needs_a_sampler_of_its_own(path: str) -> None:
    ds = ChunkDataset(path)
    for other in (Subset(ds, [1, 2, 3]), ConcatDataset([ds, ds]), TensorDataset(torch.arange(3))):
        with pytest.raises(TypeError, match=r"orders a ChunkDataset.* torch's own samplers"):
            ChunkDataLoader(other, 2, shuffle=True)
    subset = Subset(ds, [7, 8, 9])
    assert numbers(ChunkDataLoader(subset, 2, sampler=SequentialSampler(subset))) == [[7, 8], [9]]


# ---- the same batches


@pytest.mark.parametrize(
    ("shuffle", "remainder"), list(product([False, True, "batch", "full"], ["keep", "pad", "drop"]))
)
def test_threads_give_what_the_sampler_says_batch_by_batch(path: str, shuffle: Any, remainder: Any) -> None:
    ds = ChunkDataset(path)
    loader = ChunkDataLoader(ds, 4, shuffle=shuffle, remainder=remainder, seed=3)
    plain = DataLoader(
        ds, batch_sampler=ChunkBatchSampler(ds, 4, shuffle=shuffle, remainder=remainder, seed=3)
    )
    for _ in range(2):
        batches = numbers(loader)
        assert batches == numbers(plain)
        assert len(batches) == len(loader)


@pytest.mark.parametrize(
    ("workers", "shuffle"), [(1, True), (2, "batch"), (3, True), (4, False), (2, "full")]
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_worker_processes_give_what_threads_give(path: str, workers: int, shuffle: Any) -> None:
    by_threads = ChunkDataLoader(path, 4, shuffle=shuffle)
    by_processes = ChunkDataLoader(
        path, 4, shuffle=shuffle, num_workers=workers, persistent_workers=workers > 1, timeout=60
    )
    for _ in range(3):
        assert numbers(by_processes) == numbers(by_threads)


def test_workers_that_are_spawned_give_the_same(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, num_workers=1, multiprocessing_context="spawn")
    assert numbers(loader) == numbers(ChunkDataLoader(path, 4, shuffle=True))


@pytest.mark.parametrize("batch_size", [1, 3, 8, 100, 101, 200])
def test_any_batch_size_serves_every_sample_once(
    path: str, codec_name: str, tmp_path: Path, batch_size: int
) -> None:
    store = write_store(tmp_path / "store", 101, codec=codec_name)
    loader = ChunkDataLoader(store, batch_size, shuffle=True, memory=5 * CHUNK, window=16)
    batches = numbers(loader)
    assert sorted(flat(batches)) == list(range(101))
    assert {len(batch) for batch in batches[:-1]} <= {batch_size}


def test_epochs_go_on_by_themselves_and_are_fixed_by_set_epoch(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    epochs = [numbers(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    for epoch in (2, 0, 1):
        loader.set_epoch(epoch)
        assert numbers(loader) == epochs[epoch]
    assert numbers(loader) == epochs[2]


def test_set_epoch_reaches_a_users_sampler_and_says_if_it_has_none(path: str) -> None:
    ds = ChunkDataset(path)
    for given in (
        {"batch_size": 4, "sampler": ChunkSampler(ds, 4)},
        {"batch_sampler": ChunkBatchSampler(ds, 4)},
        {"batch_sampler": BatchSampler(ChunkSampler(ds, 4), 4, drop_last=False)},
    ):
        loader = ChunkDataLoader(ds, **given)
        first = numbers(loader)
        assert numbers(loader) != first
        loader.set_epoch(0)
        assert numbers(loader) == first
    with pytest.raises(AttributeError, match="no epochs"):
        ChunkDataLoader(ds, sampler=SequentialSampler(ds)).set_epoch(1)


def test_torchs_own_samplers_are_followed(path: str) -> None:
    ds = ChunkDataset(path)
    assert flat(numbers(ChunkDataLoader(ds, 4, sampler=SequentialSampler(ds)))) == list(range(101))
    assert sorted(flat(numbers(ChunkDataLoader(ds, 4, sampler=RandomSampler(ds))))) == list(range(101))
    assert numbers(ChunkDataLoader(ds, batch_sampler=[[3, 1], [100, 100, -1]])) == [[3, 1], [100] * 3]
    assert [int(each["number"]) for each in ChunkDataLoader(ds, batch_size=None)] == list(range(101))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_and_a_collate_function_see_samples(path: str, workers: int) -> None:
    ds = ChunkDataset(path, transform=lambda each: {"number": each["number"], "flow": each["flow"] + 0})
    loader = ChunkDataLoader(ds, 4, shuffle=True, collate_fn=collate_numbers, num_workers=workers)
    assert sorted(flat(loader)) == list(range(101))
    assert flat(batch["number"].tolist() for batch in ChunkDataLoader(ds, 4, num_workers=workers)) == list(
        range(101)
    )


def test_a_subclass_that_overrides_getitem_is_respected(path: str) -> None:
    loader = ChunkDataLoader(Negated(path), 4, shuffle=True)
    assert sorted(-number for batch in loader for number in batch["negative"].tolist()) == list(range(101))


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_in_place_sees_the_same_values_every_epoch(
    path: str, large_path: str, workers: int, size: str
) -> None:
    store = path if size == "small" else large_path
    before = digest(store)
    loader = ChunkDataLoader(ChunkDataset(store, transform=double_in_place), 4, num_workers=workers)
    for _ in range(3):
        found = flat(batch["number"].tolist() for batch in loader)
        assert found == list(range(0, 2 * len(loader.dataset), 2))
    for batch in ChunkDataLoader(store, 4, num_workers=workers):
        for tensor in batch.values():
            tensor.zero_()
    assert len(flat(numbers(ChunkDataLoader(store, 4)))) == len(loader.dataset)
    assert digest(store) == before


@pytest.mark.filterwarnings("ignore:.*pin_memory")
def test_pin_memory_works_without_an_accelerator(path: str) -> None:
    for workers in (0, 1):
        loader = ChunkDataLoader(path, 4, shuffle=True, pin_memory=True, num_workers=workers)
        assert sorted(flat(numbers(loader))) == list(range(101))


# ---- batches that are kept, iterators side by side


@pytest.mark.parametrize("shuffle", [False, True, "batch"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_batches_that_are_kept_stay_right_while_memory_is_used_again(
    path: str, large_path: str, size: str, shuffle: Any
) -> None:
    store = path if size == "small" else large_path
    loader = ChunkDataLoader(store, 4, shuffle=shuffle)
    kept = [batch for _ in range(3) for batch in loader]
    views = [batch["flow"][0] for batch in loader]  # of batches whose other tensors are gone
    for _ in range(2):
        for batch in loader:
            for tensor in batch.values():
                tensor.fill_(7)
    per_epoch = len(loader)
    for epoch in range(3):
        found = flat(map(numbers_of, kept[epoch * per_epoch : (epoch + 1) * per_epoch]))
        assert sorted(found) == list(range(len(loader.dataset)))
    assert all(torch.equal(view, view[0] + torch.arange(4.0)) for view in views)


@pytest.mark.parametrize("memory", ["1GiB", 6 * CHUNK])
def test_two_iterators_at_once_give_right_batches(path: str, memory: Any) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, window=8, memory=memory)
    epochs = [numbers(loader), numbers(loader)]
    loader.set_epoch(0)
    both = list(zip(loader, loader, strict=True))
    assert [numbers_of(first) for first, _ in both] == epochs[0]
    assert [numbers_of(second) for _, second in both] == epochs[1]


def test_an_iteration_that_is_closed_late_does_not_end_the_loading_ahead_of_the_next(path: str) -> None:
    ds = ChunkDataset(path, memory=7 * CHUNK, verify="never")
    loader = ChunkDataLoader(ds, 4, shuffle=True, window=16)
    old, new = iter(loader), iter(loader)
    list(islice(old, 20))
    numbers_of(next(new))
    old.close()
    for batch in new:
        numbers_of(batch)
    # Without a plan samples would be read row by row, and these 13 chunks not be loaded again.
    assert ds.residency.reader.chunks_loaded >= 10 + 13 - 7


# ---- leaving early


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    with open("/proc/self/maps") as lines:
        return sum(1 for _ in lines)


def leave_by_break(loader: ChunkDataLoader) -> None:
    for batch in loader:
        numbers_of(batch)
        break


def leave_by_exception(loader: ChunkDataLoader) -> None:
    with pytest.raises(ZeroDivisionError):
        list(map(divide_by_zero, loader))


def divide_by_zero(batch: dict[str, torch.Tensor]) -> float:
    return numbers_of(batch)[0] / 0


def leave_by_close(loader: ChunkDataLoader) -> None:
    iterator = iter(loader)
    numbers_of(next(iterator))
    iterator.close()


def leave_by_del(loader: ChunkDataLoader) -> None:
    iterator = iter(loader)
    list(islice(iterator, 3))
    del iterator


def leave_unused(loader: ChunkDataLoader) -> None:
    iter(loader)


def ended(name: str) -> bool:
    """Whether all threads of that name have ended; those that load ahead are given time for one chunk."""
    mine = [thread for thread in threading.enumerate() if thread.name.startswith(name)]
    for thread in mine:
        thread.join(10)
    return not any(thread.is_alive() for thread in mine)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors and maps in /proc")
@pytest.mark.parametrize("size", ["small", "large"])
def test_leaving_early_200_times_leaves_no_thread_descriptor_or_map(
    path: str, large_path: str, size: str
) -> None:
    store = path if size == "small" else large_path
    memory, window = (7 * CHUNK, 24) if size == "small" else ("16MiB", "auto")
    loader = ChunkDataLoader(store, 4, shuffle=True, memory=memory, window=window)
    before = counts = None
    leaves = (leave_by_break, leave_by_exception, leave_by_close, leave_by_del, leave_unused)
    for turn in range(40 if size == "small" else 8):
        for leave in leaves:
            leave(loader)
            assert not [t for t in threading.enumerate() if t.name.startswith("mmapload-batch")]
        if turn == 1:
            gc.collect()
            assert ended("mmapload")
            before = (threading.active_count(), descriptors(), maps())
    gc.collect()
    assert ended("mmapload")
    counts = (threading.active_count(), descriptors(), maps())
    assert counts[:2] == before[:2]
    assert counts[2] < before[2] + 30


def test_the_next_epoch_after_leaving_early_is_whole(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, window=16, memory=7 * CHUNK)
    expected = [numbers(loader) for _ in range(2)]
    loader.set_epoch(0)
    leave_by_break(loader)
    assert numbers(loader) == expected[1]


# ---- errors


def test_an_error_in_a_thread_surfaces_at_its_batch_with_its_own_traceback(
    tmp_path: Path, codec_name: str
) -> None:
    store = write_store(tmp_path / "store", 101, codec=codec_name)
    file = damage(store, "flow", 5)
    loader = ChunkDataLoader(store, 4)
    for _ in range(2):
        seen: list[list[int]] = []
        with pytest.raises(ChunkError, match="chunk 5 of field 'flow'") as caught:
            seen.extend(map(numbers_of, loader))
        assert flat(seen) == list(range(40))
        assert caught.value.path == file
        functions = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert "expect_checksum" in functions
        del caught
        assert ended("mmapload")


def test_an_error_in_a_transform_surfaces_at_its_batch(path: str) -> None:
    def broken(each: dict[str, torch.Tensor]) -> Any:
        return {0: 1}[int(each["number"]) // 50]

    loader = ChunkDataLoader(ChunkDataset(path, transform=broken), 4)
    seen = []
    with pytest.raises(KeyError) as caught:
        seen.extend(loader)
    assert len(seen) == 12
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of torch's own clearing up
def test_a_worker_that_is_killed_is_a_worker_error_and_no_hang(path: str) -> None:
    ds = ChunkDataset(path, transform=die_at_50)
    loader = ChunkDataLoader(ds, 4, num_workers=2, timeout=60)
    # torch notices at its next look, or fails to fetch a batch that the dead worker had ready.
    with pytest.raises(WorkerError, match=r"a worker process ended without its batch .* fewer workers"):
        list(loader)
    gc.collect()
    assert sorted(flat(numbers(ChunkDataLoader(path, 4, num_workers=2)))) == list(range(101))


def die_at_50(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if int(each["number"]) == 50:
        os.kill(os.getpid(), signal.SIGKILL)
    return each


# ---- what is loaded, counted


def loaded_by(loader: Any, epochs: int) -> list[int]:
    """Chunks that each epoch loads into this process."""
    reader = loader.dataset.residency.reader
    counts = []
    for _ in range(epochs):
        before = reader.chunks_loaded
        assert sorted(flat(numbers(loader))) == list(range(len(loader.dataset)))
        assert ended("mmapload-ahead")
        counts.append(reader.chunks_loaded - before)
    return counts


def plain(ds: ChunkDataset, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(ds, batch_sampler=ChunkBatchSampler(ds, 4, **arguments))


def sampled(ds: ChunkDataset, **arguments: Any) -> DataLoader[Any]:
    return DataLoader(ds, 4, sampler=ChunkSampler(ds, 4, **arguments))


def chunked(ds: ChunkDataset, **arguments: Any) -> ChunkDataLoader:
    return ChunkDataLoader(ds, 4, **arguments)


@pytest.mark.parametrize("make", [plain, sampled, chunked])
def test_what_fits_is_loaded_once_for_all_epochs(tmp_path: Path, codec_name: str, make: Any) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 101, codec=codec_name))
    loader = make(ds, shuffle=True)
    assert loaded_by(loader, 3) == [13, 0, 0]
    assert ds.residency.counts.peak_bytes <= 13 * CHUNK


@pytest.mark.parametrize("make", [plain, sampled, chunked])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("chunks", [5, 7, 12])
def test_what_does_not_fit_is_loaded_once_an_epoch_inside_the_budget(
    tmp_path: Path, codec_name: str, make: Any, shuffle: bool, chunks: int
) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 203, codec=codec_name), memory=chunks * CHUNK)
    loader = make(ds, shuffle=shuffle, **({"window": (chunks - 1) // 2 * 8} if shuffle else {}))
    assert ds.store.layout.chunks == 26
    counts = loaded_by(loader, 3)
    # A chunk that is on its way when an epoch ends may be loaded for the next one too.
    assert all(count <= 26 for count in counts), counts
    assert ds.residency.counts.peak_bytes <= chunks * CHUNK
    assert ds.residency.counts.resident_bytes <= chunks * CHUNK


def test_an_error_that_a_transform_raises_in_a_worker_keeps_its_class(path: str) -> None:
    loader = ChunkDataLoader(ChunkDataset(path, transform=lose_connection), 4, num_workers=1)
    with pytest.raises(ConnectionResetError, match="Caught ConnectionResetError in DataLoader worker"):
        list(loader)


def lose_connection(each: dict[str, torch.Tensor]) -> None:
    raise ConnectionResetError(f"no peer for {int(each['number'])}")


def test_a_transform_given_to_the_loader_is_sent_to_the_dataset(path: str) -> None:
    with pytest.raises(TypeError, match=r"ChunkDataset\(path, transform=...\)"):
        ChunkDataLoader(path, 4, transform=str)


def test_our_batch_sampler_given_to_our_loader_is_served_by_threads(path: str) -> None:
    ds = ChunkDataset(path)
    loader = ChunkDataLoader(ds, batch_sampler=ChunkBatchSampler(ds, 4, seed=3))
    assert loader._chunks is loader.batch_sampler
    assert numbers(loader) == numbers(ChunkDataLoader(ds, 4, shuffle=True, seed=3))


class OwnDataset(ChunkDataset):
    """Has samples of its own making, so that every worker reads them."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_a_window_fits_in_the_share_of_every_worker_that_decodes(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 203, codec="zstd")
    ds = ChunkDataset(path)
    held = OwnDataset(path, memory=24 * ds.chunk_nbytes)
    window = 8 * ds.store.layout.chunk_length
    assert ChunkDataLoader(held, 4, shuffle=True, window=window).sampler.window == window
    with pytest.warns(UserWarning, match="do not fit"):
        loader = ChunkDataLoader(held, 4, shuffle=True, window=window, num_workers=4)
    assert held.chunks_held == 6
    assert loader.sampler.window == 2 * ds.store.layout.chunk_length
    assert sorted(flat(numbers(loader))) == list(range(203))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator to pin memory for")
def test_batches_are_pinned_where_there_is_an_accelerator(path: str) -> None:
    assert all(
        tensor.is_pinned() for tensor in next(iter(ChunkDataLoader(path, 4, pin_memory=True))).values()
    )
