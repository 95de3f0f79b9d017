"""Measure contenders in turn, round after round, so that a machine's moods meet all of them alike."""

from __future__ import annotations

import gc
import os
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mmapload.measures import bytes_read, cached_bytes, drop_pages_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mmapload.stats import LoaderStats

__all__ = [
    "MOST_TIMES",
    "Contender",
    "Kind",
    "Run",
    "Standing",
    "cached_now",
    "file_bytes",
    "one_round",
    "standings",
    "timed",
]

MOST_TIMES: Final = 8
"""How often a short run is done, at most."""

_STRIDE: Final = 5
"""Places by which the first contender moves on from round to round."""

Kind: TypeAlias = Literal["loader", "source", "copy", "pread", "populate", "decode"]


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to be timed.

    Attributes
    ----------
    name : str
        What it is called.
    kind : str
        What it measures: a "loader" of the store, the "source" that the store was made from, or a ceiling.
    samples : int
        Samples that one run works on.
    nbytes : int
        Bytes that one run delivers, copies, or reads from files.
    files : tuple of str
        Files that it reads.
    prepare : callable
        Given the number of the round, gets ready and returns the work: a callable that does it once whenever
        it is called, and returns the seconds that it took.
    stats : callable or None
        Returns what the loader of the run prepared last says of itself.
    """

    name: str
    kind: Kind
    samples: int
    nbytes: int
    files: tuple[str, ...]
    prepare: Callable[[int], Callable[[], float]]
    stats: Callable[[], LoaderStats] | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one contender.

    Attributes
    ----------
    seconds : float
        How long it took; the mean, where it was short and done several times.
    disk : int or None
        Bytes that came from the disk; None where the kernel does not count them.
    stayed : int or None
        Bytes of its files that were in the page cache after they had been dropped; None where they were not
        dropped, or nobody may know.
    """

    seconds: float
    disk: int | None
    stayed: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """What the runs of one contender come to.

    Attributes
    ----------
    name, kind, samples, nbytes
        As of the contender.
    file_nbytes : int
        Size of the files that it reads.
    seconds : tuple of float
        Of each round.
    disk : int or None
        Bytes that came from the disk in a run, the median.
    stayed : int or None
        Bytes that could not be dropped before a run, at most.
    """

    name: str
    kind: Kind
    samples: int
    nbytes: int
    file_nbytes: int
    seconds: tuple[float, ...]
    disk: int | None
    stayed: int | None

    @property
    def rate(self) -> float:
        """Samples/s, the median."""
        return self.samples / statistics.median(self.seconds)

    @property
    def least(self) -> float:
        """Samples/s in the slowest round."""
        return self.samples / max(self.seconds)

    @property
    def most(self) -> float:
        """Samples/s in the fastest round."""
        return self.samples / min(self.seconds)

    @property
    def bytes_per_second(self) -> float:
        """Bytes delivered, copied or read a second, the median."""
        return self.nbytes / statistics.median(self.seconds)

    @property
    def disk_share(self) -> float | None:
        """Which share of the files' bytes came from the disk; None if that is not known."""
        return None if self.disk is None else self.disk / max(1, self.file_nbytes)


def one_round(
    contenders: Sequence[Contender],
    number: int,
    *,
    cold: bool,
    done: Callable[[Contender], None],
    least_seconds: float = 0.0,
) -> list[Run]:
    """Run every contender once, beginning with another one in each round; returns their runs in order.

    Parameters
    ----------
    number : int
        Of the round; contenders draw their order from it, too.
    cold : bool
        Whether the pages of a contender's files are dropped before it runs.
    done : callable
        Called after each.
    least_seconds : float
        What takes less is done again, up to `MOST_TIMES`, and its mean counts; but not if `cold`: it would
        find its files in the page cache.
    """
    runs: dict[int, Run] = {}
    for step in range(len(contenders)):
        # Whoever comes first, or after a certain other, would always find the machine in one state.
        place = (number * _STRIDE + step) % len(contenders)
        runs[place] = _run(contenders[place], number, cold=cold, least_seconds=least_seconds)
        done(contenders[place])
    return [runs[place] for place in range(len(contenders))]


def _run(contender: Contender, number: int, *, cold: bool, least_seconds: float) -> Run:
    work, stayed = contender.prepare(number), None
    if cold:
        drop_pages_of(contender.files)
        stayed = cached_now(contender.files)
        if stayed != 0:
            gc.collect()  # pages that are mapped, by something not collected yet, cannot be dropped
            drop_pages_of(contender.files)
            stayed = cached_now(contender.files)
    before = _disk_now()
    seconds = [work()]
    while not cold and sum(seconds) < least_seconds and len(seconds) < MOST_TIMES:
        seconds.append(work())
    after = _disk_now()
    disk = None if before is None or after is None else (after - before) // len(seconds)
    return Run(max(sum(seconds) / len(seconds), 1e-9), disk, stayed)


def standings(contenders: Sequence[Contender], rounds: Sequence[Sequence[Run]]) -> list[Standing]:
    """Gather the rounds' runs by contender."""
    found = []
    for contender, runs in zip(contenders, zip(*rounds, strict=True), strict=True):
        disk = [run.disk for run in runs if run.disk is not None]
        stayed = [run.stayed for run in runs if run.stayed is not None]
        found.append(
            Standing(
                contender.name,
                contender.kind,
                contender.samples,
                contender.nbytes,
                file_bytes(contender.files),
                tuple(run.seconds for run in runs),
                round(statistics.median(disk)) if disk else None,
                max(stayed, default=None),
            )
        )
    return found


def file_bytes(files: Sequence[str]) -> int:
    """Sum the sizes of files."""
    return sum(os.stat(file).st_size for file in files)


def cached_now(files: Sequence[str]) -> int | None:
    """Count the bytes of files in the page cache; None where this user may not know."""
    try:
        return cached_bytes(files)
    except PermissionError:
        return None


def _disk_now() -> int | None:
    try:
        return bytes_read()
    except OSError:
        return None


def timed(work: Callable[[], object]) -> float:
    """Do something once; returns the seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
