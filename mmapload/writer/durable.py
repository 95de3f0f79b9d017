"""Files that are whole or absent, also after a power cut: written aside, flushed, renamed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Final

from mmapload.errors import MmaploadError
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Buffer, Iterator, Sequence
    from io import BufferedReader

__all__ = [
    "NO_ROOM",
    "TEMPORARY",
    "explain",
    "explained",
    "free_bytes",
    "open_regular",
    "sync_folder",
    "write_durably",
]

TEMPORARY: Final = ".tmp"
"""Ending of a file that is being written."""

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a full disk, a quota and a limit on the size of files raise."""


def free_bytes(folder: str) -> int:
    """Return the room that is left to us on the file system of `folder`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def explain(error: OSError, path: str, nbytes: int) -> str:
    """Say why a file of `nbytes` could not be written, and what to do."""
    again = "run the same command again to continue"
    reason = error.strerror or str(error)
    if error.errno not in NO_ROOM:
        return f"{reason}; see to it, and {again}"
    with contextlib.suppress(OSError):
        reason += f"; {format_size(nbytes)} to write, {format_size(free_bytes(os.path.dirname(path)))} free"
    cure = "raise the limit on file sizes" if error.errno == errno.EFBIG else "make room"
    return f"{reason}; {cure}, and {again}"


def write_durably(path: str, parts: Sequence[Buffer], hole: int = 0) -> None:
    """Write a file under a temporary name, flush it, and rename it.

    The folder's own entry is flushed by `sync_folder`. Pages that are on the disk leave the page cache: a
    store is mostly larger than memory, and would push out what other programs keep there. It costs no time.

    Parameters
    ----------
    parts : sequence of buffers
        The file's contents, in order; written without a copy.
    hole : int
        Zero bytes between the first part and the others, which take no room where the file system can do so.

    Raises
    ------
    OSError
        As the system says it; nothing is left under either name.
    """
    temporary = path + TEMPORARY
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        try:
            views = [memoryview(part).cast("B") for part in parts]
            if hole:
                _write_fully(fd, views[:1])
                os.lseek(fd, hole, os.SEEK_CUR)
            _write_fully(fd, views[1:] if hole else views)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _write_fully(fd: int, parts: list[memoryview]) -> None:
    while parts:
        written = os.writev(fd, parts)  # one call writes at most 2 GiB
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if written:
            parts[0] = parts[0][written:]


def open_regular(path: str) -> BufferedReader:
    """Open a file to be read, and nothing else: follow no link, and wait for no pipe.

    Raises
    ------
    MmaploadError
        If it is no regular file.
    OSError
        If it is a link, or cannot be opened.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise MmaploadError(f"{path} is no file, where a run before this one has left one: move it away")
    return open(fd, "rb")


def sync_folder(path: str) -> None:
    """Flush a folder, so that files renamed in it stay renamed."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def explained(path: str, nbytes: int) -> Iterator[None]:
    """Turn an OSError into one whose text says how much was to be written, how much is free, what to do."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, explain(error, path, nbytes), path) from error
