"""Slots of shared memory: who has which, when one is free again, and what forked processes do to that."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mmapload.mappings import PAGE
from mmapload.workers.forks import Descendants
from mmapload.workers.indices import SlotIndices, SlotWriter, claim_writer
from mmapload.workers.memory import SlotFile
from mmapload.workers.packing import pack
from mmapload.workers.slots import Counts, Slots

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that has no name")


def make(count: int = 3, nbytes: int = 4 * PAGE) -> Slots:
    return Slots(SlotFile(count, nbytes), Counts())


def deliver(slots: Slots, slot: int, batch: Any) -> Any:
    """Pack a batch as a worker does, and open it as the training process does."""
    packed = pack(batch, SlotWriter(slots.file, slot))
    rebuild, arguments = packed.__reduce__()
    return rebuild(*arguments)


def pages_of(file: SlotFile) -> int:
    return os.fstat(file._fd).st_blocks * 512 // PAGE


# ---- free, assigned, leased


def test_a_slot_is_free_again_when_the_last_tensor_over_it_is_gone():
    slots = make(1)
    slot = slots.assign(0)
    batch = deliver(slots, slot, {"a": torch.arange(6), "b": [torch.ones(3), "text"]})
    assert slots.assign(0) is None
    view = batch["b"][0][1:]
    del batch
    gc.collect()
    assert slots.assign(0) is None
    assert view.tolist() == [1, 1]
    as_array = view.numpy()
    del view
    assert slots.free == 0
    del as_array
    assert slots.free == 1
    assert slots.counts == Counts(in_slots=1, no_slot=2)


def test_a_batch_without_tensors_frees_its_slot_at_once():
    slots = make(1)
    assert deliver(slots, slots.assign(0), {"name": ["x", 1, None]}) == {"name": ["x", 1, None]}
    assert slots.free == 1


def test_a_batch_that_cannot_be_opened_frees_its_slot():
    slots = make(1)
    packed = pack(torch.ones(3), SlotWriter(slots.file, slots.assign(0)))
    packed.payload = packed.payload[:-10]
    rebuild, arguments = packed.__reduce__()
    with pytest.raises(Exception, match=r"truncated|ran out"):
        rebuild(*arguments)
    assert slots.free == 1


def test_slots_are_used_in_the_order_that_touches_the_fewest_pages():
    slots = make(4)
    first, second = slots.assign(0), slots.assign(1)
    for slot in (first, second):
        deliver(slots, slot, torch.ones(1))
    assert slots.assign(0) == first
    assert slots.assign(0) == second
    assert len({first, second, slots.assign(0), slots.assign(0)}) == 4


def test_slots_of_batches_that_never_arrive_come_back_and_those_of_kept_ones_do_not():
    slots = make(3)
    kept = deliver(slots, slots.assign(0), torch.full((5,), 7))
    slots.assign(0)
    slots.assign(1)
    assert slots.free == 0
    slots.reclaim()
    assert slots.free == 2
    for _ in range(4):
        deliver(slots, slots.assign(1), torch.zeros(5))
    assert kept.tolist() == [7] * 5
    del kept
    assert slots.free == 3


def test_memory_of_slots_is_there_once_used_and_goes_when_nobody_can_use_it():
    slots = make(4, 4 * PAGE)
    file = slots.file
    assert pages_of(file) == 0
    batches = [deliver(slots, slots.assign(0), torch.ones(PAGE)) for _ in range(4)]
    assert pages_of(file) == 16
    del batches[1:]
    assert slots.free == 3
    assert pages_of(file) == 16
    del slots
    assert pages_of(file) == 4
    assert batches[0].sum() == PAGE
    del batches[0]
    assert pages_of(file) == 0


def test_a_file_leaves_no_descriptor_and_no_map():
    def counts() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:mmapload" in line for line in maps)

    before = counts()
    for _ in range(20):
        slots = make()
        kept = deliver(slots, slots.assign(0), torch.ones(3))
        del slots
    assert kept.tolist() == [1, 1, 1]
    del kept
    assert counts() == before


def test_a_system_without_room_for_a_file_keeps_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="mapping"):
        SlotFile(2**20, 2**40)
    assert len(os.listdir("/proc/self/fd")) == before


# ---- what goes to a worker


def receive(indices: SlotIndices) -> SlotIndices:
    rebuild, arguments = indices.__reduce__()
    return rebuild(*arguments)


@pytest.mark.parametrize("slot", [None, 0, 2])
@pytest.mark.parametrize("gather", [True, False])
def test_a_worker_gets_a_list_and_uses_its_slot_once(slot: int | None, gather: bool):
    slots = make()
    sent = SlotIndices([3, 1, 2], slots.file.key, slot, gather=gather)
    received = receive(sent)
    assert received == [3, 1, 2]
    assert isinstance(received, list)
    assert (received.take is not None) == (gather and slot is not None)
    writer = claim_writer()
    assert (writer and writer.slot) == slot
    assert claim_writer() is None


def test_indices_without_a_slot_take_back_the_slot_of_a_batch_that_failed():
    slots = make()
    receive(SlotIndices([1], slots.file.key, 1, gather=False))  # and its samples cannot be fetched
    receive(SlotIndices([2], slots.file.key, None, gather=False))
    assert claim_writer() is None


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 65, PAGE - 1, PAGE, 2 * PAGE])
def test_pieces_of_a_slot_are_aligned_and_end_with_it(nbytes: int):
    file = SlotFile(2, 2 * PAGE)
    writer = SlotWriter(file, 1)
    pieces = []
    while (piece := writer.take(nbytes)) is not None and len(pieces) < 300:
        pieces.append(piece)
    assert len(pieces) == (300 if nbytes == 0 else 2 * PAGE // (-(-nbytes // 64) * 64) or 1)
    for number, piece in enumerate(pieces):
        assert piece.ctypes.data % 64 == 0
        piece[:] = number % 251
    assert all((piece == number % 251).all() for number, piece in enumerate(pieces))
    assert not file.slot(0).any()


def test_what_lies_in_the_slot_already_is_not_copied_again():
    slots = make(1, 4 * PAGE)
    writer = SlotWriter(slots.file, slots.assign(0))
    stacked = torch.frombuffer(writer.take(3 * PAGE), dtype=torch.float32)
    stacked.fill_(5)
    rebuild, arguments = pack({"x": stacked, "part": stacked[10:20]}, writer).__reduce__()
    assert writer.used == 3 * PAGE
    batch = rebuild(*arguments)
    assert batch["x"].sum() == 5 * 3 * PAGE / 4
    batch["part"].zero_()
    assert batch["x"][10:20].any().item() is False
    assert slots.counts.in_slots == 1


def test_what_has_no_room_goes_torchs_way_and_the_rest_comes_in_the_slot():
    slots = make(1, PAGE)
    batch = deliver(slots, slots.assign(0), [torch.arange(100), torch.arange(PAGE), torch.arange(10)])
    assert [each.tolist() for each in batch] == [list(range(n)) for n in (100, PAGE, 10)]
    assert slots.counts == Counts(in_part=1, too_large=1)


# ---- forked processes


def in_fork(work: Callable[[], bool], wait_for: int | None = None) -> int:
    """Run in a forked child, when `wait_for` is closed; the child exits with 0 if it returns True."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if wait_for is not None:
                os.read(wait_for, 1)
            code = int(not work())
        finally:
            os._exit(code)
    return pid


def test_a_slot_that_a_forked_process_may_look_at_waits_for_its_end():
    slots = make(1)
    batch = deliver(slots, slots.assign(0), torch.full((9,), 3))
    reading, writing = os.pipe()

    def start(batch: torch.Tensor) -> int:
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(int(batch.tolist() != [3] * 9))
        return pid

    children = [start(batch), start(batch)]
    del batch
    assert slots.free == 0
    assert slots.assign(0) is None
    os.close(writing)
    os.close(reading)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    assert slots.free == 1


def test_a_process_forked_when_nothing_was_leased_holds_nothing_up():
    slots = make(1)
    deliver(slots, slots.assign(0), torch.ones(3))
    reading, writing = os.pipe()
    child = in_fork(lambda: os.close(writing) is None, reading)
    deliver(slots, slots.assign(0), torch.ones(3))
    assert slots.free == 1
    os.close(reading)
    os.write(writing, b"x")
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


def test_a_forked_process_gives_nothing_back_and_discards_nothing():
    slots = make(2)
    state = {"batch": deliver(slots, slots.assign(0), torch.full((9,), 9)), "slots": slots}

    def drop_all() -> bool:
        state.clear()
        gc.collect()
        return True

    assert os.waitpid(in_fork(drop_all), 0)[1] == 0
    assert slots.free == 1
    assert (state["batch"] == 9).all()


def test_many_forks_leave_no_descriptor():
    slots = make(2)
    for turn in range(10):
        batch = deliver(slots, slots.assign(0), torch.ones(3))
        children = [in_fork(lambda: True) for _ in range(3)]
        for child in children:
            os.waitpid(child, 0)
        del batch
        assert slots.free == 2
        if turn == 0:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_a_descriptor_for_a_pipe_a_slot_is_never_taken_for_free():
    import resource

    slots = make(2)
    batch = deliver(slots, slots.assign(0), torch.ones(3))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        child = in_fork(lambda: True)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    os.waitpid(child, 0)
    del batch
    assert slots.free == 1


def test_descendants_end_with_the_last_of_them():
    group = Descendants()
    assert group.ended()


def test_slot_memory_has_no_name_in_the_file_system():
    slots = make()
    assert os.readlink(f"/proc/self/fd/{slots.file._fd}") == "/memfd:mmapload (deleted)"
    assert deliver(slots, slots.assign(0), np.ones(1000)).sum() == 1000
