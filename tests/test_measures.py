"""Page cache, bytes read and memory in use, of real files and processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload import measures
from mmapload.mappings import PAGE, map_private, populate
from mmapload.measures import bytes_read, cached_bytes, drop_pages_of, memory_in_use
from tests.loading_cases import cached_pages, evictable_folder, memory_cgroup, run_python, undisturbed

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks Linux of its page cache and processes")

MIB = 2**20
SIZES = (1, PAGE - 1, PAGE, PAGE + 1, 5 * PAGE + 123, 3 * MIB)


def write(path: Path, nbytes: int) -> str:
    """Write random bytes, all of them on the disk afterwards."""
    with path.open("wb") as file:
        file.write(np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8).tobytes())
        file.flush()
        os.fsync(file.fileno())
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with evictable_folder(tmp_path_factory.mktemp("measures")) as path:
        yield path


@pytest.fixture(scope="module")
def paths(folder: Path) -> list[str]:
    return [write(folder / f"file{size}", size) for size in SIZES]


@pytest.fixture(params=["whichever call there is", "mincore", "mincore in stretches"])
def _by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "whichever call there is":
        monkeypatch.setattr(measures, "_CACHESTAT", -1)  # no system call has this number
    if request.param == "mincore in stretches":
        monkeypatch.setattr(measures, "_MINCORE_BYTES", 2 * PAGE)


@pytest.mark.usefixtures("_by")
@undisturbed
def test_what_was_read_is_counted_and_what_was_dropped_is_not(paths):
    for path in paths:
        Path(path).read_bytes()
    assert cached_bytes(paths) == sum(SIZES)
    drop_pages_of(paths)
    assert cached_bytes(paths) == 0
    assert cached_bytes(paths) == 0, "and counting them brought none in"
    assert cached_pages(paths[-1]) == 0


@pytest.mark.usefixtures("_by")
@undisturbed
def test_a_part_that_is_in_memory_is_counted_by_pages(folder):
    path = write(folder / "part", 64 * PAGE)
    drop_pages_of([path])
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, 1, 7 * PAGE)
    os.pread(fd, 1, 9 * PAGE)
    os.close(fd)
    assert cached_bytes([path]) == PAGE * cached_pages(path)
    assert 2 * PAGE <= cached_bytes([path]) < 64 * PAGE


@undisturbed
def test_pages_that_are_mapped_stay_and_are_counted(folder):
    path = write(folder / "mapped", 16 * PAGE)
    with open(path, "rb") as file:
        memory = map_private(file.fileno(), 0, 16 * PAGE)
    populate(memory)
    drop_pages_of([path])
    assert cached_bytes([path]) == 16 * PAGE
    del memory
    drop_pages_of([path])
    assert cached_bytes([path]) == 0


def test_an_empty_file_and_no_file_at_all_are_no_bytes(folder):
    empty = folder / "empty"
    empty.touch()
    drop_pages_of([empty])
    assert cached_bytes([empty]) == cached_bytes([]) == 0


@pytest.mark.parametrize("call", [cached_bytes, drop_pages_of])
def test_a_missing_file_is_an_error(call, tmp_path):
    with pytest.raises(FileNotFoundError):
        call([tmp_path / "none"])


def test_a_file_of_somebody_elses_is_an_error_where_the_kernel_would_not_tell():
    if os.geteuid() != 0:
        pytest.skip("giving a file to somebody else takes root")
    script = (
        "import os, sys\n"
        "from mmapload import measures\n"
        "measures._CACHESTAT = -1\n"
        "os.setuid(65534)\n"
        "try: measures.cached_bytes([sys.argv[1]])\n"
        "except PermissionError as error: print(error)"
    )
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to others
        os.chmod(folder, 0o755)
        path = write(Path(folder, "theirs"), PAGE)
        assert "only who may write to it is told which pages are cached" in run_python(script, path)


@undisturbed
def test_bytes_read_from_the_disk_are_counted_and_those_in_the_page_cache_are_not(folder):
    path = write(folder / "read", 3 * MIB)
    try:
        bytes_read()
    except OSError as error:
        pytest.skip(f"the kernel does not count what is read: {error}")
    drop_pages_of([path])
    before = bytes_read()
    Path(path).read_bytes()
    assert bytes_read() - before >= 3 * MIB
    cached = bytes_read()
    for _ in range(5):
        Path(path).read_bytes()
    assert bytes_read() - cached < MIB


@undisturbed
def test_bytes_that_a_child_read_are_counted_once_while_it_lives_and_when_it_is_gone(folder):
    path = write(folder / "child", 3 * MIB)
    script = "import pathlib, sys; pathlib.Path(sys.argv[1]).read_bytes(); print(flush=True); input()"
    run_python("import pathlib")  # the interpreter's own files are in memory now
    try:
        before = bytes_read()
    except OSError as error:
        pytest.skip(f"the kernel does not count what is read: {error}")
    drop_pages_of([path])
    child = [sys.executable, "-c", script, path]
    with subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        alive = bytes_read()
        process.communicate(b"\n")
    assert 3 * MIB <= alive - before <= bytes_read() - before < 6 * MIB


IN_USE = """
import json, os, pathlib, subprocess, sys
import numpy as np
from mmapload.mappings import map_private, populate
from mmapload.measures import memory_in_use

if len(sys.argv) > 2:
    pathlib.Path(sys.argv[2], "cgroup.procs").write_text(str(os.getpid()))
def measure():
    memory = memory_in_use()
    told.append([memory.anonymous, memory.shared, memory.cached])
    return memory.scope
told = []
scope = measure()
with open(sys.argv[1], "rb") as file:
    mapped = map_private(file.fileno(), 0, 32 * 2**20)
populate(mapped)
measure()
own = np.ones(32 * 2**20, np.uint8)
measure()
mapped[:: 4096] = 1
measure()
child = "import numpy as np; a = np.ones(32 * 2**20, np.uint8); print(flush=True); input()"
pipe = subprocess.PIPE
with subprocess.Popen([sys.executable, "-c", child], stdin=pipe, stdout=pipe) as process:
    process.stdout.readline()
    measure()
    process.communicate(b"\\n")
with open("/dev/shm/test-%d" % os.getpid(), "w+b") as file:
    os.unlink(file.name)
    file.truncate(32 * 2**20)
    inside = map_private(file.fileno(), 0, 32 * 2**20)
    file.write(bytes(32 * 2**20))
    file.flush()
    populate(inside)
    measure()
print(json.dumps([scope, told]))
"""


@pytest.mark.parametrize("scope", ["processes", "cgroup"])
@undisturbed
def test_each_kind_of_memory_is_told_from_the_others(folder, scope):
    """In turn: files mapped, memory of our own, mapped pages written to, a child's, shared memory."""
    path = write(folder / f"use-{scope}", 32 * MIB)
    if scope == "processes":
        told = json.loads(run_python(IN_USE, path))
    else:
        drop_pages_of([path])  # page cache belongs to the cgroup that brings it in
        with memory_cgroup(2**30) as cgroup:
            told = json.loads(run_python(IN_USE, path, cgroup))
    assert told[0] == scope
    at = np.array(told[1]) / MIB
    start, mapped, own, written, child, inside = at
    assert mapped - start == pytest.approx([0, 0, 32], abs=4)
    assert own - mapped == pytest.approx([32, 0, 0], abs=4)
    # A page written to in a private map is a copy of our own; the file's page stays cached, but not mapped.
    assert written - own == pytest.approx([32, 0, -32 if scope == "processes" else 0], abs=4)
    assert (child - written)[0] == pytest.approx(36, abs=12)
    assert (inside - written)[:2] == pytest.approx([0, 32], abs=6)


def test_the_memory_of_a_cgroup_with_strangers_in_it_is_not_taken_for_ours():
    with memory_cgroup(2**30) as cgroup:
        script = (
            "import os, pathlib, sys\n"
            "from mmapload.measures import memory_in_use\n"
            "cgroup = pathlib.Path(sys.argv[1])\n"
            "move = lambda pid, folder: (folder / 'cgroup.procs').write_text(str(pid))\n"
            "move(os.getpid(), cgroup)\n"
            "print(memory_in_use().scope)\n"
            "move(os.getppid(), cgroup)\n"
            "print(memory_in_use().scope)\n"
            "move(os.getppid(), cgroup.parent)\n"
            "print(memory_in_use().scope)"
        )
        assert run_python(script, cgroup).split() == ["cgroup", "processes", "cgroup"]


def test_a_version_2_cgroup_and_processes_without_proportional_figures_are_understood(tmp_path):
    pid = os.getpid()
    mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    files = {
        "proc/self/cgroup": "0::/job\n",
        "proc/self/mountinfo": mount,
        "sys/fs/cgroup/cgroup.procs": f"1\n{pid}\n",
        "sys/fs/cgroup/memory.stat": "anon 9\nfile 9\nshmem 9\n",
        "sys/fs/cgroup/job/cgroup.procs": f"{pid}\n",
        "sys/fs/cgroup/job/memory.stat": "anon 1000\nfile 700\nkernel 5\nshmem 200\n",
        f"proc/{pid}/stat": f"{pid} (py (thon) 1) S 1 {pid} 0",
        f"proc/{pid}/status": "Name:\tx\nRssAnon:\t7 kB\nRssFile:\t5 kB\nRssShmem:\t3 kB\n",
        "proc/77/stat": f"77 (a b) S {pid} 1 0",
        "proc/77/status": "RssAnon:\t10 kB\nRssFile:\t20 kB\nRssShmem:\t30 kB\n",
        "proc/78/stat": "78 (other) S 1 1 0",
        "proc/78/status": "RssAnon:\t1000 kB\nRssFile:\t1000 kB\nRssShmem:\t1000 kB\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory_in_use(str(tmp_path)) == measures.Memory(1000, 200, 500, "cgroup")
    (tmp_path / "sys/fs/cgroup/job/cgroup.procs").write_text(f"{pid}\n78\n")
    assert memory_in_use(str(tmp_path)) == measures.Memory(17 * 1024, 33 * 1024, 25 * 1024, "processes")
