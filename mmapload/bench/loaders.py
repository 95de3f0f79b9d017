"""Loaders of a store, timed: each batch is copied once to a fixed buffer, each sample has to come once."""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader

from mmapload.batchsampler import ChunkBatchSampler
from mmapload.bench.ceilings import largest_chunk_nbytes
from mmapload.bench.rounds import Contender
from mmapload.dataset import ChunkDataset
from mmapload.errors import MmaploadError
from mmapload.loader import ChunkDataLoader
from mmapload.order import auto_window
from mmapload.served import served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mmapload.stats import LoaderStats
    from mmapload.store import Store

__all__ = ["INDEX", "Part", "deliver", "fixed_buffers", "loaders"]

INDEX: Final = "index"
"""What `with_index` calls the samples' numbers; a store with a field of that name goes without them."""

_COUNTED: Final = (
    *("batches", "samples", "training_waited", "data_waited", "chunk_bytes", "row_bytes", "disk_bytes"),
    *("hits", "misses", "views", "copies"),
)
"""What only rises in a loader's stats."""

_Made = TypeVar("_Made")

Loader: TypeAlias = "Iterable[dict[str, torch.Tensor]]"


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """What is loaded: the first samples of a store, as a store of their own.

    Attributes
    ----------
    store : Store
        The whole store.
    samples : int
        How many of its samples are loaded.
    batch_size : int
        Samples in a batch.
    exceeds : bool
        Whether the whole store exceeds the memory budget, so that chunks are dropped behind.
    memory : int
        The budget in bytes, of the whole store.
    """

    store: Store
    samples: int
    batch_size: int
    exceeds: bool
    memory: int

    @property
    def chunks(self) -> int:
        """How many chunks hold the samples."""
        return -(-self.samples // self.store.layout.chunk_length)

    @property
    def indexed(self) -> bool:
        """Whether batches can carry the samples' numbers."""
        return INDEX not in self.store.fields

    @property
    def window(self) -> int:
        """Samples in a window: as for the whole store, or in a part a quarter of it, in whole chunks.

        A loader has to have a whole window before its first batch. A part is measured from its start, so that
        its window has to be small beside it, as an epoch's is.
        """
        layout = self.store.layout
        usual = auto_window(layout.samples, layout.chunk_length)
        if self.samples == layout.samples:
            return usual
        chunks = max(1, self.samples // 4 // layout.chunk_length)
        return min(usual, self.samples, chunks * layout.chunk_length)

    def dataset(self) -> ChunkDataset:
        """Make a dataset of the part, which drops chunks behind if one of the whole store would.

        Checksums are not computed, as in every epoch but the first.
        """
        layout = self.store.layout
        memory = self.memory
        if self.exceeds:
            # Two windows, which cut chunks, and no more than of the whole store.
            chunks = 2 * -(-self.window // layout.chunk_length) + 2
            largest = largest_chunk_nbytes(self.store)
            memory = max(largest, min(memory, chunks * largest))
        dataset = ChunkDataset(self.store.path, memory=memory, verify="never", with_index=self.indexed)
        cut = dataclasses.replace(dataset.store.layout, samples=self.samples)
        dataset.store = dataclasses.replace(dataset.store, layout=cut)
        return dataset

    def window_that_fits(self) -> int:
        """Return the samples in a window that memory has room for: what the loaders use."""
        made = _quietly(lambda: ChunkBatchSampler(self.dataset(), self.batch_size, window=self.window))
        return made.sampler.window or self.samples


def fixed_buffers(part: Part) -> dict[str, torch.Tensor]:
    """Return memory for one batch of each field that comes as tensors, used once before."""
    size = min(part.batch_size, part.samples)
    made = {
        field.name: served(field, np.ones((size, *field.shape), field.dtype))
        for field in part.store.layout.fields
        if not field.is_ragged
    }
    return {name: buffer for name, buffer in made.items() if isinstance(buffer, torch.Tensor)}


def deliver(loader: Loader, part: Part, buffers: dict[str, torch.Tensor]) -> float:
    """Run one epoch, copying every batch once to the fixed buffers; returns the seconds.

    Raises
    ------
    MmaploadError
        If the batches are not every sample of the part, once.
    """
    seen = np.empty(part.samples, np.int64)
    count = 0
    start = time.perf_counter()
    for batch in loader:
        length = len(next(iter(batch.values())))
        for name, buffer in buffers.items():
            buffer[:length].copy_(batch[name])
        start_of_batch, count = count, count + length
        if count > part.samples:
            break
        if part.indexed:
            seen[start_of_batch:count] = batch[INDEX].numpy()
    seconds = time.perf_counter() - start
    if count != part.samples or (part.indexed and not _is_each_once(seen[:count])):
        raise MmaploadError(
            f"a loader delivered {count} samples or more that are not each of the first {part.samples} once"
        )
    return seconds


def _is_each_once(numbers: np.ndarray[Any, Any]) -> bool:
    return bool((np.sort(numbers) == np.arange(len(numbers))).all())


def loaders(
    part: Part, buffers: dict[str, torch.Tensor], files: tuple[str, ...], *, cold: bool
) -> Iterator[Contender]:
    """Yield mmapload's ways to load a part: those that suit it.

    One dataset serves them all in every round, as in every epoch; but not where files are dropped from the
    page cache before each run, since it holds maps of some, which cannot be dropped.
    """
    batch, window = part.batch_size, part.window
    dataset = part.dataset if cold else functools.cache(part.dataset)

    def windows(seed: int) -> Loader:
        return ChunkDataLoader(dataset(), batch, "window", window=window, seed=seed)

    def plain(seed: int) -> Loader:
        chosen = dataset()
        sampler = ChunkBatchSampler(chosen, batch, window=window, seed=seed)
        return DataLoader(chosen, batch_sampler=sampler)

    made: dict[str, Callable[[int], Loader]] = {"ChunkDataLoader, window": windows}
    of_store = part.store.layout.batch_size
    if batch % of_store == 0 or of_store % batch == 0:
        made["ChunkDataLoader, batch"] = lambda seed: ChunkDataLoader(dataset(), batch, "batch", seed=seed)
    if not part.exceeds:
        made["ChunkDataLoader, full"] = lambda seed: ChunkDataLoader(dataset(), batch, "full", seed=seed)
    made["DataLoader + ChunkBatchSampler"] = plain
    nbytes = part.samples * part.store.layout.sample_nbytes
    for name, make in made.items():
        told: list[LoaderStats] = []
        prepare = partial(_epoch, make, part, buffers, told)
        stats = told.pop if make is windows else None
        yield Contender(name, "loader", part.samples, nbytes, files, prepare, stats)


def _epoch(
    make: Callable[[int], Loader],
    part: Part,
    buffers: dict[str, torch.Tensor],
    told: list[LoaderStats],
    number: int,
) -> Callable[[], float]:
    loader = _quietly(partial(make, number))

    def run() -> float:
        if not isinstance(loader, ChunkDataLoader):
            return deliver(loader, part, buffers)
        before = loader.stats()
        seconds = deliver(loader, part, buffers)
        told[:] = [_between(before, loader.stats())]
        return seconds

    return run


def _between(before: LoaderStats, after: LoaderStats) -> LoaderStats:
    """Return what was counted between two times: loaders of one dataset share some of the counters."""
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in _COUNTED}
    return dataclasses.replace(
        after, **{name: new - old for name, (old, new) in pairs.items() if None not in {old, new}}
    )


def _quietly(make: Callable[[], _Made]) -> _Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a window is cut, or an order is slow
        return make()
