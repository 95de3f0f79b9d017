"""Some samples of a source, by a list of their numbers: those of a training set, for instance."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.sources.grouped import Gathered, GroupedSource, Sums, UnsoundFileError, grouped

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.sources import ArraySpec, IndexedSource
    from mmapload.sources.takelists import Take

__all__ = ["TakenGroups", "TakenSource", "take_from"]


def take_from(source: IndexedSource, taken: Take) -> TakenSource:
    """Return a source that has these samples of another, alone and in this order.

    Raises
    ------
    ValueError
        If there is no such sample, or a mask has another length than the source.
    """
    total = len(source)
    if taken.total not in {None, total}:
        raise ValueError(f"{taken.where}: a mask of {taken.total:,} samples, and the source has {total:,}")
    beyond = np.flatnonzero(taken.indices >= total)
    if len(beyond):
        at = int(beyond[0])
        more = f", and {len(beyond) - 1:,} others are beyond too" if len(beyond) > 1 else ""
        raise ValueError(
            f"{taken.where}: entry {at} is {taken.indices[at]}, and the source has {total:,} samples, "
            f"numbered from 0{more}"
        )
    many = grouped(source)
    return TakenSource(source, taken.indices) if many is None else TakenGroups(many, taken.indices)


class TakenSource:
    """Some samples of another source.

    Parameters
    ----------
    source : IndexedSource
        The other.
    indices : ndarray of int64, shape (samples,)
        Their numbers in it.

    Examples
    --------
    >>> from mmapload.sources.samples import SequenceSource
    >>> from mmapload.sources.takelists import parse_take
    >>> source = take_from(SequenceSource([{"x": 5}, {"x": 6}, {"x": 7}]), parse_take([2, 0]))
    >>> x = np.empty((), np.int64)
    >>> absent = source.read(0, {"x": x})
    >>> len(source), source.describe(0), int(x)
    (2, 'sample 2', 7)
    """

    def __init__(self, source: IndexedSource, indices: npt.NDArray[np.int64]) -> None:
        self.kind = source.kind
        self.parallel = source.parallel
        self._source = source
        self._indices = indices

    @property
    def notes(self) -> dict[str, Any]:
        """What the store keeps about its source: also of how many samples these were taken."""
        return {**getattr(self._source, "notes", {}), "taken_of": len(self._source)}

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._indices)

    def name(self, index: int) -> str | None:
        """Name sample `index` as the other source does."""
        return self._source.name(int(self._indices[index]))

    def describe(self, index: int) -> str:
        """Describe sample `index` as the other source does."""
        return self._source.describe(int(self._indices[index]))

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Return dtype and shape of the arrays of sample `index`."""
        return self._source.schema(int(self._indices[index]))

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> Collection[str] | None:
        """Read sample `index`."""
        return self._source.read(int(self._indices[index]), into)

    def fingerprint(self, index: int) -> bytes:
        """Summarise sample `index`."""
        return self._source.fingerprint(int(self._indices[index]))


class TakenGroups(TakenSource):
    """As `TakenSource`, of a source that reads many samples at a time."""

    def __init__(self, source: GroupedSource, indices: npt.NDArray[np.int64]) -> None:
        super().__init__(source, indices)
        self.rereads = source.rereads
        self.at_once = source.at_once
        self._many = source

    @property
    def spill_nbytes(self) -> int:
        """The most that copies of columns take on the disk beside the store."""
        return int(getattr(self._many, "spill_nbytes", 0))

    def _theirs(self, indices: Sequence[int]) -> list[int]:
        found: list[int] = self._indices[np.asarray(indices, np.int64)].tolist()
        return found

    def heads(self, indices: Sequence[int]) -> list[int]:
        """Return one of these samples for each file that they lie in."""
        theirs = self._theirs(indices)
        ordered = np.sort(theirs)
        heads = np.array(self._many.heads(theirs), np.int64)
        # The first taken sample at or behind the beginning of each file.
        wanted = ordered[np.searchsorted(ordered, heads)]
        order = np.argsort(self._indices, kind="stable")
        found: list[int] = order[np.searchsorted(self._indices, wanted, sorter=order)].tolist()
        return found

    def names(self, indices: Sequence[int]) -> list[str]:
        """Name many samples."""
        return self._many.names(self._theirs(indices))

    def names_nbytes(self) -> int:
        """Count the bytes of the names of all samples."""
        step = 4096
        return sum(
            len(name.encode("utf-8", "surrogateescape"))
            for start in range(0, len(self), step)
            for name in self.names(range(start, min(start + step, len(self))))
        )

    def roll(self) -> Iterator[str]:
        """Yield what the other source yields; which samples are taken is noted elsewhere."""
        return self._many.roll()

    def fingerprint(self, index: int) -> bytes:
        """Summarise sample `index`, or its file."""
        with self._own_faults():
            return super().fingerprint(index)

    def read_many(self, indices: Sequence[int], into: Mapping[str, npt.NDArray[Any]]) -> Gathered:
        """Read samples into arrays that have a row for each of them."""
        with self._own_faults():
            return self._many.read_many(self._theirs(indices), into)

    def prove(self, sums: Sums) -> None:
        """Compare the CRC-32 of arrays that were read as a whole."""
        with self._own_faults():
            self._many.prove(sums)

    def prove_rest(self, sums: Sums, files: Collection[int] | None = None) -> None:
        """As `prove`; arrays of which a part was taken are read once more, as a whole."""
        mine = range(len(self)) if files is None else list(files)
        with self._own_faults():
            self._many.prove_rest(sums, set(self._many.heads(self._theirs(mine))))

    @contextmanager
    def _own_faults(self) -> Iterator[None]:
        """Say in these numbers which samples a faulty file has."""
        try:
            yield
        except UnsoundFileError as error:
            theirs = error.indices
            mine = np.flatnonzero((self._indices >= theirs[0]) & (self._indices <= theirs[-1])).tolist()
            raise UnsoundFileError(error, mine) from None
