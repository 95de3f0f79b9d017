"""Samples that are the arrays of archives: every key is one, with a single field."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mmapload.errors import SourceError
from mmapload.sources.absent import absent_fields
from mmapload.sources.archives import (
    Npz,
    header_of,
    listed,
    members_by_key,
    opened,
    opened_file,
    read_array,
    selected,
)
from mmapload.sources.badfiles import BadFiles
from mmapload.sources.npyfiles import NPY_FIELD

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.sources import ArraySpec
    from mmapload.sources.listing import Listing
    from mmapload.sources.zipdir import Member

__all__ = ["Archive", "KeysSource", "look_at_keys"]


@dataclass(frozen=True, slots=True)
class Archive:
    """One `.npz` file of samples.

    Attributes
    ----------
    path, name : str
        To open it by, and relative to the listing's root.
    members : tuple of Member
        Its samples, in the order of its directory.
    identity : tuple of int
        Its size and time of modification, when its directory was read.
    fault : SourceError or None
        What is wrong with it; it then stands for one sample, a bad one.
    """

    path: str
    name: str
    members: tuple[Member, ...]
    identity: tuple[int, int]
    fault: SourceError | None = None

    def __len__(self) -> int:
        return 1 if self.fault is not None else len(self.members)


class KeysSource:
    """Arrays of `.npz` files, each read by itself and checked against its CRC-32.

    Parameters
    ----------
    archives : sequence of Archive
        The files, in the order of the samples; in each the order is that of its zip directory.
    fields : mapping of str to str, optional
        {"data": name} gives the field another name.
    optional : collection of str
        Fields that samples may lack.

    Attributes
    ----------
    kind : str
        "npz".
    parallel : bool
        True: every call opens its own file.
    notes : mapping
        What the store keeps about its source: {"samples": "keys"}.
    """

    def __init__(
        self,
        archives: Sequence[Archive],
        fields: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self.kind = "npz"
        self.parallel = True
        self.notes = {"samples": "keys"}
        self._archives = archives
        self._starts = [0, *accumulate(len(archive) for archive in archives)]
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)

    def __len__(self) -> int:
        """Count the keys of all files."""
        return self._starts[-1]

    def _place(self, index: int) -> tuple[Archive, int]:
        file = bisect_right(self._starts, index) - 1
        return self._archives[file], index - self._starts[file]

    def _member(self, index: int) -> tuple[Archive, Member]:
        archive, place = self._place(index)
        if archive.fault is not None:
            raise archive.fault
        return archive, archive.members[place]

    def name(self, index: int) -> str:
        """Path of the file relative to the listing's root, and the key in it: "train.npz/arr_7"."""
        archive, place = self._place(index)
        return archive.name if archive.fault is not None else f"{archive.name}/{_key(archive.members[place])}"

    def describe(self, index: int) -> str:
        """Path of the file, to open it by, and the key in it."""
        archive, place = self._place(index)
        return archive.path if archive.fault is not None else f"{archive.path}/{_key(archive.members[place])}"

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Read dtype and shape of sample `index` from its header.

        Raises
        ------
        SourceError
            If it is damaged or holds what a store cannot, or fields are selected that no sample has.
        """
        archive, member = self._member(index)
        fields = self._chosen(archive.path)
        with opened_file(archive.path) as (fd, status):
            _expect(archive, status)
            spec = header_of(Npz(fd, archive.path, status.st_size, archive.members), member).spec
        return dict.fromkeys(fields, spec)

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Read sample `index` into the array given.

        Returns
        -------
        tuple of str
            The optional fields that it lacks.

        Raises
        ------
        SourceError
            If it is damaged, the file has changed, or its dtype or shape is not that of `into`.
        """
        archive, member = self._member(index)
        fields = self._chosen(archive.path)
        absent = absent_fields(fields, into, self._optional)
        if absent is None:
            raise SourceError(
                archive.path, member.name, f"each key is the field {listed(fields)}, expected {listed(into)}"
            )
        with opened_file(archive.path) as (fd, status):
            _expect(archive, status)
            npz = Npz(fd, archive.path, status.st_size, archive.members)
            for field in fields:
                try:
                    read_array(npz, field, member, into[field])
                except SourceError as error:
                    raise _explained(npz, member, into[field], error) from None
        return absent

    def _chosen(self, path: str) -> Collection[str]:
        return selected(path, {NPY_FIELD: None}, self._fields, self._optional)

    def fingerprint(self, index: int) -> bytes:
        """Summarise sample `index`: its name, its sizes and its CRC-32, as the zip directory has them.

        Returns
        -------
        bytes
            16 bytes.
        """
        archive, member = self._member(index)
        facts = (archive.name, member.raw_name, member.method, member.crc, member.compressed, member.size)
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).digest()


def _key(member: Member) -> str:
    return member.name.removesuffix(".npy")


def _expect(archive: Archive, status: Any) -> None:
    if archive.identity != (status.st_size, status.st_mtime_ns):
        raise SourceError(
            archive.path,
            None,
            f"changed since its directory was read ({archive.identity[0]} bytes then, {status.st_size} now): "
            "run the command again when nothing writes to it",
        )


def _explained(npz: Npz, member: Member, into: npt.NDArray[Any], error: SourceError) -> SourceError:
    """Say of an empty array that its dtype may be nobody's choice."""
    try:
        spec = header_of(npz, member).spec
    except SourceError:
        return error
    if spec.nbytes or spec.dtype == into.dtype:
        return error
    return SourceError(
        error.file,
        error.member,
        f"{error.cause}; it is empty, and numpy makes float64 of an empty list: write it as "
        f"np.array([], {into.dtype.name!r}), with the shape that it should have",
    )


def look_at_keys(files: Listing, *, skip: bool = False) -> list[Archive]:
    """Read the directories of all files.

    Parameters
    ----------
    files : Listing
        `.npz` files.
    skip : bool
        Whether to go on where something is wrong with a file.

    Raises
    ------
    SourceError
        If a file cannot be read, or has no array; names the other files of which that is so.
    """
    found = []
    bad = BadFiles(files, skip=skip)
    for index in bad.numbers():
        path, name = files.path(index), files.names[index]
        with bad.noting(index):
            with opened_file(path) as (_, status), opened(path) as npz:
                members = tuple(members_by_key(npz).values())
            found.append(Archive(path, name, members, (status.st_size, status.st_mtime_ns)))
        if index in bad.faults:
            found.append(Archive(path, name, (), (0, 0), bad.faults[index]))
    return found
