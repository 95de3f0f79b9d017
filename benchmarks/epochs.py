"""Run and measure epochs of one loader, in the process that was started for it."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fingerprints import FixedBuffer, WrongSamplesError

from mmapload.measures import Memory, bytes_read, cached_bytes, drop_pages_of, memory_in_use

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Sequence

    from contenders import Contender, Room
    from launching import Join, Report

    from mmapload.layout import FieldLayout

KINDS = ("anonymous", "shared", "cached")
"""What memory is told apart by: fields of `Memory`."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a process is started for; called there.

    Attributes
    ----------
    contender : Contender
        Whose epochs are run.
    room : Room
        What it may take, if it is one of mmapload's.
    fields, batch, expected
        What batches look like, and the fingerprints of all samples.
    epochs : int
        How many to run, one after the other, with one loader.
    drops : bool
        Whether its files are to be dropped from the page cache before the first epoch.
    intervals : tuple of float or None
        Seconds between two looks at the memory in use, in the first epoch and in all others; None: no look.
    patience : float, optional
        Seconds after which an epoch is cut short; it is the last one then. What came until then counts.
    """

    contender: Contender
    room: Room
    fields: Sequence[FieldLayout]
    batch: int
    expected: Counter[bytes]
    epochs: int
    drops: bool
    intervals: tuple[float | None, float | None]
    patience: float | None = None

    def __call__(self, report: Report, join: Join) -> None:
        """Report each epoch as it ends: rate, bytes read, and the most memory in use."""
        for module in self.contender.modules:
            importlib.import_module(module)
        total = self.expected.total()
        buffer = FixedBuffer(self.fields, self.batch, self.expected, total * self.contender.is_peer)
        files = self.contender.files
        start: dict[str, Any] = {}
        if self.drops:
            drop_pages_of(files)
            start = {"cached_before": cached_bytes(files)}
        join()
        before = memory_in_use()
        loader = self.contender.make(self.room)
        for number in range(self.epochs):
            found = _epoch(loader, buffer, self.intervals[number > 0], before, self.patience)
            came = self._checked(buffer, is_cut="cut" in found)
            rate = came.get("count", total) / found["seconds"]
            report({"epoch": number, "samples_per_second": rate} | found | came | start)
            start = {}
            if "cut" in found:
                break
        if self.contender.is_peer:
            _end()

    def _checked(self, buffer: FixedBuffer, *, is_cut: bool) -> dict[str, int]:
        """Say what came, if that may be something else than every sample once."""
        if not self.contender.is_peer and not is_cut:
            buffer.check()
            return {}
        came = buffer.compare()
        if came.foreign or (came.repeated and not self.contender.is_peer):
            raise WrongSamplesError(
                f"{came.foreign} that are no samples of the source came, and {came.repeated} repeated ones"
            )
        lacking = 0 if is_cut else came.lacking
        return {"count": came.count, "lacking": lacking, "repeated": came.repeated}


def _end() -> None:
    """End this process without waiting for threads and processes that are somebody else's."""
    for child in multiprocessing.active_children():
        child.kill()
    os._exit(0)


def _epoch(
    loader: Iterable[Any],
    buffer: FixedBuffer,
    interval: float | None,
    before: Memory,
    patience: float | None = None,
) -> dict[str, Any]:
    """Time one epoch: from asking for an iterator until the last batch has been copied."""
    gc.collect()
    already = bytes_read()
    found: dict[str, Any] = {}
    with _Peak(interval) as peak:
        start = time.perf_counter()
        iterator = iter(loader)
        for batch in iterator:
            buffer.take(batch)
            if patience is not None and time.perf_counter() - start > patience:
                found["cut"] = True
                break
        seconds = time.perf_counter() - start
        batch = None
    del iterator  # which waits for worker processes: what they have read is known only then
    gc.collect()
    found |= {"seconds": seconds, "bytes_read": bytes_read() - already}
    if peak.most:
        found["memory"] = {kind: max(0, most - getattr(before, kind)) for kind, most in peak.most.items()}
    return found


class _Peak:
    """The most memory in use within a `with` block, of each kind, by looking at it again and again."""

    def __init__(self, interval: float | None) -> None:
        self.most: dict[str, int] = {}
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="memory", daemon=True)

    def _look(self) -> None:
        now = memory_in_use()
        self.most = {kind: max(getattr(now, kind), self.most.get(kind, 0)) for kind in KINDS}

    def _watch(self) -> None:
        while not self._ended.wait(self._interval):
            self._look()

    def __enter__(self) -> Self:
        if self._interval is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._interval is not None:
            self._ended.set()
            self._thread.join()
            self._look()


def cannot_drop(files: Sequence[str]) -> str | None:
    """Drop files from the page cache; say why that is not possible, or not to be seen, if so."""
    try:
        bytes_read()
        drop_pages_of(files)
        left = cached_bytes(files)
    except OSError as error:
        return f"the page cache cannot be observed here: {error}"
    nbytes = sum(map(os.path.getsize, files))
    if left > nbytes // 100:
        return (
            f"{left:,} of {nbytes:,} bytes stayed in the page cache: the file system keeps its files in "
            "memory, or another process has them mapped"
        )
    return None
