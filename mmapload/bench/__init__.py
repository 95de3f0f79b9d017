"""Measure the loading of a store beside what its machine can do at best, and say what bounds it.

Every loader delivers the same samples, and each of its batches is copied once to a fixed buffer. Rounds are
interleaved, and medians reported.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mmapload.bench.ceilings import chunk_files
from mmapload.bench.course import Course, Settings
from mmapload.bench.matching import match
from mmapload.bench.rounds import (
    MOST_TIMES,
    cached_now,
    file_bytes,
    one_round,
    standings,
)
from mmapload.bench.verdict import Figures, Rate, bound_by
from mmapload.budget import resolve_budget
from mmapload.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmapload.bench.loaders import Part
    from mmapload.bench.rounds import Contender, Run, Standing
    from mmapload.bench.verdict import Verdict
    from mmapload.progress import Progress
    from mmapload.stats import LoaderStats
    from mmapload.store import Store

__all__ = ["Bench", "Settings", "run_bench"]

LEAST_SECONDS: Final = 0.1
"""What takes less is done again if there is time, since some contenders take far longer than others."""

_SHORT_SECONDS: Final = LEAST_SECONDS / MOST_TIMES
"""What takes less is told to be too short to rely on, although it was done several times."""

_OVERTIME: Final = 1.5
"""How many times as long as asked for measuring takes, at most: what has begun is worth a round more."""

_STAYED: Final = 0.01
"""Share of a file's bytes that may stay in the page cache when it is dropped."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What was measured, and how.

    Attributes
    ----------
    samples : int
        How many samples each loader delivered in a round.
    batch_size, window : int
        Samples in a batch, and in a window of `shuffle="window"`.
    rounds : int
        How often each contender was measured.
    cold : bool
        Whether files were dropped from the page cache before they were read.
    exceeds : bool
        Whether the store exceeds the memory budget.
    cached_before : int or None
        Bytes of the store's chunk files in the page cache before anything was read; None if nobody may know.
    file_nbytes : int
        Size of its chunk files.
    standings : tuple of Standing
        The rates.
    verdict : Verdict
        What bounds the window loader.
    stats : LoaderStats
        What the window loader said of itself after its last run.
    notes : tuple of str
        What to know of these figures.
    """

    samples: int
    batch_size: int
    window: int
    rounds: int
    cold: bool
    exceeds: bool
    cached_before: int | None
    file_nbytes: int
    standings: tuple[Standing, ...]
    verdict: Verdict
    stats: LoaderStats
    notes: tuple[str, ...]


def run_bench(
    store: Store, settings: Settings, progress: Progress | None = None, *, start: float | None = None
) -> Bench:
    """Measure the loading of a store.

    Parameters
    ----------
    store : Store
        Raw or compressed, of any size.
    settings : Settings
        How to measure.
    progress : Progress, optional
        Told about samples as they are delivered.
    start : float, optional
        When `settings.seconds` began, by `time.monotonic`: by default now.

    Returns
    -------
    Bench
        Rates in samples/s.

    Raises
    ------
    ChunkError
        If a chunk file is missing, of a wrong size, or cannot be decoded.
    SourceError
        If the files of `settings.source` are not those that the store was made from.
    """
    start = time.monotonic() if start is None else start
    progress = progress or SilentProgress()
    store.expect_all_files(store.layout.fields)
    paths = [path for _, _, path in chunk_files(store, store.layout.chunks)]
    cached_before, total = cached_now(paths), file_bytes(paths)
    memory = resolve_budget(settings.memory)
    exceeds = sum(map(store.decoded_nbytes, store.layout.fields)) > memory
    cold = settings.cold or exceeds
    arrays = match(store, settings.source) if settings.source is not None else None
    course = Course(store, settings, arrays, memory, exceeds=exceeds, cold=cold)
    if settings.samples is None:
        progress.note("finding out how many samples to measure")
        part, contenders, warm = course.fitting(start + settings.seconds)
    else:
        part = course.part(settings.samples)
        contenders, warm = course.contenders(part), False
    many = f"{settings.rounds} round{'s' * (settings.rounds > 1)}"
    progress.note(f"measuring {part.samples:,} of {len(store):,} samples, {many}")
    numbers = range(1 if cold or warm else 0, settings.rounds + 1)
    progress.start(sum(each.samples for each in contenders) * len(numbers), store.layout.sample_nbytes)
    try:
        rounds = _measure(contenders, settings, numbers, start, progress, cold=cold)
    finally:
        progress.close()
    found = standings(contenders, rounds)
    window = part.window_that_fits()
    return Bench(
        part.samples,
        part.batch_size,
        window,
        len(rounds),
        cold,
        exceeds,
        cached_before,
        total,
        tuple(found),
        _verdict(found, part, window),
        next(each.stats() for each in contenders if each.stats is not None),
        tuple(_notes(found, part, settings, len(rounds), cold=cold)),
    )


def _measure(
    contenders: Sequence[Contender],
    settings: Settings,
    numbers: range,
    start: float,
    progress: Progress,
    *,
    cold: bool,
) -> list[list[Run]]:
    """Run the rounds with these numbers, of which 0 does not count: it warms the page cache up.

    Where the time decides, short runs are done again within it, and no round is begun that ends after it.
    """
    timed = settings.samples is None
    left = max(0.0, start + settings.seconds - time.monotonic())
    least = min(LEAST_SECONDS, left / len(numbers) / len(contenders)) if timed else LEAST_SECONDS
    done = 0

    def count(contender: Contender) -> None:
        nonlocal done
        done += contender.samples
        progress.at(done)

    rounds: list[list[Run]] = []
    for number in numbers:
        began = time.monotonic()
        runs = one_round(contenders, number, cold=cold, done=count, least_seconds=least if number else 0)
        if number:
            rounds.append(runs)
        now = time.monotonic()
        if timed and rounds and now + (now - began) > start + _OVERTIME * settings.seconds:
            break
    return rounds


def _verdict(found: Sequence[Standing], part: Part, window: int) -> Verdict:
    by_name = {each.name: each for each in found}
    loader = by_name["ChunkDataLoader, window"]
    reads = [each for each in found if each.kind in {"pread", "populate"}]
    raw = all(field.codec.is_raw for field in part.store.layout.fields)
    usable = reads if raw else [each for each in reads if each.kind == "pread"]  # frames have to be read
    best = max(usable, key=lambda each: each.rate, default=None)
    decodes = next((each for each in found if each.kind == "decode"), None)
    return bound_by(
        Figures(
            _rate(loader),
            _rate(by_name["memory copy, twice at once"]),
            None if best is None else _rate(best),
            "" if best is None else best.name,
            None if decodes is None else _rate(decodes),
            loader.disk_share if best is not None else None,
            None if best is None else best.disk_share,
            part.batch_size * part.store.layout.sample_nbytes,
            part.batch_size,
            part.samples / window,
            len(os.sched_getaffinity(0)),
        )
    )


def _rate(standing: Standing) -> Rate:
    return Rate(standing.rate, standing.least, standing.most)


def _notes(
    found: Sequence[Standing], part: Part, settings: Settings, rounds: int, *, cold: bool
) -> list[str]:
    notes = []
    if part.exceeds and not settings.cold:
        notes.append(
            "the store exceeds the memory budget: files were dropped from the page cache before each run, as "
            "training finds them"
        )
    stayed = [each for each in found if each.stayed is not None]
    if cold and any(each.stayed is None for each in found if each.file_nbytes):
        notes.append("whether dropping files from the page cache worked, the system does not tell this user")
    elif any((each.stayed or 0) > _STAYED * each.file_nbytes for each in stayed):
        most = max((each.stayed or 0) / max(1, each.file_nbytes) for each in stayed)
        notes.append(
            f"up to {100 * most:.0f} % of a run's files stayed in the page cache when dropped: they "
            "are in use, or not on the disk yet, or on a file system in memory; the figures are not cold"
        )
    if rounds < settings.rounds:
        notes.append(f"ended after {rounds} of {settings.rounds} rounds, as the time was over (--seconds)")
    if rounds == 1:
        notes.append("one round does not show how far the figures vary")
    shortest = min(min(each.seconds) for each in found if each.kind == "loader")
    if shortest < _SHORT_SECONDS:
        notes.append(f"the shortest run took {shortest * 1e3:.1f} ms: too short to rely on its figure")
    if part.samples < part.store.layout.chunk_length and part.samples < len(part.store):
        notes.append("less than a chunk was loaded: what is read or decoded by whole chunks looks slower")
    return notes
