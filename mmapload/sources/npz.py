"""Samples from `.npz` files: one file is one sample of named arrays.

An array's key is its member's name in the zip file without one trailing `.npy`, as `numpy.savez` makes it:
the key `a.npy` is the member `a.npy.npy`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mmapload.errors import SourceError
from mmapload.sources.absent import absent_fields, difference_advice
from mmapload.sources.archives import header_of, listed, members_by_key, opened, read_array, selected

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources import ArraySpec
    from mmapload.sources.archives import Npz
    from mmapload.sources.listing import Listing
    from mmapload.sources.zipdir import Member

__all__ = ["NpzSource"]

_Found: TypeAlias = "npt.NDArray[Any] | SourceError | None"


class NpzSource:
    """Samples from `.npz` files, read without numpy's loader and without ever unpickling anything.

    Stored members are read straight to their place, deflated ones inflated to it; the zip file's CRC-32 is
    checked over every byte used. Arrays come out in C order and native byte order, bit for bit.

    Parameters
    ----------
    files : Listing
        The files, in the order of the samples.
    fields : mapping of str to str, optional
        Which keys to read, and the field that each becomes. None: all, under their own names.
    optional : collection of str
        Fields that a file may lack.

    Attributes
    ----------
    kind : str
        "npz".
    parallel : bool
        True: every call opens its own file and keeps nothing.

    Raises
    ------
    ValueError
        If two keys are to become one field.

    Examples
    --------
    >>> import os, tempfile
    >>> import numpy as np
    >>> from mmapload.sources.listing import list_files
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.savez(os.path.join(folder.name, "s0.npz"), image=np.ones((2, 3), "u1"), label=7)
    >>> source = NpzSource(list_files([folder.name]), {"image": "x"})
    >>> {field: str(spec) for field, spec in source.schema(0).items()}
    {'x': 'uint8 (2, 3)'}
    >>> x = np.empty((2, 3), "u1")
    >>> absent = source.read(0, {"x": x})
    >>> int(x.sum())
    6
    >>> folder.cleanup()
    """

    def __init__(
        self, files: Listing, fields: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        self.kind = "npz"
        self.parallel = True
        self._files = files
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)
        if self._fields is not None and len(set(self._fields.values())) < len(self._fields):
            raise ValueError(f"two keys are to become one field: {self._fields}")

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)

    def name(self, index: int) -> str:
        """Path of file `index`, relative to the listing's root."""
        return self._files.names[index]

    def describe(self, index: int) -> str:
        """Path of file `index`, to open it by."""
        return self._files.path(index)

    def part(self, indices: range) -> NpzSource:
        """Return a source of some of the files, to be sent to another process."""
        return NpzSource(self._files.part(indices), self._fields, self._optional)

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Read what arrays file `index` has, from its zip directory and the arrays' headers.

        Returns
        -------
        dict of str to ArraySpec
            Field name to dtype and shape; in the order of `fields`, else of the zip directory. Optional
            fields are in it if they are in the file.

        Raises
        ------
        SourceError
            If the file cannot be read, lacks a selected key that is not optional, or holds what a store
            cannot.
        """
        with opened(self._files.path(index), self._files.stamp(index)) as npz:
            return {field: header_of(npz, member).spec for field, member in self._select(npz).items()}

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Read file `index` into the arrays given.

        Parameters
        ----------
        index : int
            Which file.
        into : mapping of str to numpy.ndarray
            For every field a C-contiguous array of its dtype and shape.

        Returns
        -------
        tuple of str
            The optional fields that the file lacks; their arrays are left as they are.

        Raises
        ------
        SourceError
            If the file cannot be read or changes meanwhile, or its fields, dtypes or shapes are not those of
            `into`. What `into` then holds is undefined.
        """
        with opened(self._files.path(index), self._files.stamp(index)) as npz:
            members = self._select(npz)
            absent = absent_fields(members, into, self._optional)
            if absent is None:
                for field in members.keys() - into.keys():
                    header_of(npz, members[field])  # says what it is if it is no array
                raise _fields_differ(npz.path, members, into, self._optional)
            for field, member in members.items():
                read_array(npz, field, member, into[field])
        return absent

    def arrays_like(self, index: int, specs: Collection[ArraySpec]) -> Iterator[tuple[str, _Found]]:
        """Yield the fields of file `index`, with the arrays that are like one of `specs`, one at a time.

        Of others only the header is read; None comes, or what is wrong with them. Raises as `schema` does.
        """
        with opened(self._files.path(index), self._files.stamp(index)) as npz:
            for field, member in self._select(npz).items():
                try:
                    spec = header_of(npz, member).spec
                    found = np.empty(spec.shape, spec.dtype) if spec in specs else None
                    if found is not None:
                        read_array(npz, field, member, found)
                    yield field, found
                except SourceError as error:
                    yield field, error

    def fingerprint(self, index: int) -> bytes:
        """Summarise file `index`: its name, size, and the sizes and CRC-32s that its zip directory holds.

        A change that keeps size and time of modification is seen. It costs one read of 4 KiB.

        Returns
        -------
        bytes
            16 bytes.

        Raises
        ------
        SourceError
            If the file cannot be opened or is no zip file.
        """
        with opened(self._files.path(index), self._files.stamp(index)) as npz:
            facts = [self.name(index), npz.size]
            facts += [(m.raw_name, m.method, m.crc, m.compressed, m.size) for m in npz.members]
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).digest()

    def _select(self, npz: Npz) -> dict[str, Member]:
        """Fields to read, and the member that holds each."""
        return selected(npz.path, members_by_key(npz), self._fields, self._optional)


def _fields_differ(
    path: str, members: Mapping[str, Member], into: Mapping[str, Any], optional: Collection[str]
) -> SourceError:
    missing = [field for field in into if field not in members and field not in optional]
    extra = [field for field in members if field not in into]
    differences = [f"lacks {listed(missing)}"] * bool(missing) + [f"also has {listed(extra)}"] * bool(extra)
    return SourceError(
        path,
        None,
        f"{' and '.join(differences)}: its fields are {listed(members)}, expected {listed(into)}; "
        f"{difference_advice(missing, extra, [field for field in into if field in members])}",
    )
