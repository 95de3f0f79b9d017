"""What can go wrong, one class a kind; every message says what, where, expected, found, and what to do.

All derive from `MmaploadError`, and each also from the built-in exception that a caller who does
not know mmapload would expect.
"""

from __future__ import annotations

import reprlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "ChunkError",
    "LayoutError",
    "MmaploadError",
    "SourceError",
    "StateMismatchError",
    "StoreNotFoundError",
    "WorkerError",
]

_MOST_SHOWN: Final = 400
_MOST_LISTED: Final = 50
_SHORT: Final = reprlib.Repr()
_SHORT.maxlevel = 4
_SHORT.maxdict = _SHORT.maxlist = _SHORT.maxtuple = 12
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = 120


def shown(value: object) -> str:
    """Write a value that was found in a file, shortened, so that a message stays readable whatever it is.

    Examples
    --------
    >>> shown(list(range(100)))
    '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]'
    """
    text = _SHORT.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN // 2]}...{text[-_MOST_SHOWN // 2 :]}"


def printable(text: str, keep: str = "") -> str:
    r"""Escape what would garble or command a terminal: control characters, line ends, changes of direction.

    Parameters
    ----------
    text : str
        A path or a name, from a stranger perhaps; bytes that are no UTF-8 stand in it as surrogates.
    keep : str
        Characters that stay as they are.

    Examples
    --------
    >>> printable("größe\x1b[2J\n.npz")
    'größe\\x1b[2J\\n.npz'
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in keep else ascii(each)[1:-1] for each in text)


class MmaploadError(Exception):
    """Base of every error that mmapload raises on purpose."""

    def __str__(self) -> str:
        """Return the message, safe to print whatever names are in it."""
        return printable(super().__str__(), keep="\n")


class StoreNotFoundError(MmaploadError, FileNotFoundError):
    """There is no finished store at this path."""


class LayoutError(MmaploadError, ValueError):
    """A store's metadata is not what the format allows.

    Attributes
    ----------
    path : str
        The store.
    problems : tuple of str
        Every problem found, not only the first; the message lists the first 50.
    """

    def __init__(self, path: str, problems: Iterable[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        listed = "".join(f"\n  - {printable(problem)}" for problem in self.problems[:_MOST_LISTED])
        if len(self.problems) > _MOST_LISTED:
            listed += f"\n  - and {len(self.problems) - _MOST_LISTED:,} more"
        super().__init__(f"{printable(path)} is not a store that mmapload can read:{listed}")

    def __reduce__(self) -> tuple[type[LayoutError], tuple[str, tuple[str, ...]]]:
        return type(self), (self.path, self.problems)


class ChunkError(MmaploadError, OSError):
    """A chunk file is missing, of the wrong size, or damaged.

    Attributes
    ----------
    field, chunk, path : str, int, str
        Which chunk of which field, and its file.
    expected, found : str
        What the store promises, and what is there.
    samples : range or None
        Numbers of the samples in that chunk, where they are known.
    names : tuple of str
        Where the first of these samples came from, if the store keeps names.

    Notes
    -----
    `Store.sample_name` and `mmapload info STORE --sample I` tell the name of any sample; those of a chunk may
    lie anywhere in their source, where `preprocess --shuffle` has mixed them.

    With a single argument it is a message, and the attributes are empty: so torch can raise this class again
    for an error of a worker process, whose message and traceback it carries over as text.
    """

    def __init__(
        self,
        field: str,
        chunk: int = -1,
        path: str = "",
        expected: str = "",
        found: str = "",
        advice: str = "",
        samples: range | None = None,
        names: Iterable[str] = (),
    ) -> None:
        carried_over = "" if path else field
        self.field = "" if carried_over else field
        self.chunk = chunk
        self.path = path
        self.expected = expected
        self.found = found
        self.advice = advice or "restore the file from a copy, or preprocess again"
        self.samples = samples
        self.names = tuple(names)
        where = f"chunk {chunk} of field {field!r}{self._samples_text()}"
        super().__init__(
            carried_over or printable(f"{where}: expected {expected}, found {found} in {path}; {self.advice}")
        )

    def _samples_text(self) -> str:
        if not self.samples:
            return ""
        first, last = self.samples[0], self.samples[-1]
        numbers = f", sample {first}" if first == last else f", samples {first} to {last}"
        if not self.names:
            return numbers
        # No "A to B": names need not be consecutive.
        more = len(self.samples) - len(self.names)
        return f"{numbers} ({', '.join(map(shown, self.names))}{f' and {more} more' if more > 0 else ''})"

    def of_samples(self, samples: range, names: Iterable[str]) -> ChunkError:
        """Return this error with the samples that it concerns."""
        told = (self.field, self.chunk, self.path, self.expected, self.found, self.advice)
        return type(self)(*told, samples, names).with_traceback(self.__traceback__)

    def __reduce__(self) -> tuple[type[ChunkError], tuple[Any, ...]]:
        if not self.path:
            return type(self), (str(self),)
        told = (self.field, self.chunk, self.path, self.expected, self.found, self.advice)
        return type(self), (*told, self.samples, self.names)


class SourceError(MmaploadError, ValueError):
    """A sample of the source cannot be read, or does not fit the others.

    Attributes
    ----------
    file : str
        The file, or a description of the sample where there is no file.
    member : str or None
        The array in it, if the fault lies in one.
    cause : str
        What is wrong and what to do.
    """

    def __init__(self, file: str, member: str | None, cause: str) -> None:
        self.file = file
        self.member = member
        self.cause = cause
        where = file if member is None else f"{file}, member {shown(member)}"
        super().__init__(printable(f"{where}: {cause}"))

    def __reduce__(self) -> tuple[type[SourceError], tuple[str, str | None, str]]:
        return type(self), (self.file, self.member, self.cause)


class StateMismatchError(MmaploadError, ValueError):
    """Something saved does not belong to what it is being applied to.

    Attributes
    ----------
    saved, current : str
        Both sides of the difference.
    """

    def __init__(self, message: str, saved: str, current: str) -> None:
        self.message = message
        self.saved = saved
        self.current = current
        super().__init__(f"{message}: saved {saved}, now {current}")

    def __reduce__(self) -> tuple[type[StateMismatchError], tuple[str, str, str]]:
        return type(self), (self.message, self.saved, self.current)


class WorkerError(MmaploadError, RuntimeError):
    """A worker process or thread ended without delivering its batch."""
