"""One `.npy` file a field, memory-mapped: the folk recipe."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peers.describing import CORES, Epochs, Peer, Way, row_loader, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Fill the files row by row."""
    arrays = {
        field.name: np.lib.format.open_memmap(
            folder / f"{field.name}.npy", "w+", field.dtype, (len(case.files), *field.shape)
        )
        for field in case.store.layout.fields
    }
    for number, arrays_of_one in enumerate(samples(case)):
        for name, array in arrays_of_one.items():
            arrays[name][number] = array


def ways(case: Case, folder: Path) -> list[Way]:
    """Read with and without worker processes."""

    def opened() -> dict[str, Any]:
        # "numpy.load": mmap_mode="r" to access small segments of large files without reading all of them.
        names = [field.name for field in case.store.layout.fields]
        return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in names}

    def bare() -> Epochs:
        """Hand out views of whole batches in random order: no loader at all, what a loader can reach."""
        arrays = opened()
        # The arrays are read-only, and torch tells that its tensors are not; nobody writes to them here.
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            for batch in (
                np.random.default_rng(number).permutation(-(-len(case.files) // case.batch)).tolist()
            ):
                rows = slice(batch * case.batch, (batch + 1) * case.batch)
                yield {name: torch.from_numpy(array[rows]) for name, array in arrays.items()}

        return Epochs(epoch)

    loaders = [
        Way(
            f".npy memmap, DataLoader, {workers} workers", workers, partial(row_loader, opened, case, workers)
        )
        for workers in (0, CORES)
    ]
    return [*loaders, Way(".npy memmap, bare loop over views of batches", 0, bare)]


PEER = Peer("npy", "numpy", ("numpy",), ways, convert)
