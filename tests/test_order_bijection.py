"""Permutations: bijective, invertible, uniform in small domains, indistinguishable in larger ones."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.order.bijection import (
    SORT_LIMIT,
    FeistelBijection,
    SortedBijection,
    bijection,
    sorted_permutations,
)

KEYS = st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations Pearson's statistic lies from what uniform counts give."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


@settings(max_examples=60, deadline=None)
@given(
    size=st.one_of(
        st.integers(1, 70),
        st.sampled_from([4095, 4096, 4097, 4099, 65**2, 71**2, 71 * 72 + 1, 9973, 2**14]),
    ),
    key=KEYS,
    index=st.integers(0, 2**64 - 1),
)
def test_both_constructions_are_permutations_and_invert(size, key, index):
    for construction in (SortedBijection, FeistelBijection):
        if construction is SortedBijection and size > SORT_LIMIT:
            continue
        order = construction(size, key, index)
        values = order.forward(np.arange(size))
        assert values.dtype == np.int64
        assert np.array_equal(np.sort(values), np.arange(size))
        assert np.array_equal(order.inverse(values), np.arange(size))


@settings(max_examples=40, deadline=None)
@given(size=st.integers(SORT_LIMIT + 1, 2**48), key=KEYS, data=st.data())
def test_any_position_of_a_large_domain_inverts(size, key, data):
    order = bijection(size, key)
    positions = np.array(
        data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True)), np.int64
    )
    values = order.forward(positions)
    assert len(set(values.tolist())) == positions.size
    assert values.min() >= 0
    assert values.max() < size
    assert np.array_equal(order.inverse(values), positions)


def test_tabulated_and_computed_rounds_agree(monkeypatch):
    positions = np.arange(5000)
    tabulated = FeistelBijection(5000, (1, 2), 3).forward(positions)
    monkeypatch.setattr("mmapload.order.bijection._TABLE_LIMIT", 0)
    assert np.array_equal(FeistelBijection(5000, (1, 2), 3).forward(positions), tabulated)


def test_tables_made_in_slices_agree(monkeypatch):
    positions = np.arange(5000)
    whole = FeistelBijection(5000, (1, 2), 3).forward(positions)
    monkeypatch.setattr("mmapload.order.bijection._SLICE", 28)
    assert np.array_equal(FeistelBijection(5000, (1, 2), 3).forward(positions), whole)


def test_the_construction_changes_at_the_limit():
    assert isinstance(bijection(SORT_LIMIT, (0, 0)), SortedBijection)
    assert isinstance(bijection(SORT_LIMIT + 1, (0, 0)), FeistelBijection)


@pytest.mark.parametrize("size", [10, 5000])
@pytest.mark.parametrize("outside", [-1, 0])
def test_positions_outside_are_refused(size, outside):
    position = np.array([outside if outside < 0 else size])
    order = bijection(size, (0, 0))
    for method in (order.forward, order.inverse):
        with pytest.raises(IndexError, match=rf"expected positions in \[0, {size}\)"):
            method(position)


@pytest.mark.parametrize("size", [10, 5000])
def test_shapes_are_kept_and_inputs_left_alone(size):
    order = bijection(size, (0, 0))
    positions = np.arange(6).reshape(2, 3)
    assert order.forward(positions).shape == (2, 3)
    assert order.forward(np.empty(0, np.int64)).shape == (0,)
    assert np.array_equal(positions, np.arange(6).reshape(2, 3))


@pytest.mark.parametrize("size", [10, 10**8])
def test_a_pickle_holds_the_arguments_and_no_tables(size):
    order = bijection(size, (1, 2), 3)
    expected = order.forward(np.arange(10))
    data = pickle.dumps(order)
    assert len(data) < 200
    assert np.array_equal(pickle.loads(data).forward(np.arange(10)), expected)


def test_literal_permutations():
    assert bijection(10, (1, 2)).forward(np.arange(10)).tolist() == [8, 9, 3, 2, 4, 7, 0, 6, 1, 5]
    assert bijection(10, (1, 2), 5).forward(np.arange(10)).tolist() == [5, 1, 4, 9, 0, 3, 2, 8, 7, 6]
    assert bijection(5000, (1, 2)).forward(np.arange(8)).tolist() == [
        *(3642, 1091, 468, 2063, 914, 1345, 3728, 59),
    ]
    assert bijection(2**48, (1, 2), 2**40 + 1).forward(np.arange(3)).tolist() == [
        *(16020404883056, 117241448528297, 190265913408083),
    ]


@pytest.mark.parametrize("size", range(2, 7))
def test_all_orders_of_a_few_values_are_equally_likely(size):
    drawn = sorted_permutations(size, (20, 26), np.arange(100_000, dtype=np.uint64))
    codes = (drawn * size ** np.arange(size)).sum(axis=1)
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == math.factorial(size)  # both parities are among them
    assert abs(chi_square(counts)) < 4


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
def test_orders_over_keys_are_as_uniform_as_those_over_indices(size):
    drawn = np.array([bijection(size, (key, 5)).forward(np.arange(size)) for key in range(4000)])
    for position in range(size):
        assert abs(chi_square(np.bincount(drawn[:, position], minlength=size))) < 4


@pytest.mark.parametrize("size", [4097, 71**2])  # 71 x 71: both sides odd, only even permutations
def test_a_large_permutation_shows_no_pattern(size):
    keys = 1500
    drawn = np.array([bijection(size, (key, 7)).forward(np.arange(size)) for key in range(keys)])
    where = {
        "first": drawn[:, 0],
        "last": drawn[:, -1],
        "step from a value to its neighbour": (drawn[:, 1] - drawn[:, 0]) % size,
        "step from a value to the next row": (drawn[:, math.isqrt(size - 1) + 1] - drawn[:, 0]) % size,
        "preimage": drawn.argmin(axis=1),
    }
    for name, values in where.items():
        assert abs(chi_square(np.bincount(values * 32 // size, minlength=32))) < 4, name
    fixed = (drawn == np.arange(size)).sum(axis=1)  # Poisson, mean and variance 1
    assert abs(fixed.mean() - 1) < 4 / math.sqrt(keys)
    assert abs(fixed.var() - 1) < 4 * math.sqrt(3 / keys)
    neighbours = (np.abs(np.diff(drawn, axis=1)) == 1).sum(axis=1)  # Poisson, mean 2
    assert abs(neighbours.mean() - 2) < 4 * math.sqrt(2 / keys)
