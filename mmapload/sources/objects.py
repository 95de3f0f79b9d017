"""Samples from `.npz` files with arrays of Python objects in them, from people whom the reader trusts.

An array of objects becomes a field if its elements are arrays of one dtype and shape, or numbers of one kind,
or texts. A dict that was saved as an array without axes becomes its keys. Where asked, a list of arrays of
different shapes becomes two fields: all values in a row, and the shapes. Pickles are read by `unpickling`,
which makes nothing but arrays and plain values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources.alike import apart_from_shapes, is_list_of_arrays, regular, rows_of
from mmapload.sources.archives import header_of, members_by_key, opened, read_array
from mmapload.sources.literal import parse_literal
from mmapload.sources.npy import header_length
from mmapload.sources.npz import NpzSource
from mmapload.sources.unpickling import read_pickle
from mmapload.sources.values import select, specs_of, store_sample
from mmapload.sources.zipmember import read_first, read_member

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from mmapload.sources import ArraySpec
    from mmapload.sources.archives import Npz
    from mmapload.sources.listing import Listing
    from mmapload.sources.zipdir import Member

__all__ = ["ObjectNpzSource"]

_AUTO: Final = "auto"
_FIRST: Final = 512


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
    ragged : collection of str
        Fields that are lists of arrays, whose values and shapes are taken apart; or "auto": all those that
        are saved as arrays in an array of objects with one axis.
    """

    def __init__(
        self,
        files: Listing,
        fields: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
        ragged: Collection[str] = (),
    ) -> None:
        self.kind = "npz"
        self.parallel = True
        self._files = files
        self._plain = NpzSource(files, fields, optional)
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)
        self._ragged = frozenset(ragged)
        self._kinds: dict[str, tuple[np.dtype[Any], int]] = {}

    def __len__(self) -> int:
        """Count the files."""
        return len(self._plain)

    def name(self, index: int) -> str:
        """Path of file `index`, relative to the listing's root."""
        return self._plain.name(index)

    def describe(self, index: int) -> str:
        """Path of file `index`, to open it by."""
        return self._plain.describe(index)

    def part(self, indices: range) -> ObjectNpzSource:
        """Return a source of some of the files, to be sent to another process."""
        return ObjectNpzSource(self._files.part(indices), self._fields, self._optional, self._ragged)

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
                    _add(found, self._arrays(npz, key, *objects[key]), npz.path, member)
                elif self._fields is None or key in self._fields:
                    spec = header_of(npz, member).spec
                    array = np.empty(spec.shape, spec.dtype)
                    read_array(npz, key, member, array)
                    _add(found, {key: array}, npz.path, member)
        chosen: dict[str, Any] = select(found, self._fields, self.describe(index), self._optional)
        return chosen

    def _arrays(
        self, npz: Npz, key: str, member: Member, length: int, shape: tuple[int, ...]
    ) -> dict[str, npt.NDArray[Any]]:
        value = _value(npz, member, length)
        name = (self._fields or {}).get(key, key)
        try:
            apart = name in self._ragged or (_AUTO in self._ragged and is_list_of_arrays(value))
            if not apart or shape == ():
                return _alike(key, value, shape, member.size)
            shapes_key = self._shapes_key(key)
            kind = self._kind_of(key) if not value.size else None
            values, shapes = apart_from_shapes(rows_of(value, shape, member.size), member.size, kind)
        except ValueError as error:
            raise _refused(npz, member, error) from None
        return {key: values, shapes_key: shapes}

    def _shapes_key(self, key: str) -> str:
        shapes_key = f"{key}_shapes"
        if self._fields is not None and shapes_key not in self._fields:
            raise ValueError(f"the shapes are in {shapes_key!r}: name it too, --fields {key},{shapes_key}")
        return shapes_key

    def _kind_of(self, key: str) -> tuple[np.dtype[Any], int]:
        """Return dtype and number of axes of the arrays under a key, from the first file that has any."""
        if key not in self._kinds:
            for index in range(len(self)):
                with opened(self.describe(index), self._files.stamp(index)) as npz:
                    member = members_by_key(npz).get(key)
                    length, shape = (0, ()) if member is None else _objects(npz, member)
                    if member is None or not length or 0 in shape:
                        continue
                    first = _value(npz, member, length).reshape(-1)[0]
                    if isinstance(first, np.ndarray):
                        self._kinds[key] = first.dtype, first.ndim
                        break
            else:
                raise ValueError("there is none, in no file, so that nothing tells what they would be")
        return self._kinds[key]


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


def _value(npz: Npz, member: Member, length: int) -> Any:
    payload = np.empty(member.size - length, np.uint8)
    read_member(npz.fd, npz.path, member, payload)
    try:
        return read_pickle(payload.tobytes())
    except ValueError as error:
        raise _refused(npz, member, error) from None


def _refused(npz: Npz, member: Member, error: ValueError) -> SourceError:
    return SourceError(npz.path, member.name, f"holds Python objects, of which {error}")


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
