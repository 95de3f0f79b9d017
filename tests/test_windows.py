"""How large a shuffled window is: as asked for, or as much as memory holds, the same on all ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.order import Geometry, epoch_order
from mmapload.ranks import find_ranks
from mmapload.windows import checked_integer, fit_window

ALONE = find_ranks(None, None)


@given(
    length=st.integers(1, 9),
    samples=st.integers(1, 200),
    window=st.integers(1, 200),
    capacity=st.integers(1, 60),
    seed=st.integers(0, 9),
)
def test_two_windows_in_a_row_never_touch_more_chunks_than_are_held(
    length: int, samples: int, window: int, capacity: int, seed: int
) -> None:
    geometry = Geometry(samples, length, length)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fit_window(window, geometry, lanes=1, capacity=capacity, memory=1, ranks=ALONE)
    assert 1 <= found <= window
    if found < window:
        assert found % length == 0, "a window is cut to whole chunks"
    if capacity < 3 or found < length:
        return  # memory does not hold two windows of one chunk, or a window is less than a chunk
    order = epoch_order(geometry, global_batch=1, window=found, seed=seed)
    chunks = [int(batch[0]) // length for batch in order.rank_batches(0, 1)]
    for start in range(0, samples, found):
        assert len(set(chunks[start : start + 2 * found])) <= capacity


def test_a_window_that_fits_is_as_asked_and_says_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_window(64, Geometry(999, 8, 8), lanes=1, capacity=18, memory=1, ranks=ALONE) == 64
        assert fit_window("auto", Geometry(999, 8, 8), lanes=1, capacity=125, memory=1, ranks=ALONE) == 999


@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_given_by_hand_refuse_with_the_window_that_fits(world_size: int) -> None:
    ranks = find_ranks(0, world_size)
    with pytest.raises(ValueError, match="pass window=16 on every rank"):
        fit_window(64, Geometry(999, 8, 8), lanes=1, capacity=5, memory=2**20, ranks=ranks)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "all", None])
def test_what_is_no_window_is_named(wrong: object) -> None:
    with pytest.raises(ValueError, match="window is"):
        fit_window(wrong, Geometry(9, 3, 3), lanes=1, capacity=3, memory=1, ranks=ALONE)


def test_integers_of_numpy_count_as_such() -> None:
    assert checked_integer("window", np.int64(3), 1) == 3
