"""How much memory there is: this machine's, or its container's, job's or process's where that is less."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mmapload.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["AUTO_SHARE", "available_memory", "cgroup_folders", "most_maps", "resolve_budget"]

AUTO_SHARE: Final = 0.6
"""Share of the available memory that `memory="auto"` takes; batches and the training itself need the rest."""

_UNLIMITED: Final = 2**60
"""cgroup v1 says "no limit" by a number near 2**63."""

_USUAL_MAPS: Final = 65_530

_MOUNT: Final = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*- (cgroup2?) \S+ (\S+)$", re.MULTILINE)
"""A line of mountinfo: the mount's root in its file system, mount point, type and options (man 5 proc)."""


def resolve_budget(memory: str | float) -> int:
    """Turn what a user says of memory into bytes.

    Parameters
    ----------
    memory : "auto", a size such as "8GiB" or a number of bytes, or a fraction
        `"auto"` is 0.6 of the available memory; a float above 0 and up to 1 is that share of it.

    Raises
    ------
    ValueError
        If it is none of these.

    Examples
    --------
    >>> resolve_budget("8GiB"), resolve_budget(2**20)
    (8589934592, 1048576)
    """
    if memory == "auto":
        return int(available_memory() * AUTO_SHARE)
    if isinstance(memory, float):
        if not 0 < memory <= 1:
            raise ValueError(f"memory as a fraction lies above 0 and at or below 1, not at {memory}")
        return int(available_memory() * memory)
    return parse_size(memory)


def most_maps(root: str = "/") -> int:
    """Return how many maps a process may have (`vm.max_map_count`), or what most systems allow."""
    return _number(Path(root, "proc/sys/vm/max_map_count")) or _USUAL_MAPS


def available_memory(root: str = "/") -> int:
    """Count the bytes that this process can still use before something stops it.

    The least of

    - the system's own estimate (`MemAvailable`);
    - for the process's memory cgroup and every ancestor of it, version 1 or 2, the limit (or `memory.high`,
      beyond which the kernel slows a group down) less what is used and cannot be reclaimed. Page cache can;
    - what a SLURM job may use on this node: `SLURM_MEM_PER_NODE`, or `SLURM_MEM_PER_CPU` or
      `SLURM_MEM_PER_GPU` times their number on the node (sbatch(1), output environment variables);
    - `ulimit -v` and `ulimit -d` (RLIMIT_AS, RLIMIT_DATA) less what this process has mapped.

    Parameters
    ----------
    root : str
        Where `proc` and `sys` are found.
    """
    found = [_mem_available(root)]
    found += [_cgroup_available(folder) for folder in cgroup_folders(root)]
    found += [_slurm_memory(), *_limits_available(root)]
    known = [number for number in found if number is not None]
    return max(0, min(known)) if known else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _mem_available(root: str) -> int | None:
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", _text(Path(root, "proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def _slurm_memory() -> int | None:
    for memory, count in (
        ("SLURM_MEM_PER_NODE", None),
        ("SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"),
        ("SLURM_MEM_PER_GPU", "SLURM_GPUS_ON_NODE"),
    ):
        each, times = os.environ.get(memory, ""), os.environ.get(count, "") if count else "1"
        if each.isdecimal() and times.isdecimal() and int(each) * int(times):  # 0 is all of the node
            return int(each) * int(times) * 2**20
    return None


def _limits_available(root: str) -> Iterator[int]:
    status = _text(Path(root, "proc/self/status"))
    for limit, used in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        soft, found = resource.getrlimit(limit)[0], re.search(rf"^{used}:\s*(\d+) kB$", status, re.MULTILINE)
        if soft != resource.RLIM_INFINITY:
            yield soft - (int(found[1]) * 1024 if found else 0)


def cgroup_folders(root: str = "/") -> Iterator[Path]:
    """Yield the folder of this process's memory cgroup and of every ancestor that can be seen."""
    paths: dict[str, str] = {}
    for controllers, path in re.findall(
        r"^\d+:([^:\n]*):(.+)$", _text(Path(root, "proc/self/cgroup")), re.MULTILINE
    ):
        paths["cgroup" if "memory" in controllers.split(",") else "cgroup2" if not controllers else ""] = path
    for mount_root, mount_point, kind, options in _MOUNT.findall(_text(Path(root, "proc/self/mountinfo"))):
        path = paths.get(kind, "")
        if not path or (kind == "cgroup" and "memory" not in options.split(",")):
            continue
        # Inside a container the path may be the host's: then the mount's own root is the container's.
        inside = (
            os.path.relpath(path, mount_root)
            if (path + "/").startswith(mount_root.rstrip("/") + "/")
            else "."
        )
        plain = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), mount_point)
        folder = Path(root, plain.lstrip("/"))
        yield folder
        for part in Path(inside).parts:
            folder /= part
            yield folder


def _cgroup_available(folder: Path) -> int | None:
    for limit_names, usage_name in (
        (("memory.max", "memory.high"), "memory.current"),
        (("memory.limit_in_bytes",), "memory.usage_in_bytes"),
    ):
        limits, usage = [_number(folder / name) for name in limit_names], _number(folder / usage_name)
        limit = min((number for number in limits if number is not None), default=_UNLIMITED)
        if limit < _UNLIMITED and usage is not None:
            stat: dict[str, str] = dict(
                re.findall(r"^(\w+) (\d+)$", _text(folder / "memory.stat"), re.MULTILINE)
            )
            cached = sum(
                int(stat.get(f"total_{key}", stat.get(key, "0"))) for key in ("inactive_file", "active_file")
            )
            return limit - max(0, usage - cached)
    return None


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
