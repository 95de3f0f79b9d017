"""Batches of compressed stores, read for workers by the process that trains: a chunk is decoded once."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import get_worker_info

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkError
from tests.numbered_samples import flat, numbers, numbers_of, write_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that has no name"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

COUNT, CHUNKS = 93, 12


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """12 chunks of 8 samples, the last one of 5."""
    return write_store(tmp_path_factory.mktemp("data") / "store", COUNT, codec="zstd")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a process, or a thread that reads for one."""
    yield
    gc.collect()
    assert not multiprocessing.active_children()
    assert not [each for each in threading.enumerate() if each.name.startswith("mmapload-send")]


def with_counts(sample: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Add to a sample how many chunks this worker has decoded so far."""
    residency = get_worker_info().dataset.residency
    return {**sample, "decoded": residency.reader.chunks_loaded + residency.counts.ahead}


@pytest.mark.parametrize(
    ("method", "workers"), [("fork", 1), ("fork", 3), ("spawn", 1), ("forkserver", 1), ("forkserver", 3)]
)
def test_each_chunk_is_decoded_once_however_many_workers_there_are(
    path: str, method: str, workers: int
) -> None:
    dataset = ChunkDataset(path, transform=with_counts, memory=2**20)
    loader = ChunkDataLoader(
        dataset, 4, "window", num_workers=workers, multiprocessing_context=method, window=32
    )
    batches = list(loader)
    assert sorted(flat([numbers_of(batch) for batch in batches])) == list(range(COUNT))
    assert sum(int(batch["decoded"].sum()) for batch in batches) == 0
    assert dataset.residency.reader.chunks_loaded == CHUNKS


def test_where_the_budget_holds_two_windows_each_chunk_is_decoded_once_an_epoch(path: str) -> None:
    one = ChunkDataset(path).chunk_nbytes
    dataset = ChunkDataset(path, memory=6 * one)
    loader = ChunkDataLoader(dataset, 4, "window", num_workers=2, window=16, persistent_workers=True)
    for epoch in range(1, 4):
        assert sorted(flat(numbers(loader))) == list(range(COUNT))
        assert dataset.residency.reader.chunks_loaded <= epoch * CHUNKS
    assert dataset.residency.counts.peak_bytes <= 6 * one
    del loader


def doubled(sample: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    sample["flow"] *= 2  # a sample is the worker's own
    return sample


@pytest.mark.parametrize("shuffle", [False, "window", "batch", "full"])
@pytest.mark.parametrize("transform", [None, doubled])
def test_batches_are_those_of_no_workers(path: str, shuffle: bool | str, transform: Any) -> None:
    def batches(workers: int) -> list[dict[str, torch.Tensor]]:
        dataset = ChunkDataset(path, transform=transform, with_index=True)
        return list(ChunkDataLoader(dataset, 6 if shuffle != "batch" else 4, shuffle, num_workers=workers))

    for here, there in zip(batches(0), batches(2), strict=True):
        assert list(here) == list(there)
        assert all(torch.equal(here[name], there[name]) for name in here)


def test_batches_that_are_kept_stay_right_and_are_still_decoded_here_when_no_slot_is_free(path: str) -> None:
    dataset = ChunkDataset(path, transform=with_counts, fields=["number", "flow", "image"], with_index=True)
    loader = ChunkDataLoader(dataset, 2, "window", num_workers=2)
    batches = list(loader)
    assert loader.worker_batches.no_slot > 10
    assert sorted(flat([numbers_of(batch) for batch in batches])) == list(range(COUNT))
    assert all(torch.equal(batch["index"], batch["number"]) for batch in batches)
    assert sum(int(batch["decoded"].sum()) for batch in batches) == 0


@pytest.mark.parametrize("persistent", [True, False])
def test_a_damaged_chunk_is_an_error_in_its_batch_s_place_and_the_loader_goes_on(
    tmp_path: Path, path: str, persistent: bool
) -> None:
    shutil.copytree(path, tmp_path / "store")
    file = next((tmp_path / "store/flow").glob("c.7*"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])
    loader = ChunkDataLoader(
        tmp_path / "store", 4, num_workers=2, persistent_workers=persistent, prefetch_factor=4
    )
    seen = []
    with pytest.raises(ChunkError, match=str(file)):
        seen.extend(flat([numbers_of(batch)]) for batch in loader)
    iterator = iter(loader)
    assert [numbers_of(next(iterator)) for _ in range(14)] == [list(range(i, i + 4)) for i in range(0, 56, 4)]
    with pytest.raises(ChunkError, match=str(file)):
        next(iterator)
    del iterator
    gc.collect()
    file.write_bytes(whole)
    assert flat(numbers(loader)) == list(range(COUNT))
    del loader


def test_leaving_early_leaves_no_thread_and_the_next_epoch_is_whole(path: str) -> None:
    loader = ChunkDataLoader(path, 4, "window", num_workers=1, persistent_workers=True)
    for leave in range(12):
        for _, _batch in zip(range(leave), loader, strict=False):
            pass
        assert sorted(flat(numbers(loader))) == list(range(COUNT))
    del loader


def decoded_by_ranks(path: str, lanes: int) -> int:
    """Run an epoch of two ranks; return how many chunks they have decoded together."""
    total, seen = 0, []
    for rank in range(2):
        dataset = ChunkDataset(path, memory=2**20)
        make = partial(ChunkBatchSampler, window=32, lanes=lanes, remainder="keep")
        sampler = make(dataset, 4, rank=rank, world_size=2)
        for batch in sampler:
            seen += dataset.read(batch).tensors["number"].tolist()
        total += dataset.residency.reader.chunks_loaded
    assert sorted(seen) == list(range(COUNT))
    return total


def test_lanes_dealt_to_ranks_decode_each_chunk_once_but_for_the_one_that_is_cut(path: str) -> None:
    assert decoded_by_ranks(path, lanes=1) == 2 * CHUNKS
    assert CHUNKS <= decoded_by_ranks(path, lanes=2) <= CHUNKS + 1
