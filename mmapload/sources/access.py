"""How the bytes of columns are reached: in place, forwards while inflating, or in a copy made first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.errors import SourceError
from mmapload.sources.columns import fetch_from
from mmapload.sources.forward import ForwardReading
from mmapload.sources.spill import Spill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    import numpy.typing as npt

    from mmapload.sources.columns import Column

__all__ = ["ColumnAccess"]


class ColumnAccess:
    """Ways to the columns of all files.

    Parameters
    ----------
    folder : str
        Where copies lie, in a nameless file.
    in_order : bool
        Whether rows will be asked for in rising order.

    Attributes
    ----------
    proved : set of (int, str)
        Files, by number, and fields whose CRC-32 was found to be right.
    """

    def __init__(self, folder: str, *, in_order: bool) -> None:
        self.in_order = in_order
        self.proved: set[tuple[int, str]] = set()
        self._spill = Spill(folder)
        self._forward: dict[tuple[int, str], ForwardReading] = {}

    def goes_forward(self, column: Column) -> bool:
        """Whether a column is inflated forwards, by one thread."""
        return column.offset is None and not self.is_copied(column)

    def is_copied(self, column: Column) -> bool:
        """Whether a column is copied before rows of it are read."""
        deflated = column.offset is None
        return (deflated and column.fortran) or (not self.in_order and (deflated or column.fortran))

    def copied_nbytes(self, column: Column) -> int:
        """Return the bytes that copies of a column take: two where it is inflated and then turned."""
        if not self.is_copied(column):
            return 0
        twice = column.offset is None and column.fortran and not self.in_order
        return column.nbytes * (2 if twice else 1)

    def way_to(
        self, number: int, field: str, path: str, column: Column, fd: int
    ) -> tuple[Column, Callable[[int, npt.NDArray[np.uint8]], None]]:
        """Return a column as it is read, and what fetches its bytes.

        Parameters
        ----------
        number, field : int, str
            Name the column.
        path : str
            The file that it is in.
        fd : int
            Descriptor of that file.

        Raises
        ------
        SourceError
            If a copy has to be made first, and the file is damaged.
        """
        key = number, field
        if self.goes_forward(column):
            if key not in self._forward:
                self._forward[key] = ForwardReading(path, column)
            return column, self._forward[key].fetch
        if self.is_copied(column):
            copy_fd, copy = self._spill.column(key, path, column, turned=not self.in_order)
            self.proved.add(key)
            return copy, fetch_from(copy_fd, path, copy)
        return column, fetch_from(fd, path, column)

    def forget(self, number: int) -> None:
        """Close what is read forwards in a file that is not sound."""
        for key in [key for key in self._forward if key[0] == number]:
            self._forward.pop(key).close()

    def leave_behind(self, number: int | None) -> Iterator[tuple[int, SourceError]]:
        """End what is read forwards in other files than this one, which will not be asked for again.

        Yields the numbers of files that prove not sound, and what is wrong with them.
        """
        for key in [key for key in self._forward if key[0] != number]:
            try:
                self._forward.pop(key).end()
                self.proved.add(key)
            except SourceError as error:
                yield key[0], error
