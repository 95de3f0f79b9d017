"""When chunks are needed, where their rows are taken at any steps: visits of a limited length."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmapload.order.geometry import Use

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

__all__ = ["planned_visits"]


def planned_visits(
    numbers: Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]],
    start: int,
    steps: int,
    chunks: int,
    chunk_length: int,
    *,
    stay: int,
    few: int = 0,
) -> Iterator[Use]:
    """Yield the visits of all chunks, by rising first step.

    A visit begins at the first step that takes a row of its chunk and lies in no visit before. It lasts until
    the last such step among the `stay` that follow.

    Parameters
    ----------
    numbers : callable
        Returns the numbers in the store of samples that are taken at steps `low` up to `high`, in any order
        within a step, and how many at each of the steps.
    start, steps : int
        The first step, and the number of steps of the epoch.
    chunks, chunk_length : int
        Of the store.
    stay : int
        From 0 up.
    few : int
        Visits for no more rows than this are left out.

    Examples
    --------
    >>> taken = np.array([0, 4, 1, 5, 2, 3])  # one at each step, of two chunks
    >>> def numbers(low, high):
    ...     return taken[low:high], np.ones(high - low, int)
    >>> for use in planned_visits(numbers, 0, 6, chunks=2, chunk_length=4, stay=3):
    ...     print(use)
    Use(chunk=0, start=0, stop=2, first_step=0, last_step=2)
    Use(chunk=1, start=0, stop=2, first_step=1, last_step=3)
    Use(chunk=0, start=2, stop=4, first_step=4, last_step=5)
    """
    block = stay + 1  # a chunk begins one visit in it at most
    until = np.full(chunks, -1)
    coming = _by_chunk(numbers, start, min(start + block, steps), chunk_length)
    for low in range(start, steps, block):
        middle, high = (min(low + count * block, steps) for count in (1, 2))
        after = _by_chunk(numbers, middle, high, chunk_length)
        taken = np.concatenate([coming, after], axis=1)
        coming = after
        chunk, step, row = taken[:, np.lexsort((taken[1], taken[0]))]
        keys = chunk * (2 * block) + (step - low)
        visited = chunk[np.flatnonzero(np.diff(chunk, prepend=-1))]
        wanted = visited * (2 * block) + np.maximum(until[visited] + 1 - low, 0)
        first = np.searchsorted(keys, wanted)
        begun = first < np.searchsorted(keys, visited * (2 * block) + (middle - low))
        visited, first = visited[begun], first[begun]
        until[visited] = step[first] + stay
        last = np.searchsorted(keys, keys[first] + stay, "right")
        many = last - first > few
        visited, first, last = visited[many], first[many], last[many]
        cuts = np.stack([first, last], axis=1).ravel()
        row = np.append(row, 0)  # a cut at the end is one before something
        starts, stops = np.minimum.reduceat(row, cuts)[::2], np.maximum.reduceat(row, cuts)[::2] + 1
        columns = np.stack([visited, starts, stops, step[first], step[last - 1]])
        for values in columns[:, np.argsort(columns[3], kind="stable")].T.tolist():
            yield Use(*values)


def _by_chunk(
    numbers: Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.int64]]],
    low: int,
    high: int,
    chunk_length: int,
) -> NDArray[np.int64]:
    """Return chunk, step and row of all that is taken at some steps; shape (3, n)."""
    if low == high:
        return np.empty((3, 0), np.int64)
    found, counts = numbers(low, high)
    chunk, row = np.divmod(found, chunk_length)
    return np.stack([chunk, np.repeat(np.arange(low, high), counts), row])
