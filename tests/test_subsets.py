"""Subsets and splits of a dataset: which samples, in every loader, chunk by chunk, resumed at every step."""

from __future__ import annotations

import json
import pickle
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mmapload import (
    ChunkBatchSampler,
    ChunkDataLoader,
    ChunkDataset,
    ChunkSampler,
    StateMismatchError,
    shuffle_quality,
)
from tests.numbered_samples import Negated, flat, numbers, write_store

if TYPE_CHECKING:
    from pathlib import Path

SHUFFLES = (False, True, "batch", "full")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def path(folder: Path) -> str:
    """101 samples (a prime) in 13 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(folder / "raw", 101)


@pytest.fixture(scope="module")
def zstd_path(folder: Path) -> str:
    return write_store(folder / "zstd", 101, codec="zstd")


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


# ---- which samples


def test_a_subset_is_chosen_as_numpy_would_choose(ds: ChunkDataset) -> None:
    everything = np.arange(101)
    mask = everything % 3 == 1
    for indices in (
        slice(10, 30),
        slice(-5, None),
        slice(None, None, 7),
        range(3, 50),
        [0, 7, 8, 100],
        [-3, -1],
        np.array([5], np.uint8),
        torch.tensor([2, 4]),
        mask,
        mask.tolist(),
        torch.from_numpy(mask),
    ):
        part = ds.subset(indices)
        chosen = everything[np.asarray(indices) if isinstance(indices, (range, list)) else indices]
        assert part.numbers.tolist() == np.asarray(chosen).tolist()
        assert len(part) == len(chosen)
        assert [int(part[i]["number"]) for i in range(len(part))] == list(chosen)
        assert int(part[-1]["number"]) == chosen[-1]
        assert [int(each["number"]) for each in part] == list(chosen)
        with pytest.raises(IndexError):
            part[len(part)]


@pytest.mark.parametrize(
    ("indices", "error", "message"),
    [
        ([], ValueError, "none of 101 samples is chosen"),
        (slice(5, 5), ValueError, "none of 101"),
        (np.zeros(101, bool), ValueError, "none of 101"),
        (np.ones(100, bool), ValueError, "each of 101 samples, and this one has 100"),
        ([3, 1], ValueError, "at place 1 there is 1 after 3: sort them"),
        ([3, 4, 4], ValueError, "at place 2 there is 4 after 4"),
        ([-1, 0], ValueError, "there is 0 after 100"),
        (slice(None, None, -1), ValueError, "there is 99 after 100"),
        ([101], IndexError, "sample 101 of"),
        ([-102], IndexError, "sample -102 of"),
        (range(90, 102), IndexError, "sample 101 of"),
        ([2**70], IndexError, "of a store of 101"),
        ([1.0], TypeError, "not by float64"),
        ([[1, 2]], TypeError, r"shape \(1, 2\)"),
        (3, TypeError, r"not by int64 of shape \(\)"),
    ],
)
def test_what_is_no_subset_is_refused_with_its_values(
    ds: ChunkDataset, indices: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ds.subset(indices)


def test_a_subset_of_a_subset_has_the_stores_numbers(path: str) -> None:
    ds = ChunkDataset(path, with_index=True)
    inner = ds.subset(slice(1, None, 2)).subset([0, 3, -1])
    assert inner.numbers.tolist() == [1, 7, 99]
    assert [int(each["index"]) for each in inner] == [1, 7, 99]
    assert ds.subset(slice(10, 50)).subset(slice(5, 8)).numbers.tolist() == [15, 16, 17]
    again = pickle.loads(pickle.dumps(inner))
    assert again.numbers.tolist() == [1, 7, 99]
    assert again.fingerprint == inner.fingerprint


def test_fingerprints_tell_samples_apart_and_not_how_they_were_named(ds: ChunkDataset) -> None:
    one = ds.subset(slice(10, 30)).fingerprint
    assert (
        one
        == ds.subset(np.arange(10, 30)).fingerprint
        == ds.subset(range(5, 40)).subset(range(5, 25)).fingerprint
    )
    assert one not in {ds.fingerprint, ds.subset(slice(10, 31)).fingerprint}
    assert ds.subset(slice(None)).fingerprint == ds.fingerprint == ds.store.fingerprint


def test_a_users_class_stays_what_it_is(path: str) -> None:
    part = Negated(path).subset([4, 9])
    assert type(part) is Negated
    assert part[1] == {"negative": -9}


@given(
    fraction=st.floats(0.02, 0.98),
    seed=st.integers(0, 2**64 - 1),
    by=st.sampled_from(["sample", "chunk"]),
    inside=st.booleans(),
)
def test_a_split_shares_all_samples_out(path: str, fraction: float, seed: int, by: Any, inside: bool) -> None:
    ds = ChunkDataset(path)
    ds = ds.subset(slice(3, 90, 2)) if inside else ds
    count = len(ds) if by == "sample" else len({number // 8 for number in ds.numbers})
    if not 0 < int(fraction * count + 0.5) < count:
        with pytest.raises(ValueError, match=f"of {count} {by}s leaves none for a part"):
            ds.split(fraction, seed=seed, by=by)
        return
    train, val = ds.split(fraction, seed=seed, by=by)
    assert sorted([*train.numbers, *val.numbers]) == ds.numbers.tolist()
    chunks = [{number // 8 for number in part.numbers} for part in (train, val)]
    if by == "sample":
        assert len(train) == int(fraction * count + 0.5)
    else:
        assert not chunks[0] & chunks[1]
        assert len(chunks[0]) == int(fraction * count + 0.5)
    again = ds.split(fraction, seed=seed, by=by)
    assert [part.fingerprint for part in again] == [train.fingerprint, val.fingerprint]


def test_a_split_draws_every_sample_alike_and_stays_what_it_is_for_ever(ds: ChunkDataset) -> None:
    times = np.zeros(101)
    for seed in range(400):
        times[ds.split(0.25, seed=seed)[0].numbers] += 1
    assert 60 < times.min() <= times.max() < 145
    assert ds.split(0.95, seed=3)[1].numbers.tolist() == [31, 41, 43, 54, 71]
    assert (ds.split(0.9, seed=3, by="chunk")[1].numbers // 8).tolist() == [10, 10, 10, 10, 10, 10, 10, 10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"fraction": 0.001},
            "a fraction of 0.001 of 101 samples leaves none for a part: use one from 0.0099",
        ),
        ({"fraction": 1}, "between 0 and 1, not 1"),
        ({"fraction": 1.5}, "not 1.5"),
        ({"fraction": float("nan")}, "not nan"),
        ({"fraction": 0.5, "by": "batch"}, "not by 'batch'"),
        ({"fraction": 0.5, "seed": -1}, "seed"),
        ({"fraction": 0.5, "seed": 2**64}, "seed"),
    ],
)
def test_what_is_no_split_is_refused_with_its_values(ds: ChunkDataset, arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ds.split(**arguments)
    with pytest.raises(ValueError, match="1 sample cannot be split"):
        ds.subset([3]).split(0.5)


# ---- samplers


def any_part(ds: ChunkDataset, which: str) -> ChunkDataset:
    return {
        "sample": lambda: ds.split(0.8, seed=1)[0],
        "rest": lambda: ds.split(0.8, seed=1)[1],
        "chunk": lambda: ds.split(0.7, seed=1, by="chunk")[0],
        "slice": lambda: ds.subset(slice(13, 77)),
    }[which]()


PARTS = ("sample", "rest", "chunk", "slice")


@settings(max_examples=80)
@given(
    which=st.sampled_from(PARTS),
    ranks=st.integers(1, 4),
    shuffle=st.sampled_from(SHUFFLES),
    remainder=st.sampled_from(["keep", "pad", "drop"]),
    data=st.data(),
)
def test_ranks_share_the_chosen_samples_and_go_on_at_every_step(
    path: str, which: str, ranks: int, shuffle: Any, remainder: Any, data: st.DataObject
) -> None:
    part = any_part(ChunkDataset(path), which)
    batch = 4
    if remainder == "keep" and 0 < len(part) % (batch * ranks) < ranks:
        return
    if shuffle == "batch" and ranks == 3:
        batch = 4
    arguments = {"shuffle": shuffle, "remainder": remainder}
    placed = [{"rank": rank, "world_size": ranks, **arguments} for rank in range(ranks)]
    samplers = [ChunkBatchSampler(part, batch, **each) for each in placed]
    batches = [list(sampler) for sampler in samplers]
    seen = flat(map(flat, batches))
    if remainder == "drop":
        assert len(set(seen)) == len(seen) == len(part) // (batch * ranks) * batch * ranks
    else:
        assert set(seen) == set(range(len(part)))
        assert len(seen) == len(part) or remainder == "pad"
    whole = list(ChunkBatchSampler(part, batch * ranks, **arguments))
    together = [sorted(flat(parts)) for parts in zip(*batches, strict=True)]
    assert together == [sorted(each) for each in whole]
    step = data.draw(st.integers(0, len(whole)))
    state = json.loads(json.dumps(samplers[0].sampler.state_at(0, step)))
    for each, rest in zip(placed, batches, strict=True):
        resumed = ChunkBatchSampler(part, batch, **each)
        resumed.load_state_dict(state)
        assert list(resumed) == rest[step:]


def test_a_state_belongs_to_its_samples(ds: ChunkDataset) -> None:
    train, val = ds.split(0.8)
    state = ChunkSampler(train, 4).state_dict()
    for other in (val, ds, ds.split(0.8, seed=1)[0]):
        with pytest.raises(StateMismatchError, match="or of other samples"):
            ChunkSampler(other, 4).load_state_dict(state)
    ChunkSampler(ds.subset(train.numbers), 4).load_state_dict(state)


def test_a_window_that_does_not_fit_is_cut_to_what_the_chunks_of_the_samples_take(path: str) -> None:
    small = ChunkDataset(path, memory=7 * 8 * 39)
    assert small.chunks_held == 7
    sparse = small.subset(slice(None, None, 4))  # two samples of each chunk
    with pytest.warns(UserWarning, match="two windows of 26 samples do not fit"):
        sampler = ChunkSampler(sparse, 2)
    order = sampler.order(0)
    windows = [sparse.numbers[order.step_batch(step)] // 8 for step in range(order.steps)]
    two = 2 * sampler.window // 2
    assert all(
        len(set(flat(windows[i : i + two]))) <= 7 for i in range(0, order.steps, sampler.window // 2 or 1)
    )


# ---- loaders


@pytest.mark.parametrize(("shuffle", "workers"), list(product(SHUFFLES, (0, 2))))
def test_loaders_of_mmapload_and_torch_deliver_the_chosen_samples(
    path: str, zstd_path: str, shuffle: Any, workers: int
) -> None:
    for store, which in ((path, "sample"), (zstd_path, "slice")):
        part = any_part(ChunkDataset(store, with_index=True), which)
        expected = [part.numbers[batch].tolist() for batch in ChunkBatchSampler(part, 4, shuffle=shuffle)]
        ours = ChunkDataLoader(part, 4, shuffle, num_workers=workers)
        assert numbers(ours) == expected
        sampler = ChunkSampler(part, 4, shuffle=shuffle)
        for batch, numbered in zip(
            DataLoader(part, 4, sampler=sampler, num_workers=workers), expected, strict=True
        ):
            assert batch["index"].tolist() == batch["number"].tolist() == numbered


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_over_a_part_goes_on_where_it_was_left(path: str, workers: int) -> None:
    part = any_part(ChunkDataset(path), "sample")
    whole = numbers(ChunkDataLoader(part, 4, True))
    loader = ChunkDataLoader(part, 4, True, num_workers=workers)
    for step, _ in enumerate(loader):
        if step == 6:
            break
    resumed = ChunkDataLoader(part, 4, True)
    resumed.load_state_dict(loader.state_dict())
    assert numbers(resumed) == whole[7:]


def test_generators_of_transforms_are_keyed_by_the_stores_numbers(path: str) -> None:
    def drawn(sample: Any, rng: Any) -> Any:
        return int(sample["number"]), rng.random()

    ds = ChunkDataset(path, transform=drawn)
    seen = [
        dict(flat(ChunkDataLoader(part, 4, True, collate_fn=list)))
        for part in (ds, ds.split(0.8)[0], ds.subset(slice(20, 60)))
    ]
    for part in seen[1:]:
        assert part.items() <= seen[0].items()


def test_each_chunk_of_a_part_is_loaded_once_an_epoch(folder: Path) -> None:
    ds = ChunkDataset(write_store(folder / "many", 1600, image=(3, 500)), memory=24 * 8 * (1500 + 24))
    train, val = ds.split(0.9, seed=1)
    for part, arguments in ((train, {"shuffle": True, "window": 64}), (val, {}), (train, {})):
        loader = ChunkDataLoader(part, 4, **arguments)
        assert part.chunks_held == 24
        counts = part.reading.residency.counts
        before = counts.ahead + counts.misses
        assert sorted(flat(numbers(loader))) == part.numbers.tolist()
        chunks = len({number // 8 for number in part.numbers})
        assert counts.ahead + counts.misses - before <= chunks


def test_whole_batches_of_a_part_are_views(folder: Path) -> None:
    path = write_store(folder / "large", 64, image=(3, 100_000))
    for shuffle in (False, "batch"):
        for part in (
            ChunkDataset(path).split(0.5, by="chunk")[0],
            ChunkDataset(path).subset(slice(4, 40)),
        ):
            assert sorted(flat(numbers(ChunkDataLoader(part, 4, shuffle)))) == part.numbers.tolist()
            assert part.reading.copies == 0
            assert part.reading.views == len(part) // 4


def test_what_fits_in_memory_of_a_slice_stays_there(path: str) -> None:
    small = ChunkDataset(path, memory=4 * 8 * 39)
    part = small.subset(slice(40, 64))
    assert small.exceeds_memory
    assert not part.exceeds_memory
    loader = ChunkDataLoader(part, 4, False)
    for _ in range(3):
        numbers(loader)
    assert part.reading.residency.counts.dropped == 0


def test_parts_of_a_compressed_store_divide_its_budget(zstd_path: str, path: str) -> None:
    train, val = ChunkDataset(zstd_path, memory=10 * 8 * 39).split(0.8)
    assert (train.chunks_held, val.chunks_held) == (8, 1)
    shared = ChunkDataset(path, memory=10 * 8 * 39).split(0.8)
    assert [part.chunks_held for part in shared] == [10, 10]


def test_shuffle_quality_asks_for_a_whole_store(ds: ChunkDataset) -> None:
    for part in (ds, ds.subset(slice(9))):
        with pytest.raises(TypeError, match=r"measures the order of a whole store: pass dataset\.store"):
            shuffle_quality(part)  # type: ignore[arg-type]
