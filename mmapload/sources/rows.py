"""Samples that are rows: axis 0 of every array in a file is the axis of samples."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError
from mmapload.sources.access import ColumnAccess
from mmapload.sources.archives import opened_file
from mmapload.sources.columns import Reading, damaged, read_whole
from mmapload.sources.grouped import Gathered, UnsoundFileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.sources import ArraySpec
    from mmapload.sources.columns import Column
    from mmapload.sources.grouped import Sums
    from mmapload.sources.rowfiles import RowFile

__all__ = ["RowsSource"]

_STRETCH: Final = 2**23
_STRANDS: Final = 2**25
"""Bytes that are read at a time: the more rows, the longer the stretches in which their elements lie."""


class RowsSource:
    """Rows of `.npz` or `.npy` files, read by ranges.

    Of a stored array just the bytes of the rows are read. A deflated one is inflated once, forwards, piece by
    piece; for rows in any other order it is first inflated into a nameless file, as are arrays in Fortran
    order turned into rows. So whatever the size of a file, little of it is in memory.

    Parameters
    ----------
    files : sequence of RowFile
        The files, in the order of the samples.
    kind : str
        "npz" or "npy".
    folder : str
        Where a nameless file may lie.
    in_order : bool
        Whether rows will be asked for in rising order.
    optional : collection of str
        Fields that a file may lack.

    Attributes
    ----------
    kind : str
        As given.
    parallel : bool
        Whether several threads may read at once: not what is inflated forwards.
    rereads : bool
        Whether a change between two runs is seen only by reading again: of `.npy` files.
    at_once : int
        How many bytes of rows are best read together.
    notes : mapping
        What the store keeps about its source: {"samples": "rows"}.
    """

    def __init__(
        self,
        files: Sequence[RowFile],
        kind: str,
        folder: str,
        *,
        in_order: bool = True,
        optional: Collection[str] = (),
    ) -> None:
        self.kind = kind
        self.notes = {"samples": "rows"}
        self._files = files
        self._starts = [0, *accumulate(file.rows for file in files)]
        self._optional = frozenset(optional)
        self._access = ColumnAccess(folder, in_order=in_order)
        columns = [column for file in files for column in file.columns.values()]
        self.rereads = any(column.crc is None for column in columns)
        self.at_once = _STRANDS if in_order and any(column.fortran for column in columns) else _STRETCH
        self.parallel = not any(map(self._access.goes_forward, columns))

    def __len__(self) -> int:
        """Count the rows of all files."""
        return self._starts[-1]

    @property
    def spill_nbytes(self) -> int:
        """The most that copies of columns take on the disk beside the store."""
        columns = (column for file in self._files for column in file.columns.values())
        return sum(map(self._access.copied_nbytes, columns))

    def _place(self, index: int) -> tuple[RowFile, int]:
        file = bisect_right(self._starts, index) - 1
        return self._files[file], index - self._starts[file]

    def name(self, index: int) -> str:
        """Path of the file relative to the listing's root, and the row in it: "train.npz[17]"."""
        file, row = self._place(index)
        return file.sample_name(row)

    def names(self, indices: Sequence[int]) -> list[str]:
        """Name many rows."""
        if len(indices) and indices[-1] - indices[0] == len(indices) - 1 and self._access.in_order:
            file, row = self._place(indices[0])
            if row + len(indices) <= file.rows and file.fault is None:
                return [f"{file.name}[{each}]" for each in range(row, row + len(indices))]
        return [self.name(index) for index in indices]

    def names_nbytes(self) -> int:
        """Count the bytes of the names of all rows."""
        return sum(file.names_nbytes() for file in self._files)

    def roll(self) -> Iterator[str]:
        """Yield for every file its name and its number of rows."""
        for file in self._files:
            yield f"{file.name}[{file.rows}]"

    def describe(self, index: int) -> str:
        """Path of the file, to open it by, and the row in it."""
        file, row = self._place(index)
        return f"{file.path}[{row}]"

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Return dtype and shape of one row of every array.

        Raises
        ------
        SourceError
            If the file is not sound.
        """
        file, _ = self._place(index)
        if file.fault is not None:
            raise file.fault
        return {field: column.spec for field, column in file.columns.items()}

    def heads(self, indices: Sequence[int]) -> list[int]:
        """Return the first row of each file that these rows lie in."""
        if isinstance(indices, range) and len(indices) == len(self):
            return [start for start, file in zip(self._starts, self._files, strict=False) if file.rows]
        files = np.unique(np.searchsorted(self._starts, np.asarray(indices, np.int64), side="right") - 1)
        return [self._starts[file] for file in files.tolist()]

    def fingerprint(self, index: int) -> bytes:
        """Summarise the file of row `index`, as it was when its header was read.

        Raises
        ------
        UnsoundFileError
            If the file is not sound.
        """
        number = bisect_right(self._starts, index) - 1
        file = self._files[number]
        if file.fault is not None:
            raise self._fault(number, file.fault)
        return file.digest

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> Collection[str]:
        """Read one row; as `read_many`, and returns the optional fields that it lacks.

        Who reads so keeps no sums: a file is read as a whole, to prove it, before the first of its rows.
        """
        number = bisect_right(self._starts, index) - 1
        for field, column in self._files[number].columns.items():
            self._prove_column(number, field, column)
        return self.read_many([index], {field: array[None] for field, array in into.items()}).absent

    def read_many(self, indices: Sequence[int], into: Mapping[str, npt.NDArray[Any]]) -> Gathered:
        """Read rows.

        Parameters
        ----------
        indices : sequence of int
            Which rows, in any order; none twice.
        into : mapping of str to numpy.ndarray, shape (rows, *row shape)
            For every field a C-contiguous array.

        Raises
        ------
        UnsoundFileError
            If a file is damaged, has changed since its header was read, or its fields, dtypes or shapes are
            not those of `into`.
        """
        wanted = np.asarray(indices, np.int64)
        order = np.argsort(wanted, kind="stable")
        ordered = wanted[order]
        bounds = np.searchsorted(ordered, self._starts)
        absent: dict[str, list[int]] = {}
        sums: dict[str, tuple[int, int]] = {}
        for number in np.flatnonzero(np.diff(bounds)).tolist():
            places = order[bounds[number] : bounds[number + 1]]
            rows = wanted[places] - self._starts[number]
            try:
                for field in self._read_file(number, rows, places, into, sums):
                    absent.setdefault(field, []).extend(places.tolist())
            except SourceError as error:
                raise self._fault(number, error) from error.__cause__
        return Gathered(absent, sums)

    def _read_file(
        self,
        number: int,
        rows: npt.NDArray[np.int64],
        places: npt.NDArray[np.int64],
        into: Mapping[str, npt.NDArray[Any]],
        sums: dict[str, tuple[int, int]],
    ) -> list[str]:
        file = self._files[number]
        if file.fault is not None:
            raise file.fault
        absent = file.compare(into, self._optional)
        self._leave_behind(number)
        # Stretches of rows that follow one another, and are to follow one another.
        cuts = np.flatnonzero((np.diff(rows) != 1) | (np.diff(places) != 1)) + 1
        starts = [0, *cuts.tolist()]
        stops = [*cuts.tolist(), len(rows)]
        with opened_file(file.path) as (fd, status):
            file.expect(status)
            for field, column in file.columns.items():
                turned, fetch = self._access.way_to(number, field, file.path, column, fd)
                reading = Reading(turned, fetch)
                for start, stop in zip(starts, stops, strict=True):
                    place = int(places[start])
                    reading.rows(int(rows[start]), into[field][place : place + stop - start])
                if turned.fortran == column.fortran:
                    sums[f"{number} {field}"] = reading.nbytes, reading.total
        return absent

    def _leave_behind(self, number: int | None) -> None:
        for other, error in self._access.leave_behind(number):
            raise self._fault(other, error) from None

    def _fault(self, number: int, error: SourceError) -> UnsoundFileError:
        if isinstance(error, UnsoundFileError):
            return error
        self._access.forget(number)
        return UnsoundFileError(error, range(self._starts[number], self._starts[number + 1]))

    def prove(self, sums: Sums) -> None:
        """Compare the CRC-32 of arrays that were read as a whole.

        Raises
        ------
        UnsoundFileError
            If one is not what the zip directory has.
        """
        for key, (nbytes, total) in sums.items():
            number, _, field = key.partition(" ")
            column = self._files[int(number)].columns[field]
            if column.crc is not None and nbytes == column.nbytes and total != column.crc:
                raise self._fault(int(number), damaged(self._files[int(number)].path, column))

    def prove_rest(self, sums: Sums, files: Collection[int] | None = None) -> None:
        """As `prove`; and read arrays as a whole of which only a part was read.

        Parameters
        ----------
        sums : Sums
            What was read.
        files : collection of int, optional
            The files that count, each by its first row; by default all.

        Raises
        ------
        UnsoundFileError
            If the contents of one have not the CRC-32 that the zip directory has.
        """
        self.prove(sums)
        self._leave_behind(None)
        for number, file in enumerate(self._files):
            if file.fault is not None or (files is not None and self._starts[number] not in files):
                continue
            for field, column in file.columns.items():
                if not sums.get(f"{number} {field}", (0, 0))[0] == column.nbytes > 0:
                    self._prove_column(number, field, column)

    def _prove_column(self, number: int, field: str, column: Column) -> None:
        """Read an array as a whole, unless it is proved."""
        if column.crc is None or (number, field) in self._access.proved:
            return
        file = self._files[number]
        try:
            with opened_file(file.path) as (fd, status):
                file.expect(status)
                for _ in read_whole(fd, file.path, column):
                    pass
        except SourceError as error:
            raise self._fault(number, error) from None
        self._access.proved.add((number, field))
