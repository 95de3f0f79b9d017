"""One `.npy` file a field, memory-mapped: the folk recipe."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from peers.describing import CORES, Peer, Way, row_loader, samples

if TYPE_CHECKING:
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

    return [
        Way(
            f".npy memmap, DataLoader, {workers} workers", workers, partial(row_loader, opened, case, workers)
        )
        for workers in (0, CORES)
    ]


PEER = Peer("npy", "numpy", ("numpy",), ways, convert)
