"""Open what has to be a plain file; else say what it is, or why it cannot be opened."""

from __future__ import annotations

import errno
import os
import re
import stat
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError, shown

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["is_folder", "not_a_file", "open_descriptor", "open_plain", "typed", "why_not"]

_TYPED: Final = re.compile(r"\$'((?:[^'\\]|\\.)*)'")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9a-f]{2})|(.))")

# What this process or the machine lacks for the moment; it says nothing against the file.
_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_KINDS: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_descriptor(path: str) -> tuple[int, os.stat_result]:
    """Open a plain file to read; returns descriptor and status.

    Raises
    ------
    SourceError
        If it is something else, or cannot be opened.
    OSError
        If the process or the machine lacks descriptors or memory for the moment.
    """
    try:
        # Without O_NONBLOCK opening a pipe would wait for a writer; on a file it has no effect.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _SCARCE:
            raise
        raise SourceError(path, None, why_not(path, error)) from None
    status = os.fstat(fd)
    if stat.S_ISREG(status.st_mode):
        return fd, status
    os.close(fd)
    raise SourceError(path, None, not_a_file(status.st_mode))


def open_plain(path: str) -> BinaryIO:
    """Open a plain file as a binary file; raises as `open_descriptor`."""
    fd, _ = open_descriptor(path)
    return open(fd, "rb")


def not_a_file(mode: int) -> str:
    """Say what something is that should be a file.

    Examples
    --------
    >>> not_a_file(stat.S_IFIFO | 0o644)
    'not a file but a named pipe: leave it out'
    """
    return f"not a file but {_KINDS.get(stat.S_IFMT(mode), 'something else')}: leave it out"


def why_not(path: str, error: OSError | ValueError) -> str:
    """Say why a path cannot be opened, and what to do.

    Parameters
    ----------
    path : str
        The path.
    error : OSError or ValueError
        What opening it raised.
    """
    number = getattr(error, "errno", None)
    reason = f"cannot be opened: {getattr(error, 'strerror', None) or error}"
    if number == errno.ENXIO:
        return not_a_file(stat.S_IFSOCK)  # nothing else that can lie in a folder of files
    if number == errno.ELOOP:
        return f"{reason}: a link that leads to itself, perhaps by others: remove it"
    if number == errno.ENOENT and os.path.islink(path):
        return f"a link to {shown(os.readlink(path))}, which is not there: mend or remove it"
    if number == errno.ENOENT and (real := _untyped(path)) != path and os.path.lexists(real):
        return "its name is not UTF-8: rename it"
    if number in {errno.EACCES, errno.EPERM}:
        return f"{reason}: check who may read it, and go through the folders above"
    return reason


def typed(path: str) -> str:
    r"""Return a path whose parts are UTF-8, with others as one types them in a shell; nothing lies at it.

    So it can be printed and stored. Who opens it is told that the name is not UTF-8.

    Parameters
    ----------
    path : str
        As the system gives it: bytes that are no UTF-8 stand in it as surrogates.

    Examples
    --------
    >>> print(typed(os.fsdecode(b"in/b\xe9b\xe9's.npz")))
    in/$'b\xe9b\xe9\'s'.npz
    """
    return "/".join(map(_typed_part, path.split("/")))


def _typed_part(part: str) -> str:
    raw = os.fsencode(part)
    try:
        raw.decode()
    except UnicodeDecodeError:
        stem, suffix = os.path.splitext(part)
        stem, suffix = (stem, suffix) if suffix.isascii() else (part, "")
        quoted = stem.replace("\\", "\\\\").replace("'", "\\'")
        return f"$'{os.fsencode(quoted).decode('utf-8', 'backslashreplace')}'{suffix}"
    return part


def _untyped(path: str) -> str:
    def part(match: re.Match[str]) -> str:
        return _ESCAPE.sub(lambda each: chr(0xDC00 + int(each[1], 16)) if each[1] else each[2], match[1])

    return _TYPED.sub(part, path)


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Tell by the folder's own listing; only links are looked up.

    A link to itself, or to where one may not look, is none: reading it says what is wrong.
    """
    try:
        return entry.is_dir()
    except OSError:
        return False
