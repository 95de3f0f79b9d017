"""Read a text file that names files, one a line, and notice early where it is none."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError, shown
from mmapload.sources.signatures import FIRST_BYTES, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["bad_line", "listed_paths"]

_LONGEST: Final = 4096
"""Bytes of a line; the system takes no longer path."""


def listed_paths(list_file: str) -> Iterator[tuple[int, str, str]]:
    """Yield number and path of every line that is not empty, and what the file is where it is no text.

    Raises
    ------
    SourceError
        If the file cannot be read, or a line can hold no path; says what the file is instead of a list.
    """
    try:
        with open(list_file, "rb") as file:
            instead = _instead(file.peek(FIRST_BYTES)[:FIRST_BYTES])
            number = 0
            while line := file.readline(_LONGEST + len(codecs.BOM_UTF8 + b"\r\n")):
                number += 1
                name = (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")
                text = name.decode("utf-8", "surrogateescape")
                if b"\0" in name:
                    raise bad_line(list_file, number, text, "holds a null byte", instead)
                if len(name) > _LONGEST:
                    cause = f"is longer than the {_LONGEST:,} bytes that a path may have"
                    raise bad_line(list_file, number, text, cause, instead)
                if name:
                    yield number, text, instead
    except OSError as error:
        raise SourceError(list_file, None, f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(list_file, None, f"cannot be read: {error}") from None  # a null in its own name


def bad_line(list_file: str, number: int, text: str, cause: str, instead: str) -> SourceError:
    """Return the error of a line that names no sample; `instead` as from `listed_paths`."""
    what = f"it should name one file a line, and is {instead}: " if instead else ""
    return SourceError(list_file, None, f"{what}line {number} of {list_file}, {shown(text)}, {cause}")


def _instead(first: bytes) -> str:
    """Say what begins with these bytes, or nothing if it is text."""
    if first.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "text in UTF-16 (write it in UTF-8)"
    if first.startswith(b"PK\x03\x04"):
        return "a zip or .npz file"
    what = kind_of(first)[0]
    return "" if what.startswith("text") or not first else what
