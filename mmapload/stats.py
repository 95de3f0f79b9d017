"""What a loader has delivered, who waited for whom, and what it took."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mmapload.measures import bytes_read
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.gather import BatchReader
    from mmapload.workers.slots import Counts, Slots

__all__ = ["CountedSampler", "Deliveries", "LoaderStats", "disk_bytes", "gathered_stats"]

_COUNTED: Final = (
    "chunk_bytes",
    "row_bytes",
    "views",
    "copies",
    "hits",
    "misses",
    "resident_bytes",
    "peak_bytes",
)
"""Attributes of `LoaderStats` that come from what reads the dataset."""


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """What a `ChunkDataLoader` has done since it was made; `print` shows it as a table.

    Times are those of this process's clock. What is said of chunks and batches counts what this process did
    for the dataset, whoever else reads from it; what worker processes read for themselves is not in it. It is
    None where the dataset is no ChunkDataset.

    Attributes
    ----------
    batches, samples : int
        Delivered to the training process, in all iterations.
    samples_per_second : float or None
        In the iteration begun last, from its beginning to its latest batch; None before the first batch.
    training_waited : float
        Seconds in which training was waiting for the next batch.
    data_waited : float
        Seconds in which the next batch was ready and waiting for training. With worker processes it is known
        of batches that come in recycled memory.
    chunk_bytes, row_bytes : int or None
        Bytes of files that were mapped or read for whole chunks or pieces of them, and for single rows.
    disk_bytes : int or None
        Bytes that this process and those it started had the disk read, for whatever purpose: what was read
        and is not among them came from the page cache. None where the kernel does not count it.
    hits, misses : int or None
        How often a chunk that was asked for was in memory or on its way, and how often it was not.
    views, copies : int or None
        Batches that were mapped as they lie in a chunk, and batches that were copied together.
    resident_bytes, peak_bytes : int or None
        Decoded bytes of the chunks that are held now, and at most so far.
    worker_batches : Counts or None
        How batches came back from worker processes; None without such.
    worker_seconds : float or None
        Seconds that all worker processes together spent on batches which came in recycled memory, from taking
        up the indices to sending; None without worker processes.
    """

    batches: int
    samples: int
    samples_per_second: float | None
    training_waited: float
    data_waited: float
    chunk_bytes: int | None
    row_bytes: int | None
    disk_bytes: int | None
    hits: int | None
    misses: int | None
    views: int | None
    copies: int | None
    resident_bytes: int | None
    peak_bytes: int | None
    worker_batches: Counts | None
    worker_seconds: float | None

    @property
    def verdict(self) -> str:
        """Who waits for whom, in one sentence."""
        training, data = self.training_waited, self.data_waited
        if not self.batches:
            return "No batch has been delivered yet."
        if training > 2 * data:
            return f"Training waits for data: {training:.2f} s, and data waited {data:.2f} s for training."
        if data > 2 * training:
            return f"Data wait for training: {data:.2f} s, and training waited {training:.2f} s for data."
        return f"Neither waits much for the other: training {training:.2f} s for data, data {data:.2f} s."

    def __str__(self) -> str:
        rate = self.samples_per_second
        rows = [
            ("delivered", f"{self.batches:,} batches, {self.samples:,} samples"),
            ("rate", "" if rate is None else f"{rate:,.0f} samples/s"),
            ("brought in", _both(self.chunk_bytes, "by chunks", self.row_bytes, "by rows", format_size)),
            ("from disk", "not counted here" if self.disk_bytes is None else format_size(self.disk_bytes)),
            ("chunks", _both(self.hits, "hits", self.misses, "misses", "{:,}".format)),
            ("batches", _both(self.views, "views", self.copies, "copies", "{:,}".format)),
            ("in memory", _both(self.resident_bytes, "now", self.peak_bytes, "at most", format_size)),
        ]
        if self.worker_batches is not None:
            ways = self.worker_batches
            rows += [
                ("from workers", f"{ways.in_slots:,} in recycled memory, {ways.in_part:,} in part"),
                ("workers", f"{self.worker_seconds or 0:.2f} s busy"),
            ]
        return "\n".join([*(f"{name:<13}{text}" for name, text in rows if text), self.verdict])


def _both(first: int | None, is_first: str, second: int | None, is_second: str, form: Any) -> str:
    return "" if first is None or second is None else f"{form(first)} {is_first}, {form(second)} {is_second}"


@dataclass(slots=True)
class Deliveries:
    """Counts batches as they are delivered; the rate is that of the iteration begun last.

    Examples
    --------
    >>> deliveries = Deliveries()
    >>> deliveries.begin()
    >>> deliveries.note(4, asked=time.monotonic(), ready=None)
    >>> deliveries.batches, deliveries.samples, deliveries.rate > 0
    (1, 4, True)
    """

    batches: int = 0
    samples: int = 0
    training_waited: float = 0.0
    data_waited: float = 0.0
    worker_seconds: float = 0.0
    _samples_before: int = 0
    _began: float = 0.0
    _latest: float = 0.0

    def begin(self) -> None:
        """Note that an iteration begins."""
        self._samples_before = self.samples
        self._began = self._latest = time.monotonic()

    def note(self, samples: int, asked: float, ready: float | None, worker_seconds: float = 0.0) -> None:
        """Note that a batch is delivered.

        Parameters
        ----------
        samples : int
            In it.
        asked : float
            When training asked for it, by `time.monotonic`.
        ready : float or None
            When it was ready, if that is known.
        worker_seconds : float
            What a worker process spent on it.
        """
        now = time.monotonic()
        self.batches += 1
        self.samples += samples
        self.training_waited += now - asked
        self.worker_seconds += worker_seconds
        if ready is not None and ready < asked:
            self.data_waited += asked - max(ready, self._latest)
        self._latest = now

    @property
    def rate(self) -> float | None:
        """Samples a second of the iteration begun last."""
        seconds, samples = self._latest - self._began, self.samples - self._samples_before
        return samples / seconds if samples and seconds > 0 else None


class CountedSampler:
    """Yields what a batch sampler yields, and notes how many samples each batch has.

    Parameters
    ----------
    sampler : iterable
        Of lists of indices.
    slots : Slots or None
        Those that the batches come in.
    """

    def __init__(self, sampler: Any, slots: Slots | None) -> None:
        self.sampler = sampler
        self.slots = slots
        self._sent: deque[tuple[int, bool]] = deque()

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._sent.clear()
        if self.slots is not None:
            self.slots.timings.clear()
        for indices in self.sampler:
            self._sent.append((len(indices), getattr(indices, "slot", None) is not None))
            yield indices

    def arrived(self) -> tuple[int, float | None, float]:
        """Return of the next batch that arrives: samples, when it was ready if that is known, work on it."""
        samples, in_slot = self._sent.popleft() if self._sent else (0, False)
        if not (in_slot and self.slots is not None and self.slots.timings):
            return samples, None, 0.0
        began, ended = self.slots.timings.popleft()
        return samples, ended, ended - began


def disk_bytes() -> int | None:
    """Count the bytes that the disk has read for this process and those it started; None if nobody counts."""
    try:
        return bytes_read()
    except OSError:
        return None


def gathered_stats(
    deliveries: Deliveries,
    reading: BatchReader | None,
    from_disk: int | None,
    worker_batches: Counts | None,
) -> LoaderStats:
    """Put together what is counted in different places."""
    counted: dict[str, int | None] = dict.fromkeys(_COUNTED)
    if reading is not None:
        counts, reader = reading.residency.counts, reading.residency.reader
        chunk_bytes = reader.bytes_loaded - reader.row_bytes_loaded
        of_chunks = counts.hits, counts.misses, counts.resident_bytes, counts.peak_bytes
        values = chunk_bytes, reader.row_bytes_loaded, reading.views, reading.copies, *of_chunks
        counted = dict(zip(_COUNTED, values, strict=True))
    return LoaderStats(
        batches=deliveries.batches,
        samples=deliveries.samples,
        samples_per_second=deliveries.rate,
        training_waited=deliveries.training_waited,
        data_waited=deliveries.data_waited,
        disk_bytes=from_disk,
        worker_batches=worker_batches,
        worker_seconds=None if worker_batches is None else deliveries.worker_seconds,
        **counted,
    )
