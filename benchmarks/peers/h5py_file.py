"""h5py: one HDF5 file, a dataset a field."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from peers.describing import CORES, Peer, Way, row_loader, samples

if TYPE_CHECKING:
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Fill contiguous datasets row by row."""
    import h5py

    count = len(case.files)
    with h5py.File(folder / "samples.h5", "w") as file:
        # "Datasets": contiguous by default; chunked storage has a cost of its own, and a chunk of one sample
        # would be as long as what is read here anyway.
        arrays = {
            field.name: file.create_dataset(field.name, (count, *field.shape), field.dtype)
            for field in case.store.layout.fields
        }
        for number, arrays_of_one in enumerate(samples(case)):
            for name, array in arrays_of_one.items():
                arrays[name][number] = array


def ways(case: Case, folder: Path) -> list[Way]:
    """Read with and without worker processes, each of which opens the file for itself."""

    def opened() -> dict[str, Any]:
        import h5py

        # "Parallel HDF5": open the file independently in each reader process, after the fork.
        file = h5py.File(folder / "samples.h5", "r")
        return {field.name: file[field.name] for field in case.store.layout.fields}

    return [
        Way(f"h5py, DataLoader, {workers} workers", workers, partial(row_loader, opened, case, workers))
        for workers in (0, CORES)
    ]


PEER = Peer("h5py", "h5py", ("h5py",), ways, convert)
