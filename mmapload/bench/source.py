"""The `.npz` files that a store was made from, loaded as one does without mmapload."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from mmapload.bench.loaders import INDEX, deliver
from mmapload.bench.matching import expect_arrays, sample_paths
from mmapload.bench.rounds import Contender
from mmapload.errors import MmaploadError, SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mmapload.bench.loaders import Part
    from mmapload.bench.matching import Arrays

__all__ = ["NpzFiles", "sources"]

WORKERS: Final = (0, 2)

_FAULT: Final = re.compile(r"_LoadError: (\d+): (.*)\Z", re.DOTALL)
"""How an error of `NpzFiles` ends that came from a worker process, from which torch passes on text alone."""


class NpzFiles(Dataset[dict[str, torch.Tensor]]):
    """One file is one sample: what such a dataset looks like by hand.

    Parameters
    ----------
    files : sequence of str
        In the order of the samples.
    arrays : Arrays
        Which of their arrays are loaded.
    dtypes : mapping of str to numpy.dtype
        Of the fields, in native byte order, which torch wants.
    indexed : bool
        Whether a sample carries its number.
    """

    def __init__(
        self, files: Sequence[str], arrays: Arrays, dtypes: Mapping[str, np.dtype[Any]], *, indexed: bool
    ) -> None:
        self.files = files
        self.arrays = arrays
        self.dtypes = dtypes
        self.indexed = indexed

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        sample = {}
        try:
            with np.load(self.files[index]) as file:
                for field, key in self.arrays.keys.items():
                    found = file[key] if key in file.files else self.arrays.stand_ins[field]
                    sample[field] = torch.from_numpy(np.asarray(found, self.dtypes[field], order="C"))
        except Exception as error:  # noqa: BLE001 - of a damaged file, anything may come out of numpy
            raise _LoadError(f"{index}: {type(error).__name__}: {error}") from None
        if self.indexed:
            sample[INDEX] = torch.tensor(index)
        return sample


class _LoadError(Exception):
    """A file could not be loaded: its number, and why."""


def sources(part: Part, folder: str, arrays: Arrays, buffers: dict[str, torch.Tensor]) -> Iterator[Contender]:
    """Yield the loaders of the files that the part's samples were made from, shuffled by torch.

    Workers are started here: what this process has in memory at a fork, it pays for when it writes to it.
    """
    files = sample_paths(part.store, folder, range(part.samples))
    expect_arrays(part.store, folder, files, arrays)
    dtypes = {field.name: field.dtype for field in part.store.layout.fields}
    dataset = NpzFiles(files, arrays, dtypes, indexed=part.indexed)
    nbytes = part.samples * part.store.layout.sample_nbytes
    for workers in WORKERS:
        loader = DataLoader(
            dataset,
            part.batch_size,
            shuffle=True,
            num_workers=workers,
            generator=torch.Generator().manual_seed(0),
            persistent_workers=workers > 0,  # started once, as for an epoch of any length
            worker_init_fn=_leave_interrupts,
        )
        epoch = partial(_epoch, loader, part, folder, files, buffers)
        if workers:
            with _faults_of(folder, files):
                next(iter(loader))
        name = f".npz, DataLoader, {workers} workers"
        yield Contender(name, "source", part.samples, nbytes, tuple(files), partial(_ready, epoch))


def _leave_interrupts(_: int) -> None:
    """Let Ctrl-C end the process that reads from this one, which then ends this one too.

    What fails here is sent to that process; only that it is gone would be told on standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _ready(epoch: Callable[[], float], _: int) -> Callable[[], float]:
    return epoch


def _epoch(
    loader: DataLoader[dict[str, torch.Tensor]],
    part: Part,
    folder: str,
    files: Sequence[str],
    buffers: dict[str, torch.Tensor],
) -> float:
    with _faults_of(folder, files):
        return deliver(loader, part, buffers)


@contextlib.contextmanager
def _faults_of(folder: str, files: Sequence[str]) -> Iterator[None]:
    """Say which file is at fault, also where a worker process loaded it."""
    try:
        yield
    except MmaploadError:
        raise
    except Exception as error:
        found = _FAULT.search(f"{type(error).__name__}: {error}".rstrip())
        if found is not None:
            raise SourceError(files[int(found[1])], None, f"numpy cannot load it: {found[2]}") from None
        if not isinstance(error, OSError | RuntimeError | ValueError):
            raise
        last = str(error).rstrip().rpartition("\n")[2]  # before it, of a worker process, comes a traceback
        raise SourceError(folder, None, f"its files cannot be loaded: {last}") from error
