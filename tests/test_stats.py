"""What a loader says of itself: counts to the unit, times by sign, the plan of its order."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

import mmapload.stats
from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler, LoaderPlan, LoaderStats
from mmapload.stats import Deliveries
from mmapload.workers.slots import Counts
from tests.numbered_samples import SAMPLE_BYTES, numbers, write_store

COUNT, CHUNK = 101, 8
CHUNKS = 13
CHUNK_BYTES = CHUNK * SAMPLE_BYTES
FILE_BYTES = CHUNKS * (CHUNK_BYTES + 3 * 4)  # with the checksum of each of three fields


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """101 samples in 13 chunks of 8, the last one padded; aligned to batches of 4."""
    return write_store(tmp_path_factory.mktemp("data") / "store", COUNT)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """24 samples of 300 KB, in chunks of 8: batches of 4 in one piece are views."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 24, image=(3, 100_000))


# ---- counts


def test_nothing_is_counted_before_the_first_batch(path: str) -> None:
    stats = ChunkDataLoader(path, 4).stats()
    zeros = (
        "batches",
        "samples",
        "training_waited",
        "data_waited",
        "chunk_bytes",
        "row_bytes",
        "hits",
        "misses",
    )
    assert [getattr(stats, name) for name in (*zeros, "views", "copies", "peak_bytes")] == [0] * 11
    assert stats.samples_per_second is None
    assert stats.worker_batches is None
    assert stats.worker_seconds is None
    assert "No batch has been delivered yet." in str(stats)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("given", ["order", "sampler", "batch sampler"])
def test_batches_and_samples_are_counted_as_they_are_delivered(path: str, workers: int, given: str) -> None:
    ds = ChunkDataset(path)
    arguments: dict[str, Any] = {
        "order": {"batch_size": 4, "shuffle": True},
        "sampler": {"batch_size": 4, "sampler": range(COUNT)},
        "batch sampler": {"batch_sampler": ChunkBatchSampler(ds, 4)},
    }[given]
    loader = ChunkDataLoader(ds, num_workers=workers, **arguments)
    for number, _ in enumerate(loader, start=1):
        stats = loader.stats()
        assert (stats.batches, stats.samples) == (number, min(4 * number, COUNT))
        if number == 10:
            break
    assert len(list(loader)) == 26
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (36, 40 + COUNT)


def test_persistent_workers_are_counted_over_all_epochs(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, num_workers=1, persistent_workers=True)
    for epoch in range(1, 4):
        assert len(numbers(loader)) == 26
        assert (loader.stats().batches, loader.stats().samples) == (26 * epoch, COUNT * epoch)
    assert loader.stats().worker_batches == Counts(in_slots=78)


def test_single_samples_and_other_datasets_are_counted(path: str) -> None:
    loader = ChunkDataLoader(path, batch_size=None)
    list(loader)
    assert (loader.stats().batches, loader.stats().samples) == (COUNT, COUNT)
    other = TensorDataset(torch.arange(10))
    loader = ChunkDataLoader(other, 4, sampler=range(10))
    list(loader)
    stats = loader.stats()
    assert (stats.batches, stats.samples) == (3, 10)
    assert (stats.hits, stats.views, stats.chunk_bytes, stats.peak_bytes) == (None,) * 4
    assert "chunks" not in str(stats)


def test_bytes_of_chunks_hits_and_misses_are_the_readers(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    numbers(loader)
    stats, reader = loader.stats(), loader.dataset.residency.reader
    assert stats.chunk_bytes == reader.bytes_loaded == FILE_BYTES
    assert stats.row_bytes == 0
    assert stats.hits + stats.misses >= CHUNKS
    assert stats.copies == 26
    assert stats.resident_bytes == stats.peak_bytes == CHUNKS * CHUNK_BYTES
    numbers(loader)
    assert loader.stats().chunk_bytes == FILE_BYTES  # all of it is still in memory
    assert loader.stats().copies == 52


def test_rows_that_are_read_one_by_one_are_counted_by_themselves(path: str) -> None:
    loader = ChunkDataLoader(
        ChunkDataset(path, memory=3 * CHUNK_BYTES, verify="never"), 4, sampler=range(0, COUNT, 25)
    )
    list(loader)
    stats = loader.stats()
    assert stats.row_bytes == 5 * SAMPLE_BYTES
    assert stats.chunk_bytes == 0


def test_views_and_copies_are_told_apart(large_path: str) -> None:
    by_batches = ChunkDataLoader(large_path, 4, shuffle="batch")
    list(by_batches)
    assert (by_batches.stats().views, by_batches.stats().copies) == (6, 0)
    by_samples = ChunkDataLoader(large_path, 4, shuffle="full")
    list(by_samples)
    assert (by_samples.stats().views, by_samples.stats().copies) == (0, 6)


def test_bytes_from_disk_are_none_where_nobody_counts_them(path: str, monkeypatch: Any) -> None:
    counted = ChunkDataLoader(path, 4).stats().disk_bytes
    assert counted is None or counted >= 0

    def refuse() -> int:
        raise FileNotFoundError("/proc/self/io")

    monkeypatch.setattr(mmapload.stats, "bytes_read", refuse)
    stats = ChunkDataLoader(path, 4).stats()
    assert stats.disk_bytes is None
    assert "not counted here" in str(stats)


def test_worker_processes_tell_how_long_they_were_busy_and_how_batches_came(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=2)
    numbers(loader)
    stats = loader.stats()
    assert stats.worker_batches == loader.worker_batches == Counts(in_slots=26)
    assert stats.worker_seconds > 0
    assert "26 in recycled memory" in str(stats)


# ---- who waits for whom


def slow(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    time.sleep(0.002)
    return sample


@pytest.mark.parametrize("workers", [0, 1])
def test_slow_data_make_training_wait(path: str, workers: int) -> None:
    loader = ChunkDataLoader(ChunkDataset(path, transform=slow), 4, num_workers=workers)
    numbers(loader)
    stats = loader.stats()
    assert stats.training_waited > 0
    assert stats.data_waited >= 0
    assert stats.samples_per_second > 0
    assert stats.verdict.startswith("Training waits for data")


@pytest.mark.parametrize("workers", [0, 1])
def test_slow_training_makes_data_wait(path: str, workers: int) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=workers)
    asked = time.monotonic()
    pause = 0.0
    for _ in loader:
        pause = pause or max(0.02, (time.monotonic() - asked) / 5)  # workers may take long to start
        time.sleep(pause)
    stats = loader.stats()
    assert stats.data_waited > 0
    assert stats.verdict.startswith("Data wait for training")


def test_waits_are_measured_between_deliveries(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    deliveries = Deliveries()
    deliveries.begin()
    now[0] = 3.0
    deliveries.note(4, asked=1.0, ready=2.5)  # asked before it was ready
    assert (deliveries.training_waited, deliveries.data_waited) == (2.0, 0.0)
    now[0] = 7.0
    deliveries.note(4, asked=7.0, ready=1.0)  # ready before the one in front of it was taken, at 3
    assert (deliveries.training_waited, deliveries.data_waited) == (2.0, 4.0)
    now[0] = 10.0
    deliveries.note(2, asked=9.5, ready=8.0, worker_seconds=0.25)
    assert (deliveries.training_waited, deliveries.data_waited) == (2.5, 5.5)
    assert (deliveries.rate, deliveries.worker_seconds) == (1.0, 0.25)
    deliveries.begin()
    now[0] = 12.0
    deliveries.note(8, asked=11.0, ready=None)
    assert (deliveries.rate, deliveries.samples) == (4.0, 18)


def test_stats_print_as_a_short_table_and_a_sentence(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True)
    numbers(loader)
    text = str(loader.stats())
    lines = text.splitlines()
    assert len(lines) <= 9
    assert lines[0].split() == ["delivered", "26", "batches,", "101", "samples"]
    assert all(name in text for name in ("samples/s", "hits", "misses", "views", "copies", "from disk"))
    assert lines[-1].endswith(".")
    assert "wait" in lines[-1]


def test_stats_and_plan_are_values(path: str) -> None:
    loader = ChunkDataLoader(path, 4)
    for value, kind in ((loader.stats(), LoaderStats), (loader.plan, LoaderPlan)):
        assert type(value) is kind
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.samples = 3
        assert dataclasses.asdict(value)["samples"] == (0 if kind is LoaderStats else COUNT)


# ---- the plan


def test_the_plan_is_what_the_order_is_made_from(path: str) -> None:
    assert ChunkDataLoader(path, 4, shuffle=True, window=16, seed=3).plan == LoaderPlan(
        mode="window",
        window=16,
        lanes=1,
        seed=3,
        batch_size=4,
        world_size=1,
        rank=0,
        remainder="keep",
        steps=26,
        samples=COUNT,
    )
    plan = ChunkDataLoader(path, 4, shuffle="batch", drop_last=True).plan
    assert plan == LoaderPlan("batch", None, None, 0, 4, 1, 0, "drop", 25, 100)
    assert ChunkDataLoader(path, 4).plan == LoaderPlan(
        "sequential", None, None, None, 4, 1, 0, "keep", 26, COUNT
    )
    assert ChunkDataLoader(path, 4, shuffle="full", seed=9).plan.seed == 9


def test_the_plan_has_the_window_that_memory_holds(path: str) -> None:
    with pytest.warns(UserWarning, match="do not fit"):
        loader = ChunkDataLoader(path, 4, shuffle=True, window=64, memory=7 * CHUNK_BYTES)
    assert loader.plan.window == loader.sampler.window == 24


def test_the_plan_knows_ranks_and_samplers_that_were_given(path: str) -> None:
    ds = ChunkDataset(path)
    sampler = ChunkBatchSampler(ds, 4, window=16, rank=1, world_size=2, lanes=2)
    plan = ChunkDataLoader(ds, batch_sampler=sampler).plan
    assert plan == LoaderPlan("window", 16, 2, 0, 4, 2, 1, "pad", 13, 52)
    assert ChunkDataLoader(ds, 4, sampler=ChunkSampler(ds, 4, seed=5)).plan.seed == 5
    assert ChunkDataLoader(ds, 4, sampler=range(10)).plan is None
    assert ChunkDataLoader(ds, batch_size=None).plan is None
