"""What a state says, and that nothing but a state of this run is taken for one."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler, StateMismatchError
from mmapload.order import Geometry
from mmapload.state import SavedState
from tests.numbered_samples import SAMPLE_BYTES, flat, write_store

if TYPE_CHECKING:
    from pathlib import Path

CHUNK = 8 * SAMPLE_BYTES


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """93 samples in 12 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 93)


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


def after(sampler: Any, steps: int) -> Any:
    """The state after some batches, as it comes back from a file."""
    coming = iter(sampler)
    for _ in range(steps):
        next(coming)
    return json.loads(json.dumps(sampler.state_dict()))


def test_a_state_is_flat_and_small_and_says_what_the_order_is_made_of(ds: ChunkDataset) -> None:
    state = after(ChunkBatchSampler(ds, 4, window=16, seed=5, rank=1, world_size=2, lanes=2), 3)
    assert state == {
        "version": 1,
        "order_version": 1,
        "fingerprint": ds.store.fingerprint,
        "seed": 5,
        "mode": "window",
        "window": 16,
        "lanes": 2,
        "global_batch": 8,
        "remainder": "pad",
        "epoch": 0,
        "step": 3,
    }


def test_samplers_and_loaders_take_each_others_states(ds: ChunkDataset) -> None:
    by_batch, by_sample = ChunkBatchSampler(ds, 4, window=16), ChunkSampler(ds, 4, window=16)
    loader = ChunkDataLoader(ds, 4, True, window=16)
    state = after(by_batch, 3)
    for other in (by_batch, by_sample, loader):
        other.load_state_dict(state)
        assert other.state_dict() == state


def test_the_state_is_the_same_on_all_ranks(ds: ChunkDataset) -> None:
    for steps in (0, 5, 16):
        states = [after(ChunkBatchSampler(ds, 2, rank=rank, world_size=3), steps) for rank in range(3)]
        assert states[0] == states[1] == states[2]


# ---- what is refused, with both sides


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"fingerprint": "0" * 16}, ("'0000000000000000'", None)),
        ({"seed": 1}, ("seed=1", "seed=0")),
        ({"mode": "full", "window": None}, ("full", "window")),
        ({"version": 2}, ("2", "1")),
        ({"order_version": 2}, ("2", "1")),
        ({"step": 25}, ("step 25 of batches of 4", "at most 24 steps")),
        ({"step": 2**64 - 1}, (None, "at most 24 steps")),
        ({"global_batch": 6, "step": 3}, ("3 global batches of 6 samples", "batch_size=4 on 1 ranks")),
        ({"lanes": 3, "window": 15}, (None, "batch_size=4 on 1 ranks")),
        ({"lanes": 2, "window": 15}, (None, "batch_size=4 on 1 ranks")),
        ({"lanes": 2**63, "window": 2**63}, (None, "batch_size=4 on 1 ranks")),
    ],
)
def test_a_state_of_another_run_is_refused_with_both_sides(
    ds: ChunkDataset, change: dict[str, Any], both: tuple[str | None, str | None]
) -> None:
    sampler = ChunkSampler(ds, 4, window=16)
    before = sampler.state_dict()
    with pytest.raises(StateMismatchError) as caught:
        sampler.load_state_dict(before | change)
    for side, expected in zip((caught.value.saved, caught.value.current), both, strict=True):
        assert side
        assert expected is None or side == expected
    assert sampler.state_dict() == before


def test_a_state_of_another_store_names_the_store_and_of_a_copy_is_taken(
    ds: ChunkDataset, path: str, tmp_path: Path
) -> None:
    state = after(ChunkBatchSampler(ds, 4), 3)
    copy = ChunkSampler(ChunkDataset(write_store(tmp_path / "moved", 93)), 4)
    copy.load_state_dict(state)
    assert copy.state_dict() == state
    other = ChunkSampler(ChunkDataset(write_store(tmp_path / "other", 94)), 4)
    with pytest.raises(StateMismatchError, match=str(tmp_path / "other")):
        other.load_state_dict(state)


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        "state",
        {},
        {"version": 1},
        {"version": 1, "order_version": 1},
        {"_snapshot": {}, "_steps_since_snapshot": 0},
        {1: 2},
    ],
)
def test_what_is_no_state_is_refused(ds: ChunkDataset, state: Any) -> None:
    with pytest.raises(StateMismatchError):
        ChunkSampler(ds, 4).load_state_dict(state)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 30),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["window", "batch", "full", "sequential", "keep", "pad", "drop"]),
    st.lists(st.integers(), max_size=2),
)


@pytest.fixture(scope="module")
def hostile(path: str) -> ChunkSampler:
    return ChunkSampler(ChunkDataset(path), 4, window=16)


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_whatever_a_state_holds_it_is_refused_or_its_order_can_be_followed(
    hostile: ChunkSampler, data: st.DataObject
) -> None:
    state = hostile.state_at(0, 0)
    hostile.begin()
    for name in data.draw(st.lists(st.sampled_from([*state, "else"]), min_size=1, max_size=3)):
        state[name] = data.draw(odd)
    with suppress(StateMismatchError):
        hostile.load_state_dict(state)
    if hostile.begun is not None:  # it was refused
        return
    assert hostile.state_dict()["epoch"] == state["epoch"]
    order = hostile.order(hostile.epoch)
    start = hostile.begin().start
    rest = flat(batch.tolist() for batch in order.rank_batches(0, 1, start))
    assert set(rest) <= set(range(93))


def test_a_remainder_that_was_given_has_to_be_the_same_where_it_changes_anything(ds: ChunkDataset) -> None:
    state = after(ChunkBatchSampler(ds, 4, remainder="keep"), 3)
    with pytest.raises(StateMismatchError, match="remainder='keep', now remainder='drop'"):
        ChunkSampler(ds, 4, remainder="drop").load_state_dict(state)
    even = after(ChunkBatchSampler(ds, 3, remainder="keep"), 3)
    dropping = ChunkSampler(ds, 3, remainder="drop")
    dropping.load_state_dict(even)
    assert dropping.remainder == "drop"


def test_a_remainder_that_was_not_given_is_the_states(ds: ChunkDataset) -> None:
    """By default it depends on the number of ranks, and a resumed run may have another."""
    state = after(ChunkBatchSampler(ds, 2, remainder="drop"), 3)
    sampler = ChunkBatchSampler(ds, 1, rank=0, world_size=2)
    assert (len(sampler), len(sampler.sampler), sampler.drop_last) == (47, 47, False)
    sampler.load_state_dict(state)
    assert (len(sampler), len(sampler.sampler), sampler.drop_last) == (46, 46, True)
    loader = ChunkDataLoader(ds, 2, True)
    loader.load_state_dict(state)
    assert (len(loader), loader.drop_last) == (46, True)
    assert [len(batch["number"]) for batch in loader] == [2] * 43


# ---- another global batch


def saved_at(step: int, global_batch: int, **changes: Any) -> SavedState:
    state = {"fingerprint": "", "seed": 0, "mode": "full", "window": None, "lanes": 1, "remainder": "keep"}
    return SavedState(**(state | changes), epoch=0, global_batch=global_batch, step=step)  # type: ignore[arg-type]


def step_in(saved: SavedState, batch_size: int, world_size: int) -> int:
    run: Any = {"mode": saved.mode, "seed": 0, "remainder": None}
    return saved.resumed(Geometry(96, 8, 4), batch_size=batch_size, world_size=world_size, **run)[1]


def test_another_global_batch_goes_on_at_the_same_sample() -> None:
    assert step_in(saved_at(6, 8), 4, 4) == 3
    assert step_in(saved_at(6, 8), 2, 1) == 24
    assert step_in(saved_at(6, 8, mode="window", window=16, lanes=2), 4, 4) == 3


def test_where_none_begins_there_the_nearest_batch_sizes_are_named() -> None:
    with pytest.raises(StateMismatchError, match="use batch_size=6 or 8 on 2 ranks") as caught:
        step_in(saved_at(6, 8), 7, 2)
    assert caught.value.saved == "6 global batches of 8 samples"
    assert caught.value.current == "batch_size=7 on 2 ranks"
    with pytest.raises(StateMismatchError, match="use batch_size=6 or 12 on 2 ranks"):
        step_in(saved_at(3, 8, mode="batch"), 8, 2)
    with pytest.raises(StateMismatchError, match="use another number of ranks"):
        step_in(saved_at(3, 8), 1, 5)
    with pytest.raises(StateMismatchError, match="4 lanes do not divide a global batch of 6"):
        step_in(saved_at(3, 8, mode="window", window=16, lanes=4), 3, 2)


def test_an_epoch_that_was_over_is_over_for_every_global_batch() -> None:
    for remainder in ("keep", "pad", "drop"):
        done = saved_at(5 if remainder != "drop" else 4, 20, remainder=remainder)
        assert step_in(done, 7, 1) == (13 if remainder == "drop" else 14)


# ---- window and lanes are the state's


def test_window_and_lanes_are_the_states_whatever_the_budget_here(path: str) -> None:
    small, large = ChunkDataset(path, memory=5 * CHUNK), ChunkDataset(path, memory=CHUNK * 100)
    with pytest.warns(UserWarning, match="two windows"):
        cut = ChunkBatchSampler(small, 4, window=32)
    assert cut.sampler.window == 16
    first, second = list(cut), list(cut)
    cut.set_epoch(0)
    state = after(cut, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        roomy = ChunkBatchSampler(large, 4, window=32)
        assert list(roomy) != first
        roomy.load_state_dict(state)
    assert roomy.sampler.window == 16
    assert (list(roomy), list(roomy)) == (first[5:], second)

    whole = after(ChunkBatchSampler(large, 4, window=32, lanes=2), 5)
    with pytest.warns(UserWarning, match="windows of 32 samples, two of which take 10 chunks .* holds 5"):
        cut.load_state_dict(whole)
    assert (cut.sampler.window, cut.sampler.lanes) == (32, 2)
    assert list(cut) == list(ChunkBatchSampler(large, 4, window=32, lanes=2))[5:]


# ---- epochs


def test_to_the_epoch_restored_set_epoch_keeps_the_position_and_to_another_it_starts_at_0(
    ds: ChunkDataset,
) -> None:
    whole = ChunkBatchSampler(ds, 4)
    epochs = [list(whole) for _ in range(5)]
    whole.set_epoch(2)
    state = after(whole, 7)
    resumed = ChunkBatchSampler(ds, 4)
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2][7:]
    assert list(resumed) == epochs[3]
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]
    resumed.load_state_dict(state)
    resumed.set_epoch(4)
    assert list(resumed) == epochs[4]
    resumed.load_state_dict(state)
    resumed.set_epoch(4)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]


def test_a_state_can_be_loaded_again_and_in_the_midst_of_an_iteration(ds: ChunkDataset) -> None:
    sampler = ChunkBatchSampler(ds, 4)
    whole = list(sampler)
    sampler.set_epoch(0)
    state = after(sampler, 7)
    for _ in range(2):
        sampler.load_state_dict(state)
        assert next(iter(sampler)) == whole[7]


def test_received_says_how_many_of_the_batches_handed_out_have_arrived(ds: ChunkDataset) -> None:
    sampler = ChunkSampler(ds, 4)
    coming = iter(sampler)
    numbers = [next(coming) for _ in range(22)]
    assert numbers
    assert sampler.state_dict()["step"] == 5  # the sixth is not complete
    assert sampler.state_dict(received=2)["step"] == 2
    with pytest.raises(ValueError, match="received=6, and the sampler has handed out 5 batches"):
        sampler.state_dict(received=6)
    with pytest.raises(ValueError, match="received is an integer from 0 up"):
        sampler.state_dict(received=-1)
    sampler.load_state_dict(sampler.state_dict(received=2))
    assert sampler.state_dict(received=0)["step"] == 2
    assert next(iter(sampler)) == numbers[8]
    for _ in zip(range(8), sampler, strict=False):
        pass
    assert sampler.state_dict(received=1) | {"epoch": 0} == sampler.state_at(0, 1)
