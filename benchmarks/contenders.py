"""The loaders that are compared, each as a user would write it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import mmapload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mmapload import Store
    from mmapload.layout import FieldLayout

WINDOW, BATCH, FULL = (f"ChunkDataLoader, {mode}" for mode in ("window", "batch", "full"))
"""Names of the loaders that the rest of the benchmark has something to say about."""


class NpzFolder(Dataset[dict[str, torch.Tensor]]):
    """What a user has before: one zip opened for every sample.

    Parameters
    ----------
    files : sequence of str
        One a sample.
    fields : sequence of FieldLayout
        The arrays to take from each.
    """

    def __init__(self, files: Sequence[str], fields: Sequence[FieldLayout]) -> None:
        self.files = files
        self.dtypes = {field.name: field.dtype for field in fields}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with np.load(self.files[index]) as arrays:
            # Without a copy, unless the file has the other byte order, which torch does not take.
            return {
                name: torch.from_numpy(np.asarray(arrays[name], dtype)) for name, dtype in self.dtypes.items()
            }


@dataclass(frozen=True, slots=True)
class Room:
    """What a loader of mmapload may take.

    Attributes
    ----------
    memory : int or "auto"
        Budget of resident chunks, in bytes.
    window : int or "auto"
        Samples to shuffle within.
    with_workers : Room, optional
        What it may take beside more batches, which worker processes have in work; by default the same.
    """

    memory: int | str = "auto"
    window: int | str = "auto"
    with_workers: Room | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to load all samples, shuffled, in batches.

    Attributes
    ----------
    name : str
        As the tables have it.
    workers : int
        Worker processes.
    files : tuple of str
        What it reads.
    make : callable
        Makes the loader.
    is_baseline : bool
        Whether it is what a user has before.
    modules : tuple of str
        Imported in its process before anything is measured.
    is_peer : bool
        Whether it is another project's: what it drops or repeats is told, and a failure of it too.
    """

    name: str
    workers: int
    files: tuple[str, ...]
    make: Callable[[Room], Iterable[Any]]
    is_baseline: bool = False
    modules: tuple[str, ...] = ()
    is_peer: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of its files."""
        return sum(os.path.getsize(file) for file in self.files)


def all_contenders(files: Sequence[str], store: Store, batch: int) -> list[Contender]:
    """List every loader over these `.npz` files and the store made from them."""
    npz = NpzFolder(files, store.layout.fields)
    chunks = tuple(
        store.chunk_path(field, chunk)
        for field in store.layout.fields
        if field.sample_nbytes
        for chunk in range(store.layout.chunks)
    )

    def ours(name: str, make: Callable[[Room], Iterable[Any]], workers: int = 0) -> Contender:
        return Contender(name, workers, chunks, make)

    def before(workers: int) -> Contender:
        loader = partial(DataLoader, npz, batch, shuffle=True, num_workers=workers)
        return Contender(
            f".npz, DataLoader, {workers} workers",
            workers,
            tuple(files),
            lambda _: loader(),
            is_baseline=True,
        )

    plain = partial(_plain, store.path, batch)
    chunked = partial(_chunked, store.path, batch)
    return [
        before(0),
        before(2),
        ours("DataLoader + ChunkSampler, 0 workers", partial(plain, mmapload.ChunkSampler, 0)),
        ours("DataLoader + ChunkBatchSampler, 0 workers", partial(plain, mmapload.ChunkBatchSampler, 0)),
        ours("DataLoader + ChunkBatchSampler, 2 workers", partial(plain, mmapload.ChunkBatchSampler, 2), 2),
        ours(f"{WINDOW}, 2 workers", partial(chunked, "window", workers=2), 2),
        ours(WINDOW, partial(chunked, "window")),
        ours(BATCH, partial(chunked, "batch")),
        ours(FULL, partial(chunked, "full")),
    ]


def checksum_contenders(store: Store, contenders: Sequence[Contender], batch: int) -> list[Contender]:
    """List what shows the price of checksums: window shuffle with none at all, and with all of them."""
    files = next(each.files for each in contenders if each.name == WINDOW)
    return [
        Contender(
            f"{WINDOW}, verify={verify}",
            0,
            files,
            partial(_chunked, store.path, batch, "window", verify=verify),
        )
        for verify in ("never", "always")
    ]


def _plain(path: str, batch: int, kind: type, workers: int, room: Room) -> DataLoader[Any]:
    """Take torch's own loader with a sampler of ours."""
    room = (workers and room.with_workers) or room
    dataset = mmapload.ChunkDataset(path, memory=room.memory)
    sampler = kind(dataset, batch, window=room.window)
    if kind is mmapload.ChunkSampler:
        _check_window(sampler, room)
        return DataLoader(dataset, batch, sampler=sampler, num_workers=workers)
    _check_window(sampler.sampler, room)
    return DataLoader(dataset, batch_sampler=sampler, num_workers=workers)


def _chunked(
    path: str, batch: int, mode: str, room: Room, *, workers: int = 0, verify: Any = "first"
) -> DataLoader[Any]:
    """Take our loader in one of its modes."""
    room = (workers and room.with_workers) or room
    dataset = mmapload.ChunkDataset(path, memory=room.memory, verify=verify)
    window = room.window if mode == "window" else "auto"
    loader = mmapload.ChunkDataLoader(dataset, batch, mode, num_workers=workers, window=window)
    if mode == "window":
        _check_window(loader.sampler, room)
    return loader


def _check_window(sampler: Any, room: Room) -> None:
    """Refuse to measure another window than the one that is reported."""
    if room.window not in {"auto", sampler.window}:
        raise ValueError(f"a window of {room.window} samples was cut to {sampler.window}")
