"""Copies of columns in a nameless file, in which every row lies by itself: for reading rows in any order.

A deflated column can be read forwards only, and the rows of one in Fortran order lie in strands.
"""

from __future__ import annotations

import os
import tempfile
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import MmaploadError
from mmapload.notes import bytes_of
from mmapload.sources.archives import opened_file
from mmapload.sources.columns import Reading, damaged, fetch_from, read_whole

if TYPE_CHECKING:
    from collections.abc import Hashable

    import numpy.typing as npt

    from mmapload.sources.columns import Column

__all__ = ["Spill"]

_BAND: Final = 2**25
"""Bytes of rows that are turned from strands at a time."""


class Spill:
    """Copies of columns, each made once, when it is first asked for.

    The file is never seen in its folder: nothing is left of it, however the process ends.

    Parameters
    ----------
    folder : str
        Where the file lies; it must be there when the first column is asked for.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._end = 0
        self._locks: dict[Hashable, threading.Lock] = {}
        self._copies: dict[Hashable, Column] = {}

    def column(self, key: Hashable, path: str, column: Column, *, turned: bool) -> tuple[int, Column]:
        """Return a descriptor, and the column as it lies in that file; checked against its CRC-32.

        Parameters
        ----------
        key : hashable
            Names the column.
        path : str
            The file that it is in.
        column : Column
            Where it lies there.
        turned : bool
            Whether strands are to be turned into rows.

        Raises
        ------
        SourceError
            If the file is damaged, or changes meanwhile.
        MmaploadError
            If there is no room for the copy.
        """
        with self._lock:
            if self._fd is None:
                self._fd = _nameless(self._folder)
            fd, lock = self._fd, self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._copies:
                self._copies[key] = self._copied(fd, path, column, turned=turned)
        return fd, self._copies[key]

    def close(self) -> None:
        """Give the file's room back."""
        with self._lock:
            fd, self._fd, self._copies = self._fd, None, {}
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def _copied(self, fd: int, path: str, column: Column, *, turned: bool) -> Column:
        with opened_file(path) as (source, _):
            if column.offset is not None and column.fortran and turned:
                return self._turned(fd, source, path, column)
            copy = replace(column, offset=self._room(column.nbytes))
            at = copy.offset or 0
            for piece in read_whole(source, path, column):
                self._write(fd, piece, at)
                at += piece.nbytes
        return self._turned(fd, fd, path, copy) if column.fortran and turned else copy

    def _turned(self, fd: int, source: int, path: str, column: Column) -> Column:
        copy = replace(column, offset=self._room(column.nbytes), fortran=False, swapped=False)
        at = copy.offset or 0
        reading = Reading(column, fetch_from(source, path, column))
        length = max(1, _BAND // max(1, column.spec.nbytes))
        for start in range(0, column.rows, length):
            shape = (min(length, column.rows - start), *column.spec.shape)
            band: npt.NDArray[Any] = np.empty(shape, column.spec.dtype)
            reading.rows(start, band)
            self._write(fd, bytes_of(band), at)
            at += band.nbytes
        if column.crc is not None and reading.total != column.crc:
            raise damaged(path, column)
        return copy

    def _room(self, nbytes: int) -> int:
        with self._lock:
            start, self._end = self._end, self._end + nbytes
        return start

    def _write(self, fd: int, data: npt.NDArray[np.uint8], at: int) -> None:
        while data.nbytes:
            try:
                written = os.pwrite(fd, data, at)
            except OSError as error:
                raise MmaploadError(
                    f"no room in {self._folder} for a copy of what is read in another order than it lies: "
                    f"{error.strerror}; make room, or keep the samples' own order (without --shuffle)"
                ) from error
            data, at = data[written:], at + written


def _nameless(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:  # not every file system has such files
        fd, path = tempfile.mkstemp(prefix=".mmapload-", dir=folder)
        os.unlink(path)
        return fd
