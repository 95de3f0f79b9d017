"""A memory cgroup that lasts as long as a `with` block: version 1 or 2, wherever one may be made."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mmapload.budget import cgroup_folders

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS: Final = (
    ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", ""),
    ("memory.max", "memory.swap.max", "0"),
)
"""Of version 1 and 2: the file that takes the limit, the one that keeps swap out, and what to write there:
the limit again where that counts both together."""

_numbers = itertools.count()


class NoCgroupError(Exception):
    """No memory cgroup can be made here; says why."""


class MemoryCgroup:
    """A folder of the cgroup file system.

    Parameters
    ----------
    folder : Path
        Exists, and has its limit.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def join(self) -> None:
        """Move this process into it. What it takes from now on counts, and what it starts is in it too."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    @property
    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for want of memory."""
        for name in ("memory.oom_control", "memory.events"):
            with contextlib.suppress(OSError):
                found = re.search(r"^oom_kill (\d+)$", (self.folder / name).read_text(), re.MULTILINE)
                if found:
                    return int(found[1])
        return 0

    def remove(self) -> None:
        """End what is in it, and remove it.

        Raises
        ------
        OSError
            If it cannot be removed within five seconds.
        """
        deadline = time.monotonic() + 5
        while True:
            for pid in (self.folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            try:
                self.folder.rmdir()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                return


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[MemoryCgroup]:
    """Make a cgroup of this many bytes, without swap, below this process's own or next to it.

    Raises
    ------
    NoCgroupError
        If none can be made; names the reason for each place that was tried.
    """
    reasons = []
    for place in reversed(list(cgroup_folders())):
        cgroup = MemoryCgroup(place / f"mmapload-bench-{os.getpid()}-{next(_numbers)}")
        try:
            reason = _make(cgroup.folder, limit)
            if reason is None:
                yield cgroup
                return
        finally:
            if cgroup.folder.exists():
                cgroup.remove()
        reasons.append(f"{place}: {reason}")
    raise NoCgroupError("; ".join(reasons) or "no memory cgroup is mounted that this process belongs to")


def _make(folder: Path, limit: int) -> str | None:
    """Make the folder and set its limit, or say why that cannot be."""
    try:
        folder.mkdir()
        for memory, swap, no_swap in LIMITS:
            if (folder / memory).exists():
                (folder / memory).write_text(str(limit))
                if (folder / swap).exists():
                    (folder / swap).write_text(no_swap or str(limit))
                return None
    except OSError as error:
        return str(error)
    return "its memory controller is not passed on to groups below"
