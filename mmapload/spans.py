"""Chunks side by side in one stretch of address space, so that samples of several are copied with one call.

Samples of chunks that lie anywhere are gathered chunk by chunk, and of small samples the calls for each
chunk cost more than the bytes. Where every chunk has a place in one long array, mapped or not at the moment,
one `take` fetches any samples whose chunks are mapped. Nothing but address space is taken by what is not.
"""

from __future__ import annotations

import math
import resource
from typing import TYPE_CHECKING, Any, Final

from mmapload.codecs import CHECKSUM_BYTES
from mmapload.mappings import PAGE, map_private, reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout

__all__ = ["Span"]

LARGE_PAGE: Final = 2**21
"""What a map begins at a multiple of, if the system is to find so much of it in one step."""

MOST_BYTES: Final = 2**44
"""Of address space for a field, at most: an eighth of what a process has on most 64-bit processors."""

_broken: Final[list[Span]] = []
"""Where a map failed, nobody knows what lies in its place now: such address space is never given back."""


class Span:
    """Address space with a place for every chunk of a field. Thread-safe.

    Parameters
    ----------
    memory : ndarray of uint8
        Reserved address space, for as many places as there are chunks.
    place_nbytes : int
        Of one place: whole pages, and whole samples.

    Examples
    --------
    >>> import numpy as np
    >>> from mmapload.codecs import RawCodec
    >>> from mmapload.layout import FieldLayout
    >>> span = Span.of(FieldLayout("x", np.dtype("f4"), (3,), 100, RawCodec()), chunks=5)
    >>> span.array.shape, span.rows(np.array([0, 99, 100]), np.array([0, 0, 1]), 100)
    ((5120, 3), array([   0,   99, 1024]))
    """

    def __init__(self, field: FieldLayout, memory: Bytes, place_nbytes: int) -> None:
        self.array: npt.NDArray[Any] = memory.view(field.dtype).reshape(-1, *field.shape)
        self._place_nbytes = place_nbytes
        self._place_rows = place_nbytes // field.sample_nbytes
        self._memory = memory
        self._taken: dict[int, object] = {}

    @classmethod
    def of(cls, field: FieldLayout, chunks: int) -> Span | None:
        """Reserve the address space for a field; None if there is none for it.

        A process that may not have all it wants (`ulimit -v`) needs it for memory.
        """
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            return None
        nbytes = field.chunk_nbytes + CHECKSUM_BYTES
        step = math.lcm(PAGE, field.sample_nbytes)
        if math.lcm(step, LARGE_PAGE) <= 2 * nbytes:
            step = math.lcm(step, LARGE_PAGE)
        place_nbytes = -(-nbytes // step) * step
        if chunks * place_nbytes > MOST_BYTES:
            return None
        try:
            memory = reserve(chunks * place_nbytes + LARGE_PAGE)
        except OSError:
            return None
        start = -memory.ctypes.data % LARGE_PAGE
        return cls(field, memory[start : start + chunks * place_nbytes], place_nbytes)

    def rows(
        self, samples: npt.NDArray[np.int64], chunks: npt.NDArray[np.int64], chunk_length: int
    ) -> npt.NDArray[np.int64]:
        """Return where in the array samples lie, given the chunk of each."""
        gap = self._place_rows - chunk_length
        return samples + chunks * gap if gap else samples

    def map(self, chunk: int, fd: int, nbytes: int, after: Callable[[], None] | None) -> Bytes | None:
        """Map a file at the place of a chunk; None if a map is there.

        Parameters and errors are those of `map_private`.
        """
        mine = object()
        if self._taken.setdefault(chunk, mine) is not mine:
            return None

        def gone() -> None:
            # Without a lock: the collector may run this in a thread that is in the middle of anything.
            del self._taken[chunk]
            if after is not None:
                after()

        start = chunk * self._place_nbytes
        place = self._memory[start : start + self._place_nbytes]
        try:
            return map_private(fd, 0, nbytes, gone, large_pages=True, within=place)
        except OSError:
            _broken.append(self)
            raise
