"""How large a shuffled window is: as asked for, or as much as memory holds, the same on all ranks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmapload.order import Geometry, epoch_order
from mmapload.ranks import find_ranks
from mmapload.selection import checked_integer
from mmapload.windows import fit_window, look_ahead

if TYPE_CHECKING:
    from mmapload.order import Mode

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


@given(
    mode=st.sampled_from(["window", "batch", "sequential"]),
    length=st.integers(1, 9),
    samples=st.integers(1, 300),
    batch=st.integers(1, 20),
    window=st.integers(1, 100),
    capacity=st.integers(1, 60),
    lag=st.none() | st.integers(0, 4),
    seed=st.integers(0, 9),
)
def test_what_is_loaded_ahead_and_what_stays_fit_in_the_budget_together(
    mode: Mode,
    length: int,
    samples: int,
    batch: int,
    window: int,
    capacity: int,
    lag: int | None,
    seed: int,
) -> None:
    batch, window, unit = min(batch, samples), min(window, samples), length
    batch = batch // unit * unit or unit if mode == "batch" else batch
    geometry = Geometry(samples, length, unit)
    ahead = look_ahead(
        mode,
        geometry,
        global_batch=batch,
        capacity=capacity,
        window=window if mode == "window" else None,
        lag=lag,
    )
    assert ahead.steps >= 1
    assert 0 <= ahead.kept <= min(capacity, geometry.chunks)
    if not ahead.kept:
        return
    order = epoch_order(
        geometry, global_batch=batch, mode=mode, window=window if mode == "window" else None, seed=seed
    )
    uses = list(order.uses(0, 1))
    for step in range(order.steps):
        low, high = step - ahead.lag, step + ahead.steps
        held = {use.chunk for use in uses if use.first_step <= high and use.last_step >= low}
        # At the start of a window the chunks of the one before are used still, for as long as training lags:
        # all of them, since each may hold the sample that training has come to.
        late = -(-max(ahead.lag * batch, window if ahead.lag else 0) // length) + 1
        assert len(held | set(range(ahead.kept))) <= capacity + (late if mode == "window" else 0)


def test_what_fits_in_memory_is_loaded_far_ahead() -> None:
    whole = look_ahead("sequential", Geometry(100_000, 10, 5), global_batch=5, capacity=10_000)
    assert whole.steps == 1024 // 5
    part = look_ahead("sequential", Geometry(100_000, 10, 5), global_batch=5, capacity=100)
    assert part.steps == 250 // 5
    assert part.kept == 100 - (50 + 12 + 1) * 5 // 10 - 2
