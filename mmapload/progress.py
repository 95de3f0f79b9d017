"""Say how far a long job has come: a bar on a terminal, sparse lines elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TextIO

from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tqdm import tqdm

__all__ = ["BarProgress", "LineProgress", "Progress", "SilentProgress", "duration", "progress_to", "rate_of"]

_FIRST_LINE_SECONDS = 5.0
_LINE_EVERY_SECONDS = 30.0
_RATE_LINES = 5
"""The time left is reckoned from the rate since so many lines ago: it may change as other files come."""
_SMALL = 64 << 10
"""Samples of fewer bytes are counted a second: of a million small files 0 MB/s would be told."""
_SMOOTHING = 0.02
"""Weight of the last tenth of a second in a bar's rate, which so looks back about ten seconds."""


class Progress(Protocol):
    """What a long job tells about itself. Called from one thread."""

    def start(self, samples: int | None, sample_nbytes: int, done: int = 0) -> None:
        """Begin: how many samples there will be (None: nobody knows), bytes of each, how many are there."""

    def at(self, samples: int) -> None:
        """Say how many samples are done in all; the number may fall, if work has to be done again."""

    def note(self, text: str) -> None:
        """Say something once."""

    def clear(self) -> None:
        """Make room for a line that is printed elsewhere."""

    def close(self) -> None:
        """End, however it ended."""


class SilentProgress:
    """Says nothing."""

    def start(self, samples: int | None, sample_nbytes: int, done: int = 0) -> None:
        """Do nothing."""

    def at(self, samples: int) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""

    def clear(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class BarProgress:
    """A bar with samples, MB/s and time left, for a terminal.

    Parameters
    ----------
    stream : text file
        Where to draw.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar: tqdm[None] | None = None
        self._sample_nbytes = 0
        self._resumed = 0
        self._started = 0.0

    def start(self, samples: int | None, sample_nbytes: int, done: int = 0) -> None:
        """Draw the bar."""
        from tqdm import tqdm

        self._sample_nbytes, self._resumed, self._started = sample_nbytes, done, time.monotonic()
        self._bar = tqdm(
            total=samples,
            initial=done,
            unit=" samples",
            file=self._stream,
            dynamic_ncols=True,
            smoothing=_SMOOTHING,
        )

    def at(self, samples: int) -> None:
        """Move the bar."""
        if self._bar is not None and samples != self._bar.n:
            written = (samples - self._resumed) * self._sample_nbytes
            rate = written / max(1e-9, time.monotonic() - self._started)
            if self._sample_nbytes >= _SMALL:  # else the bar's own samples a second say more
                self._bar.set_postfix_str(f"{rate / 1e6:.0f} MB/s", refresh=False)
            self._bar.update(samples - self._bar.n)

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        if self._bar is None:
            print(text, file=self._stream, flush=True)
        else:
            self._bar.write(text, file=self._stream)

    def clear(self) -> None:
        """Wipe the bar until it is drawn next."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.close()


class LineProgress:
    """A line after five seconds, one every half minute and one at the end, for log files.

    Parameters
    ----------
    stream : text file
        Where to write.
    clock : callable
        Seconds, rising.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._total: int | None = None
        self._sample_nbytes = 0
        self._resumed = 0
        self._samples = 0
        self._started: float | None = None
        self._next = 0.0
        self._points: deque[tuple[float, int]] = deque(maxlen=_RATE_LINES)

    def start(self, samples: int | None, sample_nbytes: int, done: int = 0) -> None:
        """Start the clock."""
        self._total, self._sample_nbytes = samples, sample_nbytes
        self._resumed = self._samples = done
        self._started = self._clock()
        self._next = self._started + _FIRST_LINE_SECONDS
        self._points.append((self._started, done))

    def at(self, samples: int) -> None:
        """Write a line if the last one is long ago."""
        self._samples = samples
        now = self._clock()
        if now >= self._next:
            self._next = now + _LINE_EVERY_SECONDS
            self._write(now)

    def note(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def clear(self) -> None:
        """Do nothing: lines do not run into each other."""

    def close(self) -> None:
        """Write the last line."""
        if self._started is not None:
            self._write(self._clock(), last=True)

    def _write(self, now: float, *, last: bool = False) -> None:
        started = self._started or 0.0
        seconds = max(1e-9, now - started)
        written = self._samples - self._resumed
        of = "" if self._total is None else f" of {self._total:,}"
        rate = rate_of(written, written * self._sample_nbytes, seconds)
        size = format_size(self._samples * self._sample_nbytes)
        text = f"{self._samples:,}{of} samples, {size}, {rate}, {duration(seconds)}"
        since, before = self._points[0]
        if not last and self._total is not None and before < self._samples < self._total:
            left = (self._total - self._samples) * (now - since) / (self._samples - before)
            text += f", {duration(left)} left"
        self._points.append((now, self._samples))
        print(text, file=self._stream, flush=True)


def rate_of(samples: int, nbytes: int, seconds: float) -> str:
    """Write how fast samples go: by their bytes, or by their number if they are small.

    Examples
    --------
    >>> rate_of(100, 2**30, 2.0), rate_of(30_000, 960_000, 10.0)
    ('537 MB/s', '3,000 samples/s')
    """
    seconds = max(1e-9, seconds)
    if nbytes < samples * _SMALL:
        return f"{samples / seconds:,.0f} samples/s"
    return f"{nbytes / seconds / 1e6:,.0f} MB/s"


def duration(seconds: float) -> str:
    """Write seconds as minutes and seconds, and hours where there are any.

    Examples
    --------
    >>> duration(93.4), duration(3700)
    ('1:33', '1:01:40')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def progress_to(stream: TextIO | None = None, *, quiet: bool = False) -> Progress:
    """Choose how to tell progress: a bar on a terminal, sparse lines elsewhere, nothing if `quiet`.

    Parameters
    ----------
    stream : text file, optional
        Standard error by default.
    """
    if quiet:
        return SilentProgress()
    stream = sys.stderr if stream is None else stream
    return BarProgress(stream) if _has_room(stream) else LineProgress(stream)


def _has_room(stream: TextIO) -> bool:
    """Say whether this is a terminal that tells its size; some, within `script` for instance, say 0 x 0."""
    if not stream.isatty():
        return False
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return True
    return size.columns > 0 and size.lines > 0
