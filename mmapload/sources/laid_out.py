"""How samples lie in files of named arrays: a file each, a row of all arrays each, or a group each.

Formats differ in how a file is opened only; this is the same for all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from mmapload.errors import SourceError
from mmapload.sources.badfiles import BadFiles
from mmapload.sources.listing import natural_key
from mmapload.sources.stored import common_rows

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from mmapload.sources.listing import Listing
    from mmapload.sources.stored import Format, StoredArray

__all__ = ["FileSamples", "KeySamples", "RowSamples"]


class FileSamples:
    """One file is one sample.

    Parameters
    ----------
    files : Listing
        The files, in the order of the samples.
    format_ : Format
        How they are opened.
    """

    def __init__(self, files: Listing, format_: Format) -> None:
        self.kind = format_.kind
        self.parallel = format_.parallel
        self.classes: Mapping[str, Sequence[str]] = {}
        self._files = files
        self._format = format_

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)

    def name(self, index: int) -> str:
        """Path of file `index`, relative to the listing's root."""
        return self._files.names[index]

    def describe(self, index: int) -> str:
        """Path of file `index`."""
        return self._files.path(index)

    @contextmanager
    def arrays(self, index: int) -> Iterator[Mapping[str, Any]]:
        """Open file `index`; getting an array reads it."""
        with self._format.open(self._files.path(index)) as arrays:
            yield _Reading(arrays, {name: name for name in arrays})


class _Reading(Mapping[str, Any]):
    """Arrays that are read when one asks for them."""

    def __init__(self, arrays: Mapping[str, StoredArray], names: Mapping[str, str]) -> None:
        self._arrays = arrays
        self._names = names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[self._names[name]].read()


class _Current:
    """Keeps one file open: the one that was asked for last."""

    def __init__(self, files: Listing, format_: Format) -> None:
        self._files = files
        self._format = format_
        self._stack = ExitStack()
        self._file: int | None = None
        self._arrays: Mapping[str, StoredArray] = {}

    def arrays(self, file: int) -> Mapping[str, StoredArray]:
        if self._file != file:
            self._file = None
            self._stack.close()
            self._arrays = self._stack.enter_context(self._format.open(self._files.path(file)))
            self._file = file
        return self._arrays


class RowSamples:
    """Row i of every array in a file is one sample; the rows of several files follow one another.

    Parameters
    ----------
    files : Listing
        The files.
    format_ : Format
        How they are opened.
    wanted : collection of str, optional
        The arrays whose rows are meant; the others need not have as many. All by default.
    skip : bool
        Whether a file with which something is wrong stands for one bad sample.

    Raises
    ------
    SourceError
        If a file cannot be opened, has no array, or its arrays differ in their number of rows; names them,
        and the other files that are bad.
    """

    def __init__(
        self,
        files: Listing,
        format_: Format,
        wanted: Collection[str] | None = None,
        *,
        skip: bool = False,
    ) -> None:
        self.kind = format_.kind
        self.parallel = False
        self.classes: Mapping[str, Sequence[str]] = {}
        self._files = files
        self._current = _Current(files, format_)
        self._blocks: dict[str, tuple[int, int, Any]] = {}
        self._last = (-1, -1)
        self._starts = [0]
        bad = BadFiles(files, skip=skip)
        self._faults = bad.faults
        for file in bad.numbers():
            rows = 1
            with bad.noting(file):
                rows = common_rows(self._current.arrays(file), files.path(file), wanted)
            self._starts.append(self._starts[-1] + rows)

    def __len__(self) -> int:
        """Count the rows of all files."""
        return self._starts[-1]

    def name(self, index: int) -> str:
        """Path of the file, relative to the listing's root, and the row in it: "train.h5[7]"."""
        file, row = self._place(index)
        name = self._files.names[file]
        return name if file in self._faults else f"{name}[{row}]"

    def describe(self, index: int) -> str:
        """Path of the file and the row in it."""
        file, row = self._place(index)
        path = self._files.path(file)
        return path if file in self._faults else f"{path}[{row}]"

    @contextmanager
    def arrays(self, index: int) -> Iterator[Mapping[str, Any]]:
        """Go to row `index`; getting an array reads its row, with neighbours that are kept."""
        file, row = self._place(index)
        if file in self._faults:
            raise self._faults[file]
        if file != self._last[0]:
            self._blocks = {}
        following = self._last == (file, row - 1)
        self._last = (file, row)
        yield _Row(self._current.arrays(file), self._blocks, row, following=following)

    def _place(self, index: int) -> tuple[int, int]:
        file = bisect_right(self._starts, index) - 1
        return file, index - self._starts[file]


class _Row(Mapping[str, Any]):
    """The arrays' values in one row."""

    def __init__(
        self,
        arrays: Mapping[str, StoredArray],
        blocks: dict[str, tuple[int, int, Any]],
        row: int,
        *,
        following: bool,
    ) -> None:
        self._arrays = arrays
        self._blocks = blocks
        self._row = row
        self._following = following

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __getitem__(self, name: str) -> Any:
        start, stop, block = self._blocks.get(name, (0, 0, None))
        if not start <= self._row < stop:
            array = self._arrays[name]
            rows = array.rows if self._following or array.chunked else 1
            start = self._row - self._row % rows
            stop = min(start + rows, array.shape[0])
            block = array.read(start, stop)
            self._blocks[name] = start, stop, block
        return block[self._row - start]


class KeySamples:
    """One group in a file is one sample, or one array where arrays lie in no groups.

    The groups are those at the top, or below where there is only one; they follow in natural order.

    Parameters
    ----------
    files : Listing
        The files.
    format_ : Format
        How they are opened.
    single : str
        What the array of a sample is called that is an array alone.
    skip : bool
        Whether a file with which something is wrong stands for one bad sample.

    Raises
    ------
    SourceError
        If a file cannot be opened or has no array; names the other files of which that is so.
    """

    def __init__(self, files: Listing, format_: Format, single: str, *, skip: bool = False) -> None:
        self.kind = format_.kind
        self.parallel = False
        self.classes: Mapping[str, Sequence[str]] = {}
        self._files = files
        self._current = _Current(files, format_)
        self._groups: list[tuple[int, str, dict[str, str]]] = []
        bad = BadFiles(files, skip=skip)
        self._faults = bad.faults
        for file in bad.numbers():
            groups: dict[str, dict[str, str]] = {"": {}}
            with bad.noting(file):
                groups = _groups(list(self._current.arrays(file)), single)
                if not groups:
                    raise SourceError(files.path(file), None, "there is no array in it")
            self._groups += [(file, group, groups[group]) for group in sorted(groups, key=natural_key)]

    def __len__(self) -> int:
        """Count the groups of all files."""
        return len(self._groups)

    def name(self, index: int) -> str:
        """Path of the file, relative to the listing's root, and the group in it: "train.h5/s7"."""
        file, group, _ = self._groups[index]
        name = self._files.names[file]
        return name if file in self._faults else f"{name}/{group}"

    def describe(self, index: int) -> str:
        """Path of the file and the group in it."""
        file, group, _ = self._groups[index]
        path = self._files.path(file)
        return path if file in self._faults else f"{path}/{group}"

    @contextmanager
    def arrays(self, index: int) -> Iterator[Mapping[str, Any]]:
        """Go to group `index`; getting an array reads it."""
        file, _, names = self._groups[index]
        if file in self._faults:
            raise self._faults[file]
        yield _Reading(self._current.arrays(file), names)


def _groups(names: Sequence[str], single: str) -> dict[str, dict[str, str]]:
    """Sort arrays by the group of their sample: its name, what arrays are called in it, their whole names."""
    above = ""
    while len({name[len(above) :].partition("/")[0] for name in names}) == 1:
        first = names[0][len(above) :].partition("/")
        if not first[1] or "/" not in first[2]:
            break  # one sample
        above += first[0] + "/"
    groups: dict[str, dict[str, str]] = {}
    for name in names:
        group, _, below = name[len(above) :].partition("/")
        groups.setdefault(above + group, {})[below or single] = name
    return groups
