"""Samples drawn by weight: how often, how far apart, near their chunks, alike on all ranks, resumed."""

from __future__ import annotations

import pickle
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler, StateMismatchError
from mmapload.streams import Stream
from mmapload.weights import checked_weights
from tests.numbered_samples import flat, numbers, write_store

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """101 samples (a prime) in 13 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 101)


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


any_weights = st.lists(st.floats(0, 1e300) | st.integers(0, 5).map(float), min_size=1, max_size=60).filter(
    any
)


# ---- which samples


@settings(max_examples=200)
@given(
    weights=any_weights,
    length=st.integers(1, 200),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**64 - 1),
)
def test_each_sample_comes_as_often_as_its_weight_says_to_the_next_whole_number(
    weights: list[float], length: int, seed: int, epoch: int
) -> None:
    made = checked_weights(weights, len(weights), length)
    drawn = made.drawn(seed, epoch)
    assert len(drawn) == length
    assert (np.diff(drawn) >= 0).all()
    counts = np.bincount(drawn, minlength=len(weights))
    total = sum(made.shares.tolist())
    assert total < 2**62
    for count, share, weight in zip(counts.tolist(), made.shares.tolist(), weights, strict=True):
        expected = Fraction(share * length, total)
        assert expected.__floor__() <= count <= expected.__ceil__()
        assert abs(share / 2**52 - weight / max(weights)) < 1e-9
    assert made.drawn(seed, epoch).tolist() == drawn.tolist()


def test_over_epochs_samples_come_as_often_as_expected_and_independently_of_their_neighbours() -> None:
    weights = checked_weights([1.0] * 40, 40, 20)
    times, both = np.zeros(40), 0
    for epoch in range(1000):
        drawn = weights.drawn(0, epoch)
        times[drawn] += 1
        both += bool({7, 8} <= set(drawn.tolist()))
    assert 430 < times.min() <= times.max() < 570
    assert 190 < both < 300  # 20 * 19 / (40 * 39) of 1,000 are 244


def test_a_draw_stays_what_it_is_for_ever() -> None:
    weights = checked_weights(np.arange(10), 10, 12)
    assert [weights.drawn(1, epoch).tolist() for epoch in range(2)] == [
        [3, 4, 5, 5, 6, 7, 7, 8, 8, 9, 9, 9],
        [2, 3, 4, 5, 6, 6, 7, 7, 8, 8, 9, 9],
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": [1.0] * 100}, r"for each of 101 samples, not of shape \(100,\)"),
        ({"weights": [[1.0] * 101]}, r"not of shape \(1, 101\)"),
        ({"weights": [0.0] * 101}, "all 101 samples are 0"),
        ({"weights": [1.0] * 100 + [-1.0]}, "that of sample 100 is -1.0"),
        ({"weights": [float("nan")] * 101}, "that of sample 0 is nan"),
        ({"weights": [float("inf")] * 101}, "that of sample 0 is inf"),
        ({"weights": [1.0] * 101, "epoch_length": 0}, "epoch_length is an integer from 1 up, not 0"),
        ({"weights": [1.0] * 101, "epoch_length": 2**31}, "2147483648"),
        ({"epoch_length": 5}, "epoch_length belongs to weights"),
        ({"weights": [1.0] * 101, "shuffle": False}, "weights belong to shuffle=True, and shuffle is False"),
        ({"weights": [1.0] * 101, "shuffle": "batch"}, "shuffle is 'batch'"),
        ({"weights": [1.0] * 101, "shuffle": "full"}, "shuffle is 'full'"),
    ],
)
def test_what_are_no_weights_is_refused_with_its_values(
    ds: ChunkDataset, arguments: Any, message: str
) -> None:
    for kind in (ChunkSampler, ChunkBatchSampler):
        with pytest.raises(ValueError, match=message):
            kind(ds, 4, **arguments)


# ---- samplers


@settings(max_examples=60)
@given(
    weights=st.lists(st.integers(0, 6), min_size=101, max_size=101).filter(any),
    length=st.sampled_from([5, 64, 101, 300]),
    ranks=st.integers(1, 4),
    window=st.sampled_from([8, 24, 100]),
    remainder=st.sampled_from(["pad", "drop"]),
    part=st.booleans(),
    data=st.data(),
)
@pytest.mark.filterwarnings("ignore:.*do not fill one batch")
def test_ranks_share_what_was_drawn_and_go_on_at_every_step(
    path: str,
    weights: list[int],
    length: int,
    ranks: int,
    window: int,
    remainder: Any,
    part: bool,
    data: st.DataObject,
) -> None:
    ds = ChunkDataset(path)
    if part:
        ds = ds.subset(slice(1, None, 2))
        weights = [weight + 1 for weight in weights[1::2]]
    arguments = {"weights": weights, "epoch_length": length, "window": window, "remainder": remainder}
    placed = [{"rank": rank, "world_size": ranks, **arguments} for rank in range(ranks)]
    samplers = [ChunkBatchSampler(ds, 4, **each) for each in placed]
    batches = [list(sampler) for sampler in samplers]
    assert len({len(each) for each in batches}) == 1
    drawn = Counter(checked_weights(weights, len(ds), length).drawn(0, 0).tolist())
    seen = Counter(flat(map(flat, batches)))
    assert seen <= drawn if remainder == "drop" else drawn <= seen
    assert seen.total() == length // (4 * ranks) * 4 * ranks or remainder == "pad"
    whole = list(ChunkBatchSampler(ds, 4 * ranks, **arguments))
    together = [sorted(flat(parts)) for parts in zip(*batches, strict=True)]
    assert together == [sorted(each) for each in whole]
    step = data.draw(st.integers(0, len(whole)))
    state = samplers[0].sampler.state_at(0, step)
    for each, rest, sampler in zip(placed, batches, samplers, strict=True):
        resumed = ChunkBatchSampler(ds, 4, **each)
        resumed.load_state_dict(state)
        assert list(resumed) == rest[step:]
        assert list(resumed) == list(sampler)  # the next epoch


def test_epochs_draw_anew(ds: ChunkDataset) -> None:
    sampler = ChunkSampler(ds, 4, weights=np.arange(101), epoch_length=50)
    first, second = list(sampler), list(sampler)
    assert sorted(first) != sorted(second)
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(pickle.loads(pickle.dumps(sampler))) == second


def test_a_state_belongs_to_its_weights(ds: ChunkDataset) -> None:
    weights = np.arange(101.0)
    state = ChunkSampler(ds, 4, weights=weights).state_dict()
    for arguments in ({}, {"weights": weights + 1}, {"weights": weights, "epoch_length": 50}):
        with pytest.raises(StateMismatchError, match="weights"):
            ChunkSampler(ds, 4, **arguments).load_state_dict(state)
    ChunkSampler(ds, 4, weights=torch.from_numpy(2 * weights)).load_state_dict(state)


def test_a_rare_class_is_balanced_without_a_sample_twice_in_a_batch(tmp_path: Path) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 2000, chunk_length=16))
    rare = np.arange(2000) % 20 == 3  # 100 of 2,000
    sampler = ChunkBatchSampler(ds, 32, weights=np.where(rare, 0.5 / 100, 0.5 / 1900), window=512)
    batches = list(sampler)
    assert sum(rare[flat(batches)]) == 1000
    for start in range(0, len(batches) - 16, 16):
        for batch in batches[start : start + 16]:
            assert len(set(batch)) == 32


# ---- loaders


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_deliver_what_was_drawn_and_go_on_where_they_were_left(path: str, workers: int) -> None:
    part = ChunkDataset(path).split(0.8)[0]
    arguments: dict[str, Any] = {"weights": np.arange(len(part)), "epoch_length": 60, "window": 24}
    expected = [part.numbers[batch].tolist() for batch in ChunkBatchSampler(part, 4, **arguments)]
    loader = ChunkDataLoader(part, 4, True, num_workers=workers, **arguments)
    assert len(loader) == 15
    assert numbers(loader) == expected
    sampler = ChunkSampler(part, 4, **arguments)
    assert numbers(DataLoader(part, 4, sampler=sampler, num_workers=workers)) == expected
    loader.set_epoch(0)
    for step, _ in enumerate(loader):
        if step == 5:
            break
    resumed = ChunkDataLoader(part, 4, True, **arguments)
    resumed.load_state_dict(loader.state_dict())
    assert numbers(resumed) == expected[6:]


def drawing(sample: dict[str, torch.Tensor], rng: np.random.Generator) -> tuple[int, float]:
    return int(sample["number"]), rng.random()


@pytest.mark.parametrize("workers", [0, 2])
def test_copies_of_a_sample_are_given_numbers_of_their_own_and_the_first_what_it_has_alone(
    path: str, workers: int
) -> None:
    ds = ChunkDataset(path, transform=drawing).subset(slice(40, None))
    arguments: dict[str, Any] = {
        "weights": 1 + np.arange(61) % 4,
        "window": 24,
        "seed": 7,
        "num_workers": workers,
    }
    loader = ChunkDataLoader(ds, 4, True, collate_fn=list, **arguments)
    batches = list(loader)
    given = flat(batches)
    assert len({number for number, _ in given}) < len(set(given)) == len(given) == 61
    alone = {Stream(7, 0).rng(number).random() for number, _ in given}
    assert len(alone & {drawn for _, drawn in given}) == len({number for number, _ in given})
    loader.set_epoch(0)
    for step, _ in enumerate(loader):
        if step == 5:
            break
    resumed = ChunkDataLoader(ds, 4, True, collate_fn=list, batch_transform=list, **arguments)
    resumed.load_state_dict(loader.state_dict())
    assert list(resumed) == batches[6:]
    sampler = ChunkSampler(ds, 4, weights=arguments["weights"], window=24, seed=7)
    assert list(DataLoader(ds, 4, sampler=sampler, collate_fn=list, num_workers=workers)) == batches


def test_weights_need_mmaploads_order(ds: ChunkDataset) -> None:
    with pytest.raises(ValueError, match="weights and shuffle by name belong"):
        ChunkDataLoader(ds, 4, sampler=ChunkSampler(ds, 4), weights=[1.0] * 101)
    with pytest.raises(ValueError, match="weights belong to shuffle=True"):
        ChunkDataLoader(ds, 4, weights=[1.0] * 101)


def test_each_chunk_is_loaded_once_an_epoch_however_often_its_samples_come(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 1600, image=(3, 500))
    ds = ChunkDataset(path, memory=24 * 8 * (1500 + 24))
    weights = 1 + np.arange(1600) % 5
    loader = ChunkDataLoader(ds, 4, True, weights=weights, window=64)
    delivered = flat(numbers(loader))
    counts = ds.reading.residency.counts
    assert counts.ahead + counts.misses <= len({number // 8 for number in delivered})
    assert len(delivered) == 1600


def test_a_late_step_costs_what_the_first_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An epoch is drawn whole at its beginning; from there on no step is computed for the sake of another."""
    from mmapload.order.philox import philox4x32 as philox

    ds = ChunkDataset(write_store(tmp_path / "store", 20_000, batch_size=32, chunk_length=320))
    drawn: list[int] = []

    def counted(counter: Any, key: Any) -> Any:
        drawn.append(np.broadcast(*counter).size)
        return philox(counter, key)

    monkeypatch.setattr("mmapload.order.bijection.philox4x32", counted)
    costs = []
    for step in (0, 600):
        sampler = ChunkBatchSampler(ds, 32, weights=np.arange(20_000), window=1024)
        sampler.load_state_dict(sampler.sampler.state_at(1, step))
        drawn.clear()
        next(iter(sampler))
        costs.append(sum(drawn))
    assert costs[1] <= costs[0]


def test_the_page_that_defines_the_order_says_what_is_drawn_and_in_which_order() -> None:
    """The steps of `docs/order.md` in plain integers, one by one."""
    from mmapload.order import Chosen, Geometry, epoch_order
    from tests.test_order_docs import PAGE

    page: dict[str, Any] = {}
    exec(PAGE.partition("## Reference implementation")[2].partition("```python")[2].partition("```")[0], page)
    weights, length, seed, epoch, window, chunk = [0, 3, 1, 1, 9, 2, 2, 1, 4, 4], 30, 5, 2, 12, 4
    count, bits = len(weights), 62 - len(weights).bit_length()
    shares = [int(weight / max(weights) * 2 ** min(52, bits)) for weight in weights]
    key, (low, high) = page["stream_key"](seed, epoch, 6), page["stream_key"](seed, epoch, 6, 1)
    permuted = [page["permuted"](count, key, 0, position) for position in range(count)]
    total = sum(shares)
    shift = (low + (high << 32)) * total >> 64
    drawn = []
    for turn in range(length):
        point = (turn * total + shift) // length
        for sample in permuted:
            if point < shares[sample]:
                drawn.append(sample)
                break
            point -= shares[sample]
    drawn.sort()
    assert checked_weights(weights, count, length).drawn(seed, epoch).tolist() == drawn
    key, places = page["stream_key"](seed, epoch, 1), []
    chunks = sorted({sample // chunk for sample in drawn})
    for slot in range(len(chunks)):
        visited = chunks[page["permuted"](len(chunks), key, 0, slot)]
        places += [sample for sample in drawn if sample // chunk == visited]
    expected = []
    for number, start in enumerate(range(0, length, window)):
        inside = places[start : start + window]
        size, key = len(inside), page["stream_key"](seed, epoch, 2, 0)
        values = [page["permuted"](size, key, number, position) for position in range(size)]
        listed = sorted(range(size), key=lambda p, w=inside, v=values: (v.index(w.index(w[p])), p))
        stretches = min(size, max(map(inside.count, inside)) + 1)
        rows: list[list[int]] = [[] for _ in range(stretches)]
        for entry, place in enumerate(listed):
            rows[entry % stretches].append(inside[place])
        expected += flat(rows)
    order = epoch_order(
        Geometry(length, chunk, 2),
        global_batch=length,
        seed=seed,
        epoch=epoch,
        window=window,
        chosen=Chosen.of(np.array(drawn), chunk, repeats=True),
    )
    assert np.array(drawn)[order.step_batch(0)].tolist() == expected
