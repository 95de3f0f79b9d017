"""What bounds a loader, said in one sentence: a pure function of the rates that were measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["NEAR", "Bound", "Figures", "Verdict", "bound_by"]

Bound = Literal["copying memory", "the disk", "the page cache", "decompressing", "neither", "unknown"]

NEAR: Final = 0.7
"""A loader that reaches this share of a ceiling is bound by it: two things that share cores and memory never
run at their full speed side by side."""

_BEYOND: Final = 1.25
"""A loader that is so many times as fast as chunks are read or decompressed has them in memory already."""

_FROM_DISK: Final = 0.1
"""Where a smaller share than this came from the disk, the page cache did the work."""

_FEW_WINDOWS: Final = 4
"""Where a run has fewer, loading the first is a good part of it, with nothing to be copied meanwhile."""

_SMALL_BATCH: Final = 2**20
"""Below this size of a batch, what Python does for each batch outweighs copying it."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates in samples/s, and what they were measured on.

    Attributes
    ----------
    loader : float
        The window loader, whose batches are copied out once by the one who takes them.
    copies : float
        Copying batches while another thread copies as many: the loader puts each batch together, too.
    reads : float or None
        The fastest way to read the chunk files; None where there is nothing to read.
    reads_by : str
        Which way that was.
    decodes : float or None
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

    loader: float
    copies: float
    reads: float | None
    reads_by: str
    decodes: float | None
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
        and it did not.
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
    loader is well above them, since it keeps what fits in memory.

    Examples
    --------
    >>> figures = Figures(
    ...     loader=2520,
    ...     copies=3000,
    ...     reads=9000,
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
    bound = min(ceilings, key=lambda each: ceilings[each][0])
    rate, what = ceilings[bound]
    share = _percent(figures.loader / rate)
    if figures.loader >= NEAR * rate:
        copying = ", which copies each batch together before it is copied out," * (bound == "copying memory")
        return Verdict(bound, f"bound by {bound}: the window loader{copying} runs at {share} of {what}")
    return Verdict(
        "neither",
        f"bound by neither reading nor copying: the window loader runs at {share} of {what}, the lowest "
        f"ceiling; {_advice(figures)}",
    )


def _differ(loader: float | None, reads: float | None) -> bool:
    """Say whether one of them read from the disk and the other from the page cache."""
    if loader is None or reads is None:
        return False
    return max(loader, reads) >= _FROM_DISK and min(loader, reads) < max(loader, reads) / 2


def _ceilings(figures: Figures) -> dict[Bound, tuple[float, str]]:
    """Return each ceiling's rate, and how to say "so many percent of it"."""
    machine = "the rate at which this machine"
    found: dict[Bound, tuple[float, str]] = {
        "copying memory": (
            figures.copies,
            f"{machine} copies batches twice at once ({figures.copies:,.0f} samples/s)",
        )
    }
    if figures.reads is not None:
        cached = figures.loader_disk is not None and figures.loader_disk < _FROM_DISK
        place: Bound = "the page cache" if cached else "the disk"
        told = f"{figures.reads_by}: {figures.reads:,.0f} samples/s"
        found[place] = (figures.reads, f"{machine} reads the chunk files from {place} ({told})")
    if figures.decodes is not None:
        found["decompressing"] = (
            figures.decodes,
            f"{machine} reads and decompresses chunks ({figures.decodes:,.0f} samples/s)",
        )
    return {
        bound: each
        for bound, each in found.items()
        if bound == "copying memory" or figures.loader <= _BEYOND * each[0]
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
        each = figures.batch_size / figures.loader * 1e6
        return f"Python's work for each batch takes the time ({each:,.0f} µs): try a larger batch size"
    if figures.cores <= 2:
        cores = f"{figures.cores} core" + "s" * (figures.cores > 1)
        return f"reading, copying and Python share {cores}: try a machine with more"
    return (
        "Python, or other work on this machine, takes the time: try a larger batch size, and an idle machine"
    )
