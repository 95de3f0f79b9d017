"""Orders over chosen samples of a store: every promise of an order, and the chunks that they lie in."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.order import Chosen, Geometry, epoch_order
from tests.order_cases import MODES, REMAINDERS, chosen_cases, make_chosen_case
from tests.test_order_epoch import batches, check_every_promise, equal, joined


def over(numbers, chunk_length, *, repeats=False, **arguments):
    chosen = Chosen.of(np.asarray(numbers), chunk_length, repeats=repeats)
    return epoch_order(Geometry(chosen.samples, chunk_length, 1), chosen=chosen, **arguments)


# ---- which samples


rising = st.lists(st.integers(0, 60), min_size=1, max_size=50).map(sorted)


@given(numbers=rising, length=st.integers(1, 9), pairs=st.lists(st.integers(0, 49), min_size=1, max_size=9))
def test_runs_hold_the_numbers_and_where_chunks_begin(numbers, length, pairs):
    chosen = Chosen.of(np.array(numbers), length)
    assert chosen.all_numbers().tolist() == numbers
    assert chosen.numbers(np.arange(len(numbers))).tolist() == numbers
    assert chosen.chunks.tolist() == sorted({number // length for number in numbers})
    for chunk, start, stop in zip(
        chosen.chunks, *zip(*itertools.pairwise(chosen.starts), strict=True), strict=True
    ):
        assert {number // length for number in numbers[start:stop]} == {chunk}
    counts = Counter(number // length for number in numbers)
    assert chosen.most_in_a_chunk == max(counts.values())
    again = pickle.loads(pickle.dumps(chosen))
    assert again == chosen
    assert hash(again) == hash(chosen)
    assert again.digest() == chosen.digest()
    places = sorted(place for place in pairs if place < len(numbers)) or [0]
    assert chosen.among(Chosen.of(np.array(places), length)).all_numbers().tolist() == [
        numbers[p] for p in places
    ]


@given(numbers=rising, length=st.integers(1, 9), seed=st.integers(0, 9), stretch=st.integers(1, 50))
def test_no_stretch_of_any_order_of_chunks_touches_more_than_is_said(numbers, length, seed, stretch):
    chosen = Chosen.of(np.array(numbers), length)
    chunks = chosen.chunks[np.random.default_rng(seed).permutation(len(chosen.chunks))]
    row = [number // length for chunk in chunks for number in numbers if number // length == chunk]
    touched = max(len(set(row[start : start + stretch])) for start in range(len(row)))
    assert touched <= chosen.most_touched(stretch)


def test_a_slice_is_one_run_however_long():
    chosen = Chosen.between(10, 10**9, 1000)
    assert len(chosen.first) == 1
    assert chosen == Chosen(np.array([10]), np.array([0, 10**9 - 10]), 1000)
    assert chosen.numbers(np.array([0, 10**9 - 11])).tolist() == [10, 10**9 - 1]


# ---- every promise


def check_chosen(case, rank, start):
    order, length = case.order, case.order.geometry.chunk_length
    check_every_promise(case)
    numbers = order.chosen.all_numbers()
    if order.mode == "full":
        return
    uses = list(order.uses(rank, case.ranks, start))
    assert uses == sorted(uses, key=lambda use: use.first_step)
    rows = {divmod(int(number), length) for number in numbers}
    for use in uses:
        assert start <= use.first_step <= use.last_step < order.steps
        assert {(use.chunk, use.start), (use.chunk, use.stop - 1)} <= rows
    for step in range(start, order.steps):
        live = [use for use in uses if use.first_step <= step <= use.last_step]
        for number in numbers[order.rank_batch(step, rank, case.ranks)].tolist():
            chunk, row = divmod(number, length)
            assert any(use.chunk == chunk and use.start <= row < use.stop for use in live)


def test_chosen_samples_have_every_promise_of_an_order_over_a_thousand_combinations():
    generator = random.Random(5)
    seen = set()
    for _ in range(1000):
        case = make_chosen_case(generator.choice)
        seen.add((case.order.mode, case.order.remainder))
        rank = generator.randrange(case.ranks)
        check_chosen(case, rank, generator.choice((0, generator.randint(0, case.order.steps))))
    assert seen == set(itertools.product(MODES, REMAINDERS))


@settings(max_examples=60)
@given(case=chosen_cases(), data=st.data())
def test_chosen_samples_have_every_promise_of_an_order(case, data):
    rank = data.draw(st.integers(0, case.ranks - 1))
    check_chosen(case, rank, data.draw(st.integers(0, case.order.steps)))


def test_a_start_at_any_step_gives_the_rest_of_the_epoch():
    generator = random.Random(8)
    for _ in range(150):
        case = make_chosen_case(generator.choice)
        rank = generator.randrange(case.ranks)
        expected = batches(case.order, rank, case.ranks)
        for start in range(case.order.steps + 1):
            assert equal(list(case.order.rank_batches(rank, case.ranks, start)), expected[start:])


@pytest.mark.parametrize("mode", MODES)
def test_all_samples_chosen_are_in_the_order_of_the_whole_store(mode):
    for samples, epoch in itertools.product((1, 40, 101), range(3)):
        geometry, chosen = Geometry(samples, 8, 4), Chosen.between(0, samples, 8)
        arguments = {"global_batch": 4, "mode": mode, "epoch": epoch, "remainder": "pad"}
        if mode == "window":
            arguments |= {"window": 24}
        whole, same = epoch_order(geometry, **arguments), epoch_order(geometry, chosen=chosen, **arguments)
        assert equal(batches(same, 1, 2), batches(whole, 1, 2))
        assert list(same.uses(1, 2)) == list(whole.uses(1, 2))
    assert epoch_order(Geometry(9, 4, 2), global_batch=2).window == over(range(9), 4, global_batch=2).window


@pytest.mark.parametrize("lanes", [1, 2])
def test_in_windows_each_chunk_has_one_use_a_lane_however_few_of_its_samples_were_chosen(lanes):
    numbers = np.flatnonzero(np.random.default_rng(0).random(4000) < 0.9)
    order = over(numbers, 16, global_batch=8, window=128, lanes=lanes)
    uses = Counter(use.chunk for use in order.uses(0, 1))
    assert set(uses) == set(range(250))
    assert sum(uses.values()) < 250 + lanes


def test_orders_of_chosen_samples_are_values():
    order = over([1, 2, 5], 4, global_batch=2)
    expected = batches(order)
    copy = pickle.loads(pickle.dumps(order))
    assert copy == order
    assert hash(copy) == hash(order)
    assert equal(batches(copy), expected)
    assert copy != over([1, 2, 6], 4, global_batch=2)
    with pytest.raises(ValueError, match="3 samples are chosen from chunks of 4, and the geometry says 9"):
        epoch_order(Geometry(9, 4, 1), global_batch=2, chosen=order.chosen)


@pytest.mark.parametrize("mode", MODES)
def test_a_late_step_costs_what_the_first_one_does(mode, monkeypatch):
    from mmapload.order.philox import philox4x32 as philox

    drawn = []

    def counted(counter, key):
        drawn.append(np.broadcast(*counter).size)
        return philox(counter, key)

    monkeypatch.setattr("mmapload.order.bijection.philox4x32", counted)
    numbers = np.flatnonzero(np.random.default_rng(0).random(10**6) < 0.9)
    chosen = Chosen.of(numbers, 256)
    costs = []
    for part in (0.01, 0.99):
        drawn.clear()
        order = epoch_order(
            Geometry(chosen.samples, 256, 32), global_batch=32, mode=mode, seed=1, chosen=chosen
        )
        start = int(order.steps * part)
        next(order.rank_batches(0, 1, start))
        next(order.uses(0, 1, start), None)
        costs.append(sum(drawn))
    assert costs[1] <= costs[0] + 4096
    assert max(costs) < 60_000


# ---- samples that come several times


@settings(max_examples=150)
@given(numbers=rising, length=st.integers(1, 9), window=st.integers(1, 60), epoch=st.integers(0, 3))
def test_copies_of_a_sample_are_as_far_apart_in_a_window_as_its_size_allows(numbers, length, window, epoch):
    order = over(numbers, length, repeats=True, global_batch=1, window=window, epoch=epoch)
    served = np.array(numbers)[joined(batches(order))].tolist()
    assert sorted(served) == numbers
    for start in range(0, len(served), window):
        inside = served[start : start + window]
        most = max(Counter(inside).values())
        for number in set(inside):
            places = [place for place, other in enumerate(inside) if other == number]
            assert all(b - a >= len(inside) // (most + 1) for a, b in itertools.pairwise(places))


def test_copies_do_not_share_a_batch_where_windows_hold_whole_batches_enough():
    numbers = np.repeat(np.arange(0, 3200, 4), 1 + np.arange(800) % 7)
    order = over(numbers, 32, repeats=True, global_batch=64, window=1024, remainder="drop")
    for batch in batches(order)[:-16]:  # the last window is short
        assert len(set(numbers[batch].tolist())) == 64


def test_windows_of_copies_are_mixed_anew_in_every_epoch_like_others():
    def order(epoch):
        return over(np.arange(1000) // 2, 10, repeats=True, global_batch=1000, window=100, epoch=epoch)

    first, second = (order(epoch).step_batch(0) for epoch in range(2))
    assert not np.array_equal(first, second)
    # The first sample of a window is any of it, about equally often.
    firsts = [int(order(epoch).step_batch(0)[0]) % 10 for epoch in range(2000)]
    assert min(Counter(firsts).values()) > 140
