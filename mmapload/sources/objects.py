"""Samples from `.npz` files with arrays of Python objects in them, from people whom the reader trusts.

An array of objects becomes a field if its elements are arrays of one dtype and shape, or numbers of one kind,
or texts. A dict that was saved as an array without axes becomes its keys. Pickles are read by `unpickling`,
which makes nothing but arrays and plain values.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources.archives import header_of, members_by_key, opened, read_array
from mmapload.sources.literal import parse_literal
from mmapload.sources.npy import header_length
from mmapload.sources.npz import NpzSource
from mmapload.sources.unpickling import read_pickle
from mmapload.sources.values import select, specs_of, store_sample
from mmapload.sources.zipmember import read_first, read_member

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.sources import ArraySpec
    from mmapload.sources.archives import Npz
    from mmapload.sources.listing import Listing
    from mmapload.sources.zipdir import Member

__all__ = ["ObjectNpzSource", "regular"]

_FIRST: Final = 512
_GROWTH: Final = 1032
"""Elements may be one array, named again and again: so much larger than its pickle may all of them be."""
_PLAIN: Final = {bool: "?", int: "i8", float: "f8", complex: "c16"}


class ObjectNpzSource:
    """Samples from `.npz` files whose arrays of objects are read.

    Parameters
    ----------
    files : Listing
        The files, in the order of the samples.
    fields : mapping of str to str, optional
        Which keys to read, and the field that each becomes. None: all, under their own names.
    optional : collection of str
        Fields that a file may lack.
    """

    def __init__(
        self, files: Listing, fields: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        self.kind = "npz"
        self.parallel = True
        self._files = files
        self._plain = NpzSource(files, fields, optional)
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)

    def __len__(self) -> int:
        """Count the files."""
        return len(self._plain)

    def name(self, index: int) -> str:
        """Path of file `index`, relative to the listing's root."""
        return self._plain.name(index)

    def describe(self, index: int) -> str:
        """Path of file `index`, to open it by."""
        return self._plain.describe(index)

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Return what arrays file `index` has; those of objects are read for it.

        Raises
        ------
        SourceError
            If the file cannot be read, or an array of objects is not regular or holds what is never read.
        """
        sample = self._sample(index)
        if sample is None:
            return self._plain.schema(index)
        return specs_of(sample, self.describe(index), self._optional)

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Read file `index` into the arrays given; as `NpzSource`."""
        sample = self._sample(index)
        if sample is None:
            return self._plain.read(index, into)
        return store_sample(sample, into, self.describe(index), self._optional)

    def fingerprint(self, index: int) -> bytes:
        """Summarise file `index`; as `NpzSource`."""
        return self._plain.fingerprint(index)

    def _sample(self, index: int) -> dict[str, Any] | None:
        """Read a whole file if a selected array of it holds objects; None if none does."""
        with opened(self.describe(index), self._files.stamp(index)) as npz:
            objects = {
                key: (member, length, shape)
                for key, member in members_by_key(npz).items()
                for length, shape in [_objects(npz, member)]
                if length and (shape == () or self._fields is None or key in self._fields)
            }
            if not objects:
                return None
            found: dict[str, Any] = {}
            for key, member in members_by_key(npz).items():
                if key in objects:
                    _add(found, _arrays(npz, key, *objects[key]), npz.path, member)
                elif self._fields is None or key in self._fields:
                    spec = header_of(npz, member).spec
                    array = np.empty(spec.shape, spec.dtype)
                    read_array(npz, key, member, array)
                    _add(found, {key: array}, npz.path, member)
        chosen: dict[str, Any] = select(found, self._fields, self.describe(index), self._optional)
        return chosen


def _objects(npz: Npz, member: Member) -> tuple[int, tuple[int, ...]]:
    """Return length of the header and shape of an array of objects; length 0 for all else."""
    first = read_first(npz.fd, npz.path, member, _FIRST)
    try:
        length = header_length(first, npz.path, member.name)
        start = 10 if first[6] == 1 else 12
        if length > len(first):
            return 0, ()
        header = parse_literal(first[start:length].decode("latin-1"), longs=True)
    except (SourceError, ValueError):
        return 0, ()  # whoever reads it says so
    if not isinstance(header, dict) or header.get("descr") not in {"|O", "O", "|O8", "O8"}:
        return 0, ()
    shape = header.get("shape")
    return length, shape if isinstance(shape, tuple) else ()  # type: ignore[return-value]


def _arrays(npz: Npz, key: str, member: Member, length: int, shape: tuple[int, ...]) -> dict[str, Any]:
    payload = np.empty(member.size - length, np.uint8)
    read_member(npz.fd, npz.path, member, payload)
    try:
        return _alike(key, read_pickle(payload.tobytes()), shape, member.size)
    except ValueError as error:
        raise SourceError(npz.path, member.name, f"holds Python objects, of which {error}") from None


def _add(found: dict[str, Any], arrays: Mapping[str, Any], path: str, member: Member) -> None:
    for key, array in arrays.items():
        if key in found:
            text = (
                f"has the key {key!r}, which another array of the file has: save them under different names"
            )
            raise SourceError(path, member.name, text)
        found[key] = array


def _alike(key: str, value: Any, shape: tuple[int, ...], nbytes: int) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(value, np.ndarray) or value.shape != shape:
        raise ValueError("its pickle is not the array that its header says")
    only = value.item() if shape == () else None
    if not isinstance(only, dict):
        return {key: regular(value.reshape(-1).tolist(), shape, nbytes)}
    other = next((name for name in only if not isinstance(name, str)), "")
    if other != "":
        raise ValueError(f"one is a dict with the key {shown(other)}, and fields are named by text")
    return {name: regular([each], (), nbytes) for name, each in only.items()}


def regular(values: Sequence[Any], shape: tuple[int, ...], nbytes: int) -> npt.NDArray[Any]:
    """Make one array of values that are all alike.

    Parameters
    ----------
    values : sequence
        Arrays of one dtype and shape, numbers of one kind, or texts.
    shape : tuple of int
        Their number, as the axes before their own.
    nbytes : int
        Bytes of the pickle that they come from.

    Raises
    ------
    ValueError
        If they are not alike, or something else; says what to do.

    Examples
    --------
    >>> regular([1, 2], (2,), 99), regular(["a", "bc"], (1, 2), 99).shape
    (array([1, 2]), (1, 2))
    """
    if not values:
        raise ValueError(
            "there is none, so that nothing tells what they would be: save an empty array of numbers"
        )
    kinds = {type(value) for value in values}
    if kinds == {np.ndarray}:
        return _stacked(values, nbytes).reshape(shape + values[0].shape)
    if kinds == {str}:
        if any(value.endswith("\0") for value in values):
            raise ValueError("a text ends in a zero byte, which an array of text cannot hold")
        return np.array(values).reshape(shape)
    if len(kinds) == 1 and (dtype := _PLAIN.get(kinds.pop())) is not None:
        try:
            return np.array(values, dtype).reshape(shape)
        except OverflowError:
            raise ValueError("a whole number is beyond 64 bits: save it as text, or as float64") from None
    names = sorted({type(value).__name__ for value in values})
    raise ValueError(
        f"the elements are {', '.join(names)}; arrays of one shape, numbers of one kind or texts can be "
        "stored: save plain arrays, one under each key"
    )


def _stacked(values: Sequence[npt.NDArray[Any]], nbytes: int) -> npt.NDArray[Any]:
    first = values[0]
    for value in values:
        if value.dtype.hasobject:
            raise ValueError("one is an array of objects again: save its elements under keys of their own")
        if value.dtype != first.dtype:
            raise ValueError(
                f"arrays are {first.dtype} and {value.dtype}: convert them to one, and save again"
            )
        if value.shape != first.shape:
            raise ValueError(
                f"arrays have the shapes {first.shape} and {value.shape}, a ragged array: save each of "
                "them as a sample of its own, or all in one array and their lengths in another"
            )
    total = len(values) * first.dtype.itemsize * math.prod(first.shape)
    if total > nbytes * _GROWTH:
        raise ValueError(
            f"arrays take {total} bytes, and their pickle {nbytes}: it says the same again and again"
        )
    return np.stack(values)
