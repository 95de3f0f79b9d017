"""Fill a chunk's buffers from a source that reads many samples at a time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from mmapload.preprocessing.fill import write_stand_ins
from mmapload.sources.grouped import grouped
from mmapload.spent import now, spend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.preprocessing.buffers import Rows
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.sources.grouped import GroupedSource, Sums

__all__ = ["added", "gather", "many_of", "sums_of"]


def many_of(plan: PreprocessPlan) -> GroupedSource | None:
    """Return a plan's source if many of its samples are read at a time."""
    return None if plan.ragged else grouped(plan.source)


def added(all_sums: Iterable[Sums]) -> dict[str, tuple[int, int]]:
    """Return the sums of all that was read.

    Examples
    --------
    >>> added([{"0 x": (10, 0b1100)}, {"0 x": (20, 0b1010), "1 x": (5, 1)}])
    {'0 x': (30, 6), '1 x': (5, 1)}
    """
    found: dict[str, tuple[int, int]] = {}
    for sums in all_sums:
        for key, (nbytes, total) in sums.items():
            before = found.get(key, (0, 0))
            found[key] = before[0] + nbytes, before[1] ^ total
    return found


def gather(
    plan: PreprocessPlan,
    source: GroupedSource,
    indices: Sequence[int],
    rows: Rows,
    go_on: Callable[[int], bool],
) -> tuple[Counter[str], Sums]:
    """Read samples into the first rows, with stand-ins where they lack fields.

    Parameters
    ----------
    go_on : callable
        Told after every piece how many samples are read; returns whether to go on.

    Returns
    -------
    Counter, Sums
        In how many samples something stands in, by field; and what was read.

    Raises
    ------
    UnsoundFileError
        If a file is not sound.
    """
    stand_ins: Counter[str] = Counter()
    sums: list[Sums] = []
    length = max(1, source.at_once // max(1, plan.sample_bytes))
    arrays = cast("Mapping[str, npt.NDArray[Any]]", rows)
    for start in range(0, len(indices), length):
        some = indices[start : start + length]
        into = {
            name: array[start : start + len(some)] for name, array in arrays.items() if name not in plan.masks
        }
        since = now()
        found = source.read_many(some, into)
        spend("reading", since)
        sums.append(found.sums)
        for mask, name in plan.masks.items():
            arrays[mask][start : start + len(some)] = True
            arrays[mask][[start + each for each in found.absent.get(name, ())]] = False
        for name, places in found.absent.items():
            for place in places:
                write_stand_ins([name], {name: into[name][place]}, plan.fill)
            stand_ins[name] += len(places)
        if not go_on(start + len(some)):
            break
    return stand_ins, added(sums)


def sums_of(plan: PreprocessPlan, source: GroupedSource, indices: Sequence[int]) -> Sums:
    """Read samples for their sums alone, a piece at a time."""
    length = max(1, source.at_once // max(1, plan.sample_bytes))
    found: list[Sums] = []
    for start in range(0, len(indices), length):
        some = indices[start : start + length]
        into = {
            name: np.empty((len(some), *spec.shape), spec.dtype)
            for name, spec in plan.schema.items()
            if name not in plan.masks
        }
        found.append(source.read_many(some, into).sums)
    return added(found)
