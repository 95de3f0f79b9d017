"""ChunkSampler and ChunkBatchSampler: the same order, torch's classes, epochs, ranks, windows that fit."""

from __future__ import annotations

import inspect
import pickle
import warnings
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
    random_split,
)

from mmapload import ChunkBatchSampler, ChunkDataset, ChunkSampler
from mmapload.order import Geometry, epoch_order
from tests.numbered_samples import (
    SAMPLE_BYTES,
    collate_numbers,
    flat,
    keep_samples,
    numbers,
    write_store,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHUFFLES = (False, True, "batch", "full")
REMAINDERS = ("keep", "pad", "drop")
CHUNK = 8 * SAMPLE_BYTES


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """101 samples (a prime) in 13 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 101)


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


# ---- the order


@pytest.mark.parametrize(("shuffle", "remainder"), list(product(SHUFFLES, REMAINDERS)))
@pytest.mark.parametrize("batch_size", [1, 4, 8])
def test_one_order_by_samples_and_by_batches(
    ds: ChunkDataset, shuffle: Any, remainder: Any, batch_size: int
) -> None:
    arguments: dict[str, Any] = {"shuffle": shuffle, "remainder": remainder, "window": 24}
    if shuffle not in {True, "window"}:
        del arguments["window"]
    by_batch = ChunkBatchSampler(ds, batch_size, **arguments)
    by_sample = ChunkSampler(ds, batch_size, **arguments)
    by_torch = BatchSampler(ChunkSampler(ds, batch_size, **arguments), batch_size, remainder == "drop")
    for epoch in range(2):
        batches = list(by_batch)
        assert list(by_sample) == flat(batches)
        assert list(by_torch) == batches
        assert (len(by_sample), len(by_batch), len(by_torch)) == (
            len(flat(batches)),
            len(batches),
            len(batches),
        )
        assert all(type(number) is int for number in batches[0])
        order = epoch_order(
            ds.geometry,
            global_batch=batch_size,
            mode="window" if shuffle is True else shuffle or "sequential",
            epoch=epoch,
            window=24 if shuffle is True else None,
            remainder=remainder,
        )
        assert batches == [order.step_batch(step).tolist() for step in range(order.steps)]


def test_shuffle_false_and_none_are_the_stores_order(ds: ChunkDataset) -> None:
    for shuffle in (False, None):
        sampler = ChunkSampler(ds, 4, shuffle=shuffle)
        assert list(sampler) == list(sampler) == list(range(101))
        assert not sampler.shuffle


def test_true_and_window_are_one_mode_and_another_seed_is_another_order(ds: ChunkDataset) -> None:
    assert list(ChunkSampler(ds, 4)) == list(ChunkSampler(ds, 4, shuffle="window"))
    assert list(ChunkSampler(ds, 4)) != list(ChunkSampler(ds, 4, seed=1))
    assert sorted(ChunkSampler(ds, 4, seed=1)) == list(range(101))


def test_the_order_draws_nothing_from_global_generators(ds: ChunkDataset) -> None:
    import random

    import torch

    before = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002 - the global generator is what must stay
    list(ChunkSampler(ds, 4))
    after = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002 - as above
    assert before == after


def test_an_order_of_more_samples_than_torch_can_weigh_takes_no_list_of_them() -> None:
    order = epoch_order(Geometry(2**24 + 1, 160, 32), global_batch=32)
    assert sum(len(next(order.rank_batches(0, 1, start))) for start in (0, 2**18, order.steps - 1)) == 65


# ---- torch's classes


def test_samplers_are_torchs_by_class_with_torchs_attributes(ds: ChunkDataset) -> None:
    sampler = ChunkSampler(ds, 4, rank=1, world_size=3, seed=5)
    assert isinstance(sampler, DistributedSampler)
    assert sampler.dataset is ds
    assert (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed) == (3, 1, 0, 5)
    assert (sampler.shuffle, sampler.drop_last) == (True, False)
    assert (sampler.num_samples, sampler.total_size) == (36, 108)
    batches = ChunkBatchSampler(ds, 4, remainder="drop")
    assert isinstance(batches, BatchSampler)
    assert isinstance(batches.sampler, ChunkSampler)
    assert (batches.batch_size, batches.drop_last, len(batches)) == (4, True, 25)


def test_a_sampler_pickles_small_and_goes_on_in_its_epoch(ds: ChunkDataset) -> None:
    sampler = ChunkBatchSampler(ds, 4)
    list(sampler)
    copied = pickle.loads(pickle.dumps(sampler))
    assert len(pickle.dumps(sampler)) < 6000
    assert list(copied) == list(sampler)


# ---- epochs


@pytest.mark.parametrize("shuffle", [True, "batch", "full"])
def test_every_iteration_is_the_next_epoch_unless_one_is_set(ds: ChunkDataset, shuffle: Any) -> None:
    sampler = ChunkBatchSampler(ds, 4, shuffle=shuffle)
    epochs = [list(sampler) for _ in range(3)]
    assert all(sorted(flat(epoch)) == list(range(101)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    sampler.set_epoch(1)
    assert [list(sampler), list(sampler)] == epochs[1:]
    for epoch in (2, 0, 0, 1):
        sampler.set_epoch(epoch)
        assert list(sampler) == epochs[epoch]


def test_an_epoch_left_early_is_followed_by_the_next(ds: ChunkDataset) -> None:
    epochs = [list(ChunkSampler(ds, 4)), None]
    sampler = ChunkSampler(ds, 4)
    list(sampler)
    epochs[1] = list(sampler)
    sampler.set_epoch(0)
    for number in sampler:
        assert number == epochs[0][0]
        break
    assert list(sampler) == epochs[1]


def test_the_epoch_is_taken_with_the_first_batch(ds: ChunkDataset) -> None:
    first_batches = {epoch: ChunkSampler(ds, 4).order(epoch).step_batch(0).tolist() for epoch in range(8)}
    sampler = ChunkBatchSampler(ds, 4)
    first = iter(sampler)
    iter(sampler)  # as torch does, an iterator that is never used
    assert next(first) == first_batches[0]
    sampler.set_epoch(7)
    assert next(first) != first_batches[7]
    second = iter(sampler)
    sampler.set_epoch(3)
    assert next(second) == first_batches[3]
    assert next(iter(sampler)) == first_batches[4]


@pytest.mark.parametrize("epoch", [np.int64(3), 3, True + 2])
def test_an_epoch_may_be_any_integer(ds: ChunkDataset, epoch: Any) -> None:
    sampler = ChunkSampler(ds, 4)
    sampler.set_epoch(epoch)
    expected = ChunkSampler(ds, 4)
    expected.set_epoch(3)
    assert list(sampler) == list(expected)


@pytest.mark.parametrize("epoch", [-1, 2**64, 1.5, None, "2"])
def test_what_is_no_epoch_is_refused_where_it_is_set(ds: ChunkDataset, epoch: Any) -> None:
    sampler = ChunkSampler(ds, 4)
    with pytest.raises(ValueError, match="epoch"):
        sampler.set_epoch(epoch)
    assert list(sampler) == list(ChunkSampler(ds, 4))


# ---- ranks


@settings(max_examples=150)
@given(
    world_size=st.integers(1, 7),
    batch_size=st.sampled_from([1, 2, 4, 8, 12]),
    shuffle=st.sampled_from([False, True, "full"]),
    remainder=st.sampled_from([None, "keep", "pad", "drop"]),
    epoch=st.integers(0, 5),
)
def test_ranks_share_every_sample_in_equal_steps(
    path: str, world_size: int, batch_size: int, shuffle: Any, remainder: Any, epoch: int
) -> None:
    ds = ChunkDataset(path)
    big = world_size * batch_size
    ranks = []
    for rank in range(world_size):
        arguments = {"shuffle": shuffle, "rank": rank, "world_size": world_size, "remainder": remainder}
        if remainder == "keep" and 0 < 101 % big < world_size:
            with pytest.raises(ValueError, match="fewer than the"):
                ChunkBatchSampler(ds, batch_size, **arguments)
            return
        sampler = ChunkBatchSampler(ds, batch_size, **arguments)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
        assert len(ranks[-1]) == len(sampler)
        assert len(flat(ranks[-1])) == len(sampler.sampler)
    assert len({len(batches) for batches in ranks}) == 1
    seen = sorted(flat(map(flat, ranks)))
    chosen = remainder or ("keep" if world_size == 1 else "pad")
    if chosen == "keep":
        assert seen == list(range(101))
    elif chosen == "pad":
        assert set(seen) == set(range(101))
        assert len(seen) < 101 + big
        assert len(seen) % big == 0
    else:
        assert len(set(seen)) == len(seen) == 101 // big * big
    # A step is the same set of samples however many ranks share it.
    whole = ChunkBatchSampler(ds, big, shuffle=shuffle, remainder=chosen)
    whole.set_epoch(epoch)
    for step, batch in enumerate(whole):
        assert sorted(flat(batches[step] for batches in ranks)) == sorted(batch)


def test_batches_of_the_store_are_shared_by_ranks_too(ds: ChunkDataset) -> None:
    for world_size in (1, 2, 4):
        ranks = [
            ChunkBatchSampler(ds, 4, shuffle="batch", rank=r, world_size=world_size, remainder="pad")
            for r in range(world_size)
        ]
        assert {*flat(map(flat, ranks))} == set(range(101))
        assert len({len(list(rank)) for rank in ranks}) == 1


# ---- windows that fit


def caught_from(make: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()
    return made, [str(each.message) for each in caught]


@pytest.mark.parametrize(
    ("chunks", "asked", "window"), [(5, "auto", 16), (7, 40, 24), (2, "auto", 8), (1, 16, 8), (12, 101, 40)]
)
def test_a_window_that_does_not_fit_shrinks_to_whole_chunks_and_says_so_once(
    path: str, chunks: int, asked: Any, window: int
) -> None:
    small = ChunkDataset(path, memory=chunks * CHUNK)
    sampler, messages = caught_from(lambda: ChunkSampler(small, 4, window=asked))
    (message,) = messages
    assert f"window={window} " in message
    assert sampler.window == window
    _, messages = caught_from(lambda: [list(sampler), list(sampler)])
    assert messages == []
    sampler.set_epoch(0)
    assert list(sampler) == list(ChunkSampler(ChunkDataset(path), 4, window=window))


def test_two_windows_that_are_taken_in_silence_touch_no_more_chunks_than_fit(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 97)  # the last chunk has a single sample
    whole = ChunkDataset(path)
    for window in range(1, 44):
        touched = 0
        for epoch in range(30):
            windows = ChunkBatchSampler(whole, window, window=window).sampler.order(epoch)
            chunks = [set(windows.step_batch(step) // 8) for step in range(windows.steps)]
            touched = max(touched, *(len(one | two) for one, two in pairwise(chunks)))
        small = ChunkDataset(path, memory=(touched - 1) * CHUNK)
        _, messages = caught_from(lambda small=small, w=window: ChunkSampler(small, 4, window=w))
        assert messages or window <= 8


def test_the_window_that_was_named_is_taken_without_a_warning(path: str) -> None:
    for chunks in range(1, 14):
        small = ChunkDataset(path, memory=chunks * CHUNK)
        sampler, messages = caught_from(lambda small=small: ChunkSampler(small, 4))
        assert len(messages) == (chunks < 13)
        again, messages = caught_from(lambda small=small, w=sampler.window: ChunkSampler(small, 4, window=w))
        assert messages == []
        assert again.window == sampler.window


def test_the_warning_points_at_the_line_of_the_user(path: str) -> None:
    from mmapload import ChunkDataLoader

    small = ChunkDataset(path, memory=3 * CHUNK)
    for make in (
        lambda: ChunkSampler(small, 4),
        lambda: ChunkBatchSampler(small, 4),
        lambda: ChunkDataLoader(small, 4, shuffle=True),
    ):
        with pytest.warns(UserWarning, match="window=8") as caught:
            make()
        assert caught[0].filename == __file__


def test_other_modes_have_no_window_to_shrink(path: str) -> None:
    small = ChunkDataset(path, memory=CHUNK)
    for shuffle in (False, "batch", "full"):
        sampler, messages = caught_from(lambda shuffle=shuffle: ChunkSampler(small, 4, shuffle=shuffle))
        assert not any("two windows" in message for message in messages)
        assert sampler.window is None
        assert sorted(flat(numbers(DataLoader(small, 4, sampler=sampler)))) == list(range(101))


def test_with_ranks_by_hand_a_window_that_does_not_fit_is_refused_with_one_that_does(path: str) -> None:
    small = ChunkDataset(path, memory=5 * CHUNK)
    with pytest.raises(ValueError, match=r"cannot agree .* pass window=16 on every rank"):
        ChunkSampler(small, 4, rank=0, world_size=2)
    _, messages = caught_from(lambda: ChunkSampler(small, 4, rank=0, world_size=2, window=16))
    assert messages == []


# ---- refusals


def test_what_is_no_chunk_dataset_is_refused_with_advice(ds: ChunkDataset) -> None:
    split, _ = random_split(ds, [50, 51])
    for wrong in (Subset(ds, [1]), split, ConcatDataset([ds, ds]), [1, 2], "path"):
        for kind in (ChunkSampler, ChunkBatchSampler):
            with pytest.raises(TypeError, match=rf"not a {type(wrong).__name__}; .* torch's own samplers"):
                kind(wrong, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is an integer from 1 up, not 0"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 2.0}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": None}, "batch_size"),
        ({"shuffle": "windows"}, "shuffle is .* not 'windows'"),
        ({"shuffle": 2}, "shuffle is .* not 2"),
        ({"shuffle": ["window"]}, "shuffle is"),
        ({"window": 0}, "window is an integer from 1 up, not 0"),
        ({"window": "large"}, "window is .* not 'large'"),
        ({"window": 16.0}, "window is .* not 16.0"),
        ({"window": True}, "window is"),
        ({"window": None}, "window is"),
        ({"window": 2**70, "lanes": 3}, "3 lanes"),
        ({"lanes": 0}, "lanes"),
        ({"lanes": -2}, "lane"),
        ({"lanes": 3}, "3 lanes do not divide a global batch of 4"),
        ({"lanes": 2, "window": 25}, "2 lanes do not divide a window of 25"),
        ({"lanes": 2.0}, "lanes"),
        ({"remainder": "wrap"}, "unknown remainder 'wrap'"),
        ({"remainder": ""}, "remainder"),
        ({"seed": -1}, "seed is an integer from 0 up, not -1"),
        ({"seed": 2**64}, "seed must lie in"),
        ({"seed": 1.5}, "seed"),
        ({"seed": None}, "seed"),
        ({"rank": 1}, "both or neither"),
        ({"rank": 2, "world_size": 2}, "found 2 of 2"),
        ({"shuffle": "batch", "batch_size": 3}, "multiple or a divisor of the 4 samples"),
        ({"shuffle": "batch", "window": 16}, "window and lanes belong to shuffle='window', and shuffle is"),
        ({"shuffle": False, "lanes": 2}, "window and lanes belong to shuffle='window', and shuffle is"),
    ],
)
def test_an_argument_that_does_not_fit_is_named(
    ds: ChunkDataset, arguments: dict[str, Any], message: str
) -> None:
    for kind in (ChunkSampler, ChunkBatchSampler):
        with pytest.raises(ValueError, match=message):
            kind(ds, **{"batch_size": 4, **arguments})


# ---- torch's DataLoader, in real processes: a covering part of the matrix


def loader_order(samplers: str, ds: ChunkDataset) -> dict[str, Any]:
    """The DataLoader's arguments that say in what order samples come."""
    if samplers == "sampler":
        return {"batch_size": 4, "sampler": ChunkSampler(ds, 4)}
    return {"batch_sampler": ChunkBatchSampler(ds, 4, shuffle="batch" if samplers == "batches" else True)}


@pytest.mark.parametrize(
    ("samplers", "workers", "context", "persistent", "pinned", "codec"),
    [
        ("sampler", 0, None, False, False, "raw"),
        ("sampler", 1, "fork", True, False, "zstd"),
        ("sampler", 2, "fork", False, True, "raw"),
        ("sampler", 4, "fork", True, True, "blosc-lz4"),
        ("batch_sampler", 0, None, False, True, "blosc-zstd"),
        ("batch_sampler", 1, "fork", False, False, "raw"),
        ("batch_sampler", 3, "fork", True, False, "raw"),
        ("batch_sampler", 2, "fork", True, True, "zstd"),
        ("batches", 2, "fork", False, False, "zstd"),
        ("batch_sampler", 2, "spawn", True, False, "zstd"),
        ("sampler", 1, "forkserver", True, True, "raw"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*pin_memory", "ignore:This DataLoader will create")
def test_every_epoch_of_torchs_loader_has_every_sample_once_in_a_new_order(
    tmp_path: Path,
    samplers: str,
    workers: int,
    context: str | None,
    persistent: bool,
    pinned: bool,
    codec: str,
) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 101, codec=codec))
    loader = DataLoader(
        ds,
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=persistent,
        pin_memory=pinned,
        timeout=60 if workers else 0,
        **loader_order(samplers, ds),
    )
    epochs = [flat(numbers(loader)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(101)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    expected = loader_order(samplers, ds)
    for epoch in epochs:
        assert epoch == (
            list(expected["sampler"]) if "sampler" in expected else flat(expected["batch_sampler"])
        )


def wrappings(ds: ChunkDataset) -> Iterator[tuple[str, Any, list[int]]]:
    """Torch's wrappers around a dataset of 101 samples, with the numbers that each of them holds."""
    odd = list(range(1, 101, 2))
    yield "Subset", Subset(ds, odd), odd
    yield "nested Subset", Subset(Subset(ds, odd), [0, 3, -1]), [1, 7, 99]
    yield "Subset with repeats", Subset(ds, [5, 5, 100]), [5, 5, 100]
    yield "ConcatDataset", ConcatDataset([ds, Subset(ds, odd)]), [*range(101), *odd]
    first, second = random_split(ds, [40, 61])
    yield "random_split", first, list(first.indices)
    yield "ConcatDataset of a split", ConcatDataset([second, first]), list(range(101))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_wrappers_serve_what_they_should_by_torchs_samplers(ds: ChunkDataset, workers: int) -> None:
    for name, wrapped, expected in wrappings(ds):
        for order in ({}, {"shuffle": True}):
            loader = DataLoader(wrapped, 4, num_workers=workers, **order)
            assert sorted(flat(numbers(loader))) == sorted(expected), (name, order)
        loader = DataLoader(wrapped, 4, collate_fn=collate_numbers, num_workers=workers)
        assert sorted(flat(loader)) == sorted(expected), name


@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_random_samplers_serve_what_they_draw(ds: ChunkDataset, workers: int) -> None:
    assert sorted(flat(numbers(DataLoader(ds, 4, shuffle=True, num_workers=workers)))) == list(range(101))
    weights = [0.0] * 100 + [1.0]
    drawn = DataLoader(ds, 8, sampler=WeightedRandomSampler(weights, 20), num_workers=workers)
    assert flat(numbers(drawn)) == [100] * 20
    repeated = DataLoader(ds, 8, sampler=RandomSampler(ds, replacement=True, num_samples=300))
    assert len(flat(numbers(repeated))) == 300
    kept = DataLoader(ds, 8, sampler=ChunkSampler(ds, 8), collate_fn=keep_samples, num_workers=workers)
    assert sorted(int(each["number"]) for batch in kept for each in batch) == list(range(101))


def test_dropping_all_samples_warns_and_leaves_no_step(tmp_path: Path) -> None:
    dataset = ChunkDataset(write_store(tmp_path / "store", 10))
    with pytest.warns(UserWarning, match="10 samples do not fill one batch of 16") as caught:
        sampler = ChunkBatchSampler(dataset, 16, remainder="drop")
    assert (list(sampler), len(caught)) == ([], 1)
    assert caught[0].filename == __file__


def test_both_samplers_say_that_they_take_the_same_arguments() -> None:
    ours, same = inspect.signature(ChunkBatchSampler), inspect.signature(ChunkSampler)
    assert list(ours.parameters.values()) == list(same.parameters.values())
    assert list(inspect.signature(ChunkBatchSampler.__init__).parameters) == ["self", *same.parameters]
