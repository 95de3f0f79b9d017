"""Samples from `.npz` files: one file is one sample of named arrays.

An array's key is its member's name in the zip file without one trailing `.npy`, as `numpy.savez` makes it:
the key `a.npy` is the member `a.npy.npy`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources import ArraySpec
from mmapload.sources.absent import absent_fields, fill_advice, selection_advice
from mmapload.sources.npy import MAX_HEADER, Header, header_length, parse_header
from mmapload.sources.signatures import archive_kind
from mmapload.sources.zipdir import read_directory
from mmapload.sources.zipmember import read_first, read_member

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources.listing import Listing
    from mmapload.sources.zipdir import Member

__all__ = ["NpzSource"]

_FIRST = 512  # holds the header of nearly every array
_MOST_LISTED = 12
# What this process or the machine lacks for the moment; it says nothing against the file.
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_Found: TypeAlias = "npt.NDArray[Any] | SourceError | None"


@dataclass(frozen=True, slots=True)
class _Npz:
    """An open file and its directory."""

    fd: int
    path: str
    size: int
    members: tuple[Member, ...]


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
        with _opened(self._files.path(index)) as npz:
            return {field: _header(npz, member).spec for field, member in self._select(npz).items()}

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
        with _opened(self._files.path(index)) as npz:
            members = self._select(npz)
            absent = absent_fields(members, into, self._optional)
            if absent is None:
                raise _fields_differ(npz.path, members, into, self._optional)
            for field, member in members.items():
                _read_array(npz, field, member, into[field])
        return absent

    def arrays_like(self, index: int, specs: Collection[ArraySpec]) -> Iterator[tuple[str, _Found]]:
        """Yield the fields of file `index`, with the arrays that are like one of `specs`, one at a time.

        Of others only the header is read; None comes, or what is wrong with them. Raises as `schema` does.
        """
        with _opened(self._files.path(index)) as npz:
            for field, member in self._select(npz).items():
                try:
                    spec = _header(npz, member).spec
                    found = np.empty(spec.shape, spec.dtype) if spec in specs else None
                    if found is not None:
                        _read_array(npz, field, member, found)
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
        with _opened(self._files.path(index)) as npz:
            facts = [self.name(index), npz.size]
            facts += [(m.raw_name, m.method, m.crc, m.compressed, m.size) for m in npz.members]
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).digest()

    def _select(self, npz: _Npz) -> dict[str, Member]:
        """Fields to read, and the member that holds each."""
        keys: dict[str, Member] = {}
        for member in npz.members:
            if member.name.endswith("/"):
                continue
            key = member.name.removesuffix(".npy")
            if key in keys:
                raise SourceError(npz.path, member.name, f"two members have the key {key!r}: rename one")
            keys[key] = member
        if not keys:
            raise SourceError(npz.path, None, "an .npz file without arrays")
        if self._fields is None:
            return keys
        absent = {
            key: field
            for key, field in self._fields.items()
            if key not in keys and field not in self._optional
        }
        if absent:
            raise SourceError(
                npz.path,
                None,
                f"has no array {_listed(absent)}; it has {_listed(keys)}; {selection_advice(absent, keys)}",
            )
        return {field: keys[key] for key, field in self._fields.items() if key in keys}


@contextmanager
def _opened(path: str) -> Iterator[_Npz]:
    """Open a file and read its directory; at the end check that it is as it was."""
    try:
        # Without O_NONBLOCK opening a pipe would wait for a writer; on a file it has no effect.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) in _SCARCE:
            raise
        raise SourceError(path, None, f"cannot be opened: {getattr(error, 'strerror', error)}") from None
    try:
        before = os.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise SourceError(path, None, "not a file")
        members = read_directory(fd, before.st_size, path)
        if kind := archive_kind([member.name for member in members]):
            raise SourceError(path, None, f"not an .npz file but {kind}")
        yield _Npz(fd, path, before.st_size, members)
        after = os.fstat(fd)
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise SourceError(
                path,
                None,
                f"changed while it was read ({before.st_size} bytes before, {after.st_size} after): "
                "wait until nothing writes to it",
            )
    except OSError as error:
        raise SourceError(path, None, f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)


def _header(npz: _Npz, member: Member) -> Header:
    """Read a member's header, and check that its payload has the size that it says."""
    first = read_first(npz.fd, npz.path, member, _FIRST)
    length = header_length(first, npz.path, member.name)
    if length > len(first):
        first = read_first(npz.fd, npz.path, member, length)
    header = parse_header(first[:length], npz.path, member.name)
    if length + header.spec.nbytes != member.size:
        raise SourceError(
            npz.path,
            member.name,
            f"{header.spec} takes {header.spec.nbytes} bytes, and {member.size - length} are there: "
            "write the file again",
        )
    return header


def _read_array(npz: _Npz, field: str, member: Member, into: npt.NDArray[Any]) -> None:
    """Read one array in place; one system call where it is stored and fits."""
    expected = ArraySpec(into.dtype, into.shape)
    before = member.size - into.nbytes
    header = None
    if 0 < before <= MAX_HEADER + 12:
        payload = np.frombuffer(into, np.uint8) if into.nbytes else np.empty(0, np.uint8)
        first = read_member(npz.fd, npz.path, member, payload)
        if header_length(first, npz.path, member.name) == before:
            header = parse_header(first, npz.path, member.name)
    if header is None or header.spec != expected:
        found = _header(npz, member).spec
        raise SourceError(npz.path, member.name, f"field {field!r} is {found}, expected {expected}")
    if header.fortran:
        transposed = into.reshape(into.shape[::-1]).T
        np.copyto(into, transposed.copy())
    if header.swapped:
        into.byteswap(inplace=True)


def _fields_differ(
    path: str, members: Mapping[str, Member], into: Mapping[str, Any], optional: Collection[str]
) -> SourceError:
    missing = [field for field in into if field not in members and field not in optional]
    extra = [field for field in members if field not in into]
    differences = [f"lacks {_listed(missing)}"] * bool(missing) + [f"also has {_listed(extra)}"] * bool(extra)
    return SourceError(
        path,
        None,
        f"{' and '.join(differences)}: its fields are {_listed(members)}, expected {_listed(into)}; "
        f"select the fields that all samples have; {fill_advice([*missing, *extra])}",
    )


def _listed(names: Mapping[str, Any] | list[str]) -> str:
    most = [shown(name) for name in islice(names, _MOST_LISTED)]
    return ", ".join(most) + (f", ... ({len(names)} in all)" if len(names) > len(most) else "")
