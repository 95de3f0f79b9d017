"""Shared memory that has no name: it is gone with the last process that maps it, however that ends."""

from __future__ import annotations

import itertools
import os
from multiprocessing.reduction import DupFd
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from mmapload.mappings import PAGE, discard, map_shared, populate_for_writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.codecs import Bytes

__all__ = ["SlotFile"]

_keys: Final = itertools.count()
_files: Final[WeakValueDictionary[int, SlotFile]] = WeakValueDictionary()
"""The files that this process has mapped, by the key that the process which made them gave them."""


class SlotFile:
    """Slots of equal size in one nameless file. Pages cost nothing until they are written.

    Worker processes get at it by inheritance, or by a descriptor where they are not forked: it can be
    pickled while a process is started, and only then.

    Parameters
    ----------
    count : int
        Slots.
    nbytes : int
        Size of each, in bytes; rounded up to whole pages.

    Attributes
    ----------
    key : int
        Tells the files of one process apart.

    Raises
    ------
    OSError
        If the system gives no such memory.

    Examples
    --------
    >>> file = SlotFile(3, 100)
    >>> file.nbytes, file.slot(1).nbytes
    (4096, 4096)
    >>> file.slot(1)[:] = 7
    >>> file.slot(0).any(), file.slot(1).all()
    (np.False_, np.True_)
    """

    def __init__(self, count: int, nbytes: int) -> None:
        nbytes = -(-nbytes // PAGE) * PAGE
        fd = os.memfd_create("mmapload", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, count * nbytes)
            self._map(next(_keys), count, nbytes, fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._pid = os.getpid()

    def _map(self, key: int, count: int, nbytes: int, fd: int) -> None:
        self.key = key
        self.count = count
        self.nbytes = nbytes
        self._memory = map_shared(fd, count * nbytes)
        self._ready = [0] * count  # bytes of each slot that this process has made writable
        _files[key] = self

    @classmethod
    def attach(cls, key: int, count: int, nbytes: int, copied: Any) -> SlotFile:
        """Map the file in a process that was started without inheriting it."""
        file = cls.__new__(cls)
        fd = copied.detach()
        try:
            file._map(key, count, nbytes, fd)  # noqa: SLF001 - an alternative constructor
        finally:
            os.close(fd)
        return file

    @classmethod
    def find(cls, key: int) -> SlotFile:
        """Return the file of this key, mapped in this process before."""
        return _files[key]

    def __reduce__(self) -> tuple[Callable[..., SlotFile], tuple[Any, ...]]:
        return SlotFile.attach, (self.key, self.count, self.nbytes, DupFd(self._fd))

    def slot(self, number: int) -> Bytes:
        """Return the memory of a slot."""
        return self._memory[number * self.nbytes : (number + 1) * self.nbytes]

    def make_ready(self, number: int, nbytes: int) -> None:
        """Prepare the first bytes of a slot to be written by this process."""
        ready = self._ready[number]
        if nbytes > ready:
            populate_for_writing(self.slot(number)[ready:nbytes])
            self._ready[number] = nbytes

    def discard(self, number: int) -> None:
        """Give the pages of a slot back to the system."""
        discard(self.slot(number))

    def __del__(self) -> None:
        # A forked child leaves the descriptor to the system: the number may have come to mean another.
        if getattr(self, "_pid", None) == os.getpid():
            os.close(self._fd)
