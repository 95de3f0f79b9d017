"""Resident chunks: loaded ahead once, kept while they are needed, dropped behind, never more than allowed."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.errors import ChunkError
from mmapload.order import Geometry, Use, epoch_order
from mmapload.residency import THREADS, Residency
from tests.loading_cases import open_reader, random_arrays, run_python, same_bits, write_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mmapload.order import EpochOrder
    from mmapload.readers import ChunkArrays
    from mmapload.store import Store

CHUNK = 100


class NumberedReader:
    """A reader of chunks that hold their own number; notes what is loaded and counts what is alive."""

    def __init__(self, *, maps: bool = True) -> None:
        self.maps = maps
        self.chunks_loaded = 0
        self.bytes_loaded = 0
        self.loaded: list[int] = []
        self.known: list[bool] = []
        self.warmed: list[tuple[int, int, int | None]] = []
        self.live = 0
        self.most_live = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.failing: set[int] = set()
        self._lock = threading.Lock()

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        self.entered.release()
        assert self.gate.wait(20)
        if chunk in self.failing:
            raise ChunkError("x", chunk, "path", "a chunk file", "no such file")
        with self._lock:
            self.loaded.append(chunk)
            self.known.append(in_memory)
            self.live += 1
            self.most_live = max(self.most_live, self.live)
        array = np.full(1, chunk)
        weakref.finalize(array, self._died)
        return {"x": array}

    def _died(self) -> None:
        self.live -= 1

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        if chunk in self.failing:
            raise ChunkError("x", chunk, "path", "a chunk file", "no such file")
        self.warmed.append((chunk, start, stop))

    def read_rows(
        self, chunk: int, rows: np.ndarray, into: Mapping[str, np.ndarray], places: np.ndarray
    ) -> bool:
        return False


def numbered(chunks: int, capacity: int, *, maps: bool = True) -> tuple[NumberedReader, Residency]:
    reader = NumberedReader(maps=maps)
    return reader, Residency(reader, CHUNK, chunks, capacity * CHUNK)


def settle(residency: Residency) -> None:
    """Wait until no thread loads ahead any more."""
    for _ in range(20_000):
        if residency._running == 0:
            return
        time.sleep(0.0005)
    raise AssertionError("a thread still loads ahead")


def threads_ahead() -> int:
    return sum(thread.name == "mmapload-ahead" for thread in threading.enumerate())


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run work(0), work(1), ... side by side; the first exception is raised here."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


@st.composite
def window_epochs(draw: st.DrawFn) -> tuple[Geometry, EpochOrder, int, int]:
    """An order in windows, how many chunks two windows touch, and how many steps ahead to load."""
    length = draw(st.sampled_from([1, 2, 3, 8, 16]))
    samples = draw(st.one_of(st.integers(1, 3 * length + 1), st.integers(1, 200)))
    geometry = Geometry(samples, length, length)
    window = draw(st.integers(1, samples))
    batch = draw(st.integers(1, window))
    order = epoch_order(
        geometry,
        global_batch=batch,
        window=window,
        seed=draw(st.integers(0, 99)),
        epoch=draw(st.integers(0, 3)),
        remainder=draw(st.sampled_from(["keep", "drop", "pad"])),
    )
    # Windows cut chunks, and the short last chunk may lie in their middle.
    capacity = -(-2 * window // length) + 1 + (samples % length > 0)
    return geometry, order, capacity, draw(st.integers(0, window // batch + 1))


def batches(geometry: Geometry, order: EpochOrder) -> Iterator[tuple[int, list[int]]]:
    """Yield every step with the chunks that its batch needs."""
    for step, batch in enumerate(order.rank_batches(0, 1)):
        yield step, np.unique(batch // geometry.chunk_length).tolist()


@given(window_epochs())
@settings(max_examples=60)
def test_two_windows_fit_in_the_budget_and_no_more_than_the_budget_is_ever_held(
    case: tuple[Geometry, EpochOrder, int, int],
) -> None:
    geometry, order, capacity, ahead = case
    _reader, residency = numbered(geometry.chunks, capacity)
    residency.follow(order.uses(0, 1))
    for step, chunks in batches(geometry, order):
        residency.advance(step, step + ahead)
        for chunk in chunks:
            assert residency.covers(chunk)
            assert residency.get(chunk)["x"][0] == chunk
    assert residency.counts.peak_bytes <= capacity * CHUNK
    settle(residency)
    residency.follow(())
    assert residency.counts.resident_bytes == CHUNK * len(residency._resident) <= capacity * CHUNK


@given(window_epochs())
@settings(max_examples=60)
def test_a_planned_chunk_is_loaded_once_an_epoch_and_always_ahead_of_a_consumer_that_waits_for_it(
    case: tuple[Geometry, EpochOrder, int, int],
) -> None:
    geometry, order, capacity, ahead = case
    reader, residency = numbered(geometry.chunks, capacity)
    uses = list(order.uses(0, 1))
    residency.follow(iter(uses))
    for step, chunks in batches(geometry, order):
        residency.advance(step, step + ahead)
        settle(residency)
        for chunk in chunks:
            residency.get(chunk)
        needed = {use.chunk for use in uses if step <= use.last_step}
        if not residency.holds_all:
            assert set(residency._resident) <= needed, "what lies behind is dropped"
    if residency.holds_all or order.remainder != "pad":
        assert residency.counts.misses == 0
        assert sorted(reader.loaded) == sorted({use.chunk for use in uses})
    else:
        # The samples that pad the last batch come from the epoch's start, beyond the two windows.
        extra = Counter(use.chunk for use in uses if use.first_step == order.steps - 1)
        assert residency.counts.misses <= extra.total()
        assert not Counter(reader.loaded) - Counter({use.chunk for use in uses}) - extra
    assert reader.most_live <= capacity + THREADS


@pytest.mark.parametrize("capacity", [5, 50])
def test_chunks_that_all_fit_are_loaded_once_for_all_epochs_and_never_dropped(capacity: int) -> None:
    reader, residency = numbered(5, capacity)
    geometry = Geometry(20, 4, 4)
    for epoch in range(3):
        order = epoch_order(geometry, global_batch=4, window=8, epoch=epoch)
        residency.follow(order.uses(0, 1))
        for step, chunks in batches(geometry, order):
            residency.advance(step, step + 2)
            for chunk in chunks:
                residency.get(chunk)
    settle(residency)
    assert sorted(reader.loaded) == [0, 1, 2, 3, 4]
    assert (residency.counts.dropped, residency.counts.resident_bytes) == (0, 5 * CHUNK)
    assert residency.holds_all


def test_no_thread_begins_for_chunks_that_are_in_memory_already(monkeypatch: pytest.MonkeyPatch) -> None:
    _reader, residency = numbered(5, 5)
    uses = [Use(chunk, 0, 4, chunk, chunk) for chunk in range(5)]
    begun: list[str] = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda thread: (begun.append(thread.name), start(thread))[-1]
    )
    for epoch in range(3):
        residency.follow(iter(uses))
        for step in range(5):
            residency.advance(step, step)
            settle(residency)
        assert begun.count("mmapload-ahead") == 5, f"epoch {epoch}"
    assert residency._schedule.first_due() is None


@pytest.mark.parametrize("maps", [True, False])
def test_what_is_held_is_told_in_one_call_and_nothing_is_loaded_or_waited_for(maps: bool) -> None:
    reader, residency = numbered(6, 3, maps=maps)
    for chunk in (4, 1):
        residency.get(chunk)
    reader.gate.clear()
    residency.follow([Use(2, 0, 4, 0, 0)])
    residency.advance(0, 0)  # brings it in, and cannot come to an end yet
    hits = residency.counts.hits
    found = residency.held([1, 2, 3, 4])
    assert [None if arrays is None else int(arrays["x"][0]) for arrays in found] == [1, None, None, 4]
    assert residency.counts.hits == hits + 2
    assert sorted(reader.loaded) == [1, 4]
    reader.gate.set()
    settle(residency)


def test_what_was_told_to_be_held_last_is_dropped_last() -> None:
    _reader, residency = numbered(6, 3)
    for chunk in (0, 1, 2):
        residency.get(chunk)
    residency.held([0])
    residency.get(3)
    assert [arrays is None for arrays in residency.held([0, 1, 2, 3])] == [False, True, False, False]


@given(window_epochs(), st.integers(0, 9))
@settings(max_examples=60)
def test_chunks_that_stay_are_loaded_once_for_all_epochs_and_the_others_once_in_each(
    case: tuple[Geometry, EpochOrder, int, int], kept: int
) -> None:
    geometry, order, needed, ahead = case
    reader, residency = numbered(geometry.chunks, needed + kept)
    used = set()
    for _ in range(3):
        residency.follow(order.uses(0, 1), kept=kept)
        for step, chunks in batches(geometry, order):
            residency.advance(step, step + ahead)
            settle(residency)
            for chunk in chunks:
                residency.get(chunk)
                used.add(chunk)
        residency.advance(order.steps, order.steps)
    settle(residency)
    loads = Counter(reader.loaded)
    if residency.holds_all:
        kept = geometry.chunks
    assert used <= set(loads) <= {use.chunk for use in order.uses(0, 1)}
    repeats = 2 if order.remainder == "pad" else 1  # samples from the start are used again at the end
    for chunk, count in loads.items():
        assert count == 1 if chunk < kept else 3 <= count <= 3 * repeats
    assert residency.counts.peak_bytes <= (needed + kept) * CHUNK
    assert set(residency._resident) == {chunk for chunk in loads if chunk < kept}


def test_rows_only_plans_hold_the_chunks_that_stay_and_bring_the_rows_of_others_into_the_page_cache() -> None:
    reader, residency = numbered(chunks=8, capacity=6)
    uses = [
        Use(chunk, row, row + 2, 2 * chunk + row // 2, 2 * chunk + row // 2)
        for chunk in range(8)
        for row in (0, 2)
    ]
    for _ in range(2):
        residency.follow(iter(uses), rows_only=True, kept=3)
        residency.advance(0, 99)
        settle(residency)
    assert sorted(reader.loaded) == [0, 1, 2], "each of them whole, and once"
    assert sorted(reader.warmed) == sorted(2 * [(use.chunk, use.start, use.stop) for use in uses[6:]])
    reader.known.clear()
    for use in (uses[0], uses[6], uses[6]):
        residency.view(use.chunk, use.start, use.stop)
    assert reader.known == [True, False, False], "the system may have taken back what was only brought in"


def test_what_stays_gives_way_by_force_before_what_is_planned() -> None:
    _reader, residency = numbered(chunks=9, capacity=3)
    residency.follow([Use(0, 0, 1, 0, 0), Use(5, 0, 1, 0, 9)], kept=1)
    residency.advance(0, 0)
    settle(residency)
    residency.get(7)
    assert list(residency._resident) == [0, 5, 7] or list(residency._resident) == [5, 0, 7]
    residency.advance(1, 1)
    residency.get(8)
    assert set(residency._resident) == {0, 5, 8}, "what nobody planned goes first"
    residency.get(8)
    residency.follow([Use(5, 0, 1, 0, 9), Use(8, 0, 1, 0, 9)])
    residency.advance(0, 0)
    residency.get(7)
    assert set(residency._resident) == {5, 7, 8}, "then what only stays"


def test_memory_of_a_dropped_chunk_is_free_at_once() -> None:
    reader, residency = numbered(10, 2)
    residency.follow([Use(0, 0, 1, 0, 0), Use(1, 0, 1, 1, 1)])
    residency.advance(0, 0)
    settle(residency)
    assert (residency.get(0)["x"][0], reader.live) == (0, 1)
    gc.disable()
    try:
        residency.advance(1, 0)
        assert reader.live == 0
    finally:
        gc.enable()


def test_chunks_are_loaded_in_the_order_of_their_use_and_only_up_to_the_horizon() -> None:
    reader, residency = numbered(10, 8)
    residency.follow(Use(9 - i, 0, 1, i, i + 1) for i in range(10))
    residency.advance(0, 3)
    settle(residency)
    assert sorted(reader.loaded) == [6, 7, 8, 9]
    residency.advance(0, 5)
    settle(residency)
    assert sorted(reader.loaded[4:]) == [4, 5]
    assert residency.counts.ahead == 6


def test_a_plan_is_read_no_further_than_one_use_beyond_the_horizon() -> None:
    taken = []
    _, residency = numbered(1000, 3)
    residency.follow(Use(i, 0, 1, i, i) for i in range(1000) if taken.append(i) is None)
    residency.advance(0, 4)
    settle(residency)
    assert taken == [0, 1, 2, 3, 4, 5]


def test_loading_ahead_stops_at_the_budget_and_goes_on_when_room_appears() -> None:
    reader, residency = numbered(10, 3)
    residency.follow(Use(i, 0, 1, i, i) for i in range(10))
    residency.advance(0, 9)
    settle(residency)
    assert sorted(reader.loaded) == [0, 1, 2]
    residency.advance(2, 9)
    settle(residency)
    assert sorted(reader.loaded) == [0, 1, 2, 3, 4]
    assert residency.counts.peak_bytes == 3 * CHUNK


def test_what_training_has_passed_is_not_loaded_any_more() -> None:
    reader, residency = numbered(10, 2)
    residency.follow(Use(i, 0, 1, i, i) for i in range(10))
    residency.advance(0, 9)
    settle(residency)
    residency.advance(6, 9)
    settle(residency)
    assert sorted(reader.loaded) == [0, 1, 6, 7]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_chunk_with_several_uses_stays_until_the_last_of_them_is_over(order: tuple[int, int]) -> None:
    reader, residency = numbered(10, 3)
    uses = [Use(4, 0, 2, 0, 1), Use(4, 2, 4, 0, 5)]
    residency.follow([uses[order[0]], uses[order[1]], Use(5, 0, 1, 1, 2)])
    for step in range(6):
        residency.advance(step, step + 1)
        settle(residency)
        assert residency.get(4)["x"][0] == 4
    residency.advance(6, 7)
    assert not residency.covers(4)
    assert sorted(reader.loaded) == [4, 5]


def test_what_nobody_planned_gives_way_first_and_the_oldest_of_it_before_the_rest() -> None:
    reader, residency = numbered(10, 3)
    residency.get(7)
    residency.get(8)
    residency.get(7)
    residency.follow([Use(0, 0, 1, 0, 9), Use(1, 0, 1, 5, 9)])
    residency.advance(0, 0)
    settle(residency)
    assert set(residency._resident) == {0, 7, 8}
    residency.advance(1, 5)
    settle(residency)
    assert set(residency._resident) == {0, 1, 7}
    residency.get(9)
    assert set(residency._resident) == {0, 1, 9}
    residency.get(0)
    assert reader.loaded.count(0) == 1


def test_rows_only_plans_bring_rows_into_the_page_cache_and_hold_nothing() -> None:
    reader, residency = numbered(10, 3)
    residency.follow([Use(2, 0, 4, 0, 0), Use(3, 4, 8, 1, 1), Use(2, 4, 8, 2, 2)], rows_only=True)
    residency.advance(0, 9)
    settle(residency)
    assert sorted(reader.warmed) == [(2, 0, 4), (2, 4, 8), (3, 4, 8)]
    assert (reader.loaded, residency.counts.ahead, residency.counts.peak_bytes) == ([], 3, 0)
    assert not residency.covers(2)


def test_rows_are_brought_into_the_page_cache_once_where_everything_fits_and_each_time_where_not() -> None:
    for capacity, times in ((10, 1), (9, 3)):
        reader, residency = numbered(10, capacity)
        for _ in range(3):
            residency.follow([Use(2, 0, 4, 0, 0), Use(2, 4, 8, 1, 1)], rows_only=True)
            residency.advance(0, 9)
            settle(residency)
        assert sorted(reader.warmed) == sorted([(2, 0, 4), (2, 4, 8)] * times)


def test_where_chunks_are_decoded_ahead_means_the_page_cache_until_one_is_asked_for_here() -> None:
    reader, residency = numbered(10, 5, maps=False)
    residency.follow(Use(i, 0, 1, i, i) for i in range(10))
    residency.advance(0, 1)
    settle(residency)
    assert (sorted(reader.warmed), reader.loaded) == ([(0, 0, 1), (1, 0, 1)], [])
    residency.get(0)
    residency.advance(0, 3)
    settle(residency)
    assert (len(reader.warmed), sorted(reader.loaded)) == (2, [0, 1, 2, 3])


def test_what_training_has_passed_is_not_loaded_late() -> None:
    reader, residency = numbered(10, 2, maps=False)
    plan = iter([Use(i, 0, 1, i, i) for i in range(10)])
    residency.follow(plan)
    assert residency.follows(plan)
    residency.advance(0, 9)
    settle(residency)
    for chunk in (0, 1, 2):
        residency.get(chunk)
    residency.advance(3, 9)
    settle(residency)
    assert reader.loaded == [0, 1, 2, 3, 4]
    residency.follow(())
    assert not residency.follows(plan)


def test_a_new_plan_takes_the_place_of_the_old_one_while_chunks_are_on_their_way() -> None:
    reader, residency = numbered(20, 4)
    reader.gate.clear()
    residency.follow(Use(i, 0, 1, i, i) for i in range(10))
    residency.advance(0, 9)
    for _ in range(THREADS):
        assert reader.entered.acquire(timeout=20)
    residency.follow(Use(10 + i, 0, 1, i, i) for i in range(10))
    residency.advance(0, 3)
    reader.gate.set()
    settle(residency)
    residency.advance(0, 3)
    settle(residency)
    assert set(residency._resident) == {10, 11, 12, 13}
    assert set(reader.loaded) == {*range(THREADS), 10, 11, 12, 13}
    assert residency.counts.peak_bytes <= 4 * CHUNK


def test_plans_that_follow_each_other_at_any_moment_leave_a_sound_state() -> None:
    reader, residency = numbered(40, 5)
    rng = np.random.default_rng(0)
    for _ in range(100):
        start = int(rng.integers(30))
        residency.follow(Use(start + i, 0, 1, i, i + 1) for i in range(10))
        for step in range(int(rng.integers(1, 6))):
            residency.advance(step, step + 3)
            assert residency.get(start + step)["x"][0] == start + step
    residency.follow(())
    settle(residency)
    assert residency.counts.peak_bytes <= 5 * CHUNK
    residency._resident.clear()
    residency._loaded.clear()
    gc.collect()
    assert reader.live == 0


@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_chunk_is_waited_for_rather_than_the_budget_exceeded(capacity: int) -> None:
    reader, residency = numbered(10, capacity)
    reader.gate.clear()
    threads = [threading.Thread(target=residency.get, args=(chunk,)) for chunk in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(capacity):
        assert reader.entered.acquire(timeout=20)
    assert not reader.entered.acquire(timeout=0.1)
    reader.gate.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert sorted(reader.loaded) == [0, 1, 2, 3, 4, 5]
    assert residency.counts.peak_bytes == capacity * CHUNK


@pytest.mark.parametrize("codec", ["raw", "blosc-zstd"])
@pytest.mark.parametrize("capacity", [1, 3])
def test_threads_that_ask_for_random_chunks_get_the_right_ones_within_the_budget(
    tmp_path: Path, codec: str, capacity: int
) -> None:
    arrays = random_arrays(48, x=("i4", (50,)), y=("u1", ()))
    store = write_store(tmp_path / "store", arrays, 4, codec)
    residency = resident(store, capacity, drop_behind=True)
    residency.follow(Use(chunk, 0, 4, 0, 99) for chunk in range(12))
    residency.get(0)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for turn in range(100):
            if seed == 0:
                residency.advance(turn, turn + 3)
            chunk = int(rng.integers(12))
            for name, array in residency.get(chunk).items():
                assert same_bits(array, arrays[name][4 * chunk : 4 * chunk + 4])

    in_threads(8, work)
    settle(residency)
    counts = residency.counts
    assert counts.hits + counts.misses == 801
    assert counts.peak_bytes <= capacity * store.layout.chunk_nbytes
    assert residency.reader.chunks_loaded == counts.misses + counts.ahead


def resident(store: Store, capacity: int, **options: Any) -> Residency:
    layout = store.layout
    reader = open_reader(store, **options)
    return Residency(reader, layout.chunk_nbytes, layout.chunks, capacity * layout.chunk_nbytes)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_an_error_of_a_load_ahead_surfaces_when_the_chunk_is_asked_for_and_a_later_try_succeeds(
    tmp_path: Path, codec: str
) -> None:
    arrays = random_arrays(12, x=("i4", (5,)))
    store = write_store(tmp_path / "store", arrays, 4, codec)
    path = Path(store.chunk_path(store.field("x"), 1))
    path.rename(tmp_path / "aside")
    residency = resident(store, 2)
    residency.get(0)
    residency.follow(Use(chunk, 0, 4, chunk, chunk) for chunk in range(3))
    for _ in range(2):
        residency.advance(0, 2)
        settle(residency)
        with pytest.raises(ChunkError, match="chunk 1 of field 'x'"):
            residency.get(1)
    (tmp_path / "aside").rename(path)
    assert same_bits(residency.get(1)["x"], arrays["x"][4:8])
    residency.advance(2, 2)
    settle(residency)
    assert same_bits(residency.get(2)["x"], arrays["x"][8:])
    assert residency.counts.resident_bytes == len(residency._resident) * store.layout.chunk_nbytes


def test_everybody_who_waits_for_a_chunk_on_its_way_gets_its_error_and_the_next_one_tries_again() -> None:
    reader, residency = numbered(10, 3)
    reader.failing.add(0)
    reader.gate.clear()
    residency.follow([Use(0, 0, 1, 0, 9)])
    residency.advance(0, 0)
    assert reader.entered.acquire(timeout=20)
    failed = []

    def ask(_: int) -> None:
        try:
            residency.get(0)
        except ChunkError as error:
            failed.append(error.chunk)

    opening = threading.Timer(0.1, reader.gate.set)
    opening.start()
    in_threads(5, ask)
    assert failed == [0] * 5
    assert residency.counts.resident_bytes == 0
    reader.failing.clear()
    assert residency.get(0)["x"][0] == 0


def test_an_error_while_bringing_rows_into_the_page_cache_stops_nothing() -> None:
    reader, residency = numbered(10, 3)
    reader.failing.add(0)
    residency.follow((Use(i, 0, 1, i, i) for i in range(3)), rows_only=True)
    residency.advance(0, 2)
    settle(residency)
    assert sorted(reader.warmed) == [(1, 0, 1), (2, 0, 1)]


def test_a_plan_that_raises_tells_whoever_follows_it_and_blocks_nothing() -> None:
    _, residency = numbered(10, 3)

    def plan() -> Iterator[Use]:
        yield Use(0, 0, 1, 0, 0)
        raise RuntimeError("no plan")

    residency.follow(plan())
    with pytest.raises(RuntimeError, match="no plan"):
        residency.advance(0, 5)
    assert residency.get(3)["x"][0] == 3
    residency.follow([Use(1, 0, 1, 0, 0)])
    residency.advance(0, 0)
    settle(residency)
    assert residency.covers(1)


def test_no_thread_is_left_when_a_plan_is_done_or_given_up() -> None:
    before = threads_ahead()
    _, residency = numbered(30, 4)
    for last in (30, 7):
        residency.follow(Use(i, 0, 1, i, i) for i in range(30))
        for step in range(last):
            residency.advance(step, step + 3)
            residency.get(step)
        residency.follow(())
    settle(residency)
    deadline = time.monotonic() + 20
    while threads_ahead() > before and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads_ahead() <= before


@pytest.mark.parametrize(
    ("budget", "capacity"), [(0, 1), (99, 1), (100, 1), (199, 1), (1000, 10), (10**9, 10)]
)
def test_the_budget_holds_at_least_one_chunk_and_at_most_all(budget: int, capacity: int) -> None:
    residency = Residency(NumberedReader(), CHUNK, 10, budget)
    assert (residency.capacity, residency.holds_all) == (capacity, capacity == 10)


def test_chunks_without_bytes_all_fit() -> None:
    residency = Residency(NumberedReader(), 0, 10, 1000)
    assert [residency.get(chunk)["x"][0] for chunk in range(10)] == list(range(10))
    assert residency.holds_all


def test_the_interpreter_ends_in_silence_while_chunks_are_being_loaded(tmp_path: Path) -> None:
    store = write_store(tmp_path / "store", random_arrays(64, x=("u1", (100_000,))), 1)
    for seed in range(5):
        run_python(
            "import sys, time\n"
            "from mmapload.store import open_store\n"
            "from mmapload.checks import Checks\n"
            "from mmapload.readers import reader_for\n"
            "from mmapload.residency import Residency\n"
            "from mmapload.order import Use\n"
            "store = open_store(sys.argv[1])\n"
            "fields = store.layout.fields\n"
            "reader = reader_for(store, fields, Checks('always', 1, 64), drop_behind=True)\n"
            "residency = Residency(reader, 100_000, 64, 40 * 100_000)\n"
            "residency.follow(Use(i, 0, 1, i, i) for i in range(64))\n"
            "residency.advance(0, 63)\n"
            "time.sleep(int(sys.argv[2]) * 0.0005)\n",
            store.path,
            seed,
        )


FORKS = int(os.environ.get("MMAPLOAD_FORKS", "15"))  # three codecs, each after five numbers of batches
"""How often a process forks; `make fuzz` sets more."""


def test_a_process_forked_while_chunks_are_being_loaded_reads_on_its_own(tmp_path: Path) -> None:
    arrays = random_arrays(64, x=("u1", (20_000,)))
    stores = [write_store(tmp_path / codec, arrays, 2, codec).path for codec in ("raw", "zstd", "blosc-lz4")]
    np.save(tmp_path / "x.npy", arrays["x"])
    run_python(
        "import os, sys, time, warnings\n"
        "import numpy as np, mmapload\n"
        "warnings.simplefilter('ignore', DeprecationWarning)  # newer Pythons warn of forks beside threads\n"
        "x = np.load(sys.argv[1])\n"
        "datasets = [mmapload.ChunkDataset(path, memory=400_000) for path in sys.argv[3:]]\n"
        "samplers = [mmapload.ChunkSampler(ds, 4, window=8) for ds in datasets]\n"
        "def follow(k, turns):\n"
        "    for turn, batch in zip(range(turns), samplers[k].batches()):\n"
        "        got = datasets[k].read(batch).tensors['x'].numpy()\n"
        "        assert (got == x[batch]).all()\n"
        "        yield\n"
        "for repeat in range(int(sys.argv[2])):\n"
        "    k = repeat % 3\n"
        "    for _ in follow(k, 1 + repeat % 5): pass\n"
        "    running = follow(k, 10)\n"
        "    next(running)\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try:\n"
        "            list(follow(k, 5))\n"
        "            assert (datasets[k][repeat % 64]['x'].numpy() == x[repeat % 64]).all()\n"
        "        except BaseException as error:\n"
        "            print(repr(error), file=sys.stderr, flush=True)\n"
        "            os._exit(1)\n"
        "        os._exit(0)\n"
        "    next(running)\n"
        "    deadline = time.monotonic() + 20\n"
        "    while (done := os.waitpid(child, os.WNOHANG))[0] == 0:\n"
        "        assert time.monotonic() < deadline, 'the child hangs'\n"
        "        time.sleep(0.001)\n"
        "    assert done[1] == 0, done\n"
        "    running.close()\n",
        tmp_path / "x.npy",
        FORKS,
        *stores,
        timeout=120 + FORKS,
    )


def test_a_view_brings_nothing_in_that_is_known_to_be_in_memory() -> None:
    reader, residency = numbered(10, 10)
    residency.follow([Use(2, 0, 4, 0, 0)], rows_only=True)
    residency.advance(0, 0)
    settle(residency)
    residency.get(5)
    for chunk, start in ((2, 0), (2, 4), (5, 4), (6, 0)):
        residency.view(chunk, start, start + 4)
    assert reader.known == [False, True, False, True, False]


def test_a_thread_that_fails_unexpectedly_is_counted_out() -> None:
    reader, residency = numbered(10, 3)
    residency.follow([Use(0, 0, 4, 0, 0), Use(1, 0, 4, 1, 1)], rows_only=True)

    def broken(chunk: int, start: int = 0, stop: int | None = None) -> None:
        raise OSError(22, "no advice here")

    reader.warm = broken
    hook, threading.excepthook = threading.excepthook, lambda _: None
    try:
        residency.advance(0, 9)
        settle(residency)
    finally:
        threading.excepthook = hook
    assert residency._running == 0
