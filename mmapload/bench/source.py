"""The `.npz` files that a store was made from, compared with it, and loaded as one does without mmapload."""

from __future__ import annotations

import contextlib
import os
import signal
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from mmapload.bench.loaders import INDEX, deliver
from mmapload.bench.rounds import Contender
from mmapload.dataset import ChunkDataset
from mmapload.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.bench.loaders import Part
    from mmapload.store import Store

__all__ = ["Arrays", "NpzFiles", "match", "sample_paths", "sources"]

CHECKED: Final = 5
"""How many samples are compared with the store bit by bit, evenly spaced."""

WORKERS: Final = (0, 2)

_BROKEN: Final = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError)
"""What numpy and zipfile raise for files that are not as they should be, and torch for unlike samples."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """Which array of a file is which field.

    Attributes
    ----------
    keys : mapping of str to str
        Field name -> the array's name in the file.
    stand_ins : mapping of str to ndarray
        What stands in for fields that a file may lack.
    """

    keys: Mapping[str, str]
    stand_ins: Mapping[str, npt.NDArray[Any]]


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
        with np.load(self.files[index]) as file:
            for field, key in self.arrays.keys.items():
                found = file[key] if key in file.files else self.arrays.stand_ins[field]
                sample[field] = torch.from_numpy(np.asarray(found, self.dtypes[field], order="C"))
        if self.indexed:
            sample[INDEX] = torch.tensor(index)
        return sample


def sample_paths(store: Store, folder: str, samples: Sequence[int]) -> list[str]:
    """Return the path of the file in `folder` that each of these samples was made from.

    Raises
    ------
    SourceError
        If the store keeps no names, or a file is not there.
    """
    paths = []
    for sample in samples:
        name = store.sample_name(sample)
        if name is None:
            raise SourceError(
                folder,
                None,
                f"{store.path} keeps no names of its samples, so it cannot be compared with files",
            )
        if os.path.isabs(name) or ".." in name.split("/"):
            raise SourceError(folder, None, f"sample {sample} has a name that leads elsewhere: {name!r}")
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise SourceError(
                path,
                None,
                f"there is no such file, of which sample {sample} was made: {folder} is not what "
                f"{store.path} was made from; give the folder in which {name!r} lies",
            )
        paths.append(path)
    return paths


def match(store: Store, folder: str) -> Arrays:
    """Find out which arrays of the files are the store's fields, by comparing some samples bit by bit.

    Raises
    ------
    SourceError
        If a file is missing or cannot be read, or a field's bits are in none of its arrays.
    """
    samples = sorted({round(i * (len(store) - 1) / (CHECKED - 1)) for i in range(CHECKED)})
    paths = sample_paths(store, folder, samples)
    dataset = ChunkDataset(store.path, memory=max(1, store.layout.chunk_nbytes), verify="never")
    fillable = store.layout.source.get("fill") or {}
    keys: dict[str, str] = {}
    stand_ins = {
        field.name: np.zeros(field.shape, field.dtype)
        for field in store.layout.fields
        if field.name in fillable
    }
    for sample, path in zip(samples, paths, strict=True):
        found = _read_all(path)
        for field, tensor in dataset[sample].items():
            value = tensor.numpy()
            candidates = [keys[field]] if field in keys else [field, *found]
            key = next((each for each in candidates if each in found and _is_same(found[each], value)), None)
            if key is not None:
                keys[field] = key
            elif field in stand_ins and candidates[0] not in found:
                stand_ins[field] = value.copy()
            else:
                raise SourceError(
                    path,
                    None,
                    f"field {field!r} of sample {sample} is none of its arrays "
                    f"({', '.join(found) or 'of which there are none'}), bit by bit: {folder} is not what "
                    f"{store.path} was made from, or has changed since",
                )
    return Arrays({field: keys.get(field, field) for field in store.fields}, stand_ins)


def _read_all(path: str) -> dict[str, npt.NDArray[Any]]:
    """Read a file's arrays, but for those that numpy would have to unpickle."""
    arrays = {}
    try:
        with np.load(path) as file:
            for key in file.files:
                try:
                    arrays[key] = file[key]
                except ValueError:  # an array of objects, which no store holds
                    continue
    except _BROKEN as error:
        raise SourceError(path, None, f"numpy cannot read it: {error}") from error
    return arrays


def _is_same(found: npt.NDArray[Any], stored: npt.NDArray[Any]) -> bool:
    native = found.astype(found.dtype.newbyteorder("="), copy=False)
    same_kind = native.dtype == stored.dtype and native.shape == stored.shape
    return same_kind and native.tobytes() == stored.tobytes()


def sources(part: Part, folder: str, arrays: Arrays, buffers: dict[str, torch.Tensor]) -> Iterator[Contender]:
    """Yield the loaders of the files that the part's samples were made from, shuffled by torch.

    Workers are started here: what this process has in memory at a fork, it pays for when it writes to it.
    """
    files = sample_paths(part.store, folder, range(part.samples))
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
        epoch = partial(_epoch, loader, part, folder, buffers)
        if workers:
            with _broken(folder):
                next(iter(loader))
        name = f".npz, DataLoader, {workers} workers"
        yield Contender(name, "source", part.samples, nbytes, tuple(files), partial(_ready, epoch))


def _leave_interrupts(_: int) -> None:
    """Let Ctrl-C end the process that reads from this one, which then ends this one too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ready(epoch: Callable[[], float], _: int) -> Callable[[], float]:
    return epoch


def _epoch(
    loader: DataLoader[dict[str, torch.Tensor]],
    part: Part,
    folder: str,
    buffers: dict[str, torch.Tensor],
) -> float:
    with _broken(folder):
        return deliver(loader, part, buffers)


@contextlib.contextmanager
def _broken(folder: str) -> Iterator[None]:
    """Say that the source is at fault; the error of numpy or torch, which a worker passes on, says more."""
    try:
        yield
    except _BROKEN as error:
        raise SourceError(folder, None, f"its files cannot be loaded: {error}") from error
