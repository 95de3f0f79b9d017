"""What is done of an unfinished store: JSON lines, each flushed before anything builds on it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Self

__all__ = ["Journal", "read_journal"]


def read_journal(path: str) -> tuple[list[dict[str, Any]], int]:
    """Read all whole lines, and how many bytes they take.

    A line that was cut short by a crash is the last one, and is left out; so is everything after it.
    """
    entries: list[dict[str, Any]] = []
    whole = 0
    try:
        with open(path, "rb") as file:
            for line in file:
                try:
                    entry = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    entry = None
                if not isinstance(entry, dict):
                    break
                entries.append(entry)
                whole += len(line)
    except FileNotFoundError:
        pass
    return entries, whole


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
