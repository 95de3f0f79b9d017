"""How far something has come within another call: said by whoever does it, to whoever listens."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Stage", "reached"]

_this_thread: Final = threading.local()


class Stage:
    """What one thread is at, and since when; another may ask.

    Examples
    --------
    >>> stage = Stage()
    >>> with stage.heard():
    ...     reached("files found", 412_000)
    ...     reached("headers read", 0, 1_000_000)
    >>> str(stage)
    '0 of 1,000,000 headers read'
    >>> reached("files found", 1)  # nobody listens
    """

    def __init__(self) -> None:
        self._now: tuple[str, int, int | None] | None = None
        self._since = 0.0
        self._at_first = 0

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear what this thread says within."""
        before = getattr(_this_thread, "stage", None)
        _this_thread.stage = self
        try:
            yield
        finally:
            _this_thread.stage = before

    def take(self, what: str, done: int, total: int | None) -> None:
        """Note how far it is."""
        if self._now is None or self._now[0] != what or done < self._now[1]:
            self._since, self._at_first = time.monotonic(), done
        self._now = what, done, total

    @property
    def seconds_left(self) -> float | None:
        """Seconds until this stage ends at its rate so far; None if nobody knows."""
        if self._now is None:
            return None
        _, done, total = self._now
        if total is None or done <= self._at_first:
            return None
        return (total - done) * (time.monotonic() - self._since) / (done - self._at_first)

    def __str__(self) -> str:
        if self._now is None:
            return ""
        what, done, total = self._now
        return f"{done:,} {what}" if total is None else f"{done:,} of {total:,} {what}"


def reached(what: str, done: int, total: int | None = None) -> None:
    """Say how far this thread is, to whoever listens.

    Parameters
    ----------
    what : str
        What is counted: "files found".
    done : int
        How many are done.
    total : int, optional
        How many there are, if that is known.
    """
    stage: Stage | None = getattr(_this_thread, "stage", None)
    if stage is not None:
        stage.take(what, done, total)
