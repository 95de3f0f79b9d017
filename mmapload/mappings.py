"""Memory from the operating system: private maps of files, anonymous memory, and advice about both.

Python's own `mmap` keeps a descriptor for every map (before 3.13) and holds the GIL in `madvise`, so the
three calls are made through ctypes. Linux and macOS.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from errno import EAGAIN, EINTR, EINVAL, ENOSYS
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.codecs import Bytes

__all__ = [
    "PAGE",
    "count_in_memory",
    "discard",
    "drop_pages",
    "map_anonymous",
    "map_private",
    "map_shared",
    "populate",
    "populate_for_writing",
    "reserve",
]

PAGE: Final = mmap.PAGESIZE
MAP_FIXED: Final = 0x10
PROT_NONE: Final = 0
MADV_WILLNEED: Final = 3
MADV_REMOVE: Final = 9
"""Give pages of shared memory back to the system, for all processes: they read as zeros afterwards."""
MADV_HUGEPAGE: Final = 14
"""Of a map of a file, since Linux 5.18: read ahead in large pages, where the file system has them (XFS; ext4
since 6.16)."""

MADV_POPULATE_READ: Final = 22
"""Linux 5.14: bring all pages in, and fail with EFAULT where touching one would raise SIGBUS."""

MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14: make all pages writable at once, which takes two thirds of the time of one by one."""

_RESERVED: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_munmap = _libc.munmap
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_mincore = _libc.mincore
_mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class _Map:
    """Owner of one mapping: unmaps it when the last array over it is gone.

    What lies `within` reserved address space is reserved again in the same step, so that nothing else is
    mapped there meanwhile.
    """

    __slots__ = ("__array_interface__", "address", "after", "nbytes", "within")

    def __init__(
        self, address: int, nbytes: int, after: Callable[[], None] | None, within: Bytes | None
    ) -> None:
        self.address = address
        self.nbytes = nbytes
        self.after = after
        self.within = within
        self.__array_interface__: dict[str, Any] = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def __del__(
        self, munmap: Any = _munmap, remap: Any = _mmap, reserved: int = _RESERVED | MAP_FIXED
    ) -> None:
        if self.within is None:
            munmap(self.address, self.nbytes)
        else:
            remap(self.address, self.nbytes, 0, reserved, -1, 0)
        if self.after is not None:
            self.after()


def _map(
    nbytes: int,
    flags: int,
    fd: int,
    offset: int,
    after: Callable[[], None] | None = None,
    *,
    within: Bytes | None = None,
    protection: int = mmap.PROT_READ | mmap.PROT_WRITE,
) -> Bytes:
    place = None
    if within is not None:
        place, flags = within.ctypes.data, flags | MAP_FIXED
    address = _mmap(place, nbytes, protection, flags, fd, offset)
    if address in {None, ctypes.c_void_p(-1).value}:
        number = ctypes.get_errno()
        raise OSError(number, f"mapping {nbytes} bytes: {os.strerror(number)}")
    return np.asarray(_Map(address, nbytes, after, within))


def map_private(
    fd: int,
    start: int,
    stop: int,
    after: Callable[[], None] | None = None,
    *,
    large_pages: bool = False,
    within: Bytes | None = None,
) -> Bytes:
    """Map bytes [start, stop) of a file: private, so that writing to the array never reaches the file.

    Parameters
    ----------
    fd : int
        Open for reading; may be closed afterwards.
    start, stop : int
        At most the file's size: touching a page beyond it raises SIGBUS.
    after : callable, optional
        Called when the memory has been unmapped, which happens when the last array over it is gone.
    large_pages : bool
        Whether to ask that what is brought in from the disk be put into pages as large as the file system
        makes them. Finding 2 MiB takes a step then, in place of 512; reading is faster as well. Pages that
        only reach into the map come along. Pages that are in memory stay as they are.
    within : ndarray of uint8, optional
        Whole pages of reserved address space, where nothing is mapped, at whose beginning the map is put.

    Returns
    -------
    ndarray of uint8
        Writable (pages are copied on write).
    """
    aligned = start // PAGE * PAGE
    memory = _map(stop - aligned, mmap.MAP_PRIVATE, fd, aligned, after, within=within)
    if large_pages:
        _advise_large_pages(memory)
    return memory[start - aligned :]


def reserve(nbytes: int) -> Bytes:
    """Return address space for later maps; nothing of it may be touched before, and no memory is taken.

    Raises
    ------
    OSError
        If the process may not have so much of it.
    """
    return _map(nbytes, _RESERVED, -1, 0, protection=PROT_NONE)


def _advise_large_pages(memory: Bytes) -> None:
    if sys.platform == "linux":
        _madvise(memory.ctypes.data, memory.nbytes, MADV_HUGEPAGE)  # advice: may be refused


def map_anonymous(nbytes: int) -> Bytes:
    """Return fresh zeroed memory, page-aligned, in huge pages where the system gives them."""
    memory = _map(max(nbytes, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    _advise_large_pages(memory)
    return memory[:nbytes]


def map_shared(fd: int, nbytes: int) -> Bytes:
    """Map the first bytes of a file so that all processes which map it see what one of them writes.

    Parameters
    ----------
    fd : int
        Open for reading and writing; may be closed afterwards.
    nbytes : int
        At most the file's size.
    """
    return _map(nbytes, mmap.MAP_SHARED, fd, 0)


def discard(memory: Bytes) -> None:
    """Give whole pages of a shared map back to the system; where it cannot, they stay."""
    _madvise(memory.ctypes.data, memory.nbytes, MADV_REMOVE)


def populate(memory: Bytes) -> None:
    """Bring all pages of a map into memory, in one call that releases the GIL.

    Where the system cannot, it is asked to read ahead, and pages come in as they are touched.

    Raises
    ------
    OSError
        If a page cannot be read: the file shrank, or its device failed.
    """
    address = memory.ctypes.data // PAGE * PAGE
    nbytes = memory.ctypes.data + memory.nbytes - address
    while _madvise(address, nbytes, MADV_POPULATE_READ) != 0:
        number = ctypes.get_errno()
        if number in {EINVAL, ENOSYS}:
            _madvise(address, nbytes, MADV_WILLNEED)
            return
        if number not in {EAGAIN, EINTR}:
            raise OSError(number, f"{os.strerror(number)}: the file shrank, or its device failed")


def count_in_memory(memory: Bytes) -> int:
    """Count the pages of a map that can be touched without anything being read from a disk."""
    start = memory.ctypes.data // PAGE * PAGE
    nbytes = memory.ctypes.data + memory.nbytes - start
    there = np.zeros(-(-nbytes // PAGE), np.uint8)
    if _mincore(start, nbytes, there.ctypes.data) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mincore: {os.strerror(number)}")
    return int((there & 1).sum())  # the other bits are reserved


def populate_for_writing(memory: Bytes) -> None:
    """Make all pages of a map writable in one call; where the system cannot, each is when it is written."""
    start = memory.ctypes.data // PAGE * PAGE
    _madvise(start, memory.ctypes.data + memory.nbytes - start, MADV_POPULATE_WRITE)


def drop_pages(path: str, start: int, stop: int) -> None:
    """Ask the system to forget cached pages of a file that nobody has mapped; advice, so it never fails.

    Pages that bytes [start, stop) only reach into are forgotten too.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        first, last = start // PAGE * PAGE, -(-stop // PAGE) * PAGE  # it passes over incomplete pages
        os.posix_fadvise(fd, first, last - first, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
