"""Batches of one group each, in samplers and loaders: alike on all ranks, resumed, near their chunks."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mmapload
from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler, StateMismatchError
from tests.numbered_samples import collate_numbers, flat, numbers, write_store

if TYPE_CHECKING:
    from pathlib import Path

GROUPS = np.array([number * number % 7 for number in range(101)])
"""Squares modulo 7: 0, 1, 2 and 4, of 15 samples and three times about 28."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def path(folder: Path) -> str:
    """101 samples in 13 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(folder / "store", 101)


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


def saved(source: Any) -> Any:
    """A state as it comes back from a file."""
    return json.loads(json.dumps(source.state_dict()))


# ---- samplers


@settings(max_examples=80, deadline=None)
@given(
    groups=st.integers(1, 101).flatmap(
        lambda most: st.lists(st.integers(0, most - 1), min_size=101, max_size=101)
    ),
    ranks=st.sampled_from([1, 2, 3, 4, 6]),
    arguments=st.sampled_from([{"window": 24}, {"window": 8}, {"shuffle": False}, {"shuffle": "full"}]),
    remainder=st.sampled_from(["pad", "drop", "keep"]),
    part=st.booleans(),
    data=st.data(),
)
@pytest.mark.filterwarnings("ignore:.*do not fill one batch")
def test_all_ranks_have_the_same_group_in_a_step_and_go_on_at_every_step_with_any_number_of_ranks(
    path: str, groups: list[int], ranks: int, arguments: Any, remainder: Any, part: bool, data: st.DataObject
) -> None:
    ds = ChunkDataset(path)
    if part:
        ds, groups = ds.subset(slice(1, None, 2)), groups[1::2]
    arguments = {"groups": groups, "remainder": remainder, **arguments}
    whole = ChunkBatchSampler(ds, 12, **arguments)
    batches = list(whole)
    assert len(batches) == len(whole)
    assert all(len({groups[sample] for sample in batch}) == 1 for batch in batches)
    if remainder == "keep":
        assert sorted(flat(batches)) == list(range(len(ds)))
    placed = [{"rank": rank, "world_size": ranks, **arguments} for rank in range(ranks)]
    if remainder == "keep" and any(0 < groups.count(group) % 12 < ranks for group in groups):
        with pytest.raises(ValueError, match="fewer than the"):
            ChunkBatchSampler(ds, 12 // ranks, **placed[0])
        return
    samplers = [ChunkBatchSampler(ds, 12 // ranks, **each) for each in placed]
    parts = [list(sampler) for sampler in samplers]
    assert [flat(each) for each in zip(*parts, strict=True)] == batches
    step = data.draw(st.integers(0, len(batches)))
    state = json.loads(json.dumps(whole.sampler.state_at(0, step)))
    assert state == samplers[-1].sampler.state_at(0, step)
    for each, rest, sampler in zip(placed, parts, samplers, strict=True):
        resumed = ChunkBatchSampler(ds, 12 // ranks, **each)
        resumed.load_state_dict(state)
        assert list(resumed) == rest[step:]
        assert list(resumed) == list(sampler)  # the next epoch


def test_at_every_step_the_rest_is_that_of_the_uninterrupted_run(ds: ChunkDataset) -> None:
    for remainder in ("keep", "pad", "drop"):
        arguments: Any = {"groups": GROUPS, "window": 24, "remainder": remainder, "seed": 3}
        batches = list(ChunkBatchSampler(ds, 5, **arguments))
        stopped, resumed = (ChunkBatchSampler(ds, 5, **arguments) for _ in range(2))
        states = [saved(stopped), *(saved(stopped) for _ in stopped)]
        assert len(states) == len(batches) + 1
        for step, state in enumerate(states):
            resumed.load_state_dict(state)
            assert saved(resumed) == state
            assert list(resumed) == batches[step:]


def test_epochs_are_shuffled_anew_and_travel_with_the_sampler(ds: ChunkDataset) -> None:
    sampler = ChunkBatchSampler(ds, 4, groups=GROUPS, window=24)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert len(first) == len(second)
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(pickle.loads(pickle.dumps(sampler))) == second


def test_groups_may_be_a_field_of_the_store_of_a_whole_or_of_a_part(folder: Path) -> None:
    samples = [{"x": np.full(2, i), "bucket": np.array(i // 3 % 4, np.uint8)} for i in range(50)]
    mmapload.preprocess(samples, folder / "buckets", 4, chunk_bytes=8 * 16)
    ds = ChunkDataset(folder / "buckets", fields=["x"])
    buckets = np.arange(50) // 3 % 4
    tensor: Any = torch.from_numpy(buckets)
    named = list(ChunkBatchSampler(ds, 4, groups="bucket", window=16))
    assert named == list(ChunkBatchSampler(ds, 4, groups=buckets, window=16))
    assert named == list(ChunkBatchSampler(ds, 4, groups=tensor, window=16))
    part = ds.split(0.7)[0]
    assert list(ChunkBatchSampler(part, 4, groups="bucket")) == list(
        ChunkBatchSampler(part, 4, groups=buckets[part.numbers])
    )
    with pytest.raises(ValueError, match="no field 'label' to group by, only x, bucket"):
        ChunkSampler(ds, 4, groups="label")
    with pytest.raises(ValueError, match=r"one integer each, and field 'x' is int64 of shape \(2,\)"):
        ChunkSampler(ds, 4, groups="x")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"groups": GROUPS[:100]}, ValueError, r"each of 101 samples, not of shape \(100,\)"),
        ({"groups": GROUPS / 2}, TypeError, "an integer, not float64"),
        ({"groups": GROUPS.astype(np.uint64) + 2**63}, ValueError, r"below 2\*\*63"),
        ({"shuffle": "batch"}, ValueError, "not with shuffle='batch', weights or lanes"),
        ({"lanes": 2}, ValueError, "not with shuffle='batch', weights or lanes"),
        ({"weights": [1.0] * 101}, ValueError, "not with shuffle='batch', weights or lanes"),
        (
            {"rank": 0, "world_size": 4, "remainder": "keep"},
            ValueError,
            r"of group 0 has 3 of its 15 samples, fewer than the 4 ranks .*3 groups.*use remainder='pad' or",
        ),
    ],
)
def test_what_cannot_be_grouped_is_refused_with_its_values(
    ds: ChunkDataset, arguments: Any, error: Any, message: str
) -> None:
    for kind in (ChunkSampler, ChunkBatchSampler):
        with pytest.raises(error, match=message):
            kind(ds, 1, **{"groups": GROUPS, **arguments})


def test_a_state_belongs_to_its_groups_and_its_global_batch(ds: ChunkDataset) -> None:
    arguments: Any = {"window": 24, "remainder": "pad"}
    sampler = ChunkBatchSampler(ds, 4, groups=GROUPS, **arguments)
    steps, others = len(sampler), len(ChunkBatchSampler(ds, 6, groups=GROUPS, **arguments))
    state = sampler.sampler.state_at(0, 3)
    for groups in (None, (GROUPS + 1) % 7, np.roll(GROUPS, 1)):
        with pytest.raises(StateMismatchError, match="groups"):
            ChunkSampler(ds, 4, groups=groups, **arguments).load_state_dict(state)
    other = ChunkBatchSampler(ds, 6, groups=GROUPS, **arguments)
    with pytest.raises(StateMismatchError, match="others for another global batch") as caught:
        other.load_state_dict(state)
    assert (caught.value.saved, caught.value.current) == (
        "3 global batches of 4 samples",
        "batch_size=6 on 1 ranks",
    )
    for step, left in ((0, others), (steps, 0)):
        other.load_state_dict(sampler.sampler.state_at(0, step))
        assert len(list(other)) == left
    with pytest.raises(StateMismatchError, match=f"at most {steps} steps|beyond"):
        sampler.load_state_dict(state | {"step": steps + 1})
    with pytest.raises(StateMismatchError, match="in one lane"):
        sampler.load_state_dict(state | {"lanes": 2})
    with pytest.raises(StateMismatchError, match="remainder"):
        ChunkSampler(ds, 4, groups=GROUPS, window=24, remainder="drop").load_state_dict(state)


def test_small_groups_that_are_dropped_are_told_of(ds: ChunkDataset) -> None:
    groups = np.where(np.arange(101) < 3, 5, 0)
    with pytest.warns(UserWarning, match="1 of 2 groups, 3 of 101 samples, do not fill one batch of 4"):
        sampler = ChunkBatchSampler(ds, 4, groups=groups, remainder="drop")
    assert len(sampler) == 24
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ChunkBatchSampler(ds, 4, groups=groups, remainder="pad")
    with pytest.warns(UserWarning, match="do not fill one batch of 4"):
        assert list(ChunkBatchSampler(ds, 4, groups=np.arange(101), remainder="drop")) == []


# ---- loaders


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_loaders_deliver_short_batches_in_mid_epoch_and_go_on_where_they_were_left(
    folder: Path, codec: str, workers: int
) -> None:
    name = folder / f"{codec}-{workers}"
    part = ChunkDataset(write_store(name, 101, codec=codec)).split(0.8)[0]
    arguments: dict[str, Any] = {"groups": GROUPS[part.numbers], "window": 24}
    sampler = ChunkBatchSampler(part, 6, **arguments)
    expected = [part.numbers[batch].tolist() for batch in sampler]
    assert {len(batch) for batch in expected[:-1]} > {6}
    loader = ChunkDataLoader(part, 6, True, num_workers=workers, **arguments)
    assert len(loader) == len(expected)
    assert numbers(loader) == expected
    loader.set_epoch(0)
    for step, _ in enumerate(loader):
        if step == 5:
            break
    resumed = ChunkDataLoader(part, 6, True, **arguments)
    resumed.load_state_dict(loader.state_dict())
    assert numbers(resumed) == expected[6:]
    collated = ChunkDataLoader(part, 6, True, num_workers=workers, collate_fn=collate_numbers, **arguments)
    assert list(collated) == expected
    assert numbers(DataLoader(part, batch_sampler=ChunkBatchSampler(part, 6, **arguments))) == expected


def test_a_loader_goes_on_at_every_step(path: str) -> None:
    arguments: dict[str, Any] = {"groups": GROUPS, "window": 24}
    loader = ChunkDataLoader(path, 7, True, **arguments)
    states, batches = [saved(loader)], []
    for batch in loader:
        batches.append(batch["number"].tolist())
        states.append(saved(loader))
    resumed = ChunkDataLoader(path, 7, True, **arguments)
    for step, state in enumerate(states):
        resumed.load_state_dict(state)
        assert numbers(resumed) == batches[step:]


def test_by_single_samples_torch_makes_the_batches_if_all_are_full(ds: ChunkDataset) -> None:
    for remainder in ("pad", "drop"):
        arguments: Any = {"groups": GROUPS, "window": 24, "remainder": remainder}
        expected = list(ChunkBatchSampler(ds, 4, **arguments))
        assert numbers(DataLoader(ds, 4, sampler=ChunkSampler(ds, 4, **arguments))) == expected
    with pytest.raises(ValueError, match="use ChunkBatchSampler or ChunkDataLoader, or remainder='pad'"):
        iter(ChunkSampler(ds, 4, groups=GROUPS))
    even = np.arange(101) < 100  # groups of 100 and 1: nothing is short in batches of 1
    assert sorted(ChunkSampler(ds, 1, groups=even.astype(int))) == list(range(101))


def test_groups_need_mmaploads_order(ds: ChunkDataset) -> None:
    with pytest.raises(ValueError, match="groups, weights and shuffle by name belong"):
        ChunkDataLoader(ds, 4, sampler=ChunkSampler(ds, 4), groups=GROUPS)


# ---- chunks


CHUNK = 16 * (1500 + 24)


@pytest.fixture(scope="module")
def large(folder: Path) -> str:
    """3,200 samples in 200 chunks of 16."""
    return write_store(folder / "large", 3200, batch_size=16, chunk_length=16, image=(3, 500))


def loads(path: str, chunks: int, groups: Any) -> tuple[float, int]:
    """How often each chunk is loaded in an epoch in windows of 8 chunks, and the most that are held."""
    ds = ChunkDataset(path, memory=chunks * CHUNK)
    loader = ChunkDataLoader(ds, 16, True, window=128, groups=groups, remainder="pad")
    assert set(flat(numbers(loader))) == set(range(3200))
    counts = ds.reading.residency.counts
    assert counts.peak_bytes <= chunks * CHUNK
    return (counts.ahead + counts.misses) / 200, counts.peak_bytes // CHUNK


def test_chunks_are_loaded_as_often_as_without_groups_where_memory_holds_open_batches(large: str) -> None:
    of = np.random.default_rng(0)
    assert loads(large, 24, None)[0] <= 1.05
    assert loads(large, 24, of.integers(0, 2, 3200))[0] <= 1.1
    assert loads(large, 24, of.integers(0, 8, 3200))[0] <= 1.1
    assert loads(large, 80, of.integers(0, 32, 3200))[0] <= 1.25


def test_a_rare_group_pins_no_chunks_and_costs_a_load_or_less_for_each_of_its_samples(large: str) -> None:
    of = np.random.default_rng(0)
    rare = of.random(3200) < 0.01
    groups = np.where(rare, 9, of.integers(0, 4, 3200))
    often, most = loads(large, 24, groups)
    assert often <= 1.1 + (rare.sum() + 16) / 200
    assert most <= 24


def test_open_batches_that_memory_does_not_hold_are_told_of_and_read_in_the_same_order(large: str) -> None:
    groups = np.random.default_rng(0).integers(0, 60, 3200)
    small, enough = ChunkDataset(large, memory=24 * CHUNK), ChunkDataset(large)
    with pytest.warns(UserWarning, match="take up to 68 chunks of 23.8 KiB, more than"):
        tight = ChunkDataLoader(small, 16, True, window=128, groups=groups)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wide = ChunkDataLoader(enough, 16, True, window=128, groups=groups)
    assert numbers(tight) == numbers(wide)
    assert small.reading.residency.counts.peak_bytes <= 24 * CHUNK


def test_late_rows_of_a_raw_store_are_read_by_themselves(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 512, batch_size=16, chunk_length=64, image=(3, 21845))
    ds = ChunkDataset(path, memory=5 * 64 * (3 * 21845 + 24))
    groups = np.arange(512) % 2
    groups[5::90] = 9
    loader = ChunkDataLoader(ds, 16, True, window=64, groups=groups)
    assert sorted(flat(numbers(loader))) == list(range(512))
    reader, counts = ds.reading.residency.reader, ds.reading.residency.counts
    assert counts.ahead + counts.misses <= 10  # 8 chunks, and 6 rows that come late
    assert reader.row_bytes_loaded > 0
