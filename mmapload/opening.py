"""Read a store's metadata from its folder: the root's document, then every field's."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Final

from mmapload.errors import LayoutError, StoreNotFoundError
from mmapload.metadata import MAX_DOCUMENT_BYTES, parse_document, parse_field, parse_root

if TYPE_CHECKING:
    from mmapload.layout import StoreLayout

__all__ = ["METADATA", "read_layout"]

METADATA: Final = "zarr.json"
"""The file of every group and array that says what is in it."""


def read_layout(folder: str) -> StoreLayout:
    """Read the layout of the finished store in a folder.

    Raises
    ------
    StoreNotFoundError
        If there is none; the message says what is there instead, an unfinished one for instance.
    LayoutError
        If its metadata is not as the format wants it: all problems at once.
    """
    root = _read_metadata(folder)
    if root is None:
        raise StoreNotFoundError(_what_is_there(folder))
    document, problems = parse_document(root, METADATA)
    if problems and not document:
        raise LayoutError(folder, problems)
    layout, names, found = parse_root(document, METADATA)
    problems += found
    if layout is None or problems:
        raise LayoutError(folder, problems)
    fields = []
    for name in names:
        where = f"{name}/{METADATA}"
        text = _read_metadata(os.path.join(folder, name))
        if text is None:
            problems.append(f"{where}: missing; the root says that there is a field {name!r}")
            continue
        document, found = parse_document(text, where)
        problems += found
        if document or not found:
            parsed, found = parse_field(name, document, layout.samples, layout.batch_size, where)
            fields += [parsed] if parsed else []
            problems += found
    lengths = {each.chunk_length for each in fields}
    if len(lengths) > 1:
        problems.append(f"all fields must have one chunk length, found {sorted(lengths)}")
    if problems:
        raise LayoutError(folder, problems)
    return dataclasses.replace(layout, chunk_length=lengths.pop(), fields=tuple(fields))


def _read_metadata(folder: str) -> bytes | None:
    try:
        with open(os.path.join(folder, METADATA), "rb") as file:
            return file.read(MAX_DOCUMENT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _what_is_there(folder: str) -> str:
    parent, name = os.path.split(folder)
    if os.path.isdir(os.path.join(parent, f".{name}.partial")):
        return (
            f"{folder} is unfinished: it is being preprocessed, or that was interrupted; running the same "
            "`mmapload preprocess` command again finishes it, or says which process is at work"
        )
    if not os.path.exists(folder):
        return f"there is no store at {folder}; `mmapload preprocess SOURCE {name} --batch-size B` makes one"
    kind = "folder without zarr.json" if os.path.isdir(folder) else "file"
    return f"{folder} is a {kind}, not a store; give the folder that `mmapload preprocess` wrote"
