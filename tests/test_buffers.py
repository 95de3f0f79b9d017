"""Recycled memory: used again when the last array over it is dead, never earlier, and bounded."""

from __future__ import annotations

import gc
import re
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmapload.buffers import BufferPool
from mmapload.mappings import PAGE
from tests.loading_cases import run_python, undisturbed


def idle_bytes(pool: BufferPool) -> int:
    """Add up what the pool keeps for use again."""
    return sum(buffer.memory.nbytes for buffer in pool._idle)


@pytest.mark.parametrize("last", ["array", "slice", "view", "tensor", "tensor's view", "memoryview"])
def test_a_buffer_is_used_again_when_the_last_view_of_it_dies_and_not_before(last: str) -> None:
    pool = BufferPool(idle=2)
    buffer = pool.take(3 * PAGE)
    address = buffer.ctypes.data
    holders = {
        "array": buffer,
        "slice": buffer[PAGE:],
        "view": buffer.view(np.float32).reshape(3, -1)[1:],
        "tensor": torch.from_numpy(buffer),
        "tensor's view": torch.from_numpy(buffer.view(np.int16))[5:].unsqueeze(0),
        "memoryview": memoryview(buffer)[1:],
    }
    kept = holders.pop(last)
    del buffer
    holders.clear()
    other = pool.take(3 * PAGE)
    assert other.ctypes.data != address
    del kept
    assert pool.take(3 * PAGE).ctypes.data == address


def test_a_buffer_in_a_garbage_cycle_is_used_again_once_the_cycle_is_collected() -> None:
    pool = BufferPool(idle=2)
    cycle: list[object] = [pool.take(PAGE)]
    cycle.append(cycle)
    address = cycle[0].ctypes.data  # type: ignore[attr-defined] # the array of two elements of unlike kinds
    del cycle
    gc.collect()
    assert pool.take(PAGE).ctypes.data == address


def test_a_pool_that_dies_before_its_buffers_leaves_them_sound() -> None:
    pool = BufferPool(idle=1)
    buffer = pool.take(PAGE)
    del pool
    gc.collect()
    buffer[:] = 3
    assert buffer.sum() == 3 * PAGE


@pytest.mark.parametrize("nbytes", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2**21 + 5])
def test_a_buffer_has_the_length_asked_for_is_writable_and_starts_at_a_page(nbytes: int) -> None:
    pool = BufferPool(idle=1)
    for _ in range(2):
        buffer = pool.take(nbytes)
        assert (buffer.shape, buffer.dtype) == ((nbytes,), np.uint8)
        assert buffer.ctypes.data % PAGE == 0
        buffer[:] = 1
        del buffer
    assert pool.made == 1


def test_lengths_that_round_to_the_same_pages_share_buffers_and_others_do_not() -> None:
    pool = BufferPool(idle=4)
    del (first := [pool.take(PAGE + 1)])[:]
    assert first == []
    assert (pool.take(2 * PAGE).nbytes, pool.made) == (2 * PAGE, 1)
    assert (pool.take(3 * PAGE).nbytes, pool.made) == (3 * PAGE, 2)
    assert (pool.take(PAGE).nbytes, pool.made) == (PAGE, 3)


def test_no_more_buffers_are_kept_than_allowed() -> None:
    pool = BufferPool(idle=3)
    live = [pool.take(PAGE) for _ in range(10)]
    live.clear()
    assert idle_bytes(pool) == 3 * PAGE
    live = [pool.take(PAGE) for _ in range(10)]
    assert (pool.made, idle_bytes(pool)) == (17, 0)


def test_many_different_sizes_do_not_add_up_to_ever_more_idle_memory() -> None:
    pool = BufferPool(idle=3)
    for pages in range(1, 200):
        pool.take(pages * PAGE)
    assert idle_bytes(pool) <= 3 * 199 * PAGE


@given(st.lists(st.one_of(st.integers(0, 4 * PAGE), st.none()), max_size=60), st.integers(0, 3))
def test_live_buffers_never_overlap_whatever_is_taken_and_released(
    steps: list[int | None], idle: int
) -> None:
    pool = BufferPool(idle)
    live: list[tuple[int, np.ndarray]] = []
    for mark, step in enumerate(steps):
        if step is None:
            del live[: len(live) // 2 + 1]
        else:
            buffer = pool.take(step)
            buffer[:] = mark % 256
            live.append((mark % 256, buffer))
        assert all((buffer == mark).all() for mark, buffer in live)
        assert len(pool._idle) <= idle


def test_threads_that_take_and_release_at_once_never_get_the_same_memory() -> None:
    pool = BufferPool(idle=4)
    wrong: Counter[int] = Counter()

    def work(mark: int) -> None:
        rng = np.random.default_rng(mark)
        held: list[np.ndarray] = []
        for _ in range(400):
            buffer = pool.take(int(rng.integers(1, 4)) * PAGE)
            buffer[:] = mark
            held.append(buffer)
            if len(held) > 3:
                del held[int(rng.integers(4))]
            wrong[mark] += sum(int((buffer != mark).any()) for buffer in held)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong.total()
    assert len(pool._idle) <= 4


def test_a_buffer_taken_in_one_thread_and_released_in_another_comes_back() -> None:
    pool = BufferPool(idle=1)
    held = [pool.take(PAGE)]
    address = held[0].ctypes.data
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert pool.take(PAGE).ctypes.data == address


def test_a_collection_of_garbage_in_the_middle_of_taking_neither_blocks_nor_loses_memory() -> None:
    pool = BufferPool(idle=4)
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(300):
            cycle: list[object] = [pool.take(PAGE)]
            cycle.append(cycle)
            del cycle
    finally:
        gc.set_threshold(*threshold)
    assert pool.made < 100
    assert idle_bytes(pool) <= 4 * PAGE


def test_buffers_in_use_are_counted_until_their_last_array_is_gone() -> None:
    pool = BufferPool(idle=1)
    live = [pool.take(size) for size in (1, PAGE, 5 * PAGE)]
    parts = [each[:1] for each in live]
    del live
    assert pool.in_use == 3
    while parts:
        parts.pop()
        assert pool.in_use == len(parts)
    again = pool.take(PAGE)
    assert pool.in_use == 1
    del again


def huge_bytes(address: int) -> int:
    """How much of the map that holds an address is in huge pages, as the system says."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        place = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if place:
            inside = int(place[1], 16) <= address < int(place[2], 16)
        elif inside and line.startswith("AnonHugePages:"):
            return 1024 * int(line.split()[1])
    return 0


@undisturbed  # there may be none to have just then
def test_large_buffers_lie_in_huge_pages_where_the_system_has_them() -> None:
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("the system gives no transparent huge pages")
    free = re.search(r"^MemFree: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    if free is None or int(free[1]) < 2**19:
        pytest.skip("too little free memory for huge pages to be expected")
    pool = BufferPool(idle=1)
    buffer = pool.take(2**25)
    buffer.fill(1)
    assert huge_bytes(buffer.ctypes.data + 2**24) >= 2**24


def test_arrays_over_buffers_that_live_until_the_interpreter_ends_are_freed_in_silence() -> None:
    run_python(
        "import sys\n"
        "from mmapload.buffers import BufferPool\n"
        "pool = BufferPool(2)\n"
        "kept = pool.take(5000)[1:]\n"
        "sys.keeps = BufferPool(2).take(5000)\n"
    )
