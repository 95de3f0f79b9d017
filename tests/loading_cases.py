"""What the tests of loading share: stores, page counts, memory cgroups, and Python processes of their own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import mmap
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.checks import Checks
from mmapload.preprocessing import preprocess
from mmapload.readers import reader_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mmapload.checks import Verify
    from mmapload.readers import ChunkReader
    from mmapload.store import Store, StrPath

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


def random_arrays(
    count: int, seed: int = 0, **fields: tuple[str, tuple[int, ...]]
) -> dict[str, np.ndarray[Any, Any]]:
    """Draw random bits for each field, given by dtype and shape of a sample."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name, (dtype, shape) in fields.items():
        whole = (count, *shape)
        nbytes = int(np.prod(whole)) * np.dtype(dtype).itemsize
        bits = rng.integers(0, 2 if dtype in {"?", "bool"} else 256, nbytes, np.uint8)
        arrays[name] = bits.view(dtype).reshape(whole)
    return arrays


def write_store(
    path: StrPath, arrays: Mapping[str, np.ndarray[Any, Any]], chunk_length: int, codec: str = "raw"
) -> Store:
    """Preprocess arrays, samples along axis 0, into chunks of one batch of `chunk_length` samples."""
    count = len(next(iter(arrays.values())))
    samples = [{name: array[i] for name, array in arrays.items()} for i in range(count)]
    return preprocess(samples, path, chunk_length, codec=codec, chunk_bytes=1)


def open_reader(store: Store, verify: Verify = "first", *, drop_behind: bool = False) -> ChunkReader:
    """Make the reader that suits the store, with checks of its own."""
    fields = store.layout.fields
    checks = Checks(verify, len(fields), store.layout.chunks)
    return reader_for(store, fields, checks, drop_behind=drop_behind)


def same_bits(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    """Say whether dtype, shape and every bit agree."""
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def flip_byte(path: StrPath, position: int = 0) -> None:
    """Flip the bits of one byte of a file."""
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 255]))


def unseal(store: StrPath) -> None:
    """Take away the checksum of a store's metadata, as stores had none at first, so that it may change."""
    path = Path(store, "zarr.json")
    root = json.loads(path.read_text())
    del root["attributes"]["mmapload"]["metadata_checksum"]
    path.write_text(json.dumps(root, indent=2) + "\n")


def swap(first: StrPath, second: StrPath) -> None:
    """Let two files change places."""
    os.rename(first, f"{first}.aside")
    os.rename(second, first)
    os.rename(f"{first}.aside", second)


def maps_of(path: StrPath) -> int:
    """Count this process's mappings of a file."""
    return sum(line.rstrip().endswith(str(path)) for line in Path("/proc/self/maps").read_text().splitlines())


def cached_pages(path: StrPath) -> int:
    """Count the pages of a file that are in the page cache, without touching one."""
    size = os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    finally:
        os.close(fd)
    pages = np.zeros(-(-size // mmap.PAGESIZE), np.uint8)
    assert _libc.mincore(address, size, pages.ctypes.data) == 0
    _libc.munmap(address, size)
    return int((pages & 1).sum())


def undisturbed(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test of what is in the page cache, or of what the disk had to give, try again if it fails.

    The kernel takes clean pages back whenever somebody wants memory, and one that it moves just then it does
    not drop when asked to. That is rare and passes. What our code does wrong, it does wrong in every try: so
    a test may demand the exact count, but not of the first try. It has to begin anew in each.
    """

    @functools.wraps(test)
    def tried(*args: Any, **kwargs: Any) -> None:
        for _ in range(9):
            with contextlib.suppress(AssertionError):
                return test(*args, **kwargs)
            time.sleep(0.1)
        return test(*args, **kwargs)

    return tried


@contextlib.contextmanager
def evictable_folder(path: Path) -> Iterator[Path]:
    """Skip where the folder's file system cannot drop pages: it keeps its files in memory."""
    file = path / "evictable"
    file.write_bytes(bytes(mmap.PAGESIZE))
    fd = os.open(file, os.O_RDWR)
    os.fsync(fd)

    @undisturbed
    def drop() -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not cached_pages(file)

    try:
        drop()
    except AssertionError:
        pytest.skip(f"{path} is on a file system whose pages cannot be dropped")
    finally:
        os.close(fd)
    yield path


@contextlib.contextmanager
def memory_cgroup(limit: int) -> Iterator[Path]:
    """Make a version 1 memory cgroup below this process's own; skip where that is not allowed."""
    lines = Path("/proc/self/cgroup").read_text().splitlines() if sys.platform == "linux" else []
    own = [line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1].split(",")]
    folder = Path("/sys/fs/cgroup/memory", *[part.lstrip("/") for part in own], f"test-{uuid.uuid4().hex}")
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        pytest.skip(f"making a version 1 memory cgroup is not possible here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def run_python(script: str, *arguments: object, timeout: float = 240) -> str:
    """Run a script in a process of its own: it must succeed and say nothing on standard error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), (done.returncode, done.stderr)
    return done.stdout
