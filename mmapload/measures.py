"""What a measurement has to know of the system: page cache, bytes read, memory in use. Linux.

Nothing here is cached or smoothed: every call asks the kernel anew, and none disturbs what it measures.
"""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from errno import EPERM
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from mmapload.budget import cgroup_folders
from mmapload.mappings import PAGE, count_in_memory, drop_pages, map_private

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mmapload.store import StrPath

__all__ = ["Memory", "bytes_read", "cached_bytes", "drop_pages_of", "memory_in_use"]

_MINCORE_BYTES: Final = 2**28
"""How much of a file is mapped at once to ask for its pages: 64 KiB of answers."""

_CACHESTAT: Final = 451
"""Number of the system call, Linux 6.5; alike on x86, Arm, POWER, RISC-V and all newer machines."""

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    """Pages of a range of a file, by state (man 2 cachestat)."""

    _fields_ = (
        ("cached", ctypes.c_uint64),
        ("dirty", ctypes.c_uint64),
        ("writeback", ctypes.c_uint64),
        ("evicted", ctypes.c_uint64),
        ("recently_evicted", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of memory in use, each page counted once.

    Attributes
    ----------
    anonymous : int
        Memory of the programs' own: heaps, stacks, buffers, pages of private maps that were written to.
        Pages of files are never among it, however many processes map them.
    shared : int
        Shared memory and files in tmpfs (`/dev/shm`, where torch's workers put batches). Like anonymous
        memory, it cannot be dropped.
    cached : int
        Pages of files. Of a cgroup: all page cache that it was charged for, mapped or not. Of processes: what
        they have mapped and touched, since page cache belongs to no process.
    scope : {"cgroup", "processes"}
        Whose memory it is: see `memory_in_use`.
    """

    anonymous: int
    shared: int
    cached: int
    scope: Literal["cgroup", "processes"]


def drop_pages_of(paths: Iterable[StrPath]) -> None:
    """Ask the system to forget the cached pages of whole files.

    By `posix_fadvise(POSIX_FADV_DONTNEED)`, which is advice: pages that somebody has mapped or that are not
    written back yet stay (nothing is flushed here), and file systems in memory keep all. `cached_bytes` says
    what has become of it.

    Raises
    ------
    OSError
        If a file is not there.
    """
    for path in paths:
        drop_pages(os.fspath(path), 0, os.stat(path).st_size)


def cached_bytes(paths: Iterable[StrPath]) -> int:
    """Count the bytes of files that are in the page cache now, to whole pages; brings none in.

    By `cachestat` (Linux 6.5), else by `mincore` over a map that is never touched.

    Raises
    ------
    OSError
        If a file cannot be opened.
    PermissionError
        If the kernel does not tell: it does to whoever owns the file or may write to it, and for others
        says of every page that it is there (Linux 5.2, against spying by page cache).
    """
    return sum(map(_cached_bytes_of, paths))


def _cached_bytes_of(path: StrPath) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(fd)
        if status.st_size == 0:
            return 0
        found = _by_cachestat(fd)
        if found is None:
            if os.geteuid() not in {0, status.st_uid} and not os.access(path, os.W_OK, effective_ids=True):
                raise PermissionError(
                    EPERM, "only who may write to it is told which pages are cached", os.fspath(path)
                )
            found = sum(_by_mincore(fd, status.st_size))
        return min(found * PAGE, status.st_size)
    finally:
        os.close(fd)


def _by_cachestat(fd: int) -> int | None:
    """Count pages in the cache; None where the system does not have the call or does not answer it."""
    whole, found = _Range(0, 0), _Cachestat()  # a length of 0 reaches to the end
    arguments = (ctypes.c_uint(fd), ctypes.byref(whole), ctypes.byref(found), ctypes.c_uint(0))
    return int(found.cached) if _syscall(ctypes.c_long(_CACHESTAT), *arguments) == 0 else None


def _by_mincore(fd: int, size: int) -> Iterator[int]:
    """Count pages in the cache, a stretch of the file at a time."""
    for start in range(0, size, _MINCORE_BYTES):
        yield count_in_memory(map_private(fd, start, min(start + _MINCORE_BYTES, size)))


def bytes_read() -> int:
    """Count the bytes that this process and its descendants made the disk read.

    `read_bytes` of `/proc/PID/io` (man 5 proc_pid_io), which has those of threads and children that ended and
    were waited for: what was asked of the block layer, or of a network file system, read-ahead included; what
    the page cache served is not in it. Only differences mean anything.

    Raises
    ------
    OSError
        Where the kernel does not count it (no `/proc/self/io`).
    """
    own = _read_bytes(Path("/proc/self/io").read_text(encoding="ascii"))
    proc, pid = Path("/proc"), os.getpid()
    return own + sum(_read_bytes(_text(proc / str(each) / "io")) for each in _descendants(proc, pid) - {pid})


def _read_bytes(text: str) -> int:
    found = re.search(r"^read_bytes: (\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else 0


def memory_in_use(root: str = "/") -> Memory:
    """Measure the memory that this process and its descendants use.

    If they are alone in a memory cgroup, and it holds no other process, it is what that cgroup is charged
    for: `total_rss`, `total_shmem` and the rest of `total_cache` in `memory.stat` (version 1), or `anon`,
    `shmem` and the rest of `file` (version 2). That includes page cache, and memory of processes that have
    ended. The root cgroup is never meant, since it holds the whole machine.

    Else it is the sum over this process and its descendants of `Pss_Anon`, `Pss_Shmem` and `Pss_File` in
    `/proc/PID/smaps_rollup`: a page that several processes share counts once, in equal parts for each of
    them. A kernel before 5.3 has no such lines: then it is `RssAnon`, `RssShmem` and `RssFile` of
    `/proc/PID/status`, and shared pages count once for each process.

    Parameters
    ----------
    root : str
        Where `proc` and `sys` are found.

    Raises
    ------
    OSError
        Where there is no `/proc`.
    """
    processes = _descendants(Path(root, "proc"), os.getpid())
    found = _of_cgroup(root, processes)
    if found is not None:
        return Memory(*found, "cgroup")
    parts = [_of_process(Path(root, "proc", str(pid))) for pid in processes]
    anonymous, shared, cached = (sum(part) for part in zip(*parts, strict=True))
    return Memory(anonymous, shared, cached, "processes")


def _descendants(proc: Path, pid: int) -> set[int]:
    """Return the process and all below it; one whose parent has ended belongs to somebody else."""
    children: dict[int, list[int]] = {}
    for name in os.listdir(proc):
        if name.isdecimal():
            # After the command's name, which may hold anything, come state and parent (man 5 proc_pid_stat).
            fields = _stat(f"{proc}/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1:
                children.setdefault(int(fields[1]), []).append(int(name))
    found, below = {pid}, [pid]
    while below:
        new = children.get(below.pop(), [])
        found.update(new)
        below += new
    return found


def _stat(path: str) -> bytes:
    """Read a short file of a process; nothing of one that has ended. Few calls: there may be thousands."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _of_cgroup(root: str, processes: set[int]) -> tuple[int, int, int] | None:
    """Return anonymous, shared and cached bytes of the cgroup that holds these processes and no other."""
    for folder in cgroup_folders(root):
        own = {int(pid) for pid in _text(folder / "cgroup.procs").split()}
        if os.getpid() not in own:
            continue
        there = {int(pid) for file in folder.rglob("cgroup.procs") for pid in _text(file).split()}
        if not there <= processes:
            continue
        stat = {
            key: int(value)
            for key, value in re.findall(r"^(\w+) (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
        }
        for anonymous, shared, files in (
            ("total_rss", "total_shmem", "total_cache"),
            ("anon", "shmem", "file"),
        ):
            if anonymous in stat:
                return stat[anonymous], stat[shared], stat[files] - stat[shared]
    return None


def _of_process(folder: Path) -> tuple[int, int, int]:
    """Return anonymous, shared and cached bytes; nothing of a process that has ended."""
    for text, keys in (
        (_text(folder / "smaps_rollup"), ("Pss_Anon", "Pss_Shmem", "Pss_File")),
        (_text(folder / "status"), ("RssAnon", "RssShmem", "RssFile")),
    ):
        kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s*(\d+) kB$", text, re.MULTILINE)}
        if keys[0] in kib:
            anonymous, shared, cached = (1024 * kib[key] for key in keys)
            return anonymous, shared, cached
    return 0, 0, 0


def _text(path: Path) -> str:
    """Read what the kernel says; nothing of a process or a cgroup that is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
