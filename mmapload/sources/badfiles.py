"""Files with which something is wrong, as they are found: one does not hide the next."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from mmapload.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mmapload.sources.listing import Listing

__all__ = ["MOST_LOOKED_AT", "BadFiles", "cause_of", "looked_at", "others_told"]

MOST_LOOKED_AT: Final = 4096
"""So many samples or files are looked at for others that are bad too."""

_MOST_NAMED: Final = 20
_MOST_OF_A_CAUSE: Final = 5

Place = TypeVar("Place")


def cause_of(error: SourceError) -> str:
    """Say what is wrong, and with which member of a file."""
    return error.cause if error.member is None else f"member {error.member!r}: {error.cause}"


def looked_at(count: int, total: int, kind: str) -> str:
    """Say of how many samples or files so many were looked at."""
    return f"{total:,} {kind}" if count == total else f"the {count:,} {kind} looked at, of {total:,},"


def others_told(bad: Mapping[str, Sequence[Place]], own: str, of: str, name: Callable[[Place], str]) -> str:
    """Name what is bad beside what an error tells of, some for each cause; empty if nothing is.

    Parameters
    ----------
    bad : mapping of str to sequence
        Numbers of files or samples, or what else `name` knows, by what is wrong with them.
    own : str
        What the error itself says.
    of : str
        From `looked_at`.

    Examples
    --------
    >>> print(others_told({"is empty": [1, 2], "is cut short": [3]}, "is empty", "9 files", "s{}".format))
    3 others of 9 files are bad too, as far as headers tell: s1, s2: the same; s3: is cut short
    """
    count = sum(map(len, bad.values()))
    if not count:
        return ""
    causes, rest = [], count
    for cause, places in list(bad.items())[:_MOST_NAMED]:
        names = ", ".join(map(name, places[:_MOST_OF_A_CAUSE]))
        more = len(places) - _MOST_OF_A_CAUSE
        causes.append(f"{names}{f' and {more:,} more' * (more > 0)}: {'the same' if cause == own else cause}")
        rest -= len(places)
    causes += [f"and {rest:,} more"] * bool(rest)
    many = f"{count:,} other{'s' * (count > 1)} of {of} {'are' if count > 1 else 'is'} bad too"
    return f"{many}, as far as headers tell: {'; '.join(causes)}"


class BadFiles:
    """Looks at one file after the other, and keeps what is wrong with them.

    Parameters
    ----------
    files : Listing
        The files.
    skip : bool
        Whether to go on to the end: else the first that is bad is an error, which names the others.

    Attributes
    ----------
    faults : dict of int to SourceError
        What is wrong, by the file's number.
    """

    def __init__(self, files: Listing, *, skip: bool) -> None:
        self.faults: dict[int, SourceError] = {}
        self._files = files
        self._skip = skip

    def numbers(self) -> Iterator[int]:
        """Yield the number of each file that is to be looked at.

        Raises
        ------
        SourceError
            At the end, if one is bad and none are skipped: names all that are, of 4,096 behind it at most.
        """
        count = 0
        for file in range(len(self._files)):
            if self.faults and not self._skip and file > min(self.faults) + MOST_LOOKED_AT:
                break
            yield file
            count += 1
        if self.faults and not self._skip:
            raise self._error(count) from self.faults[min(self.faults)].__cause__

    @contextmanager
    def noting(self, file: int) -> Iterator[None]:
        """Keep what is found to be wrong with a file."""
        try:
            yield
        except SourceError as error:
            self.faults[file] = error

    def _error(self, count: int) -> SourceError:
        first, *others = sorted(self.faults)
        error = self.faults[first]
        bad: dict[str, list[int]] = {}
        for file in others:
            bad.setdefault(cause_of(self.faults[file]), []).append(file)
        of = looked_at(count, len(self._files), "files")
        told = others_told(bad, cause_of(error), of, lambda file: self._files.names[file])
        return SourceError(error.file, error.member, f"{error.cause}; {told}") if told else error
