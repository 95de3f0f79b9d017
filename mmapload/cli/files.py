"""Which files lie in a store's folders, and which of them belong there."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmapload.fieldnames import groups_of
from mmapload.layout import RESERVED_GROUP
from mmapload.ragged import EXTENTS, chunk_files, extents_folder
from mmapload.reserved import reserved_arrays
from mmapload.store import METADATA

if TYPE_CHECKING:
    from collections.abc import Collection

    from mmapload.layout import FieldLayout
    from mmapload.store import Store

__all__ = ["FieldFiles", "foreign_files", "survey"]

_CHUNK = re.compile(r"c\.(0|[1-9][0-9]{0,15})((?:\.0)*)")


@dataclass(frozen=True, slots=True)
class FieldFiles:
    """What is in the folder of one field.

    Attributes
    ----------
    present : int
        Chunk files that are there.
    nbytes : int
        Their size on the disk, checksums included.
    foreign : tuple of str
        Names of all else, sorted; the metadata is not among them.
    """

    present: int
    nbytes: int
    foreign: tuple[str, ...]


def survey(store: Store, field: FieldLayout) -> FieldFiles:
    """List the folder of a field, once; nothing is opened."""
    if field.is_ragged:
        return _survey_ragged(store, field)
    chunks = store.layout.chunks if field.sample_nbytes else 0
    present, nbytes, foreign = 0, 0, []
    folder = os.path.join(store.path, field.name)
    with os.scandir(folder) as entries:
        for entry in entries:
            found = _CHUNK.fullmatch(entry.name)
            if found and int(found[1]) < chunks and entry.name == field.chunk_key(int(found[1])):
                present += 1
                nbytes += _size(entry)
            elif entry.name != METADATA:
                foreign.append(entry.name)
    return FieldFiles(present, nbytes, tuple(sorted(foreign)))


def _survey_ragged(store: Store, field: FieldLayout) -> FieldFiles:
    """Do the same for a field with several files a chunk in two folders; holes in them take no room."""
    own: dict[str, set[str]] = {}
    for chunk, values in enumerate(store.values(field).tolist()):
        for _, path in chunk_files(store.path, field, chunk, values):
            own.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
    present, nbytes, foreign = 0, 0, []
    extents = os.path.join(store.path, extents_folder(field))
    for folder in (os.path.join(store.path, field.name), extents):
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in own.get(folder, ()):
                    present += 1
                    nbytes += _size(entry, with_holes=False)
                elif entry.name != METADATA:
                    foreign.append(os.path.relpath(entry.path, os.path.join(store.path, field.name)))
    return FieldFiles(present, nbytes, tuple(sorted(foreign)))


def _size(entry: os.DirEntry[str], *, with_holes: bool = True) -> int:
    try:
        status = entry.stat()
        return status.st_size if with_holes else min(status.st_size, status.st_blocks * 512)
    except OSError:  # a dangling link, or gone meanwhile
        return 0


def foreign_files(store: Store) -> list[str]:
    """List the paths in a store that do not belong to it."""
    reserved = {array.name for array in reserved_arrays(store.layout)}
    foreign = _foreign_in(store.path, store.fields, {RESERVED_GROUP} if reserved else set())
    for field in store.layout.fields:
        names = survey(store, field).foreign
        foreign += [os.path.normpath(os.path.join(store.path, field.name, name)) for name in names]
    if reserved:
        group = os.path.join(store.path, RESERVED_GROUP)
        present = sorted(os.listdir(group)) if os.path.isdir(group) else []
        own = {METADATA, *reserved} | ({EXTENTS} if store.layout.ragged else set())
        foreign += [os.path.join(group, name) for name in present if name not in own]
    if store.layout.ragged:
        group = os.path.join(store.path, RESERVED_GROUP, EXTENTS)
        foreign += _foreign_in(group, [field.name for field in store.layout.ragged], set())
    return foreign


def _foreign_in(folder: str, names: Collection[str], others: set[str]) -> list[str]:
    """List what lies in a folder and its groups, and is no array of these names, and no other of these."""
    own = {METADATA, *names, *groups_of(names), *others}
    foreign = []
    for group in ("", *groups_of(names)):
        found = sorted(os.listdir(os.path.join(folder, group)))
        paths = [os.path.join(group, name) for name in found if name != METADATA]
        foreign += [os.path.join(folder, path) for path in paths if path not in own]
    return foreign
