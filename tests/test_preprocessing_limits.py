"""Full disks, quotas and read-only places: a clear error, and the same call goes on once there is room."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.errors import MmaploadError
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.store import open_store
from tests.preprocessing_cases import CountedSource, samples, tree

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_disk_that_fills_up_is_a_clear_error_and_the_run_goes_on_once_there_is_room(
    small_disk: Path, tmp_path: Path, jobs: int
) -> None:
    source = CountedSource(1000, width=128)
    options = {"chunk_bytes": 2**15, "jobs": jobs}
    plan = plan_preprocess(source, small_disk / "out", 8, **options)
    filler = small_disk / "filler"
    filler.write_bytes(bytes(2750 * 2**10))
    with pytest.raises(
        OSError, match=r"No space left.* KiB to write, .* free; make room.*continue"
    ) as caught:
        execute(plan)
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(small_disk) in ([".out.partial", "filler"], ["filler", ".out.partial"])
    with pytest.raises(MmaploadError, match=r"takes \d+ KiB, and its file system has \d+ KiB free"):
        preprocess(source, small_disk / "out", 8, **options)
    filler.unlink()
    result = execute(plan_preprocess(source, small_disk / "out", 8, **options))
    assert result.resumed_samples >= 64
    preprocess(source, tmp_path / "wanted", 8, **options)
    assert tree(small_disk / "out") == tree(tmp_path / "wanted")


@pytest.mark.parametrize("kind", ["new", "append"])
@pytest.mark.parametrize("tenth", range(10))
def test_a_disk_that_is_full_at_any_tenth_of_the_way_leaves_what_the_next_run_finishes(
    small_disk: Path, tmp_path: Path, tenth: int, kind: str
) -> None:
    source, out = CountedSource(1000, width=128), small_disk / "out"
    options: dict[str, Any] = {"chunk_bytes": 2**15, "jobs": 2, "append": kind == "append"}
    old: dict[str, bytes] = {}
    if kind == "append":
        for place in (out, tmp_path / "wanted"):
            preprocess(CountedSource(100, width=128), place, 8, chunk_bytes=2**15)
        old = tree(out)
    plan = plan_preprocess(source, out, 8, **options)
    free = 2**10 * (8 + 52 * tenth)  # the samples take 500 KiB, and some folders and files a page each
    status = os.statvfs(small_disk)
    (small_disk / "filler").write_bytes(bytes(status.f_bavail * status.f_frsize - free))
    with pytest.raises(OSError, match="No space left"):
        execute(plan)
    if kind == "append":
        assert tree(out) == old
        assert [fault for fault in open_store(out).verify() if fault] == []
    else:
        assert not out.exists()
    (small_disk / "filler").unlink()
    result = execute(plan_preprocess(source, out, 8, **options))
    in_work = 2 * plan.chunk_length  # of each job, where it had not said that it was done with a chunk
    assert result.resumed_samples >= 1000 * (tenth - 2) // 10 - in_work
    preprocess(source, tmp_path / "wanted", 8, **options)
    assert tree(out) == tree(tmp_path / "wanted")
    assert os.listdir(small_disk) == ["out"]


LIMIT_SCRIPT = """
import resource, sys
from mmapload.preprocessing import preprocess
from mmapload.store import open_store
from tests.preprocessing_cases import CountedSource
resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14))
try:
    preprocess(CountedSource(100, width=128), sys.argv[1], 64, chunk_bytes=2**15)
except OSError as error:
    sys.exit(f"{type(error).__name__} {error.errno} {error}")
"""


def test_a_limit_on_the_size_of_files_is_a_clear_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMIT_SCRIPT, str(tmp_path / "out")],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert f"ChunkError {errno.EFBIG}" in done.stderr
    assert "raise the limit on file sizes" in done.stderr
    assert os.listdir(tmp_path) == []


def test_a_place_that_is_read_only_is_a_clear_error(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    words = "/disk is on a read-only file system: give OUT in a folder that can be written"
    with pytest.raises(MmaploadError, match=words):
        preprocess("no source is looked for", small_disk / "new/out", 1)
    assert os.listdir(small_disk) == []


def test_a_folder_that_may_not_be_written_is_a_clear_error(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o555)
    with pytest.raises(MmaploadError, match=r"may not be written by this user: give OUT in a folder"):
        preprocess(samples(3), tmp_path / "out", 1)
    tmp_path.chmod(0o755)


def test_a_mount_point_is_refused_before_anything_is_written(small_disk: Path) -> None:
    with pytest.raises(MmaploadError, match=r"mounted at .*give a name in it, such as .*/disk/store"):
        preprocess(samples(2), small_disk, 1)
    assert os.listdir(small_disk) == []
    assert os.listdir(small_disk.parent) == ["disk"]
    assert len(preprocess(samples(2), small_disk / "store", 1)) == 2


@pytest.mark.parametrize("indexed", [True, False])
def test_a_sample_larger_than_any_memory_is_refused_by_name_with_its_size(
    tmp_path: Path, indexed: bool
) -> None:
    values = [{"x": np.broadcast_to(np.uint8(0), (2**45,))}]
    with pytest.raises(MmaploadError, match="32 TiB"):
        preprocess(values if indexed else iter(values), tmp_path / "out", 1)
    assert os.listdir(tmp_path) == []
