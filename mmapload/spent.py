"""Where the time of a long job goes: seconds that its threads spend, by what they do."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


__all__ = ["Spent", "now", "spend"]

now: Final = perf_counter
"""Seconds, rising, to give to `spend` afterwards."""

_this_thread: Final = threading.local()


class Spent:
    """Seconds that threads have spent; each adds to counts of its own, so that none waits for another.

    Examples
    --------
    >>> spent = Spent()
    >>> with spent.counted():
    ...     since = spend("reading", now())
    >>> list(spent.seconds)
    ['reading']
    >>> since = spend("writing", since)  # nobody counts
    >>> list(spent.seconds)
    ['reading']
    """

    def __init__(self) -> None:
        self._counts: list[Counter[str]] = []

    def begin(self) -> None:
        """Count what this thread spends from now on; for the initializer of a pool of threads."""
        counts: Counter[str] = Counter()
        self._counts.append(counts)
        _this_thread.counts = counts

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count what this thread spends within."""
        before = getattr(_this_thread, "counts", None)
        self.begin()
        try:
            yield
        finally:
            _this_thread.counts = before

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds by what they were spent on, of all threads together."""
        total: Counter[str] = Counter()
        for counts in self._counts:
            total.update(counts)
        return dict(total)


def spend(what: str, since: float) -> float:
    """Add the seconds since a moment to what this thread spends, if that is counted; return the moment."""
    moment = perf_counter()
    counts = getattr(_this_thread, "counts", None)
    if counts is not None:
        counts[what] += moment - since
    return moment
