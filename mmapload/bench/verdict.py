"""What bounds a loader, said in one sentence: a pure function of the rates that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["NEAR", "Bound", "Figures", "Rate", "Verdict", "bound_by"]

Bound = Literal["copying memory", "the disk", "the page cache", "decompressing", "neither", "unknown"]

NEAR: Final = 0.7
"""A loader that reaches this share of a ceiling is bound by it: two things that share cores and memory never
run at their full speed side by side."""

_BEYOND: Final = 1.25
"""A loader that is so many times as fast as chunks are read or decompressed has them in memory already; so
many times as fast as batches are copied it cannot be."""

_STEADY: Final = 2
"""Where the fastest round is more times as fast as the slowest, the median may be anything."""

_FROM_DISK: Final = 0.1
"""Where a smaller share than this came from the disk, the page cache did the work."""

_FEW_WINDOWS: Final = 4
"""Where a run has fewer, loading the first is a good part of it, with nothing to be copied meanwhile."""

_SMALL_BATCH: Final = 2**20
"""Below this size of a batch, what Python does for each batch outweighs copying it."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Samples/s over all rounds.

    Attributes
    ----------
    median, least, most : float
        Of the rounds.
    """

    median: float
    least: float
    most: float

    @property
    def is_steady(self) -> bool:
        """Whether the rounds are near enough to each other for their median to tell something."""
        return self.most <= _STEADY * self.least

    def __str__(self) -> str:
        return f"{self.median:,.0f} samples/s, {self.least:,.0f} to {self.most:,.0f} in its rounds"


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates, and what they were measured on.

    Attributes
    ----------
    loader : Rate
        The window loader, whose batches are copied out once by the one who takes them.
    copies : Rate
        Copying batches while another thread copies as many: the loader puts each batch together, too.
    reads : Rate or None
        The fastest way to read the chunk files; None where there is nothing to read.
    reads_by : str
        Which way that was.
    decodes : Rate or None
        Reading and decompressing them as the loader does; None for a raw store.
    loader_disk, reads_disk : float or None
        Which share of the files' bytes came from the disk during each; None where nobody counts them.
    batch_nbytes : int
        Bytes of a batch.
    batch_size : int
        Samples in a batch.
    windows : float
        How many windows long a run is.
    cores : int
        Processors that this process may use.
    """

    loader: Rate
    copies: Rate
    reads: Rate | None
    reads_by: str
    decodes: Rate | None
    loader_disk: float | None
    reads_disk: float | None
    batch_nbytes: int
    batch_size: int
    windows: float
    cores: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What bounds the loader.

    Attributes
    ----------
    bound : str
        "copying memory", "the disk", "the page cache", "decompressing"; "neither", where the loader stays
        well below all of them; "unknown", where it read from the disk and the ceilings did not, or they did
        and it did not, or where the rounds differ too much.
    sentence : str
        The same for people, with the figures.
    """

    bound: Bound
    sentence: str


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def bound_by(figures: Figures) -> Verdict:
    """Say what bounds the window loader.

    It is the lowest ceiling, if the loader reaches 70 % of it; a loader can only be as fast as its slowest
    part, while its parts work side by side. Ceilings of reading and decompressing do not count where the
    loader is well above them, since it keeps what fits in memory. Nothing is told where the loader is well
    above the rate of copying, or where the rounds of either vary more than twofold, unless each round of the
    loader stays below 70 % of each of the ceiling.

    Examples
    --------
    >>> figures = Figures(
    ...     loader=Rate(2520, 2500, 2600),
    ...     copies=Rate(3000, 2900, 3100),
    ...     reads=Rate(9000, 8500, 9500),
    ...     reads_by="populate, 2 threads",
    ...     decodes=None,
    ...     loader_disk=0.0,
    ...     reads_disk=0.0,
    ...     batch_nbytes=91_750_400,
    ...     batch_size=32,
    ...     windows=4,
    ...     cores=8,
    ... )
    >>> print(bound_by(figures).sentence)
    bound by copying memory: the window loader, which copies each batch together before it is copied \
out, runs at 84 % of the rate at which this machine copies batches twice at once (3,000 samples/s)
    """
    if _differ(figures.loader_disk, figures.reads_disk):
        loader, reads = _percent(figures.loader_disk or 0), _percent(figures.reads_disk or 0)
        return Verdict(
            "unknown",
            f"what bounds it cannot be told: {loader} of the window loader's bytes came from the disk, but "
            f"{reads} where the files were only read; measure with --cold, or when nothing else uses memory",
        )
    ceilings = _ceilings(figures)
    bound = min(ceilings, key=lambda each: ceilings[each][0].median)
    rate, what = ceilings[bound]
    reached = f"{_percent(figures.loader.median / rate.median)} of {what}"
    if _is_noisy(figures.loader, rate):
        return Verdict(
            "unknown",
            f"what bounds it cannot be told: the figures are too noisy. The window loader ({figures.loader}) "
            f"runs at {reached} ({rate}); measure on an idle machine, and longer, by more --rounds and "
            "--seconds",
        )
    reached += f" ({rate.median:,.0f} samples/s)"
    if figures.loader.median >= NEAR * rate.median:
        copying = ", which copies each batch together before it is copied out," * (bound == "copying memory")
        return Verdict(bound, f"bound by {bound}: the window loader{copying} runs at {reached}")
    return Verdict(
        "neither",
        f"bound by neither reading nor copying: the window loader runs at {reached}, the lowest ceiling; "
        f"{_advice(figures)}",
    )


def _is_noisy(loader: Rate, ceiling: Rate) -> bool:
    """Say whether chance may have decided how loader and ceiling compare."""
    if loader.median > _BEYOND * ceiling.median:
        return True
    clear = loader.most < NEAR * ceiling.least
    return not clear and not (loader.is_steady and ceiling.is_steady)


def _differ(loader: float | None, reads: float | None) -> bool:
    """Say whether one of them read from the disk and the other from the page cache."""
    if loader is None or reads is None:
        return False
    return max(loader, reads) >= _FROM_DISK and min(loader, reads) < max(loader, reads) / 2


def _ceilings(figures: Figures) -> dict[Bound, tuple[Rate, str]]:
    """Return each ceiling's rate, and how to say "so many percent of it"."""
    machine = "the rate at which this machine"
    found: dict[Bound, tuple[Rate, str]] = {
        "copying memory": (figures.copies, f"{machine} copies batches twice at once")
    }
    if figures.reads is not None:
        cached = figures.loader_disk is not None and figures.loader_disk < _FROM_DISK
        place: Bound = "the page cache" if cached else "the disk"
        what = f"{machine} reads the chunk files from {place} by {figures.reads_by}"
        found[place] = (figures.reads, what)
    if figures.decodes is not None:
        found["decompressing"] = (figures.decodes, f"{machine} reads and decompresses chunks")
    return {
        bound: each
        for bound, each in found.items()
        if bound == "copying memory" or figures.loader.median <= _BEYOND * each[0].median
    }


def _advice(figures: Figures) -> str:
    from_disk = figures.loader_disk is None or figures.loader_disk >= _FROM_DISK
    if figures.reads is not None and from_disk and figures.windows < _FEW_WINDOWS:
        long = f"{figures.windows:.2g} window" + "s" * (figures.windows != 1)
        return (
            f"a run is only {long} long, and nothing is copied before the first is loaded: longer epochs "
            "come closer, and so do longer runs (--seconds)"
        )
    if figures.batch_nbytes < _SMALL_BATCH:
        each = figures.batch_size / figures.loader.median * 1e6
        return f"Python's work for each batch takes the time ({each:,.0f} µs): try a larger batch size"
    if figures.cores <= 2:
        cores = f"{figures.cores} core" + "s" * (figures.cores > 1)
        return f"reading, copying and Python share {cores}: try a machine with more"
    return (
        "Python, or other work on this machine, takes the time: try a larger batch size, and an idle machine"
    )
