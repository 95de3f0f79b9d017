"""Open `.npz` files: their directories, their arrays' headers, and the arrays themselves, read in place."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.notes import bytes_of
from mmapload.sources import ArraySpec
from mmapload.sources.absent import selection_advice
from mmapload.sources.npy import MAX_HEADER, Header, header_length, parse_header
from mmapload.sources.plainfiles import open_descriptor
from mmapload.sources.signatures import archive_kind
from mmapload.sources.stamps import check_stamp
from mmapload.sources.zipdir import read_directory
from mmapload.sources.zipmember import read_first, read_member

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources.stamps import Stamp
    from mmapload.sources.zipdir import Member

__all__ = [
    "Npz",
    "header_of",
    "listed",
    "member_header",
    "members_by_key",
    "opened",
    "opened_file",
    "read_array",
    "selected",
]

Array = TypeVar("Array")

_FIRST = 512  # holds the header of nearly every array
_MOST_LISTED = 12


@dataclass(frozen=True, slots=True)
class Npz:
    """An open file and its directory.

    Attributes
    ----------
    fd : int
        Descriptor of the file.
    path : str
        For messages.
    size : int
        Bytes in the file.
    members : tuple of Member
        In the directory's order.
    """

    fd: int
    path: str
    size: int
    members: tuple[Member, ...]


@contextmanager
def opened_file(path: str, stamp: Stamp | None = None) -> Iterator[tuple[int, os.stat_result]]:
    """Open a file, and give descriptor and status; at the end check that it is as it was.

    Raises
    ------
    SourceError
        If it cannot be opened or read, is no regular file, changes meanwhile, or has changed since
        its stamp was taken.
    """
    fd, before = open_descriptor(path)
    try:
        check_stamp(path, stamp, before)
        yield fd, before
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


@contextmanager
def opened(path: str, stamp: Stamp | None = None) -> Iterator[Npz]:
    """Open an `.npz` file and read its directory; as `opened_file`."""
    with opened_file(path, stamp) as (fd, status):
        members = read_directory(fd, status.st_size, path)
        if kind := archive_kind([member.name for member in members]):
            raise SourceError(path, None, f"not an .npz file but {kind}")
        yield Npz(fd, path, status.st_size, members)


def members_by_key(npz: Npz) -> dict[str, Member]:
    """Return a file's arrays by their keys, in the order of its directory.

    Raises
    ------
    SourceError
        If two members have one key, or there is none.
    """
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
    return keys


def selected(
    path: str, keys: Mapping[str, Array], fields: Mapping[str, str] | None, optional: Collection[str]
) -> dict[str, Array]:
    """Return what is under the keys that are selected, by the names of their fields.

    Parameters
    ----------
    path : str
        For messages.
    keys : mapping of str
        What the file has.
    fields : mapping of str to str, or None
        Which keys to take, and the field that each becomes; None takes all.
    optional : collection of str
        Fields that the file may lack.

    Raises
    ------
    SourceError
        If a key that is not optional is not there.
    """
    if fields is None:
        return dict(keys)
    absent = {key: field for key, field in fields.items() if key not in keys and field not in optional}
    if absent:
        raise SourceError(
            path,
            None,
            f"has no array {listed(absent)}; it has {listed(keys)}; {selection_advice(absent, keys, fields)}",
        )
    return {field: keys[key] for key, field in fields.items() if key in keys}


def listed(names: Collection[str]) -> str:
    """Write the first of some names, and how many there are if not all are written."""
    most = [shown(name) for name in islice(names, _MOST_LISTED)]
    return ", ".join(most) + (f", ... ({len(names)} in all)" if len(names) > len(most) else "")


def header_of(npz: Npz, member: Member) -> Header:
    """Read a member's header, and check that its payload has the size that it says."""
    return member_header(npz.fd, npz.path, member)[1]


def member_header(fd: int, path: str, member: Member) -> tuple[bytes, Header]:
    """Read what comes before the array in a member, and what it says; checks the size of what follows.

    Raises
    ------
    SourceError
        If it is damaged, or the array is none that a store can hold.
    """
    first = read_first(fd, path, member, _FIRST)
    length = header_length(first, path, member.name)
    if length > len(first):
        first = read_first(fd, path, member, length)
    header = parse_header(first[:length], path, member.name)
    if length + header.spec.nbytes != member.size:
        raise SourceError(
            path,
            member.name,
            f"{header.spec} takes {header.spec.nbytes} bytes, and {member.size - length} are there: "
            "write the file again",
        )
    return first[:length], header


def read_array(npz: Npz, field: str, member: Member, into: npt.NDArray[Any]) -> None:
    """Read one array in place; one system call where it is stored and fits."""
    expected = ArraySpec(into.dtype, into.shape)
    before = member.size - into.nbytes
    header = None
    if 0 < before <= MAX_HEADER + 12:
        payload = bytes_of(into)
        first = read_member(npz.fd, npz.path, member, payload)
        if header_length(first, npz.path, member.name) == before:
            header = parse_header(first, npz.path, member.name)
    if header is None or header.spec != expected:
        found = header_of(npz, member).spec
        if found == expected or not expected.holds(found):
            raise SourceError(npz.path, member.name, f"field {field!r} is {found}, expected {expected}")
        narrow = np.empty(found.shape, found.dtype)  # text that is shorter than the longest of all samples
        read_array(npz, field, member, narrow)
        into[...] = narrow
        return
    if header.fortran:
        transposed = into.reshape(into.shape[::-1]).T
        np.copyto(into, transposed.copy())
    if header.swapped:
        into.byteswap(inplace=True)
