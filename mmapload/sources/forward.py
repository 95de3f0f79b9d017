"""A deflated column, read forwards: it is inflated once, piece by piece, and never as a whole."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from mmapload.sources.archives import opened_file
from mmapload.sources.columns import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mmapload.sources.columns import Column

__all__ = ["ForwardReading"]


class ForwardReading:
    """Bytes of one column in rising order; what lies between is passed over, and going back begins anew.

    Parameters
    ----------
    path : str
        The file; opened when the first bytes are asked for.
    column : Column
        What is read.
    """

    def __init__(self, path: str, column: Column) -> None:
        self._path = path
        self._column = column
        self._stack = ExitStack()
        self._pieces: Iterator[npt.NDArray[np.uint8]] | None = None
        self._piece: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._at = 0

    def fetch(self, at: int, into: npt.NDArray[np.uint8]) -> None:
        """Fill an array from byte `at` on.

        Raises
        ------
        SourceError
            If the deflated bytes are damaged; with the last byte of all also if their CRC-32 is not right.
        """
        if self._pieces is None or at < self._at:
            self._begin()
        self._pass(at - self._at)
        filled = 0
        while filled < into.nbytes:
            if not self._piece.nbytes:
                self._advance()
            count = min(self._piece.nbytes, into.nbytes - filled)
            np.copyto(into[filled : filled + count], self._piece[:count])
            self._piece = self._piece[count:]
            filled += count
        self._at += filled
        if self._at == self._column.nbytes:
            self.end()

    def end(self) -> None:
        """Go on to the end, where the CRC-32 of all is checked, and close the file."""
        if self._pieces is None:
            self._begin()
        for _ in self._pieces or ():
            pass
        self._stack.close()
        self._pieces, self._piece = iter(()), self._piece[:0]
        self._at = self._column.nbytes

    def close(self) -> None:
        """Close the file."""
        self._stack.close()
        self._pieces = None

    def _begin(self) -> None:
        self.close()
        fd, _ = self._stack.enter_context(opened_file(self._path))
        self._pieces = read_whole(fd, self._path, self._column)
        self._piece, self._at = self._piece[:0], 0

    def _pass(self, count: int) -> None:
        while count:
            if not self._piece.nbytes:
                self._advance()
            passed = min(count, self._piece.nbytes)
            self._piece = self._piece[passed:]
            self._at += passed
            count -= passed

    def _advance(self) -> None:
        # It yields as many bytes as the column has, or raises.
        self._piece = next(self._pieces or iter(()))
