"""Batches from threads: transformed whole, kept, left early; and what goes wrong in a thread."""

from __future__ import annotations

import gc
import math
import multiprocessing
import os
import threading
import time
import traceback
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mmapload import ChunkDataLoader, ChunkDataset, ChunkError, WorkerError
from mmapload.finishing import read_group
from mmapload.pipeline import GROUP_BYTES, MOST_GROUPED, group_size
from mmapload.preprocessing import preprocess
from tests.numbered_samples import collate_numbers, damage, flat, numbers, numbers_of, write_store

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 1001


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """1,001 small samples in chunks of 256: batches of 4 are read 16 at a time."""
    return write_store(tmp_path_factory.mktemp("data") / "store", COUNT, chunk_length=256)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """22 samples of 300 KB, so that a batch of 4 in one piece is served as a view, another from a pool."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 22, image=(3, 100_000))


def in_use(loader: ChunkDataLoader) -> int:
    """Buffers of batches that somebody holds."""
    gc.collect()
    return sum(pool.in_use for pool in loader.dataset.reading._pools.values())


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("mmapload-batch")]


# ---- groups


def test_small_batches_are_grouped_up_to_a_size_and_to_a_part_of_a_chunk() -> None:
    assert group_size(1, 1, 10**6) == MOST_GROUPED
    assert group_size(GROUP_BYTES // 4, 1, 10**6) == 4
    assert group_size(GROUP_BYTES, 1, 10**6) == group_size(2 * GROUP_BYTES, 1, 10**6) == 1
    assert group_size(1, 4, 256) == 16
    assert group_size(1, 256, 256) == group_size(0, 1, 1) == 1


@pytest.mark.parametrize("shuffle", [False, True, "batch", "full"])
@pytest.mark.parametrize("batch_size", [1, 4, 7, 64, COUNT])
def test_grouping_changes_no_batch(path: str, shuffle: Any, batch_size: int) -> None:
    if shuffle == "batch" and batch_size in {7, COUNT}:
        pytest.skip("no multiple or divisor of the store's batch")
    loader = ChunkDataLoader(path, batch_size, shuffle=shuffle)
    expected = [batch.tolist() for batch in loader.sampler.order(0).rank_batches(0, 1)]
    assert numbers(loader) == expected


@pytest.mark.parametrize(("batch_size", "grouped", "threads"), [(1, MOST_GROUPED, 1), (4, 16, 2), (64, 1, 2)])
def test_batches_whose_bytes_cost_less_than_their_calls_have_one_thread(
    path: str, batch_size: int, grouped: int, threads: int
) -> None:
    loader = ChunkDataLoader(path, batch_size, shuffle=True)
    assert loader._grouped == grouped
    for _ in loader:
        assert len(batch_threads()) == threads
        break
    transformed = ChunkDataLoader(path, batch_size, batch_transform=to_float)
    for _ in transformed:
        assert len(batch_threads()) == 2, "what a user's own code takes is not known"
        break


def test_every_batch_of_a_group_counts_as_one(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    assert loader._grouped == 16
    assert len(list(loader)) == 251
    assert (loader.dataset.reading.views, loader.dataset.reading.copies) == (0, 251)


def test_a_group_is_put_together_once_whatever_the_number_of_its_batches(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    reading = loader.dataset.reading
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def call(*arguments: Any, **others: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **others)

        monkeypatch.setattr(owner, name, call)

    counted(reading, "batch")
    counted(reading.residency, "held")
    counted(reading.residency, "held_placed")
    counted(reading.residency, "get")
    counted(torch, "from_numpy")
    list(loader)  # loads chunks
    first = calls.copy()
    list(loader)
    groups = math.ceil(251 / loader._grouped)
    fields = len(loader.dataset.fields)
    assert first["batch"] == groups
    chunks = "held_placed" if reading.at_once else "held"
    assert calls - first == {"batch": groups, chunks: groups, "from_numpy": 251 * fields}


def test_numbers_that_no_sample_has_surface_at_their_batch_and_not_at_the_group(path: str) -> None:
    ds = ChunkDataset(path, with_index=True)
    coming = read_group(ds, [np.array([5, 7]), np.array([-1, 0]), np.array([3, COUNT])])
    found = [next(coming).tensors["number"].tolist() for _ in range(2)]
    assert found == [[5, 7], [COUNT - 1, 0]]
    with pytest.raises(IndexError, match=f"sample {COUNT} of a store of {COUNT}"):
        next(coming)


def test_batches_of_a_group_have_their_samples_numbers(path: str) -> None:
    ds = ChunkDataset(path, with_index=True)
    found = list(ChunkDataLoader(ds, 4, shuffle=True))
    assert all(batch["index"].tolist() == batch["number"].tolist() for batch in found)
    assert all(batch["index"].untyped_storage().nbytes() == batch["index"].nbytes for batch in found)


def test_a_batch_of_a_group_has_memory_of_its_own_to_be_saved_and_written(path: str) -> None:
    first, second = islice(ChunkDataLoader(path, 4), 2)
    assert first["flow"].untyped_storage().nbytes() == first["flow"].nbytes
    assert first["flow"]._base is None
    first["flow"].fill_(99)
    assert numbers_of(second) == [4, 5, 6, 7]


def test_a_faulty_chunk_surfaces_at_its_batch_and_not_at_the_group(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", COUNT, chunk_length=256)
    damage(store, "flow", 1)
    loader = ChunkDataLoader(store, 6)
    seen: list[list[int]] = []
    with pytest.raises(ChunkError, match="chunk 1 of field 'flow'") as caught:
        seen.extend(map(numbers_of, loader))
    assert flat(seen) == list(range(252))
    assert "expect_checksum" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert not batch_threads()


# ---- transforms of whole batches


def to_float(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {**batch, "image": batch["image"].float() / 2}


def negate(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"number": -sample["number"]}


def where(batch: Any) -> tuple[int, str, Any]:
    return os.getpid(), threading.current_thread().name, batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_batch_transform_is_given_every_batch(path: str, large_path: str, workers: int, size: str) -> None:
    store = path if size == "small" else large_path
    loader = ChunkDataLoader(store, 4, shuffle=True, batch_transform=to_float, num_workers=workers)
    expected = ChunkDataLoader(store, 4, shuffle=True)
    for found, plain in zip(loader, expected, strict=True):
        assert torch.equal(found["image"], plain["image"].float() / 2)
        assert torch.equal(found["flow"], plain["flow"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_transform_runs_where_batches_are_prepared(path: str, workers: int) -> None:
    for pid, thread, _ in ChunkDataLoader(path, 64, batch_transform=where, num_workers=workers):
        assert (pid == os.getpid()) == (workers == 0)
        assert thread.startswith("mmapload-batch") == (workers == 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_transform_of_samples_comes_first_then_collation_then_that_of_batches(
    path: str, workers: int
) -> None:
    ds = ChunkDataset(path, transform=negate)
    loader = ChunkDataLoader(ds, 4, num_workers=workers, batch_transform=lambda batch: batch["number"] * 10)
    assert flat(batch.tolist() for batch in loader) == list(range(0, -10 * COUNT, -10))
    loader = ChunkDataLoader(path, 4, num_workers=workers, collate_fn=collate_numbers, batch_transform=sum)
    assert sum(loader) == COUNT * (COUNT - 1) // 2


def test_a_batch_transform_works_beside_samplers_and_datasets_of_others(path: str) -> None:
    ds = ChunkDataset(path)
    loader = ChunkDataLoader(ds, 4, sampler=range(10), batch_transform=lambda batch: batch["number"].tolist())
    assert list(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert loader.collate_fn is ChunkDataLoader(path).collate_fn


def keep_first(batch: Any, kept: list[Any] = []) -> Any:  # noqa: B006 - what is tested: it lives in the worker
    kept.append(batch)
    return {"number": batch["number"], "first": kept[0]["number"].clone()}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("transform", [None, dict])
def test_what_a_batch_transform_keeps_stays_right(path: str, workers: int, transform: Any) -> None:
    ds = ChunkDataset(path, transform=transform)
    loader = ChunkDataLoader(ds, 4, num_workers=workers, batch_transform=keep_first)
    found = [batch["first"].tolist() for batch in loader]
    assert found == [found[0]] * 251


def test_what_is_left_of_samples_is_what_the_batch_transform_returns(path: str) -> None:
    for returned in (None, "text", [], torch.Generator):
        assert list(ChunkDataLoader(path, COUNT, batch_transform=lambda _, it=returned: it)) == [returned]


# ---- kept batches


@pytest.mark.parametrize("shuffle", ["window", "batch", "full"])
@pytest.mark.parametrize("size", ["small", "large"])
def test_every_batch_may_be_kept(path: str, large_path: str, size: str, shuffle: str) -> None:
    loader = ChunkDataLoader(path if size == "small" else large_path, 4, shuffle=shuffle)
    kept = [list(loader) for _ in range(3)]
    for batch in loader:
        for tensor in batch.values():
            tensor.zero_()
    for epoch, batches in enumerate(kept):
        expected = [batch.tolist() for batch in loader.sampler.order(epoch).rank_batches(0, 1)]
        assert [numbers_of(batch) for batch in batches] == expected
    del kept, batches, batch, tensor
    assert in_use(loader) == 0


def test_batches_that_are_dropped_at_once_are_made_in_few_buffers(large_path: str) -> None:
    loader = ChunkDataLoader(large_path, 4, shuffle="full")
    for _ in range(10):
        for batch in loader:
            del batch
    # In use at once: those ready, those in work, and the one that is handed over.
    assert loader.dataset.reading._pools["image"].made <= loader._prefetch + 4


# ---- leaving early


def fail(loader: ChunkDataLoader, error: type[BaseException]) -> None:
    for _ in loader:
        raise error


def leave_by_interrupt(loader: ChunkDataLoader) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail(loader, KeyboardInterrupt)


def leave_by_break(loader: ChunkDataLoader) -> None:
    for _ in loader:
        break


def leave_by_exception(loader: ChunkDataLoader) -> None:
    with pytest.raises(ZeroDivisionError):
        fail(loader, ZeroDivisionError)


def leave_by_del(loader: ChunkDataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    del iterator


def leave_by_close(loader: ChunkDataLoader) -> None:
    iterator = iter(loader)
    next(iterator)
    iterator.close()


LEAVES: list[Callable[[ChunkDataLoader], None]] = [
    leave_by_break,
    leave_by_exception,
    leave_by_interrupt,
    leave_by_del,
    leave_by_close,
]


def left(loader: ChunkDataLoader) -> tuple[int, int, int, int]:
    """Threads, descriptors, maps and buffers that are there now."""
    buffers = in_use(loader)
    for thread in threading.enumerate():
        if thread.name.startswith("mmapload-ahead"):
            thread.join(10)
    maps = Path("/proc/self/maps").read_text().count("\n")
    return threading.active_count(), len(os.listdir("/proc/self/fd")), maps, buffers


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors and maps in /proc")
@pytest.mark.parametrize(("kind", "times"), [("plain", 1000), ("batch_transform", 300), ("views", 300)])
def test_leaving_early_a_thousand_times_leaves_no_thread_descriptor_map_or_buffer(
    path: str, large_path: str, kind: str, times: int
) -> None:
    loader = ChunkDataLoader(
        large_path if kind == "views" else path,
        4 if kind == "views" else 64,
        shuffle="batch" if kind == "views" else True,
        batch_transform=to_float if kind == "batch_transform" else None,
    )
    before: tuple[int, int, int, int] | None = None
    for turn in range(times):
        LEAVES[turn % len(LEAVES)](loader)
        assert not batch_threads()
        if turn == 99:
            before = left(loader)
    after = left(loader)
    assert before is not None
    assert (after[0], after[1], after[3]) == (before[0], before[1], 0)
    assert after[2] <= before[2] + 20  # the allocator's and the interpreter's own come and go


def test_the_epoch_after_leaving_early_is_whole(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    for leave in LEAVES:
        leave(loader)
    assert sorted(flat(numbers(loader))) == list(range(COUNT))


# ---- what goes wrong in a thread


@pytest.mark.parametrize("error", [ValueError, MemoryError, SystemExit, KeyboardInterrupt])
def test_an_error_in_a_batch_transform_surfaces_at_its_batch_with_its_traceback(
    path: str, error: Any
) -> None:
    def broken(batch: dict[str, torch.Tensor]) -> list[int]:
        found = numbers_of(batch)
        if 40 in found:
            raise error("at 40")
        return found

    loader = ChunkDataLoader(path, 4, batch_transform=broken)
    seen: list[list[int]] = []
    with pytest.raises(error, match="at 40") as caught:
        seen.extend(loader)
    assert flat(seen) == list(range(40))
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "broken"
    assert not batch_threads()


def test_a_thread_that_stalls_is_an_error_that_says_where_it_is(path: str) -> None:
    go_on = threading.Event()

    def stalls_here(batch: dict[str, torch.Tensor]) -> list[int]:
        found = numbers_of(batch)
        if 40 in found:
            go_on.wait(60)
        return found

    loader = ChunkDataLoader(path, 4, batch_transform=stalls_here, timeout=2)
    seen: list[list[int]] = []
    try:
        with pytest.raises(WorkerError, match=r"(?s)not ready after timeout=2 seconds.*in stalls_here"):
            seen.extend(loader)
    finally:
        go_on.set()
    assert flat(seen) == list(range(40))
    for thread in batch_threads():
        thread.join(10)
    assert not batch_threads()
    assert flat(loader) == list(range(COUNT))


def test_without_a_timeout_a_slow_batch_is_waited_for(path: str) -> None:
    def slow(batch: dict[str, torch.Tensor]) -> list[int]:
        time.sleep(0.01)
        return numbers_of(batch)

    assert flat(ChunkDataLoader(path, 100, batch_transform=slow)) == list(range(COUNT))


def test_an_iteration_ended_by_the_collector_inside_of_a_thread_does_not_wait_for_itself(path: str) -> None:
    held: list[Any] = []
    go_on = threading.Event()
    cleared: list[str] = []

    def clear(batch: dict[str, torch.Tensor]) -> Any:
        if 0 not in numbers_of(batch):
            go_on.wait(60)
            held.clear()
            cleared.append(threading.current_thread().name)
        return batch

    held.append(iter(ChunkDataLoader(path, 4, batch_transform=clear)))
    next(held[0])
    go_on.set()
    for thread in batch_threads():
        thread.join(10)
    assert not batch_threads()
    assert cleared[0].startswith("mmapload-batch")


@pytest.mark.parametrize("kind", ["fixed", "ragged", "compressed"])
def test_a_forked_child_that_goes_on_with_its_parents_iterator_is_told_so(tmp_path: Path, kind: str) -> None:
    samples = [{"number": np.full(1 + i % 3 if kind == "ragged" else 2, i)} for i in range(300)]
    codec, ragged = "zstd" if kind == "compressed" else "raw", "number" if kind == "ragged" else None
    preprocess(samples, tmp_path / "store", 4, chunk_bytes=4096, codec=codec, ragged=ragged)
    loader = ChunkDataLoader(tmp_path / "store", 4, shuffle=True)
    batches = iter(loader)
    next(batches)
    process = multiprocessing.get_context("fork").Process(target=go_on_in_child, args=(batches, loader))
    process.start()
    process.join(60)
    process.kill()
    assert process.exitcode == 0
    assert len(list(batches)) == 74


def go_on_in_child(batches: Any, loader: ChunkDataLoader) -> None:
    with pytest.raises(
        WorkerError, match=r"was forked while process \d+ iterated .* iterate over the loader anew"
    ):
        next(batches)
    del batches
    assert len(list(loader)) == 75
