"""Private maps of files used again: what was handed out and came back untouched need not be mapped anew.

Finding the pages of a map costs, of batches of some megabytes, half of what copying them costs. A map whose
pages have all been found, and of which none was written to, is as good as a fresh one.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.mappings import PAGE

if TYPE_CHECKING:
    from collections.abc import Hashable

    from mmapload.codecs import Bytes

    Returned: TypeAlias = deque[tuple[Hashable, Bytes]]

__all__ = ["MapPool", "is_untouched"]

MAPS: Final = 4096
"""Idle maps that are kept, at most: a sixteenth of what Linux lets a process have."""

MAPPED_BYTES: Final = 2**36
"""Bytes of idle maps that are kept, at most: their page tables take 128 MiB."""

RETURNED: Final = 16
"""Maps that came back and were not looked at yet, at most: those that were written to take memory."""

_PRESENT: Final = np.uint64(1 << 63)
_SWAPPED: Final = np.uint64(1 << 62)
_OF_FILE: Final = np.uint64(1 << 61)
"""Bits of an entry of `/proc/PID/pagemap` (man 5 proc_pid_pagemap)."""

_SCAN: Final = 0xC0606610
"""`PAGEMAP_SCAN`: Linux 6.7, as most architectures number it (include/uapi/linux/fs.h, as what follows)."""

_SCAN_OF_FILE: Final = 1 << 2
_SCAN_THERE: Final = 1 << 3 | 1 << 4  # present, swapped


def is_untouched(memory: Bytes) -> bool:
    """Say whether no page of a private map of a file was written to; no where the system does not tell.

    A page that was written to is the process's own, no longer the file's.

    Examples
    --------
    >>> is_untouched(np.ones(4096, np.uint8))  # no map of a file
    False
    """
    first = memory.ctypes.data // PAGE
    stop = -(-(memory.ctypes.data + memory.nbytes) // PAGE)
    try:
        fd = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = _scan(fd, first, stop)
        return _read_one_by_one(fd, first, stop) if found is None else found
    except OSError:
        return False
    finally:
        os.close(fd)


def _scan(fd: int, first: int, stop: int) -> bool | None:
    """Ask for a page that is there and not the file's; None where the system cannot be asked that."""
    region = np.zeros(3, np.uint64)
    asked = struct.pack(
        "=12Q",
        *(96, 0, first * PAGE, stop * PAGE, 0),
        *(region.ctypes.data, 1, 1),  # where to put one region, of one page at most
        *(_SCAN_OF_FILE, _SCAN_OF_FILE, _SCAN_THERE, _SCAN_OF_FILE),  # inverted, all of, any of, told
    )
    try:
        return bool(fcntl.ioctl(fd, _SCAN, bytearray(asked)) == 0)
    except OSError:
        return None


def _read_one_by_one(fd: int, first: int, stop: int) -> bool:
    pages = np.frombuffer(os.pread(fd, 8 * (stop - first), 8 * first), np.uint64)
    there = pages[(pages & (_PRESENT | _SWAPPED)) != 0]
    return len(pages) == stop - first and bool((there & _OF_FILE).all())


class _Lease:
    """What an array over a pooled map holds on to: gives the map back when it is collected."""

    __slots__ = ("__array_interface__", "key", "memory", "returned")

    def __init__(self, key: Hashable, memory: Bytes, returned: Returned) -> None:
        self.key = key
        self.memory = memory
        self.returned = returned
        self.__array_interface__: dict[str, Any] = memory.__array_interface__

    def __del__(self) -> None:
        # Appending needs no lock, so it cannot deadlock when the collector runs this in the middle of `take`;
        # and a deque of bounded length forgets its oldest entry.
        self.returned.append((self.key, self.memory))


class MapPool:
    """Maps that nobody uses, by what they map. Thread-safe.

    Parameters
    ----------
    maps, nbytes : int
        How many are kept, and of how many bytes together; those that came back first go first.

    Attributes
    ----------
    reused : int
        How often a map was handed out again.

    Examples
    --------
    >>> import tempfile
    >>> from mmapload.mappings import map_private
    >>> pool = MapPool()
    >>> with tempfile.TemporaryFile() as file:
    ...     _ = file.write(bytes(8192)), file.flush()
    ...     memory = pool.lease("all", map_private(file.fileno(), 0, 8192))
    >>> pool.take("all") is None
    True
    >>> del memory
    >>> again = pool.take("all")
    >>> pool.reused
    1
    """

    def __init__(self, maps: int = MAPS, nbytes: int = MAPPED_BYTES) -> None:
        self.reused = 0
        self._most_maps = maps
        self._most_nbytes = nbytes
        self._nbytes = 0
        self._lock = threading.Lock()
        self._returned: Returned = deque(maxlen=RETURNED)
        self._idle: OrderedDict[Hashable, Bytes] = OrderedDict()

    def lease(self, key: Hashable, memory: Bytes) -> Bytes:
        """Return an array over a map, which comes to the pool when the last array over it is gone."""
        return np.asarray(_Lease(key, memory, self._returned))

    def take(self, key: Hashable) -> Bytes | None:
        """Lease the map of this key that came back untouched, None if there is none.

        Pages of it may have left memory meanwhile.
        """
        self._look_at_returned()
        with self._lock:
            memory = self._idle.pop(key, None)
            if memory is None:
                return None
            self._nbytes -= memory.nbytes
            self.reused += 1
        return self.lease(key, memory)

    def _look_at_returned(self) -> None:
        while self._returned:
            try:
                key, memory = self._returned.popleft()
            except IndexError:  # another thread was quicker
                return
            if is_untouched(memory):
                # What is replaced or too much is unmapped here: that takes time, so not under the lock.
                gone = self._keep(key, memory)
                del gone
            del memory

    def _keep(self, key: Hashable, memory: Bytes) -> list[Bytes]:
        gone = []
        with self._lock:
            if key in self._idle:
                gone.append(self._idle.pop(key))
            self._idle[key] = memory
            self._nbytes += memory.nbytes - sum(each.nbytes for each in gone)
            while len(self._idle) > self._most_maps or self._nbytes > self._most_nbytes:
                gone.append(self._idle.popitem(last=False)[1])
                self._nbytes -= gone[-1].nbytes
        return gone
