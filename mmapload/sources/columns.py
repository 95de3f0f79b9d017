"""Arrays of which axis 0 is the axis of samples: where their bytes lie, and how to read some rows.

An array in C order has the bytes of a row side by side. In Fortran order its elements lie apart, and what
lies side by side is one element of all rows: here a *strand*.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from isal import isal_zlib

from mmapload.errors import SourceError
from mmapload.notes import bytes_of
from mmapload.sources import ArraySpec
from mmapload.sources.archives import member_header
from mmapload.sources.npyfiles import npy_header
from mmapload.sources.zipdir import STORED
from mmapload.sources.zipmember import contents_at, inflated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from mmapload.sources.npy import Header
    from mmapload.sources.zipdir import Member

__all__ = ["Column", "Reading", "column_of", "damaged", "fetch_from", "npy_column", "read_whole"]

_BLOCK: Final = 2**19
"""Bytes read and summed at a time, so that they are summed while the processor still has them at hand."""


@dataclass(frozen=True, slots=True)
class Column:
    """An array in a file, a row of it for each sample.

    Attributes
    ----------
    member : Member or None
        Where in a zip file it is; None where it is a file of its own.
    rows : int
        How many rows it has.
    spec : ArraySpec
        Dtype and shape of one row.
    header : bytes
        What lies before the array's bytes, in the member or file.
    offset : int or None
        Where in the file the array's bytes begin; None where they are deflated.
    fortran : bool
        Whether the bytes of a row lie apart.
    swapped : bool
        Whether the byte order is not the machine's.
    """

    member: Member | None
    rows: int
    spec: ArraySpec
    header: bytes
    offset: int | None
    fortran: bool
    swapped: bool

    @property
    def name(self) -> str | None:
        """The member's name, for messages."""
        return None if self.member is None else self.member.name

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.spec.nbytes

    @property
    def crc(self) -> int | None:
        """CRC-32 that the bytes of all rows should have; None where nothing tells."""
        if self.member is None:
            return None
        # The sum of two stretches is that of the first, moved on by the second's length, xor the second's.
        return self.member.crc ^ isal_zlib.crc32_combine(isal_zlib.crc32(self.header), 0, self.nbytes)


def column_of(fd: int, path: str, member: Member) -> Column:
    """Look at an array in a zip file.

    Raises
    ------
    SourceError
        If it is damaged, has no axis, or is none that a store can hold.
    """
    text, found = member_header(fd, path, member)
    start = contents_at(fd, path, member) + len(text) if member.method == STORED else None
    return _column(text, found, path, member, start)


def npy_column(fd: int, path: str, size: int) -> Column:
    """Look at an `.npy` file of so many bytes; as `column_of`."""
    header, found = npy_header(fd, path, size)
    return _column(header, found, path, None, len(header))


def _column(header: bytes, found: Header, path: str, member: Member | None, offset: int | None) -> Column:
    if not found.spec.shape:
        raise SourceError(
            path,
            None if member is None else member.name,
            "a single value, which has no rows: leave it out by naming the others: --fields a,b",
        )
    rows, *shape = found.spec.shape
    spec = ArraySpec(found.spec.dtype, tuple(shape))
    return Column(member, rows, spec, header, offset, found.fortran, found.swapped)


class Reading:
    """Reads rows of a column, and sums what it reads.

    Parameters
    ----------
    column : Column
        What is read.
    fetch : callable
        Fills an array of bytes from that byte of the column on.

    Attributes
    ----------
    total : int
        The CRC-32s of all stretches read, each moved on by the bytes behind it in the column, xor each other:
        of all stretches, in any order, that is the CRC-32 of the whole.
    nbytes : int
        How many bytes were read.
    """

    def __init__(self, column: Column, fetch: Callable[[int, npt.NDArray[np.uint8]], None]) -> None:
        self._column = column
        self._fetch = fetch
        self.total = 0
        self.nbytes = 0

    def rows(self, start: int, into: npt.NDArray[Any]) -> None:
        """Read rows from `start` on, as many as there are in `into`.

        Parameters
        ----------
        into : numpy.ndarray, shape (rows, *row shape)
            C-contiguous, of the column's dtype in native byte order.

        Raises
        ------
        SourceError
            If the file is damaged or ends too early.
        """
        if not into.nbytes:
            return
        if into.dtype != self._column.spec.dtype:
            narrow = np.empty(into.shape, self._column.spec.dtype)  # text, shorter than in other files
            self.rows(start, narrow)
            into[...] = narrow
            return
        if self._column.fortran:
            self._strands(start, into)
        else:
            self._stretch(start * self._column.spec.nbytes, bytes_of(into))
        if self._column.swapped:
            into.byteswap(inplace=True)

    def _strands(self, start: int, into: npt.NDArray[Any]) -> None:
        column = self._column
        itemsize = column.spec.dtype.itemsize
        count = len(into)
        strands = np.empty((column.spec.nbytes // itemsize, count * itemsize), np.uint8)
        for number, strand in enumerate(strands):
            self._stretch((number * column.rows + start) * itemsize, strand)
        shaped = strands.view(column.spec.dtype).reshape(*column.spec.shape[::-1], count)
        np.copyto(into, shaped.T)

    def _stretch(self, at: int, into: npt.NDArray[np.uint8]) -> None:
        """Read the column's bytes from `at` on."""
        crc = 0
        for start in range(0, into.nbytes, _BLOCK):
            block = into[start : start + _BLOCK]
            self._fetch(at + start, block)
            crc = isal_zlib.crc32(block, crc)
        self.total ^= isal_zlib.crc32_combine(crc, 0, self._column.nbytes - at - into.nbytes)
        self.nbytes += into.nbytes


def fetch_from(fd: int, path: str, column: Column) -> Callable[[int, npt.NDArray[np.uint8]], None]:
    """Return what fetches a column's bytes from an open file, in which they are not deflated."""

    def fetch(at: int, into: npt.NDArray[np.uint8]) -> None:
        filled = 0
        position = (column.offset or 0) + at
        while filled < into.nbytes:
            got = os.preadv(fd, [into[filled:]], position + filled)
            if not got:
                raise SourceError(
                    path,
                    column.name,
                    f"the file ended at byte {position + filled} while being read: it was changed meanwhile",
                )
            filled += got

    return fetch


def read_whole(fd: int, path: str, column: Column) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the array's bytes as they lie in the file or member, piece by piece, and check their CRC-32.

    Raises
    ------
    SourceError
        Where they are damaged; at the end if their CRC-32 is not what the zip directory has.
    """
    crc = 0
    for piece in _pieces(fd, path, column):
        crc = isal_zlib.crc32(piece, crc)
        yield piece
    if column.crc is not None and crc != column.crc:
        raise damaged(path, column)


def damaged(path: str, column: Column) -> SourceError:
    """Return the error of an array whose bytes have not the CRC-32 that they should have."""
    return SourceError(
        path,
        column.name,
        "its contents are damaged: their CRC-32 is not what the zip directory has; fetch or write the file "
        "again",
    )


def _pieces(fd: int, path: str, column: Column) -> Iterator[npt.NDArray[np.uint8]]:
    if column.offset is None and column.member is not None:
        skip = len(column.header)
        for piece in inflated(fd, path, column.member):
            if skip < len(piece):
                yield np.frombuffer(piece, np.uint8)[skip:]
            skip = max(0, skip - len(piece))
        return
    fetch = fetch_from(fd, path, column)
    buffer = np.empty(min(_BLOCK, column.nbytes), np.uint8)
    for start in range(0, column.nbytes, _BLOCK):
        block = buffer[: min(_BLOCK, column.nbytes - start)]
        fetch(start, block)
        yield block
