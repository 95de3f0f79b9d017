"""Files of rows: what their headers say, compared among all files before any row is read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmapload.errors import SourceError
from mmapload.sources import ArraySpec
from mmapload.sources.absent import absent_fields, difference_advice
from mmapload.sources.archives import listed, members_by_key, opened, opened_file, selected
from mmapload.sources.badfiles import BadFiles
from mmapload.sources.columns import column_of, npy_column
from mmapload.sources.npyfiles import NPY_FIELD, is_npy

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Mapping

    from mmapload.sources.columns import Column
    from mmapload.sources.listing import Listing

__all__ = ["RowFile", "look_at_rows"]


@dataclass(frozen=True, slots=True)
class RowFile:
    """One file of rows.

    Attributes
    ----------
    path, name : str
        To open it by, and relative to the listing's root.
    rows : int
        How many samples it stands for: its rows; 1 if something is wrong with it.
    columns : mapping of str to Column
        Its arrays, by the fields that they become.
    identity : tuple of int
        Its size and time of modification, when its header was read.
    digest : bytes
        Changes with the sizes and CRC-32s that it holds.
    fault : SourceError or None
        What is wrong with it.
    """

    path: str
    name: str
    rows: int
    columns: Mapping[str, Column]
    identity: tuple[int, int]
    digest: bytes
    fault: SourceError | None = None

    def sample_name(self, row: int) -> str:
        """Name of the file and of a row in it; that of the file if something is wrong with it."""
        return self.name if self.fault is not None else f"{self.name}[{row}]"

    def names_nbytes(self) -> int:
        """Bytes of the names of all rows."""
        text = len(self.name.encode("utf-8", "surrogateescape"))
        if self.fault is not None:
            return text
        digits, low = 0, 0
        while low < self.rows:  # rows whose numbers have one digit, then two, ...
            high = 10 * low or 10
            digits += (min(high, self.rows) - low) * len(str(low))
            low = high
        return self.rows * (text + len("[]")) + digits

    def compare(self, into: Mapping[str, Any], optional: Collection[str]) -> list[str]:
        """Return the optional fields that the file lacks, of those of `into`.

        Raises
        ------
        SourceError
            If its fields, dtypes or shapes are not those of `into`; names both sides.
        """
        expected = {field: ArraySpec(array.dtype, array.shape[1:]) for field, array in into.items()}
        return list(_compared(self.path, self.columns, expected, optional))

    def expect(self, status: os.stat_result) -> None:
        """Check that the file is the one whose header was read.

        Raises
        ------
        SourceError
            If it is not.
        """
        if self.identity != (status.st_size, status.st_mtime_ns):
            raise SourceError(
                self.path,
                None,
                f"changed since its header was read ({self.identity[0]} bytes then, {status.st_size} now): "
                "run the command again when nothing writes to it",
            )


def _compared(
    path: str,
    columns: Mapping[str, Column],
    expected: Mapping[str, ArraySpec],
    optional: Collection[str],
) -> tuple[str, ...]:
    absent = absent_fields(columns, expected, optional)
    if absent is None:
        missing = [field for field in expected if field not in columns and field not in optional]
        extra = [field for field in columns if field not in expected]
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"also has {listed(extra)}"] * bool(extra)
        raise SourceError(
            path,
            None,
            f"{' and '.join(parts)}: its arrays are {listed(columns)}, expected {listed(expected)}; "
            f"{difference_advice(missing, extra, [field for field in expected if field in columns])}",
        )
    for field, column in columns.items():
        if not expected[field].holds(column.spec):
            raise SourceError(
                path, column.name, f"rows of {field!r} are {column.spec}, expected {expected[field]}"
            )
    return absent


def look_at_rows(
    files: Listing, fields: Mapping[str, str] | None, optional: Collection[str], *, skip: bool = False
) -> list[RowFile]:
    """Read the headers of all files, and compare them.

    Parameters
    ----------
    files : Listing
        `.npz` and `.npy` files.
    fields : mapping of str to str, or None
        Which arrays to take, and the field that each becomes; None takes all. The array of an `.npy` file is
        called "data".
    optional : collection of str
        Fields that a file may lack.
    skip : bool
        Whether to go on where something is wrong with a file: it then stands for one sample, a bad one.

    Raises
    ------
    SourceError
        If a file is damaged, its arrays differ in their number of rows, or they are not like those of the
        first file; names arrays and numbers, and the other files that are bad.
    """
    found: list[RowFile] = []
    known: dict[str, ArraySpec] = {}
    bad = BadFiles(files, skip=skip)
    for index in bad.numbers():
        path, name = files.path(index), files.names[index]
        with bad.noting(index):
            file = _look(path, name, fields, optional)
            specs = {field: column.spec for field, column in file.columns.items()}
            if known:
                later = {field: spec for field, spec in specs.items() if field in optional}
                # Of text the longest counts.
                longer = {
                    field: spec
                    for field, spec in specs.items()
                    if field in known and spec.holds(known[field])
                }
                _compared(path, file.columns, later | known | longer, optional)
                known |= longer
            known = specs | known
        if index in bad.faults:
            file = RowFile(path, name, 1, {}, (0, 0), b"", bad.faults[index])
        found.append(file)
    return found


def _look(path: str, name: str, fields: Mapping[str, str] | None, optional: Collection[str]) -> RowFile:
    facts: list[object]
    if is_npy(path):
        with opened_file(path) as (fd, status):
            columns = selected(path, {NPY_FIELD: npy_column(fd, path, status.st_size)}, fields, optional)
        facts = [name, status.st_size, [column.header for column in columns.values()]]
    else:
        with opened_file(path) as (_, status), opened(path) as npz:
            members = selected(path, members_by_key(npz), fields, optional)
            columns = {field: column_of(npz.fd, path, member) for field, member in members.items()}
        facts = [name, npz.size, [(m.raw_name, m.method, m.crc, m.compressed, m.size) for m in npz.members]]
    if not columns:
        what = f"has none of {listed(list(optional))}, so nothing says how many rows it stands for"
        raise SourceError(path, None, f"{what}; leave it out of the source")
    digest = hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).digest()
    identity = status.st_size, status.st_mtime_ns
    return RowFile(path, name, _common_rows(path, columns), columns, identity, digest)


def _common_rows(path: str, columns: Mapping[str, Column]) -> int:
    """Return how many rows all arrays have."""
    counts = {field: column.rows for field, column in columns.items()}
    if len(set(counts.values())) == 1:
        return next(iter(counts.values()))
    by_count: dict[int, list[str]] = {}
    for field, count in counts.items():
        by_count.setdefault(count, []).append(field)
    told = "; ".join(f"{count:,} in {listed(names)}" for count, names in by_count.items())
    most = max(by_count.values(), key=len)
    raise SourceError(
        path,
        None,
        f"its arrays differ in their number of rows: {told}; take those that belong together, as in "
        f"--fields {','.join(most)}",
    )
