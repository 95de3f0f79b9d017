"""Named arrays in open files: what a format offers, so that samples can be taken from them in any way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mmapload.errors import SourceError, shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from contextlib import AbstractContextManager

__all__ = ["Arrays", "Format", "InMemory", "StoredArray", "common_rows", "rows_at_once"]

_AT_ONCE: Final = 2**20
"""Bytes of neighbouring rows that are read together, of arrays that do not lie in chunks."""
_MOST_AT_ONCE: Final = 2**28
_MOST_LISTED: Final = 8


class StoredArray(Protocol):
    """An array in an open file.

    Attributes
    ----------
    shape : tuple of int
        Its lengths.
    rows : int
        How many rows are best read together.
    chunked : bool
        Whether one row costs as much as all of these.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""

    @property
    def rows(self) -> int:
        """How many rows are best read together."""

    @property
    def chunked(self) -> bool:
        """Whether one row costs as much as all of these."""

    def read(self, start: int | None = None, stop: int | None = None) -> Any:
        """Read these rows, or the whole array."""


class Format(Protocol):
    """A kind of file, or folder, that holds named arrays.

    Attributes
    ----------
    kind : str
        The name kept in the store.
    parallel : bool
        Whether several threads may read at once.
    """

    kind: str
    parallel: bool

    def open(self, path: str) -> AbstractContextManager[Mapping[str, StoredArray]]:
        """Open a file: its arrays by name, with `/` between the parts of nested ones.

        Getting an array may raise SourceError, for one that a store cannot hold.
        """


@dataclass(frozen=True, slots=True)
class InMemory:
    """An array that was read when its file was opened."""

    array: Any
    rows: int = 1
    chunked: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        return tuple(self.array.shape)

    def read(self, start: int | None = None, stop: int | None = None) -> Any:
        """Return these rows, or the whole array."""
        return self.array if start is None else self.array[start:stop]


class Arrays(Mapping[str, "StoredArray"]):
    """The arrays of an open file by name; getting one that cannot be read raises the error in its place.

    Parameters
    ----------
    found : mapping of str to StoredArray or SourceError
        By name.
    """

    def __init__(self, found: Mapping[str, StoredArray | SourceError]) -> None:
        self._found = found

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, name: str) -> StoredArray:
        found = self._found[name]
        if isinstance(found, SourceError):
            raise found
        return found


def rows_at_once(shape: Sequence[int], itemsize: int, chunk: int | None) -> int:
    """Say how many rows are read together: those of a chunk, or of about 1 MiB where there are no chunks.

    Examples
    --------
    >>> rows_at_once((60000, 28, 28), 1, None), rows_at_once((60000, 28, 28), 1, 4096)
    (1337, 4096)
    """
    nbytes = itemsize
    for length in shape[1:]:
        nbytes *= length
    if chunk is None:
        return max(1, _AT_ONCE // max(1, nbytes))
    return max(1, min(chunk, _MOST_AT_ONCE // max(1, nbytes)))


def common_rows(arrays: Mapping[str, StoredArray], path: str, wanted: Collection[str] | None) -> int:
    """Return how many rows all arrays have, those of `wanted` or all.

    Raises
    ------
    SourceError
        If there is no array, one without rows, or some with other numbers of rows; names them.
    """
    lengths: dict[str, tuple[int, ...]] = {}
    for name in arrays:
        if wanted is None or name in wanted:
            lengths[name] = arrays[name].shape
    if not lengths:
        listed = _listed(list(arrays)) if arrays else "none"
        raise SourceError(path, None, f"no array whose rows could be samples: it has {listed}")
    single = [name for name, shape in lengths.items() if not shape]
    if single:
        what = f"{_listed(single)} {'have' if len(single) > 1 else 'has'} no rows"
        raise SourceError(
            path, None, f"{what}: a single value; leave it out by naming the others: --fields a,b"
        )
    counts = {shape[0] for shape in lengths.values()}
    if len(counts) > 1:
        told = ", ".join(f"{shown(name)} {shape}" for name, shape in list(lengths.items())[:_MOST_LISTED])
        more = f", ... ({len(lengths)} in all)" if len(lengths) > _MOST_LISTED else ""
        raise SourceError(
            path,
            None,
            f"its arrays differ in their number of rows: {told}{more}; leave some out by naming the others: "
            "--fields a,b; or take each file as one sample (--samples files) or each group (--samples keys)",
        )
    return counts.pop()


def _listed(names: Sequence[str]) -> str:
    most = ", ".join(shown(name) for name in names[:_MOST_LISTED])
    return most + (f", ... ({len(names)} in all)" if len(names) > _MOST_LISTED else "")
