"""Memory used again: a buffer returns to its pool when the last array or tensor over it is gone.

Copying a batch into memory that was used before takes a fraction of the time that fresh memory takes,
because the system has to find and clear every fresh page.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.mappings import PAGE, map_anonymous

if TYPE_CHECKING:
    from mmapload.codecs import Bytes

__all__ = ["BufferPool"]


class _Buffer:
    """Memory, with its description for numpy: making that anew would take longer than all the rest."""

    __slots__ = ("interface", "memory")

    def __init__(self, memory: Bytes) -> None:
        self.memory = memory
        self.interface: dict[str, Any] = memory.__array_interface__


class _Lease:
    """What an array over pooled memory holds on to: gives the memory back when it is collected."""

    __slots__ = ("__array_interface__", "buffer", "idle", "leased")

    def __init__(self, buffer: _Buffer, idle: deque[_Buffer], leased: set[int]) -> None:
        self.buffer = buffer
        self.idle = idle
        self.leased = leased
        self.__array_interface__ = buffer.interface
        leased.add(id(buffer))

    def __del__(self) -> None:
        self.leased.discard(id(self.buffer))
        # A deque of bounded length forgets its oldest entry; appending needs no lock, and so cannot
        # deadlock when the collector runs this in the middle of `take`.
        self.idle.append(self.buffer)


class BufferPool:
    """Buffers of one kind of content, mostly of one size. Thread-safe.

    Parameters
    ----------
    idle : int
        How many unused buffers are kept, whatever their sizes; more are returned to the system.

    Attributes
    ----------
    made : int
        Buffers that were made so far, because none could be used again.

    Examples
    --------
    >>> pool = BufferPool(idle=2)
    >>> buffer = pool.take(100)
    >>> address = buffer.ctypes.data
    >>> del buffer
    >>> pool.take(100).ctypes.data == address
    True
    """

    def __init__(self, idle: int) -> None:
        self._idle: deque[_Buffer] = deque(maxlen=idle)
        self._leased: set[int] = set()
        self.made = 0

    @property
    def in_use(self) -> int:
        """Number of buffers that somebody holds."""
        return len(self._leased)

    def take(self, nbytes: int) -> Bytes:
        """Return `nbytes` of page-aligned memory, holding whatever was there before."""
        rounded = max(PAGE, -(-nbytes // PAGE) * PAGE)
        buffer = self._find(rounded)
        if buffer is None:
            self.made += 1
            buffer = _Buffer(map_anonymous(rounded))
        return np.asarray(_Lease(buffer, self._idle, self._leased))[:nbytes]

    def _find(self, nbytes: int) -> _Buffer | None:
        """Take an idle buffer of this size out; those of other sizes become the oldest."""
        for _ in range(len(self._idle)):
            try:
                buffer = self._idle.pop()
            except IndexError:  # another thread took the last one
                break
            if buffer.memory.nbytes == nbytes:
                return buffer
            self._idle.appendleft(buffer)
        return None
