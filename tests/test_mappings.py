"""Maps of files: private, freed with their last array, and honest about files that shrank."""

from __future__ import annotations

import gc
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.mappings import PAGE, drop_pages, map_anonymous, map_private, populate
from tests.loading_cases import cached_pages, evictable_folder, maps_of, run_python, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mmapload.codecs import Bytes

CONTENT = np.random.default_rng(0).integers(0, 256, 5 * PAGE + 123, np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a file of five pages and a bit, all on the disk, in a file system that can drop pages."""
    with evictable_folder(tmp_path_factory.mktemp("mappings")) as folder:
        path = folder / "file"
        with path.open("wb") as file:
            file.write(CONTENT.tobytes())
            file.flush()
            os.fsync(file.fileno())
        yield path


def private(path: Path, start: int, stop: int, after: Callable[[], None] | None = None) -> Bytes:
    """Map a part of a file, and close the file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return map_private(fd, start, stop, after)
    finally:
        os.close(fd)


@given(
    ends=st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(1, len(CONTENT))).filter(
        lambda e: e[0] < e[1]
    )
)
@settings(max_examples=60)
def test_a_map_holds_the_bytes_asked_for_wherever_they_start_and_end(
    path: Path, ends: tuple[int, int]
) -> None:
    memory = private(path, *ends)
    populate(memory)
    np.testing.assert_array_equal(memory, CONTENT[slice(*ends)])
    assert memory.ctypes.data % PAGE == ends[0] % PAGE


@pytest.mark.parametrize("start", [0, 1, PAGE - 1, PAGE, 3 * PAGE + 17])
def test_a_map_is_writable_and_writing_never_reaches_the_file_or_another_map(path: Path, start: int) -> None:
    before, memory = private(path, start, len(CONTENT)), private(path, start, len(CONTENT))
    memory += 1
    torch.from_numpy(memory).add_(1)
    np.testing.assert_array_equal(memory, CONTENT[start:] + 2)
    np.testing.assert_array_equal(before, CONTENT[start:])
    np.testing.assert_array_equal(private(path, start, len(CONTENT)), CONTENT[start:])
    assert path.read_bytes() == CONTENT.tobytes()


def test_a_map_outlives_the_file_descriptor_and_the_file_name(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    memory = private(copy, 0, len(CONTENT))
    copy.unlink()
    np.testing.assert_array_equal(memory, CONTENT)


@pytest.mark.parametrize("last", ["array", "slice", "view", "tensor", "tensor's view"])
def test_memory_is_unmapped_when_the_last_array_or_tensor_over_it_dies_and_not_before(
    path: Path, last: str
) -> None:
    told: list[str] = []
    memory = private(path, 0, len(CONTENT), lambda: told.append("unmapped"))
    holders = {
        "array": memory,
        "slice": memory[17:],
        "view": memory[: 4 * PAGE].view(np.float32).reshape(4, -1)[1:],
        "tensor": torch.from_numpy(memory),
        "tensor's view": torch.from_numpy(memory)[5:].view(torch.int8),
    }
    kept = holders.pop(last)
    del memory
    holders.clear()
    assert maps_of(path) == 1
    assert told == []
    assert len(kept.tolist())  # touching what is left is safe
    del kept
    assert maps_of(path) == 0
    assert told == ["unmapped"]


def test_memory_held_by_a_garbage_cycle_is_unmapped_when_it_is_collected(path: Path) -> None:
    cycle: dict[str, object] = {"memory": private(path, 0, PAGE)}
    cycle["self"] = cycle
    del cycle
    gc.collect()
    assert maps_of(path) == 0


def test_mapping_fails_with_the_system_s_reason(path: Path) -> None:
    with pytest.raises(OSError, match="mapping 4096 bytes: Bad file descriptor"):
        map_private(10**6, 0, 4096)
    with pytest.raises(OSError, match="mapping"):
        private(path, 0, 2**62)
    assert maps_of(path) == 0


def test_two_thousand_maps_hold_no_descriptor(path: Path) -> None:
    run_python(
        "import os, pathlib, resource, sys\n"
        "from mmapload.mappings import map_private, populate\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
        "lines = lambda: pathlib.Path('/proc/self/maps').read_text().count(sys.argv[1])\n"
        "maps = []\n"
        "for i in range(2000):\n"
        "    fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "    maps.append(map_private(fd, i, i + 4096))\n"
        "    os.close(fd)\n"
        "    maps[-1][0] = 1  # so that the system cannot join neighbours\n"
        "    populate(maps[-1])\n"
        "assert len(os.listdir('/proc/self/fd')) < 10\n"
        "assert lines() >= 2000, lines()\n"
        "del maps[::2]\n"
        "assert 1000 <= lines() <= 3000\n"
        "maps.clear()\n"
        "assert lines() == 0\n",
        path,
    )


@undisturbed
def test_populating_brings_every_page_into_memory(path: Path) -> None:
    drop_pages(str(path), 0, len(CONTENT))
    assert cached_pages(path) == 0
    memory = private(path, 2 * PAGE + 5, len(CONTENT))
    populate(memory)
    assert cached_pages(path) >= 4


def test_populating_a_file_that_shrank_after_mapping_raises_instead_of_a_bus_error(tmp_path: Path) -> None:
    path = tmp_path / "shrinks"
    path.write_bytes(bytes(8 * PAGE))
    told = run_python(
        "import os, sys\n"
        "from mmapload.mappings import map_private, populate\n"
        "fd = os.open(sys.argv[1], os.O_RDWR)\n"
        "memory = map_private(fd, 100, os.fstat(fd).st_size)\n"
        "os.ftruncate(fd, 4096)\n"
        "try:\n"
        "    populate(memory)\n"
        "except OSError as error:\n"
        "    print('refused:', error.strerror)\n"
        "assert not memory[:3996].any()  # what is left of the file is still readable\n",
        path,
    )
    assert told == "refused: Bad address: the file shrank, or its device failed\n"


@undisturbed
def test_dropping_pages_drops_all_of_them_and_the_ones_at_ragged_ends_too(path: Path) -> None:
    np.fromfile(path, np.uint8)
    assert cached_pages(path) == 6
    drop_pages(str(path), 0, len(CONTENT))
    assert cached_pages(path) == 0
    np.fromfile(path, np.uint8)
    drop_pages(str(path), 0, len(CONTENT) - 4)  # all but a checksum, that lies in the same page
    assert cached_pages(path) == 0


@undisturbed
def test_dropping_pages_leaves_those_that_another_map_holds(path: Path) -> None:
    memory = private(path, PAGE, 3 * PAGE)
    populate(memory)
    np.fromfile(path, np.uint8)
    drop_pages(str(path), 0, len(CONTENT))
    assert cached_pages(path) == 2
    np.testing.assert_array_equal(memory, CONTENT[PAGE : 3 * PAGE])
    del memory
    drop_pages(str(path), 0, len(CONTENT))
    assert cached_pages(path) == 0


def test_dropping_pages_of_a_file_that_is_gone_or_a_folder_does_nothing(tmp_path: Path) -> None:
    drop_pages(str(tmp_path / "gone"), 0, PAGE)
    drop_pages(str(tmp_path), 0, PAGE)


@pytest.mark.parametrize("nbytes", [0, 1, PAGE - 1, PAGE, PAGE + 1, 2**21 + 3])
def test_anonymous_memory_is_zeroed_writable_and_starts_at_a_page(nbytes: int) -> None:
    memory = map_anonymous(nbytes)
    assert memory.shape == (nbytes,)
    assert memory.ctypes.data % PAGE == 0
    assert not memory.any()
    memory[:] = 7
    assert memory.sum() == 7 * nbytes


def test_maps_that_live_until_the_interpreter_ends_are_given_back_in_silence(path: Path) -> None:
    run_python(
        "import functools, os, sys\n"
        "from mmapload.mappings import drop_pages, map_private\n"
        "fd = os.open(sys.argv[1], os.O_RDONLY)\n"
        "after = functools.partial(drop_pages, sys.argv[1], 0, 4096)\n"
        "kept = map_private(fd, 0, 4096, after)[1:]\n"
        "cycle = [map_private(fd, 0, 4096, after)]\n"
        "cycle.append(cycle)\n"
        "sys.keeps = map_private(fd, 0, 4096, after)\n",
        path,
    )


def pmd_mapped() -> int:
    """Bytes of files that this process has mapped by pages of 2 MiB."""
    told = Path("/proc/self/smaps_rollup").read_text()
    return sum(int(kib) * 1024 for kib in re.findall(r"^FilePmdMapped:\s*(\d+) kB$", told, re.MULTILINE))


@undisturbed
def test_what_is_brought_in_for_a_map_of_large_pages_lies_in_them_and_is_written_to_page_by_page(
    tmp_path: Path,
) -> None:
    with evictable_folder(tmp_path) as folder:
        content = np.random.default_rng(0).integers(0, 256, 8 * 2**20 + 4, np.uint8)
        path = folder / "large"
        with path.open("wb") as file:
            file.write(content.tobytes())
            file.flush()
            os.fsync(file.fileno())
        drop_pages(str(path), 0, content.nbytes)
        with path.open("rb") as file:
            probe = mmap.mmap(file.fileno(), content.nbytes, mmap.MAP_PRIVATE, mmap.PROT_READ)
            probe.madvise(mmap.MADV_HUGEPAGE)
            before = pmd_mapped()
            assert sum(probe[::PAGE]) >= 0
            gives = pmd_mapped() - before
            probe.close()
            if not gives:
                pytest.skip("this kernel, or its file system, has no large pages for files")
            drop_pages(str(path), 0, content.nbytes)
            assert cached_pages(path) == 0
            memory = map_private(file.fileno(), 0, content.nbytes, large_pages=True)
        populate(memory)
        assert pmd_mapped() - before >= gives
        memory[5] ^= 1
        assert int((memory != content).sum()) == 1
        assert path.read_bytes() == content.tobytes()
        del memory
        assert pmd_mapped() == before
        drop_pages(str(path), 0, content.nbytes)
        assert cached_pages(path) == 0
