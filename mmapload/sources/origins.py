"""What the paths of a source mean: folders, files, and globs."""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError
from mmapload.sources.lists import bad_line, listed_paths
from mmapload.sources.plainfiles import not_a_file

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Origin", "listed_origins", "origin_of"]

_WILD: Final = re.compile("[*?[]")
_UNFINISHED: Final = (".part", ".partial", ".crdownload", ".download", ".filepart", ".tmp")


@dataclass(frozen=True, slots=True)
class Origin:
    """A folder, and what is meant below it: patterns, one a part of the path; none of them means all."""

    folder: str
    parts: tuple[str, ...]
    literal: bool = False  # the only part is a file's name, known to be there


def origin_of(source: str, suffixes: tuple[str, ...]) -> Origin:
    """Return what a path means: a folder, a file, or a glob.

    Raises
    ------
    SourceError
        If there is nothing at it, or a file of another kind.
    """
    path = os.path.abspath(source)
    if os.path.isdir(path):
        return Origin(path, ())
    parts = path.split("/")
    wild = next((at for at, part in enumerate(parts) if _WILD.search(part)), None)
    if wild is None or os.path.lexists(path):
        return _file_origin(path, suffixes, "")
    folder = "/".join(parts[:wild]) or "/"
    if not os.path.isdir(folder):
        raise SourceError(path, None, f"there is no folder {folder}")
    return Origin(folder, tuple(parts[wild:]))


def _file_origin(path: str, suffixes: tuple[str, ...], named: str) -> Origin:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        what = f"{getattr(error, 'strerror', error)}{named}"
        if isinstance(error, FileNotFoundError):
            what += ": check the path"
            ends = " or ".join(suffixes)
            what += (
                "; those in a list start from its folder"
                if named
                else f" of the folder, file or glob; samples are files whose names end in {ends}"
            )
        raise SourceError(path, None, what) from None
    if not stat.S_ISREG(mode):
        raise SourceError(path, None, f"{not_a_file(mode)}{named}")
    if path.lower().endswith(_UNFINISHED):
        raise SourceError(path, None, f"the name of a download that has not ended{named}: wait for it")
    if not path.lower().endswith(suffixes):
        raise SourceError(
            path,
            None,
            f"its name should end in {' or '.join(suffixes)}{named}; to skip other files, give the folder, "
            "or a glob in quotes",
        )
    return Origin(os.path.dirname(path), (os.path.basename(path),), literal=True)


def listed_origins(list_file: str, suffixes: tuple[str, ...]) -> Iterator[Origin]:
    """Return the files that a list names, one a line; raises as `origin_of`, and says which line."""
    folder = os.path.dirname(list_file)
    for number, name, instead in listed_paths(list_file):
        path = os.path.normpath(os.path.join(folder, name))
        try:
            yield _file_origin(path, suffixes, f" (line {number} of {list_file})")
        except SourceError as error:
            if not instead:
                raise
            raise bad_line(list_file, number, name, error.cause, instead) from None
