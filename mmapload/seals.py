"""The checksum of a store's metadata, and what an append that is under way says in it.

Chunk files end in checksums of their own. What the documents say is sealed by a checksum in the root, so that
one changed byte cannot turn 100 samples into 140.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.codecs import checksum
from mmapload.errors import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "APPENDING",
    "SEAL",
    "Appending",
    "appending",
    "document_text",
    "faults_of",
    "is_sealed",
    "seal_of",
    "sealed",
]

SEAL: Final = "metadata_checksum"
"""Key beside `samples` in the root: the checksum of what all documents mean."""
APPENDING: Final = "appending"
"""Key beside `samples` in the root while samples are being appended."""

_FREE: Final = {"attributes", "consolidated_metadata", "dimension_names"}
"""Keys of documents that do not matter, and that other tools may write."""


@dataclass(frozen=True, slots=True)
class Appending:
    """What a root says of an append that is being put in place, or was interrupted then.

    Attributes
    ----------
    samples : int
        How long the arrays are, or will be.
    checksums : tuple of int
        For every field the checksum that its last chunk file has, or will have; empty if those stay.
    """

    samples: int
    checksums: tuple[int, ...]


def document_text(document: Mapping[str, Any]) -> bytes:
    """Return a document in the one form in which documents are written."""
    return json.dumps(document, indent=2, ensure_ascii=True).encode() + b"\n"


def seal_of(root: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the checksum of what a store's documents mean.

    Parameters
    ----------
    root : mapping
        The root's document; its own checksum does not count.
    fields : mapping of str to mapping
        Every field's document. The number of its rows does not count: it grows before the root changes.

    Examples
    --------
    >>> root = {"zarr_format": 3, "attributes": {"mmapload": {"samples": 4}, "by": "me"}}
    >>> seal_of(root, {"x": {"shape": [4, 2]}}) == seal_of(root, {"x": {"shape": [5, 2]}})
    True
    >>> seal_of(root, {"x": {"shape": [4, 2]}}) == seal_of(root, {"x": {"shape": [4, 3]}})
    False
    """
    notes = {key: value for key, value in _notes(root).items() if key != SEAL}
    told: list[Any] = [{key: value for key, value in root.items() if key not in _FREE}, notes]
    for name, whole in sorted(fields.items()):
        document = {key: value for key, value in whole.items() if key not in _FREE}
        shape = document.get("shape")
        document["shape"] = shape[1:] if isinstance(shape, list) else shape
        told.append([name, document])
    text = json.dumps(told, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return int.from_bytes(checksum(np.frombuffer(text.encode(), np.uint8)), "little")


def sealed(root: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return a root's document with the checksum in it."""
    notes = {key: value for key, value in _notes(root).items() if key != SEAL}
    attributes = {**root["attributes"], "mmapload": {**notes, SEAL: seal_of(root, fields)}}
    return {**root, "attributes": attributes}


def is_sealed(root: Mapping[str, Any]) -> bool:
    """Say whether a root has a checksum of the metadata."""
    return SEAL in _notes(root)


def faults_of(root: Mapping[str, Any], fields: Mapping[str, Mapping[str, Any]], where: str) -> list[str]:
    """Say what has changed in the documents of a store since they were sealed; nothing if they are not.

    Parameters
    ----------
    root, fields : mapping
        Documents in which nothing else is wrong.
    """
    notes = _notes(root)
    if SEAL not in notes:
        return [f"{where}: the key {shown(key)} is {SEAL}, damaged" for key in notes if _is_almost_seal(key)]
    found = seal_of(root, fields)
    problems = []
    if notes[SEAL] != found:
        problems.append(
            f"{where}: {SEAL}: expected {found}, found {shown(notes[SEAL])}; a zarr.json was damaged "
            "or changed: restore all of them from a copy, or preprocess again"
        )
    under_way = appending(root)
    lengths = {notes.get("samples"), *([under_way.samples] if under_way else ())}
    for name, note in notes.get("fields", {}).items():
        rows = fields[name]["shape"][0] if name in fields else None
        if isinstance(note, dict) and "ragged" not in note and rows is not None and rows not in lengths:
            problems.append(
                f"{name}/{where}: shape: expected {notes.get('samples')} samples, found {rows}: it was "
                "damaged or changed; restore it from a copy, or preprocess again"
            )
    return problems


def appending(root: Mapping[str, Any]) -> Appending | None:
    """Return what a root says of an append that is under way; None if it says nothing that could be."""
    told = _notes(root).get(APPENDING)
    if not isinstance(told, dict) or not _is_number(told.get("samples")):
        return None
    checksums = told.get("checksums", [])
    if not isinstance(checksums, list) or not all(map(_is_number, checksums)):
        return None
    return Appending(told["samples"], tuple(checksums))


def _notes(root: Mapping[str, Any]) -> dict[str, Any]:
    attributes = root.get("attributes")
    notes = attributes.get("mmapload") if isinstance(attributes, dict) else None
    return notes if isinstance(notes, dict) else {}


def _is_almost_seal(key: str) -> bool:
    """Whether one byte of it was changed: a character, or two if it became the backslash of an escape."""
    return any(
        len(key) == len(SEAL) + 1 - gone and key.startswith(SEAL[:at]) and key.endswith(SEAL[at + gone :])
        for gone in (1, 2)
        for at in range(len(SEAL))
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
