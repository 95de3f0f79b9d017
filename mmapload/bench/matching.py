"""The `.npz` files that a store was made from: where they lie, and which of their arrays are its fields.

They are read here by the reader that preprocesses them, which says what is wrong with a file, allocates
nothing by a claim that the file's own size contradicts, and looks at headers before it reads an array.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.dataset import ChunkDataset
from mmapload.errors import MmaploadError, SourceError, shown
from mmapload.sources import ArraySpec
from mmapload.sources.listing import Listing
from mmapload.sources.npz import NpzSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt
    import torch

    from mmapload.store import Store

__all__ = ["CHECKED", "Arrays", "expect_arrays", "match", "sample_paths"]

CHECKED: Final = 5
"""How many samples are compared with the store bit by bit, evenly spaced."""

_MOST_LISTED: Final = 12
"""Keys of a file in the message of an error."""


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

    Only arrays that have a field's dtype and shape are read, one at a time; of others, the headers.

    Raises
    ------
    SourceError
        If a file is missing or cannot be read, or a field's bits are in none of its arrays.
    """
    noted = next((field for field in store.layout.fields if field.meaning is not None), None)
    if noted is not None:
        raise MmaploadError(
            f"field {noted.name!r} of {store.path} is {noted.meaning}, and only stores of numbers that numpy "
            "has can be compared with their files: leave out --source"
        )
    samples = sorted({round(i * (len(store) - 1) / (CHECKED - 1)) for i in range(CHECKED)})
    paths = sample_paths(store, folder, samples)
    dataset = ChunkDataset(store.path, memory=max(1, store.layout.chunk_nbytes), verify="never")
    files = NpzSource(Listing(folder, tuple(paths), 0, 0))
    compared = [_compare(files, i, sample, store.fields, dataset[sample]) for i, sample in enumerate(samples)]
    fill = store.layout.source.get("fill")
    fillable = fill if isinstance(fill, dict) else {}
    keys, stand_ins = {}, {}
    for layout in store.layout.fields:
        name = layout.name
        key = _key_of(name, compared, f"{folder} is not what {store.path}", fillable=name in fillable)
        keys[name] = key
        if name in fillable:
            lacking = [each.sample for each in compared if key not in each.keys]
            filled = dataset[lacking[0]][name].numpy() if lacking else np.zeros(layout.shape, layout.dtype)
            stand_ins[name] = filled
    return Arrays(keys, stand_ins)


@dataclass(frozen=True, slots=True)
class _Compared:
    """A sample's file: its keys, each with what is wrong with it, and which of them hold a field's bits."""

    sample: int
    path: str
    keys: Mapping[str, SourceError | None]
    same: Mapping[str, frozenset[str]]


def _compare(
    files: NpzSource, index: int, sample: int, fields: Sequence[str], loaded: Mapping[str, torch.Tensor]
) -> _Compared:
    stored = {field: loaded[field].numpy() for field in fields}
    specs = {field: ArraySpec(value.dtype, value.shape) for field, value in stored.items()}
    keys: dict[str, SourceError | None] = {}
    same: dict[str, set[str]] = {field: set() for field in fields}
    for key, found in files.arrays_like(index, frozenset(specs.values())):
        keys[key] = found if isinstance(found, SourceError) else None
        if isinstance(found, np.ndarray):
            spec, nbytes = ArraySpec(found.dtype, found.shape), found.tobytes()
            for field, value in stored.items():
                if specs[field] == spec and value.tobytes() == nbytes:
                    same[field].add(key)
    frozen = {field: frozenset(found) for field, found in same.items()}
    return _Compared(sample, files.describe(index), keys, frozen)


def _key_of(field: str, compared: Sequence[_Compared], why: str, *, fillable: bool) -> str:
    """Return the key that holds the field's bits in all files, or in those that have it if it is fillable."""
    keys = list(dict.fromkeys([field, *(key for each in compared for key in each.keys)]))
    left = keys
    for each in compared:
        left = [key for key in left if key in each.same[field] or (fillable and key not in each.keys)]
        if not left:
            raise _broken(field, keys, compared) or SourceError(
                each.path,
                None,
                f"field {field!r} of sample {each.sample} is none of its arrays ({_listed(each.keys)}), bit "
                f"by bit: {why} was made from, or has changed since",
            )
    return max(left, key=lambda key: sum(key in each.same[field] for each in compared))


def _broken(field: str, keys: Sequence[str], compared: Sequence[_Compared]) -> SourceError | None:
    """Return what is wrong with an array that has the field's name, or is the field in another file."""
    for key in keys:
        if key == field or any(key in each.same[field] for each in compared):
            for each in compared:
                if (fault := each.keys.get(key)) is not None:
                    return fault
    return None


def _listed(keys: Mapping[str, object]) -> str:
    most = ", ".join(shown(key) for key in list(keys)[:_MOST_LISTED])
    return most + f", ... ({len(keys)} in all)" * (len(keys) > _MOST_LISTED)


def expect_arrays(store: Store, folder: str, paths: Sequence[str], arrays: Arrays) -> None:
    """Look at the headers of all arrays that are to be loaded: numpy allocates what a header says.

    Raises
    ------
    SourceError
        If a file is no `.npz` file, or an array is missing or has not its field's dtype and shape.
    """
    keys = {key: key for key in arrays.keys.values()}
    files = NpzSource(Listing(folder, tuple(paths), 0, 0), keys, keys)
    expected = [
        (field.name, arrays.keys[field.name], ArraySpec(field.dtype, field.shape))
        for field in store.layout.fields
    ]
    for index, path in enumerate(paths):
        specs = files.schema(index)
        for field, key, spec in expected:
            found = specs.get(key)
            if found != spec and (found is not None or field not in arrays.stand_ins):
                raise SourceError(
                    path,
                    key,
                    f"{found or 'there is none'}, and field {field!r} of {store.path} is {spec}: {folder} is "
                    "not what it was made from, or has changed since",
                )
