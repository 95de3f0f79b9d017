"""Sizes and times of modification of files as they were when they were listed."""

from __future__ import annotations

import os
from array import array
from typing import TYPE_CHECKING, TypeAlias

from mmapload.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Stamp", "Stamps", "check_stamp"]

Stamp: TypeAlias = "tuple[int, int]"
"""Bytes of a file, and when it was modified, in nanoseconds."""


class Stamps:
    """The stamps of many files, 16 bytes each.

    Examples
    --------
    >>> stamps = Stamps()
    >>> stamps.add("/nowhere")
    >>> len(stamps), stamps[0], stamps.nbytes
    (1, None, 0)
    """

    def __init__(self) -> None:
        self._sizes = array("q")
        self._times = array("q")

    def add(self, path: str) -> None:
        """Look at the next file; one that cannot be looked at has no stamp: who reads it says why."""
        try:
            status = os.stat(path)
            size, time = status.st_size, status.st_mtime_ns
        except (OSError, ValueError):
            size = time = -1
        self._sizes.append(size)
        self._times.append(time)

    def __len__(self) -> int:
        """Count the files."""
        return len(self._sizes)

    def __getitem__(self, index: int) -> Stamp | None:
        """Return the stamp of a file, if it has one."""
        size = self._sizes[index]
        return None if size < 0 else (size, self._times[index])

    def chosen(self, indices: Sequence[int]) -> Stamps:
        """Return the stamps of some of the files, in this order."""
        some = Stamps()
        some._sizes = array("q", map(self._sizes.__getitem__, indices))
        some._times = array("q", map(self._times.__getitem__, indices))
        return some

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(size for size in self._sizes if size > 0)


def check_stamp(path: str, expected: Stamp | None, status: os.stat_result) -> None:
    """Compare a file that is open with what it was when it was listed.

    Raises
    ------
    SourceError
        If it was written meanwhile.
    """
    if expected is None or expected == (status.st_size, status.st_mtime_ns):
        return
    size = status.st_size
    what = f"{expected[0]} bytes then, {size} now" if size != expected[0] else f"{size} bytes, written anew"
    raise SourceError(
        path, None, f"changed since it was listed ({what}): wait until nothing writes to it, and start again"
    )
