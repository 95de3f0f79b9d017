"""What is done of an unfinished store: JSON lines, each flushed before anything builds on it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from mmapload.strictjson import MAX_DEPTH, is_deeper
from mmapload.writer.durable import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

__all__ = ["Journal", "read_journal"]

_LONGEST: Final = 2**30
"""Bytes of a line: 16 for each sample of a chunk, and little else."""


def read_journal(path: str) -> tuple[list[dict[str, Any]], int]:
    """Read all whole lines, and how many bytes they take.

    A line that was cut short by a crash is the last one, and is left out; so is everything after it.

    Raises
    ------
    MmaploadError, OSError
        If there is something that is no regular file, or cannot be read.
    """
    entries: list[dict[str, Any]] = []
    whole = 0
    try:
        with open_regular(path) as file:
            # What an unfinished copy leaves, zeros for instance, need not be read as far as a line's end.
            while file.peek(1)[:1] == b"{" and (entry := _entry(line := file.readline(_LONGEST))) is not None:
                entries.append(entry)
                whole += len(line)
    except FileNotFoundError:
        pass
    return entries, whole


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) and not is_deeper(entry, MAX_DEPTH) else None


class Journal:
    """Appends lines to a journal.

    Parameters
    ----------
    path : str
        The file; made if it is not there.
    keep : int
        How many bytes of it hold; what follows is cut off.
    """

    def __init__(self, path: str, keep: int = 0) -> None:
        self._nbytes = keep
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._fd, keep)

    def append(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Write lines and flush them: all, or none where the disk is full."""
        text = "".join(json.dumps(entry, separators=(",", ":")) + "\n" for entry in entries).encode()
        try:
            rest = text
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, self._nbytes)
            raise
        self._nbytes += len(text)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
