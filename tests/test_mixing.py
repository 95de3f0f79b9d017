"""Several stores in one order: how often each, every sample, alike on all ranks, resumed, loaded once."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections import Counter
from fractions import Fraction
from itertools import islice
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mmapload
from mmapload import (
    ChunkDataLoader,
    ChunkDataset,
    ChunkError,
    ChunkSampler,
    MixedBatchSampler,
    MixedDataset,
    StateMismatchError,
)
from mmapload.order import Geometry, epoch_order
from mmapload.order.turns import Turns, whole_shares
from tests.numbered_samples import damage, flat, numbers_of, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SIZES = (101, 37, 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[str]:
    """Stores of 101, 37 and 20 samples in chunks of 8."""
    return [write_store(folder / f"of-{size}", size) for size in SIZES]


def mix(paths: Iterable[str], **arguments: Any) -> MixedDataset:
    return MixedDataset([ChunkDataset(path, **arguments) for path in paths])


def stores_of(mixed: MixedDataset, batch: Iterable[int]) -> list[int]:
    return (np.searchsorted(mixed.offsets, list(batch), "right") - 1).tolist()


# ---- whose turn it is


any_shares = st.lists(st.integers(1, 30) | st.integers(1, 400), min_size=1, max_size=8)


@settings(max_examples=100)
@given(shares=any_shares, start=st.integers(0, 10**12))
def test_at_every_turn_each_store_has_had_its_share_to_the_next_whole_number(
    shares: list[int], start: int
) -> None:
    turns = Turns(shares)
    length = turns.period + 7
    whose = turns.whose(start, start + length).tolist()
    counts = turns.counts(start)
    for turn, store in enumerate(whose, start):
        for each, share in enumerate(shares):
            exact = Fraction(share * turn, turns.period)
            assert floor(exact) <= counts[each] <= ceil(exact)
        assert turns.turn(store, counts[store]) == turn
        counts[store] += 1
    assert turns.counts(start + length) == counts


@pytest.mark.parametrize(
    ("proportions", "shares"),
    [
        ([3, 1], (3, 1)),
        ([6, 2, 2], (3, 1, 1)),
        ([0.7, 0.3], (7, 3)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([1, 2**0.5], (2071, 2929)),
        ([1, 1, 1.0], (1, 1, 1)),
        ([0.5, 0.25, 0.25], (2, 1, 1)),
        ([51313, 20000], (1439, 561)),
        ([10, 0.001], (9999, 1)),
    ],
)
def test_proportions_become_whole_shares(proportions: list[float], shares: tuple[int, ...]) -> None:
    found = whole_shares(proportions)
    assert found == shares
    assert sum(found) <= 10_000


def test_proportions_are_numbers_of_any_kind(paths: list[str]) -> None:
    for proportions in ([np.float32(0.5), np.int64(2), 1], np.array([0.5, 2, 1]), torch.tensor([0.5, 2, 1])):
        assert MixedBatchSampler(mix(paths), 4, proportions).shares == (1, 4, 2)  # type: ignore[arg-type]


def test_turns_stay_what_they_are_for_ever() -> None:
    assert Turns([7, 3]).whose(0, 10).tolist() == [0, 0, 1, 0, 0, 1, 0, 0, 0, 1]
    assert Turns([5, 1, 1, 3]).whose(0, 10).tolist() == [0, 3, 0, 3, 0, 1, 0, 2, 0, 3]


# ---- batches


@settings(max_examples=40)
@given(
    proportions=st.lists(st.integers(1, 9), min_size=3, max_size=3),
    ranks=st.integers(1, 4),
    batch=st.integers(1, 9),
    shuffle=st.sampled_from([True, "full", False]),
    window=st.sampled_from(["auto", 8, 24]),
    length=st.sampled_from([None, 1, 60, 500]),
    part=st.booleans(),
    data=st.data(),
)
def test_ranks_share_each_batch_and_go_on_at_every_step(
    paths: list[str],
    proportions: list[int],
    ranks: int,
    batch: int,
    shuffle: Any,
    window: Any,
    length: int | None,
    part: bool,
    data: st.DataObject,
) -> None:
    mixed = mix(paths)
    if part:
        first = mixed.datasets[0].subset(slice(1, None, 2))
        mixed = MixedDataset([first, *mixed.datasets[1:]])
    arguments: dict[str, Any] = {"shuffle": shuffle, "epoch_length": length, "seed": 3}
    if shuffle is True:
        arguments["window"] = window
    placed = [{"rank": rank, "world_size": ranks, **arguments} for rank in range(ranks)]
    samplers = [MixedBatchSampler(mixed, batch, proportions, **each) for each in placed]
    epochs = [[list(sampler) for _ in range(2)] for sampler in samplers]
    alone = MixedBatchSampler(mixed, batch * ranks, proportions, **arguments)
    whole = [list(alone) for _ in range(2)]
    wanted = len(mixed) if length is None else length
    for epoch, expected in enumerate(whole):
        parts = [each[epoch] for each in epochs]
        assert {len(each) for each in parts} == {len(expected)} == {-(-wanted // (batch * ranks))}
        assert all(len(each) == batch for each in flat(parts))
        together = [sorted(flat(each)) for each in zip(*parts, strict=True)]
        assert together == [sorted(each) for each in expected]
    counts, seen = Counter(), [[] for _ in mixed.datasets]
    for step, numbers in enumerate(flat(whole), 1):
        stores = stores_of(mixed, numbers)
        assert stores == sorted(stores)
        counts.update(stores)
        for store, share in enumerate(proportions):
            exact = Fraction(share * step * batch * ranks, sum(proportions))
            assert floor(exact) <= counts[store] <= ceil(exact)
        for store, number in zip(stores, numbers, strict=True):
            seen[store].append(number - int(mixed.offsets[store]))
    for dataset, came in zip(mixed.datasets, seen, strict=True):
        # Batches tell whose turns they have, not in which order, so only whole own epochs are compared.
        times = np.bincount(came, minlength=len(dataset))
        assert times.max() - times.min() <= 1
    step = data.draw(st.integers(0, len(whole[0])))
    state = json.loads(json.dumps(samplers[0].state_at(0, step)))
    for each, (first, second) in zip(placed, epochs, strict=True):
        resumed = MixedBatchSampler(mixed, batch, proportions, **each)
        resumed.load_state_dict(state)
        assert list(resumed) == first[step:]
        assert list(resumed) == second
    alone.load_state_dict(state)
    assert [sorted(each) for each in alone] == [sorted(each) for each in whole[0][step:]]


def test_at_every_step_the_rest_is_that_of_the_uninterrupted_run(paths: list[str]) -> None:
    mixed = mix(paths)
    for arguments in ({"window": 24}, {"shuffle": "full"}, {"shuffle": False, "epoch_length": 300}):
        whole = MixedBatchSampler(mixed, 7, [5, 3, 1], **arguments)
        stopped, resumed = (MixedBatchSampler(mixed, 7, [5, 3, 1], **arguments) for _ in range(2))
        for _ in range(2):
            batches = list(whole)
            states = [stopped.state_dict(), *(stopped.state_dict() for _ in stopped)]
            for step, state in enumerate(states):
                resumed.load_state_dict(json.loads(json.dumps(state)))
                assert resumed.state_dict() == state
                assert list(resumed) == batches[step:]


def test_each_store_has_the_order_of_its_own_epochs(paths: list[str]) -> None:
    mixed = mix(paths)
    sampler = MixedBatchSampler(mixed, 1, [1, 2, 1], window=16, seed=5, epoch_length=400)
    numbers = flat(sampler)
    for store, size in enumerate(SIZES):
        own = [
            number - int(mixed.offsets[store]) for number in numbers if stores_of(mixed, [number]) == [store]
        ]
        expected: list[int] = []
        for epoch in range(1 + len(own) // size):
            order = epoch_order(
                Geometry(size, 8, 4), global_batch=size, window=16, seed=5 + store, epoch=epoch
            )
            expected += order.step_batch(0).tolist()
        assert own == expected[: len(own)]


def test_epochs_follow_on_and_are_found_by_number(paths: list[str]) -> None:
    sampler = MixedBatchSampler(mix(paths), 5, [1, 1, 1])
    epochs = [list(sampler) for _ in range(3)]
    sampler.set_epoch(1)
    assert list(pickle.loads(pickle.dumps(sampler))) == epochs[1]
    assert [list(sampler), list(sampler)] == epochs[1:]
    late = MixedBatchSampler(mix(paths), 5, [1, 1, 1])
    late.set_epoch(10**9)
    assert len(list(late)) == len(late) == -(-sum(SIZES) // 5)
    with pytest.raises(ValueError, match="epoch must lie in"):
        late.set_epoch(2**62)


# ---- loaders


def delivered(mixed: MixedDataset, loader: Iterable[Any]) -> list[list[int]]:
    """The numbers of each batch in the mix, once all entries of its samples have been found to fit them."""
    found = []
    for batch in loader:
        assert batch["index"].tolist() == numbers_of(batch)
        found.append((batch["index"] + torch.from_numpy(mixed.offsets)[batch["store"]]).tolist())
    return found


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_loaders_deliver_the_mix_and_go_on_where_they_were_left(
    folder: Path, codec: str, workers: int
) -> None:
    path = folder / f"{codec}-{workers}"
    mixed = mix([write_store(path / "a", 45, codec=codec), write_store(path / "b", 30)], with_index=True)
    expected = list(MixedBatchSampler(mixed, 4, [2, 1]))
    for kind in (ChunkDataLoader, DataLoader):
        sampler = MixedBatchSampler(mixed, 4, [2, 1])
        loader = kind(mixed, batch_sampler=sampler, num_workers=workers)
        assert len(loader) == 19
        assert delivered(mixed, loader) == expected
    loader = ChunkDataLoader(mixed, batch_sampler=MixedBatchSampler(mixed, 4, [2, 1]), num_workers=workers)
    for step, _ in enumerate(loader):
        if step == 6:
            break
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["epoch"], state["step"]) == (0, 7)
    resumed = ChunkDataLoader(mixed, batch_sampler=MixedBatchSampler(mixed, 4, [2, 1]))
    resumed.load_state_dict(state)
    assert delivered(mixed, resumed) == expected[7:]
    assert resumed.state_dict()["epoch"] == 1
    resumed.set_epoch(0)
    assert delivered(mixed, resumed) == expected


def test_threads_prepare_batches_and_deliver_errors_at_their_batch(folder: Path) -> None:
    paths = [write_store(folder / f"threads-{name}", 64) for name in "ab"]
    mixed, threads = mix(paths, with_index=True), set()

    def noted(batch: Any) -> Any:
        threads.add(threading.current_thread().name.rpartition("_")[0])
        return batch

    def loader(**arguments: Any) -> ChunkDataLoader:
        sampler = MixedBatchSampler(mixed, 4, [1, 1], shuffle=False)
        return ChunkDataLoader(mixed, batch_sampler=sampler, **arguments)

    expected = delivered(mixed, loader(batch_transform=noted))
    assert expected == list(loader().batch_sampler)
    assert threads == {"mmapload-batch"}
    samples = flat(loader(collate_fn=lambda samples: [int(each["index"]) for each in samples]))
    assert samples == [number % 64 for number in flat(expected)]
    damage(paths[1], "image", 3)  # its samples are due from step 12 on
    mixed = mix(paths, with_index=True)
    coming = iter(loader())
    assert delivered(mixed, islice(coming, 12)) == expected[:12]
    with pytest.raises(ChunkError, match="chunk 3 of field 'image'"):
        next(coming)


def test_samples_come_by_any_number_in_any_order(paths: list[str]) -> None:
    mixed = mix(paths, with_index=True)
    wanted = [157, 0, 100, 101, 137, 3, 0, -1]
    batch = next(iter(DataLoader(mixed, len(wanted), sampler=wanted)))
    assert batch["store"].tolist() == [2, 0, 0, 1, 1, 0, 0, 2]
    assert batch["index"].tolist() == numbers_of(batch) == [19, 0, 100, 0, 36, 3, 0, 19]
    assert [int(each["store"]) for each in mixed] == [0] * 101 + [1] * 37 + [2] * 20
    assert "store" not in mix(paths)[0]
    for outside in (158, -159):
        with pytest.raises(IndexError):
            mixed[outside]


def test_a_batch_is_its_receivers_own(folder: Path) -> None:
    paths = [write_store(folder / f"large-{name}", 24, image=(3, 30_000)) for name in "ab"]
    mixed = mix(paths, with_index=True)
    kept = list(ChunkDataLoader(mixed, batch_sampler=MixedBatchSampler(mixed, 4, [1, 1])))
    for batch in kept:
        assert batch["index"].tolist() == numbers_of(batch)
        batch["image"] += 1
    again = ChunkDataLoader(mixed, batch_sampler=MixedBatchSampler(mixed, 4, [1, 1]))
    assert len(delivered(mixed, again)) == 12


@pytest.mark.parametrize("workers", [0, 2])
def test_each_store_has_its_transform_and_copies_of_a_sample_have_random_numbers_of_their_own(
    paths: list[str], workers: int
) -> None:
    def drawn(sample: Any, rng: Any) -> Any:
        return {"number": sample["number"], "value": rng.random()}

    def plain(sample: Any) -> Any:
        return {"number": sample["number"], "value": -1.0}

    datasets = [ChunkDataset(paths[2], transform=drawn), ChunkDataset(paths[1], transform=plain)]
    mixed = MixedDataset(datasets)

    def epoch(number: int, start: int = 0) -> list[tuple[int, float]]:
        sampler = MixedBatchSampler(mixed, 4, [3, 1], seed=7)
        sampler.load_state_dict(sampler.state_at(number, start))
        loader = ChunkDataLoader(mixed, batch_sampler=sampler, num_workers=workers)
        return [pair for batch in loader for pair in zip(*map(list, batch.values()), strict=True)]

    seen = [(int(number), float(value)) for number, value in epoch(0)]
    values = [value for _, value in seen if value >= 0]
    assert len(values) == len(set(values)) == 45  # 20 samples, more than twice each
    assert sum(value < 0 for _, value in seen) == 15
    assert [(int(number), float(value)) for number, value in epoch(0, 9)] == seen[36:]


def test_each_chunk_is_loaded_once_in_an_epoch_of_its_store_within_the_budget(folder: Path) -> None:
    """Also where an epoch of the mix ends in the middle of one of a store."""
    paths = [write_store(folder / f"many-{size}", size, image=(3, 500)) for size in (800, 400)]
    for shuffle in ({"window": 64}, {"shuffle": False}):
        mixed = mix(paths, memory=24 * 8 * (1500 + 24), with_index=True)
        assert all(each.exceeds_memory for each in mixed.datasets)
        assert [each.chunks_held for each in mixed.datasets] == [24, 24]
        sampler = MixedBatchSampler(mixed, 4, [1, 3], epoch_length=400, **shuffle)
        loader = ChunkDataLoader(mixed, batch_sampler=sampler)
        came = flat(number for _ in range(8) for number in delivered(mixed, loader))
        assert [stores_of(mixed, came).count(store) for store in (0, 1)] == [800, 2400]
        for dataset, own_epochs in zip(mixed.datasets, (1, 6), strict=True):
            counts = dataset.reading.residency.counts
            assert counts.ahead + counts.misses <= dataset.chunks * own_epochs
            assert counts.peak_bytes <= dataset.memory


def test_the_chunks_of_every_store_are_loaded_before_anybody_asks_for_them(folder: Path) -> None:
    mixed = mix(write_store(folder / f"ahead-{size}", size, image=(3, 500)) for size in (400, 160))
    coming = iter(MixedBatchSampler(mixed, 4, [1, 3], window=64))
    next(coming)
    all_counts = [each.residency.counts for each in mixed.datasets]
    until = time.monotonic() + 30
    while min(counts.ahead for counts in all_counts) < 8 and time.monotonic() < until:
        time.sleep(0.01)
    assert [counts.ahead >= 8 for counts in all_counts] == [True, True]
    assert [counts.misses for counts in all_counts] == [0, 0]


# ---- what is refused


def test_stores_that_do_not_fit_each_other_are_refused_by_name(paths: list[str], folder: Path) -> None:
    one, two = ChunkDataset(paths[0]), ChunkDataset(paths[1])
    other = write_store(folder / "other-shape", 8, image=(4, 5))
    for datasets, error, message in (
        ([one], ValueError, "at least two datasets, not 1"),
        ([one, paths[1]], TypeError, "dataset 1 is '"),
        ([one, two, one], ValueError, "dataset 2 is given twice"),
        ([one, ChunkDataset(other)], ValueError, r"field 'image' is uint8 \(3, 5\) in .*uint8 \(4, 5\) in"),
        ([one, ChunkDataset(paths[1], ["image", "flow"])], ValueError, "'number' is int64 .*absent in"),
        ([one, ChunkDataset(paths[1], with_index=True)], ValueError, "dataset 1 differs"),
    ):
        with pytest.raises(error, match=message):
            MixedDataset(datasets)  # type: ignore[arg-type]
    again = MixedDataset([one, ChunkDataset(paths[1], ["flow", "number", "image"])])
    assert len(next(iter(DataLoader(again, batch_sampler=MixedBatchSampler(again, 4, [1, 1]))))["flow"]) == 4
    named = [
        mmapload.preprocess([{"store": np.zeros(2)}] * 4, folder / f"named-{name}", 4).path for name in "ab"
    ]
    with pytest.raises(ValueError, match="an entry named 'store'"):
        mix(named, with_index=True)


@pytest.mark.parametrize(
    ("proportions", "arguments", "message"),
    [
        ([1, 1], {}, "one for each of 3 stores, not 2"),
        ([1, 1, 0], {}, "that of store 2 is 0"),
        ([1, -1, 1], {}, "that of store 1 is -1"),
        ([1, float("nan"), 1], {}, "that of store 1 is nan"),
        ([1, 1, True], {}, "that of store 2 is True"),
        ([1, 1, "1"], {}, "that of store 2 is '1'"),
        ([1, 1, 1e-5], {}, "the proportion of store 2 is 1e-05 of 2.00001, less than a 10,000th"),
        ([1, 1, 1], {"shuffle": "batch"}, "shuffle='batch' serves a store's batches whole"),
        ([1, 1, 1], {"shuffle": False, "window": 8}, "window belongs to shuffle='window'"),
        ([1, 1, 1], {"epoch_length": 0}, "epoch_length is an integer from 1 up, not 0"),
        ([1, 1, 1], {"seed": 2**64}, "seed"),
        ([1, 1, 1], {"rank": 0}, "both or neither"),
    ],
)
def test_what_is_no_mix_is_refused_with_its_values(
    paths: list[str], proportions: Any, arguments: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MixedBatchSampler(mix(paths), 4, proportions, **arguments)


def test_a_mix_is_ordered_by_its_own_sampler_and_no_other(paths: list[str]) -> None:
    one = ChunkDataset(paths[0])
    with pytest.raises(TypeError, match="not of a ChunkDataset"):
        MixedBatchSampler(one, 4, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="orders a ChunkDataset, not a MixedDataset"):
        ChunkSampler(mix(paths), 4)  # type: ignore[arg-type]


def test_a_state_belongs_to_its_mix(paths: list[str]) -> None:
    mixed = mix(paths)
    state = MixedBatchSampler(mixed, 4, [1, 2, 1]).state_dict()
    for arguments, message in (
        ({"proportions": [2, 1, 1]}, "stores, proportions or epoch_length"),
        ({"epoch_length": 40}, "stores, proportions or epoch_length"),
        ({"seed": 1}, "saved 0, now 1"),
        ({"shuffle": "full"}, "shuffling"),
        ({"batch_size": 8}, "global batch.*saved 4, now 8"),
        ({"dataset": mix(paths[::-1])}, "stores, proportions or epoch_length"),
    ):
        with pytest.raises(StateMismatchError, match=message):
            MixedBatchSampler(
                **{"dataset": mixed, "batch_size": 4, "proportions": [1, 2, 1]} | arguments
            ).load_state_dict(state)
    sampler = MixedBatchSampler(mixed, 2, [1, 2, 1], rank=1, world_size=2)
    sampler.load_state_dict(state)
    for wrong in (
        {"step": -1},
        {"step": 10**6},
        {"epoch": 2**63},
        {"windows": None},
        {"windows": [8, 8]},
        {"windows": [8, 8, 0]},
        {"windows": 8},
        {"mode": 3},
        {"fingerprint": 3},
        {"version": 2},
        {"more": 1},
    ):
        with pytest.raises(StateMismatchError):
            sampler.load_state_dict(state | wrong)
    with pytest.raises(StateMismatchError, match="no state of a sampler"):
        ChunkSampler(ChunkDataset(paths[0]), 4).load_state_dict(state)
    with pytest.raises(ValueError, match="handed out 0 batches"):
        sampler.state_dict(received=1)


def test_windows_are_the_states_where_a_smaller_budget_would_cut_them(paths: list[str]) -> None:
    large, small = mix(paths), mix(paths, memory=5 * 8 * 39)
    whole = MixedBatchSampler(large, 4, [1, 1, 1])
    with pytest.warns(UserWarning, match="do not fit"):
        cut = MixedBatchSampler(small, 4, [1, 1, 1])
    batches = list(whole)
    assert list(cut) != batches
    with pytest.warns(UserWarning, match="goes on with windows of"):
        cut.load_state_dict(whole.state_at(0, 5))
    assert list(cut) == batches[5:]


def test_the_page_that_defines_the_order_says_whose_turn_it_is() -> None:
    """The rule of `docs/order.md` in exact fractions, turn by turn."""
    shares = [7, 2, 2, 1]
    total, counts, expected = sum(shares), [0] * 4, []
    for turn in range(2 * total):
        may = [s for s in range(4) if counts[s] < Fraction(shares[s] * (turn + 1), total)]
        chosen = max(may, key=lambda s: (Fraction(shares[s], counts[s] + 1), -s))
        counts[chosen] += 1
        expected.append(chosen)
    assert Turns(shares).whose(0, 2 * total).tolist() == expected
