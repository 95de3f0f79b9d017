"""Read a store's metadata from its folder: the root's document, then every field's.

A store holds its own files. A symbolic link in it could lead anywhere, so none is followed; nor is anything
opened that is no file, for a pipe would block and a device might act.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import LayoutError, StoreNotFoundError, shown
from mmapload.fieldnames import groups_of
from mmapload.layout import RESERVED_GROUP
from mmapload.metadata import parse_field, parse_group, parse_ragged, parse_root
from mmapload.notes import FieldNote, parse_note
from mmapload.otherformats import other_format, what_is_there
from mmapload.ragged import EXTENTS, extents_array, field_groups
from mmapload.seals import document_text, faults_of
from mmapload.strictjson import MAX_DOCUMENT_BYTES, parse_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["METADATA", "identity_of", "read_layout", "read_reserved", "rewritten_documents", "root_document"]

METADATA: Final = "zarr.json"
"""The file of every group and array that says what is in it."""

_NOTHING_THERE: Final = {errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP}
_KINDS: Final = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_MOST_TRIES: Final = 100
"""How often a root may change while the fields are read, which takes milliseconds."""


class _Unreadable(Exception):  # noqa: N818 - it ends in read_layout, as one of the problems
    """There is something at a path, and it is not what a store has there."""


def read_layout(folder: str, given: str = "") -> StoreLayout:
    """Read the layout of the finished store in a folder.

    Parameters
    ----------
    folder : str
        Absolute.
    given : str
        The same as the user wrote it, for a command to type.

    Raises
    ------
    StoreNotFoundError
        If there is none; the message says what is there instead, an unfinished one for instance.
    LayoutError
        If its metadata is not as the format wants it: all problems at once.
    """
    text = _read_root(folder, given)
    for _ in range(_MOST_TRIES):
        try:
            return _parse_all(folder, text)
        except LayoutError:
            before, text = text, _read_root(folder, given)
            if text == before:
                raise
    return _parse_all(folder, text)


def _read_root(folder: str, given: str) -> bytes:
    try:
        text = _read(os.path.join(folder, METADATA), METADATA)
    except _Unreadable as problem:
        raise LayoutError(folder, [str(problem)]) from None
    if text is None:
        raise StoreNotFoundError(what_is_there(folder, given or folder))
    return text


def _parse_all(folder: str, text: bytes) -> StoreLayout:
    """Read the documents of all fields; an append that goes on meanwhile changes one after the other."""
    document, problems = parse_document(text, METADATA)
    if not document and problems:
        raise LayoutError(folder, problems)
    layout, names, found = parse_root(document, METADATA)
    problems += found
    if layout is None:
        raise LayoutError(folder, problems)
    fields, documents = [], {}
    notes = document["attributes"]["mmapload"].get("fields")
    faulty, found = _group_faults(folder, names, notes)
    problems += found
    for name in (each for each in names if not faulty.intersection(groups_of([each]))):
        field, documents[name], found = _read_field(folder, name, layout, notes[name])
        fields += [field] if field else []
        problems += found
    lengths = sorted({each.chunk_length for each in fields})
    if len(lengths) > 1:
        problems.append(f"all fields must have one chunk length, found {shown(lengths)}")
    problems += _links(folder)
    problems = problems or faults_of(document, documents, METADATA)
    if problems:
        raise LayoutError(folder, problems)
    return dataclasses.replace(layout, chunk_length=lengths[0], fields=tuple(fields))


def root_document(folder: str) -> dict[str, Any]:
    """Return the root's document as it is, be it sound or not; empty where there is none that can be read."""
    try:
        text = _read(os.path.join(folder, METADATA), METADATA)
    except _Unreadable:
        return {}
    return parse_document(text or b"", METADATA)[0]


def read_reserved(
    folder: str, groups: Iterable[str], arrays: Iterable[tuple[FieldLayout, int]]
) -> tuple[dict[str, int], list[str]]:
    """Read the documents of what is reserved, which opening a store does without.

    Parameters
    ----------
    groups : iterable of str
        Groups that have to be there, by their paths below `folder`.
    arrays : iterable of (FieldLayout, int)
        What has to be there, and how long it is at least.

    Returns
    -------
    lengths : dict of str to int
        How long the arrays are, those whose documents are sound.
    problems : list of str
        What is wrong.
    """
    lengths = {}
    problems = []
    for group in groups:
        document, found = _read_document(folder, group, "the root says that the group is there")
        problems += found + (parse_group(document, f"{group}/{METADATA}") if document else [])
    for array, least in arrays:
        name = f"{RESERVED_GROUP}/{array.name}"
        document, found = _read_document(folder, name, "the root says that the array is there")
        if document:
            read, more = parse_field(array.name, document, least, 1, f"{name}/{METADATA}")
            found += more
            if not found and read != array:
                found.append(f"{name}/{METADATA}: expected {array}, found {read}")
            if not found and document.get("fill_value") != 0:
                found.append(f"{name}/{METADATA}: fill_value: expected 0, found {document.get('fill_value')}")
        if not found:
            lengths[array.name] = document["shape"][0]
        problems += found
    return lengths, problems


def rewritten_documents(folder: str, names: Iterable[str]) -> list[str]:
    """Say which documents are not in the one form in which they are written, or lack what makes them whole.

    Parameters
    ----------
    names : iterable of str
        Groups and arrays below `folder`; the empty one is the root.
    """
    problems = []
    for name in names:
        where = os.path.join(name, METADATA)
        try:
            text = _read(os.path.join(folder, where), where) or b""
        except _Unreadable:
            continue  # told where it is opened
        document, found = parse_document(text, where)
        if not found and document_text(document) != text:
            problems.append(
                f"{where}: was damaged or written anew by another program; what it says is as it was"
            )
    return problems


def _group_faults(folder: str, names: Iterable[str], notes: Mapping[str, Any]) -> tuple[set[str], list[str]]:
    """Look at the groups in which fields lie: returns those that are none, whose fields nobody looks at."""
    ragged = [name for name in names if isinstance(notes[name], dict) and "ragged" in notes[name]]
    faulty: set[str] = set()
    problems: list[str] = []
    for group in field_groups(names, ragged):
        if not faulty.intersection(groups_of([group])):
            document, found = _read_document(folder, group, "the root says that fields are in it")
            found += parse_group(document, f"{group}/{METADATA}") if document else []
            faulty |= {group.removeprefix(f"{RESERVED_GROUP}/{EXTENTS}/")} if found else set()
            problems += found
    return faulty, problems


def _read_field(
    folder: str, name: str, layout: StoreLayout, note: object
) -> tuple[FieldLayout | None, dict[str, Any], list[str]]:
    document, problems = _read_document(folder, name, f"the root says that there is a field {name!r}")
    if not document and problems:
        return None, {}, problems
    known, where = parse_note(note) or FieldNote(), f"{name}/{METADATA}"
    if known.ragged:
        field, found = _parse_ragged(folder, name, known, document, layout)
    else:
        field, found = parse_field(name, document, layout.samples, layout.batch_size, where, known.dtype)
    return field, document, problems + found


def _parse_ragged(
    folder: str, name: str, note: FieldNote, document: dict[str, Any], layout: StoreLayout
) -> tuple[FieldLayout | None, list[str]]:
    """Read the document of a field's extents too, which says how many samples a chunk has."""
    array = f"{RESERVED_GROUP}/{EXTENTS}/{name}"
    own, problems = _read_document(folder, array, f"it says where samples of {name!r} end")
    if not own and problems:
        return None, problems
    extents, found = parse_field(name, own, layout.samples, layout.batch_size, f"{array}/{METADATA}")
    if extents is None:
        return None, problems + found
    chunks = -(-layout.samples // extents.chunk_length)
    where = f"{name}/{METADATA}"
    field, found = parse_ragged(name, note, document, chunks, extents.chunk_length, where)
    if field is not None and extents != extents_array(field):
        found = [f"{array}/{METADATA}: expected {extents_array(field)}, found {extents}"]
    return field, problems + found


def _read_document(folder: str, name: str, promise: str) -> tuple[dict[str, Any], list[str]]:
    """Read the `zarr.json` of a group or an array; empty where that is not possible, and a problem says why.

    Parameters
    ----------
    promise : str
        Why it should be there.
    """
    where = f"{name}/{METADATA}"
    try:
        kind = _kind(os.path.join(folder, name), name)
        if kind not in {None, stat.S_IFDIR}:
            return {}, [f"{name}: expected a folder, found {_KINDS.get(kind, 'something else')}"]
        text = _read(os.path.join(folder, name, METADATA), where) if kind else None
    except _Unreadable as problem:
        return {}, [str(problem)]
    if text is None:
        other = other_format(os.path.join(folder, name)) if kind else None
        return {}, [f"{where}: missing; {f'there is {other}' if other else promise}"]
    return parse_document(text, where)


def _links(folder: str) -> list[str]:
    """Return what is wrong with the reserved folders; whoever reads their files names what is missing."""
    group = os.path.join(folder, RESERVED_GROUP)
    try:
        if _kind(group, RESERVED_GROUP) == stat.S_IFDIR:
            for name in sorted(os.listdir(group)):
                _kind(os.path.join(group, name), f"{RESERVED_GROUP}/{name}")
    except _Unreadable as problem:
        return [str(problem)]
    except OSError as error:
        return [f"{RESERVED_GROUP}: cannot be read ({error.strerror})"]
    return []


def _kind(path: str, where: str) -> int | None:
    """Return what kind of file is at a path, None if there is nothing, and refuse links."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            raise _Unreadable(
                f"{where}: a symbolic link to {shown(os.readlink(path))}; a store holds its own files: "
                "copy it with links followed (cp -rL)"
            )
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        if isinstance(error, OSError) and error.errno not in _NOTHING_THERE:
            raise _Unreadable(f"{where}: cannot be read ({error.strerror})") from error
        return None
    return stat.S_IFMT(mode)


def _read(path: str, where: str) -> bytes | None:
    """Return what a document's file holds, at most one byte more than it may; None if there is none."""
    kind = _kind(path, where)
    if kind is None:
        return None
    if kind != stat.S_IFREG:
        raise _Unreadable(f"{where}: expected a file, found {_KINDS.get(kind, 'something else')}")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            return file.read(min(os.fstat(fd).st_size, MAX_DOCUMENT_BYTES) + 1)
    except OSError as error:
        raise _Unreadable(f"{where}: cannot be read ({error.strerror})") from error


def identity_of(path: str) -> tuple[int, int] | None:
    """Return what tells a folder from another one at the same path: None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino
