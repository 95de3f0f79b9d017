"""What every epoch order promises, over many geometries, batches, lanes, ranks and remainders."""

from __future__ import annotations

import itertools
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from mmapload.order import Geometry, auto_window, epoch_order
from tests.order_cases import MODES, Case, cases, make_case


def batches(order, rank=0, ranks=1):
    return [order.rank_batch(step, rank, ranks) for step in range(order.steps)]


def joined(parts):
    return np.concatenate([np.empty(0, np.int64), *parts])


def equal(left, right):
    return len(left) == len(right) and all(
        a.dtype == b.dtype == np.int64 and np.array_equal(a, b) for a, b in zip(left, right, strict=True)
    )


def check_every_promise(case: Case) -> None:
    order, ranks = case.order, case.ranks
    samples, size = order.geometry.samples, order.global_batch
    whole = batches(order)
    served = joined(whole)
    # Each sample exactly once, but for what the remainder says.
    if order.remainder == "drop":
        assert order.steps == samples // size
        assert len(set(served.tolist())) == served.size == samples - order.dropped
        assert order.dropped == samples % size
        assert order.padded == 0
    else:
        assert order.steps == -(-samples // size)
        assert set(served.tolist()) == set(range(samples))
        assert served.size == samples + order.padded
        assert 0 <= order.padded < size
        assert order.dropped == 0
    assert all(batch.size == size for batch in whole[: samples // size])
    # Ranks: consecutive parts of one and the same global batch, equal steps, sizes that differ by at most 1.
    parts = [batches(order, rank, ranks) for rank in range(ranks)]
    for step, batch in enumerate(whole):
        assert np.array_equal(joined(part[step] for part in parts), batch)
        sizes = [part[step].size for part in parts]
        assert max(sizes) - min(sizes) <= (step >= samples // size)
    for rank, part in enumerate(parts):
        assert order.rank_length(rank, ranks) == sum(batch.size for batch in part)
        assert equal(list(order.rank_batches(rank, ranks)), part)


def test_every_promise_over_two_thousand_combinations():
    generator = random.Random(20260101)
    seen = set()
    for _ in range(2000):
        case = make_case(generator.choice)
        seen.add(case)
        check_every_promise(case)
    assert len(seen) > 1900
    assert {case.order.mode for case in seen} == set(MODES)
    assert {case.ranks for case in seen} == set(range(1, 9))


@settings(max_examples=60)
@given(case=cases())
def test_every_promise_over_any_combination(case):
    check_every_promise(case)


def test_a_start_at_any_step_gives_the_rest_of_the_epoch():
    generator = random.Random(7)
    for _ in range(250):
        case = make_case(generator.choice)
        rank = generator.randrange(case.ranks)
        expected = batches(case.order, rank, case.ranks)
        for start in range(case.order.steps + 1):
            assert equal(list(case.order.rank_batches(rank, case.ranks, start)), expected[start:])


@pytest.mark.parametrize("block", [1, 7, 64])
def test_the_size_of_blocks_changes_nothing(block, monkeypatch):
    generator = random.Random(block)
    made = [make_case(generator.choice) for _ in range(100)]
    expected = [batches(case.order, 0, case.ranks) for case in made]
    monkeypatch.setattr("mmapload.order.epoch._BLOCK", block)
    for case, result in zip(made, expected, strict=True):
        assert equal(list(case.order.rank_batches(0, case.ranks)), result)


@pytest.mark.parametrize(
    "arguments",
    [
        {"window": 5000},  # permuted by a Feistel network
        {"window": 10_000, "lanes": 2},
        {"window": 4096},
        {"window": 4097},
        {"window": 10**9},
        {"mode": "full"},
        {"mode": "batch", "global_batch": 512},
    ],
)
def test_windows_on_both_sides_of_the_sorting_limit_keep_every_promise(arguments):
    order = epoch_order(Geometry(20_011, 96, 32), **{"global_batch": 600, "seed": 3, **arguments})
    check_every_promise(Case(order, 2))
    for start in (1, 9, order.steps - 1):
        assert equal(list(order.rank_batches(1, 2, start)), batches(order, 1, 2)[start:])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("remainder", ["drop", "pad", "keep"])
def test_global_batches_are_the_same_sets_for_every_number_of_ranks(mode, remainder):
    order = epoch_order(
        Geometry(1009, 48, 12),
        global_batch=48,
        mode=mode,
        remainder=remainder,
        lanes=3 if mode == "window" else 1,
        window=120 if mode == "window" else None,
        allow_empty=True,
    )
    alone = [batch.tolist() for batch in batches(order)]
    for ranks in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48):
        streams = [order.rank_batches(rank, ranks) for rank in range(ranks)]
        assert [joined(parts).tolist() for parts in zip(*streams, strict=True)] == alone


@pytest.mark.parametrize("mode", ["window", "batch", "full"])
def test_seeds_and_epochs_give_different_orders_and_equal_ones_equal(mode):
    def order(seed, epoch):
        return epoch_order(Geometry(1000, 32, 8), global_batch=32, mode=mode, seed=seed, epoch=epoch)

    arguments = list(itertools.product((0, 1, 2**32, 2**64 - 1), (0, 1, 2, 2**32)))
    orders = {tuple(joined(batches(order(*each))).tolist()) for each in arguments}
    assert len(orders) == len(arguments)
    assert equal(batches(order(5, 6)), batches(order(5, 6)))


def test_each_batch_of_mode_batch_is_made_of_whole_units():
    order = epoch_order(Geometry(100, 12, 4), global_batch=8, mode="batch", seed=1)
    for batch in batches(order):
        for unit in np.split(batch, range(4, batch.size, 4)):
            assert unit[0] % 4 == 0
            assert np.array_equal(unit, unit[0] + np.arange(unit.size))


def test_the_short_unit_comes_last_in_mode_batch():
    for epoch in range(5):
        order = epoch_order(Geometry(103, 12, 4), global_batch=4, mode="batch", epoch=epoch)
        assert order.step_batch(order.steps - 1).tolist() == [100, 101, 102]


def test_a_window_draws_on_the_chunks_that_it_covers_only():
    order = epoch_order(Geometry(640, 16, 8), global_batch=16, window=64, seed=4)
    for first in range(0, order.steps, 4):
        window = joined(batches(order)[first : first + 4])
        assert len(set((window // 16).tolist())) == 4


def test_ranks_stay_inside_their_lane_to_the_last_step():
    for remainder, samples in itertools.product(("drop", "pad", "keep"), range(90, 130)):
        order = epoch_order(
            Geometry(samples, 8, 4),
            global_batch=24,
            window=24,
            lanes=2,
            remainder=remainder,
            allow_empty=True,
        )
        owner = {}
        for rank in range(4):
            for sample in joined(batches(order, rank, 4)).tolist():
                assert owner.setdefault(sample, rank // 2) == rank // 2


def test_a_store_smaller_than_a_batch_is_cycled_by_pad_and_dropped_by_drop():
    geometry = Geometry(3, 4, 2)
    padded = epoch_order(geometry, global_batch=8, mode="sequential", remainder="pad")
    assert [batch.tolist() for batch in batches(padded)] == [[0, 1, 2, 0, 1, 2, 0, 1]]
    dropped = epoch_order(geometry, global_batch=8, remainder="drop")
    assert (dropped.steps, dropped.dropped, list(dropped.rank_batches(1, 2))) == (0, 3, [])
    assert dropped.rank_length(0, 2) == 0


def test_no_global_random_state_is_read_or_changed():
    order = epoch_order(Geometry(100, 8, 4), global_batch=4, seed=1)
    results = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002  the global state is what this test is about
        before = random.getstate(), pickle.dumps(np.random.get_state())  # noqa: NPY002  as above
        results.append(batches(order))
        list(order.uses(0, 1))
        assert before == (random.getstate(), pickle.dumps(np.random.get_state()))  # noqa: NPY002  as above
    assert equal(*results)


def test_batches_own_their_rows():
    order = epoch_order(Geometry(100, 8, 4), global_batch=4, mode="sequential")
    stream = order.rank_batches(0, 1)
    next(stream)[:] = -1
    assert next(stream).tolist() == [4, 5, 6, 7]
    assert order.rank_batch(0, 0, 1).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", MODES)
def test_orders_are_values(mode):
    order = epoch_order(Geometry(100_003, 32, 8), global_batch=32, mode=mode)
    expected = list(itertools.islice(order.rank_batches(0, 1), 3))
    data = pickle.dumps(order)
    assert len(data) < 2000  # the arguments, not the tables made in between
    copy = pickle.loads(data)
    assert copy == order
    assert hash(copy) == hash(order)
    assert equal(list(itertools.islice(copy.rank_batches(0, 1), 3)), expected)
    assert copy != epoch_order(replace(order.geometry, samples=5), global_batch=32, mode=mode)


def test_planning_a_hundred_million_samples_is_lazy(monkeypatch):
    blocks = []

    def counted(counter, key):
        blocks.append(np.broadcast(*counter).size)
        return philox(counter, key)

    from mmapload.order.philox import philox4x32 as philox

    monkeypatch.setattr("mmapload.order.bijection.philox4x32", counted)
    for mode in MODES:
        order = epoch_order(Geometry(10**8, 256, 32), global_batch=256, mode=mode, seed=1)
        next(order.rank_batches(0, 1))
        next(order.rank_batches(0, 1, start=order.steps // 2))
        next(order.uses(0, 1, start=order.steps // 2), None)
    assert sum(blocks) < 150_000


def test_the_default_window_is_the_larger_of_1024_samples_and_16_chunks():
    assert auto_window(10**6, 32) == 1024
    assert auto_window(10**6, 64) == 1024
    assert auto_window(10**6, 160) == 2560
    assert auto_window(500, 160) == 500
    assert auto_window(500, 160, lanes=3) == 501
    order = epoch_order(Geometry(10**6, 160, 32), global_batch=96, lanes=3)
    assert order.window == 2562
