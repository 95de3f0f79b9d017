"""Maps used again: only when nobody holds them, only untouched, and bounded."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmapload import ChunkDataLoader, mappool
from mmapload.errors import ChunkError
from mmapload.mappings import PAGE, map_private, populate
from mmapload.mappool import MapPool, is_untouched
from tests.loading_cases import maps_of, random_arrays, write_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/pagemap"),
    reason="maps are used again where the system tells of their pages",
)

PAGES = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("mappool") / "file"
    made.write_bytes(np.random.default_rng(0).integers(0, 256, PAGES * PAGE, np.uint8).tobytes())
    return made


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    opened = os.open(path, os.O_RDONLY)
    yield opened
    os.close(opened)


def touch(memory: np.ndarray) -> int:
    return int(memory[::PAGE].sum())


@pytest.fixture(params=["whichever call there is", "entry by entry"], autouse=True)
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "entry by entry":
        monkeypatch.setattr(mappool, "_SCAN", 0xC0606611)  # no call has this number


@pytest.mark.parametrize("look", ["not at all", "at some pages", "at all"])
def test_a_map_that_was_only_read_is_untouched(fd: int, look: str) -> None:
    memory = map_private(fd, 100, PAGES * PAGE)
    if look == "at some pages":
        touch(memory[7 * PAGE : 9 * PAGE])
    elif look == "at all":
        populate(memory)
    assert is_untouched(memory)


@given(start=st.integers(0, 3 * PAGE), where=st.integers(0, PAGES * PAGE - 1), all_in=st.booleans())
def test_one_byte_written_anywhere_is_noticed(path: Path, start: int, where: int, all_in: bool) -> None:
    with path.open("rb") as file:
        memory = map_private(file.fileno(), start, PAGES * PAGE)
    if all_in:
        populate(memory)
    memory[min(where, memory.nbytes - 1)] ^= 1
    assert not is_untouched(memory)


def test_writing_what_is_there_already_is_writing(fd: int) -> None:
    memory = map_private(fd, 0, PAGES * PAGE)
    memory[5] = memory[5]
    assert not is_untouched(memory)


@pytest.mark.parametrize("last", ["array", "slice", "view", "tensor", "tensor's view", "memoryview"])
def test_a_map_is_used_again_when_the_last_view_of_it_dies_and_not_before(fd: int, last: str) -> None:
    pool = MapPool()
    memory = pool.lease(0, map_private(fd, 0, PAGES * PAGE))
    address = memory.ctypes.data
    holders = {
        "array": memory,
        "slice": memory[PAGE:],
        "view": memory.view(np.float32).reshape(4, -1)[1:],
        "tensor": torch.from_numpy(memory),
        "tensor's view": torch.from_numpy(memory.view(np.int16))[5:].unsqueeze(0),
        "memoryview": memoryview(memory)[1:],
    }
    kept = holders.pop(last)
    del memory
    holders.clear()
    assert pool.take(0) is None
    del kept
    again = pool.take(0)
    assert again is not None
    assert again.ctypes.data == address
    assert pool.take(0) is None
    assert pool.reused == 1


@pytest.mark.parametrize("written", ["array", "tensor", "copy in a forked child"])
def test_a_map_that_was_written_to_is_given_up(fd: int, path: Path, written: str) -> None:
    pool = MapPool()
    memory = pool.lease(0, map_private(fd, 0, PAGES * PAGE))
    there = touch(memory)
    if written == "array":
        memory[3 * PAGE] ^= 1
    elif written == "tensor":
        torch.from_numpy(memory)[3 * PAGE :].zero_()
    else:  # what a child writes is the child's
        pid = os.fork()
        if pid == 0:
            memory[:] = 0
            os._exit(0)
        os.waitpid(pid, 0)
    del memory
    again = pool.take(0)
    if again is None:
        assert written != "copy in a forked child"
        assert maps_of(path) == 0
    else:
        assert written == "copy in a forked child"
        assert touch(again) == there


def test_no_more_maps_and_bytes_are_kept_than_wanted_and_the_oldest_go(fd: int, path: Path) -> None:
    def returned(pool: MapPool, sizes: list[int]) -> list[int]:
        for key, size in enumerate(sizes):
            del_me = pool.lease(key, map_private(fd, 0, size * PAGE))
            del del_me
            pool.take(-1)  # looks at what came back
        return [key for key in range(len(sizes)) if pool.take(key) is not None]

    assert returned(MapPool(maps=3), [1, 1, 1, 1, 1]) == [2, 3, 4]
    assert returned(MapPool(nbytes=10 * PAGE), [4, 4, 4, 4]) == [2, 3]
    assert returned(MapPool(nbytes=10 * PAGE), [4, 11]) == []
    assert maps_of(path) == 0


def test_of_two_maps_of_the_same_part_one_is_kept(fd: int, path: Path) -> None:
    pool = MapPool(nbytes=10 * PAGE)
    both = [pool.lease(0, map_private(fd, 0, 8 * PAGE)) for _ in range(2)]
    both.clear()
    again = pool.take(0)
    assert again is not None
    assert (pool.take(0), maps_of(path)) == (None, 1)


def test_maps_that_come_back_unseen_are_few(fd: int, path: Path) -> None:
    pool = MapPool()
    held = [pool.lease(key, map_private(fd, 0, PAGE)) for key in range(100)]
    for memory in held:
        memory[0] ^= 1
    del memory
    held.clear()
    assert maps_of(path) <= 16
    pool.take(-1)
    assert maps_of(path) == 0


def test_a_map_that_outlives_its_pool_is_sound(fd: int, path: Path) -> None:
    pool = MapPool()
    memory = pool.lease(0, map_private(fd, 0, PAGES * PAGE))
    del pool
    touch(memory)
    del memory
    assert maps_of(path) == 0


def test_threads_at_once_never_share_a_map(fd: int) -> None:
    pool = MapPool()
    shared = []

    def work(seed: int) -> None:
        for key in np.random.default_rng(seed).integers(0, 3, 300).tolist():
            memory = pool.take(key)
            if memory is None:
                memory = pool.lease(key, map_private(fd, key * PAGE, PAGES * PAGE))
            before = memory[0]
            if seed % 2:
                memory[0] = seed
                shared.extend([] if memory[0] == seed else [seed])
            else:
                shared.extend([] if memory[0] == before else [seed])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared == []


# ---- as the loader uses them


@pytest.fixture(scope="module")
def store_arrays() -> dict[str, np.ndarray]:
    return random_arrays(24, image=("u1", (600, 700)), flow=("f4", (9,)))


@pytest.fixture
def loader(store_arrays: dict[str, np.ndarray], tmp_path: Path) -> ChunkDataLoader:
    write_store(tmp_path / "store", store_arrays, 4)
    return ChunkDataLoader(tmp_path / "store", 4, shuffle="batch")


def pool_of(loader: ChunkDataLoader) -> MapPool:
    return loader.dataset.reading.residency.reader._pool


def test_batches_of_a_later_epoch_are_the_maps_of_an_earlier_one(loader: ChunkDataLoader) -> None:
    for epoch in range(4):
        assert sum(len(batch["image"]) for batch in loader) == 24
        assert loader.dataset.reading.views == 6 * (epoch + 1)
    # Two fields of six batches in three epochs; those that an epoch has handed out last may not be back yet.
    assert pool_of(loader).reused >= 2 * 6 * 3 - 6


def test_what_a_loop_writes_into_its_batches_is_never_seen_again(
    loader: ChunkDataLoader, store_arrays: dict[str, np.ndarray]
) -> None:
    number = {store_arrays["image"][i].tobytes(): i for i in range(24)}
    for epoch in range(4):
        for step, batch in enumerate(loader):
            found = [number[image.numpy().tobytes()] for image in batch["image"]]
            assert np.array_equal(batch["flow"].view(torch.int32), store_arrays["flow"][found].view(np.int32))
            if (step + epoch) % 3 == 0:
                batch["image"][2, 300] ^= 1
            if step % 2 == 0:
                batch["flow"].numpy()[3, 8] = epoch


def test_epochs_of_batches_that_are_all_written_to_leave_no_memory_of_their_own(
    loader: ChunkDataLoader,
) -> None:
    for _ in range(3):
        for batch in loader:
            batch["image"].zero_()
        del batch
    pool_of(loader).take(None)
    images = [
        memory for (_, _, begin, end), memory in pool_of(loader)._idle.items() if end - begin > 10 * PAGE
    ]
    assert images == []


def test_a_file_cut_short_between_epochs_is_an_error_and_no_crash(
    loader: ChunkDataLoader, tmp_path: Path
) -> None:
    for _ in range(2):
        list(loader)
    path = tmp_path / "store" / "image" / "c.3.0.0"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ChunkError, match=r"c\.3\.0\.0"):
        list(loader)


def test_a_chunk_file_that_was_put_in_the_place_of_another_is_mapped_anew(
    loader: ChunkDataLoader, tmp_path: Path, store_arrays: dict[str, np.ndarray]
) -> None:
    for _ in range(2):
        list(loader)
    path = tmp_path / "store" / "flow" / "c.3.0"
    changed = bytearray(path.read_bytes())
    changed[0] ^= 1
    (tmp_path / "new").write_bytes(changed)
    os.replace(tmp_path / "new", path)
    batches = [batch["flow"] for batch in loader]
    expected = {row.tobytes() for row in store_arrays["flow"]}
    found = {row.numpy().tobytes() for batch in batches for row in batch}
    assert len(found - expected) == 1


def test_data_larger_than_the_budget_stay_mapped_no_longer_than_they_are_used(
    store_arrays: dict[str, np.ndarray], tmp_path: Path
) -> None:
    write_store(tmp_path / "store", store_arrays, 4)
    loader = ChunkDataLoader(tmp_path / "store", 4, shuffle="batch", memory=4 * 4 * 420_036)
    for _ in range(2):
        for batch in loader:
            assert len(batch["image"]) == 4
        del batch
    assert pool_of(loader).reused == 0
    paths = [path for path in (tmp_path / "store" / "image").iterdir() if path.name.startswith("c.")]
    assert sum(map(maps_of, paths)) <= 4
