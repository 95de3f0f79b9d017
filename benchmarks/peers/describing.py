"""What a peer is, and the few things that several of them need."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import numpy.typing as npt
    from settings import Case

CORES = 2
"""Worker processes or threads of every peer that has any: what the `.npz` files have, too."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to load with a peer.

    Attributes
    ----------
    name : str
        As the tables have it.
    workers : int
        Worker processes.
    make : callable
        Makes what yields an epoch of batches, each a dict of tensors by field, whenever it is iterated.
    files : tuple of str, optional
        What it reads, if that is not the converted copy.
    """

    name: str
    workers: int
    make: Callable[[], Iterable[dict[str, torch.Tensor]]]
    files: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Peer:
    """Another project's way to load samples.

    Attributes
    ----------
    name : str
        For `--peers`.
    package : str
        Whose version is reported.
    modules : tuple of str
        What has to be importable; imported in the process that is measured, before that begins.
    ways : callable
        Lists the ways to load with it, from the case and the folder of the converted copy.
    convert : callable, optional
        Writes that copy, in a process of its own; a peer without one reads what is there already.
    """

    name: str
    package: str
    modules: tuple[str, ...]
    ways: Callable[[Case, Path], list[Way]]
    convert: Callable[[Case, Path], None] | None = None


def samples(case: Case) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the arrays of every sample, in the order of the files."""
    for file in case.files:
        yield sample(case, file)


def sample(case: Case, file: str) -> dict[str, npt.NDArray[Any]]:
    """Read one sample by numpy alone."""
    with np.load(file) as arrays:
        return {
            field.name: np.ascontiguousarray(arrays[field.name], field.dtype)
            for field in case.store.layout.fields
        }


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Samples by number, out of arrays that are opened in the process that reads them.

    Parameters
    ----------
    opened : callable
        Opens the arrays by field.
    count : int
        Samples.
    """

    def __init__(self, opened: Callable[[], Any], count: int) -> None:
        self.opened = opened
        self.count = count
        self.arrays: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.arrays is None:
            self.arrays = self.opened()
        return {name: torch.from_numpy(np.array(array[index])) for name, array in self.arrays.items()}


def row_loader(opened: Callable[[], Any], case: Case, workers: int) -> DataLoader[Any]:
    """Shuffle such samples by torch's own loader."""
    return DataLoader(Rows(opened, len(case.files)), case.batch, shuffle=True, num_workers=workers)


class Epochs:
    """What starts an epoch anew whenever it is iterated, with the number of the epoch.

    Parameters
    ----------
    start : callable
        Takes the number, and returns the batches.
    """

    def __init__(self, start: Callable[[int], Iterable[dict[str, torch.Tensor]]]) -> None:
        self.start = start
        self.epoch = -1

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        self.epoch += 1
        return iter(self.start(self.epoch))


def chunk_batches(
    case: Case, epoch: int, chunks: Iterator[dict[str, npt.NDArray[Any]]]
) -> Iterator[dict[str, torch.Tensor]]:
    """Cut whole chunks into batches, mixed inside each chunk where that holds several batches."""
    random = np.random.default_rng(epoch)
    for chunk in chunks:
        length = len(next(iter(chunk.values())))
        if length <= case.batch:
            yield {name: torch.from_numpy(array) for name, array in chunk.items()}
            continue
        order = random.permutation(length)
        for start in range(0, length, case.batch):
            rows = order[start : start + case.batch]
            yield {name: torch.from_numpy(array[rows]) for name, array in chunk.items()}


def chunk_spans(case: Case, epoch: int) -> list[tuple[int, int]]:
    """List the first and the last sample but one of every chunk of the store, in random order."""
    count, length = len(case.files), case.store.layout.chunk_length
    starts = np.random.default_rng(epoch).permutation(-(-count // length)) * length
    return [(int(start), min(int(start) + length, count)) for start in starts]


def store_files(case: Case) -> tuple[str, ...]:
    """List the chunk files of the store, for peers that read it."""
    layout = case.store.layout
    return tuple(
        case.store.chunk_path(field, chunk) for field in layout.fields for chunk in range(layout.chunks)
    )
