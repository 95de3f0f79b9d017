"""Samples of which many lie in one file: read many at a time, and proved by what the file says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from mmapload.errors import SourceError
from mmapload.sources import IndexedSource

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import numpy.typing as npt

__all__ = ["Gathered", "GroupedSource", "Sums", "UnsoundFileError", "grouped"]

Sums: TypeAlias = "Mapping[str, tuple[int, int]]"
"""Of every array that was read from: how many bytes, and their CRC-32s in the way of `columns.Reading`."""


class UnsoundFileError(SourceError):
    """What is wrong with a file that holds several samples: none of them can be trusted.

    Parameters
    ----------
    error : SourceError
        What is wrong.
    indices : sequence of int
        The samples of that file.
    """

    def __init__(self, error: SourceError, indices: Sequence[int]) -> None:
        super().__init__(error.file, error.member, error.cause)
        self.indices = indices


@dataclass(frozen=True, slots=True)
class Gathered:
    """What came of reading many samples.

    Attributes
    ----------
    absent : mapping of str to sequence of int
        For each optional field that samples lack, which of those asked for.
    sums : Sums
        What was read of which array.
    """

    absent: Mapping[str, Sequence[int]] = field(default_factory=dict)
    sums: Sums = field(default_factory=dict)


class GroupedSource(IndexedSource, Protocol):
    """An indexed source that reads many samples at a time.

    Attributes
    ----------
    rereads : bool
        Whether arrays have no CRC-32 of their own, so that a change between two runs is seen only by reading
        them again.
    at_once : int
        How many bytes of samples are best read together.
    """

    rereads: bool
    at_once: int

    def heads(self, indices: Sequence[int]) -> list[int]:
        """Return one sample of each file that these samples lie in, in the order of the files."""

    def names(self, indices: Sequence[int]) -> list[str]:
        """Name many samples."""

    def names_nbytes(self) -> int:
        """Count the bytes of the names of all samples."""

    def roll(self) -> Iterator[str]:
        """Yield texts that change whenever a sample's name or place does."""

    def read_many(self, indices: Sequence[int], into: Mapping[str, npt.NDArray[Any]]) -> Gathered:
        """Read samples into arrays that have a row for each of them.

        Raises
        ------
        UnsoundFileError
            If a file is not sound.
        """

    def prove(self, sums: Sums) -> None:
        """Compare the CRC-32 of arrays that were read as a whole.

        Raises
        ------
        UnsoundFileError
            If one is not what the file says.
        """

    def prove_rest(self, sums: Sums, files: Collection[int] | None = None) -> None:
        """As `prove`; arrays of which only a part was read are read once more, as a whole.

        Only files count whose first sample is in `files`, if that is given.
        """


def grouped(source: object) -> GroupedSource | None:
    """Return a source that reads many samples at a time as such; None if it does not."""
    return cast("GroupedSource", source) if hasattr(source, "read_many") else None
