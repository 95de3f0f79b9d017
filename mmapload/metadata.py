"""Read `zarr.json` documents, strictly: into frozen values, with every problem found.

Foreign codecs, chunk grids, byte orders and data types are refused here, by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from mmapload.codecs import parse_chain
from mmapload.errors import shown
from mmapload.layout import CORE_DTYPES, FORMAT_VERSION, FieldLayout, StoreLayout, check_field_names

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MAX_DOCUMENT_BYTES", "parse_document", "parse_field", "parse_root"]

MAX_DOCUMENT_BYTES: Final = 4 * 2**20
MAX_DEPTH: Final = 64
"""Deepest nesting of a document; deeper ones only exhaust the stack of whoever walks them."""
MAX_LENGTH: Final = 2**53
"""Largest number of samples or of elements along an axis: what JSON readers keep exact."""


def parse_document(text: bytes, where: str) -> tuple[dict[str, Any], list[str]]:
    """Parse one `zarr.json` into an object; the list says what is wrong, and is empty if nothing is."""
    if len(text) > MAX_DOCUMENT_BYTES:
        return {}, [f"{where}: {len(text)} bytes, more than the {MAX_DOCUMENT_BYTES} that metadata may have"]
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        repeated.extend(
            sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) < len(keys) else []
        )
        return dict(pairs)

    try:
        document = json.loads(text.decode("utf-8"), object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        return {}, [f"{where}: not JSON ({error})"]
    if not isinstance(document, dict):
        return {}, [f"{where}: expected an object, found {type(document).__name__}"]
    if _is_deeper(document, MAX_DEPTH):
        return {}, [f"{where}: nested deeper than the {MAX_DEPTH} levels that metadata may have"]
    return document, [f"{where}: the key {shown(key)} is there twice" for key in repeated]


def parse_root(document: Mapping[str, Any], where: str) -> tuple[StoreLayout | None, list[str], list[str]]:
    """Read the root's `zarr.json`.

    Returns
    -------
    layout : StoreLayout or None
        Without fields and with `chunk_length` equal to `batch_size` (the arrays say more); None if the
        document is too broken to go on.
    names : list of str
        The fields' names.
    problems : list of str
        What is wrong.
    """
    problems = _expect(document, {"zarr_format": 3, "node_type": "group"}, where)
    attributes = document.get("attributes")
    notes = attributes.get("mmapload") if isinstance(attributes, dict) else None
    if not isinstance(notes, dict):
        return (
            None,
            [],
            [*problems, f"{where}: no attribute 'mmapload': this Zarr group was not written by mmapload"],
        )
    version = notes.get("format_version")
    if not _is_length(version) or version != FORMAT_VERSION:
        advice = (
            "install a newer mmapload"
            if _is_length(version) and version > FORMAT_VERSION
            else "preprocess again"
        )
        return (
            None,
            [],
            [
                *problems,
                f"{where}: format_version: expected {FORMAT_VERSION}, found {shown(version)}; {advice}",
            ],
        )
    for key, least in (("samples", 1), ("batch_size", 1)):
        if not _is_length(notes.get(key), least):
            problems.append(
                f"{where}: {key}: expected an integer of at least {least}, found {shown(notes.get(key))}"
            )
    for key, kind in (("fields", dict), ("names", bool), ("source", dict)):
        if not isinstance(notes.get(key), kind):
            problems.append(f"{where}: {key}: expected {kind.__name__}, found {shown(notes.get(key))}")
    if problems:
        return None, [], problems
    names = list(notes["fields"])
    if not names:
        problems.append(f"{where}: fields: expected at least one, found none")
    problems += [f"{where}: {problem.partition(': rename')[0]}" for problem in check_field_names(names)]
    problems += [
        f"{where}: the note {shown(note)} of field {name!r} is of a later version; install a newer mmapload"
        for name, note in notes["fields"].items()
        if note != {}
    ]
    layout = StoreLayout(
        notes["samples"], notes["batch_size"], notes["batch_size"], (), notes["names"], notes["source"]
    )
    return layout, names, problems


def parse_field(
    name: str, document: Mapping[str, Any], samples: int, batch_size: int, where: str
) -> tuple[FieldLayout | None, list[str]]:
    """Read an array's `zarr.json`; None where the list of problems is not empty."""
    problems = _expect(
        document,
        {
            "zarr_format": 3,
            "node_type": "array",
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        },
        where,
    )
    if document.get("storage_transformers", []) != []:
        problems.append(
            f"{where}: storage_transformers: expected none, found {shown(document['storage_transformers'])}"
        )
    dtype = CORE_DTYPES.get(str(document.get("data_type")))
    if dtype is None:
        problems.append(
            f"{where}: data_type: expected a core Zarr type, found {shown(document.get('data_type'))}"
        )
        dtype = np.dtype("u1")
    shape, chunk_shape, found = _parse_shapes(document, samples, batch_size)
    problems += [f"{where}: {problem}" for problem in found]
    try:
        codec = parse_chain(document.get("codecs"), dtype.itemsize)
    except ValueError as error:
        problems.append(f"{where}: {error}")
    if problems:
        return None, problems
    layout = FieldLayout(name, dtype.newbyteorder("<"), shape[1:], chunk_shape[0], codec)
    if layout.chunk_nbytes > MAX_LENGTH:
        return None, [f"{where}: a chunk of {layout.chunk_nbytes} bytes"]
    return layout, []


def _parse_shapes(
    document: Mapping[str, Any], samples: int, batch_size: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[str]]:
    shape = _lengths(document.get("shape"))
    grid = document.get("chunk_grid")
    settings = grid.get("configuration") if isinstance(grid, dict) and grid.get("name") == "regular" else None
    chunk_shape = _lengths(settings.get("chunk_shape") if isinstance(settings, dict) else None)
    problems = []
    if not shape:
        problems.append(f"shape: expected at least one length, found {shown(document.get('shape'))}")
    elif shape[0] < samples:
        problems.append(f"shape: expected at least {samples} samples, found {shape[0]}")
    if not chunk_shape:
        problems.append(f"chunk_grid: expected a regular grid, found {shown(grid)}")
    elif chunk_shape[1:] != tuple(max(1, length) for length in shape[1:]):
        problems.append(
            f"chunk_shape: expected to cover the axes {shown(shape[1:])} whole, found {shown(chunk_shape)}"
        )
    elif chunk_shape[0] < 1 or chunk_shape[0] % batch_size:
        problems.append(
            f"chunk_shape: expected a multiple of batch size {batch_size}, found {chunk_shape[0]}"
        )
    return shape, chunk_shape, problems


def _expect(document: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> list[str]:
    return [
        f"{where}: {key}: expected {value!r}, found {shown(document.get(key))}"
        for key, value in wanted.items()
        if document.get(key) != value
    ]


def _is_deeper(document: object, levels: int) -> bool:
    level = [document]
    for _ in range(levels):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def _is_length(value: object, least: int = 0) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_LENGTH


def _lengths(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32 or not all(_is_length(length) for length in value):
        return ()
    return tuple(value)
