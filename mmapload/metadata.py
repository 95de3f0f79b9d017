"""Read what `zarr.json` documents say, strictly: into frozen values, with every problem found.

Foreign codecs, chunk grids, byte orders and data types are refused here, by name.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from mmapload.chains import parse_chain
from mmapload.codecs import BLOSC_MAX_BYTES, BloscCodec
from mmapload.errors import shown
from mmapload.fieldnames import name_faults
from mmapload.layout import CORE_DTYPES, FORMAT_VERSION, FieldLayout, StoreLayout
from mmapload.notes import parse_note

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from mmapload.codecs import Codec
    from mmapload.notes import DtypeNote, FieldNote

__all__ = ["parse_field", "parse_group", "parse_ragged", "parse_root"]

MAX_LENGTH: Final = 2**53
"""Largest number of samples or of elements along an axis: what JSON readers keep exact."""
MAX_AXES: Final = 32

_GROUP_KEYS: Final = {"zarr_format", "node_type", "attributes", "consolidated_metadata"}
_ARRAY_KEYS: Final = {
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "storage_transformers",
    "dimension_names",
}
"""What the Zarr v3 core specification puts into documents, and zarr-python's consolidated metadata."""


def parse_root(document: Mapping[str, Any], where: str) -> tuple[StoreLayout | None, list[str], list[str]]:
    """Read the root's `zarr.json`.

    Returns
    -------
    layout : StoreLayout or None
        Without fields and with `chunk_length` equal to `batch_size` (the arrays say more). What is wrong in
        the document has the least value that it might have, so that the fields can be compared with the
        rest. None if the document is of no version that could be read.
    names : list of str
        The fields' names, as far as they are proper ones.
    problems : list of str
        What is wrong.
    """
    problems = parse_group(document, where)
    attributes = document.get("attributes")
    notes = attributes.get("mmapload") if isinstance(attributes, dict) else None
    if not isinstance(notes, dict):
        kind = "Zarr group was not written by mmapload"
        if document.get("node_type") == "array":
            kind = "is one array; if it is a field of a store, give the folder that it is in"
        return None, [], [*problems, f"{where}: no attribute 'mmapload': this {kind}"]
    version = notes.get("format_version")
    if not _is_length(version) or version != FORMAT_VERSION:
        newer = _is_length(version) and version > FORMAT_VERSION
        advice = "install a newer mmapload" if newer else "preprocess again"
        problems.append(
            f"{where}: format_version: expected {FORMAT_VERSION}, found {shown(version)}; {advice}"
        )
        if isinstance(version, int) and not isinstance(version, bool):
            return None, [], problems
    lengths = {}
    for key in ("samples", "batch_size"):
        value = notes.get(key)
        lengths[key] = value if _is_length(value, 1) else 1
        if not _is_length(value, 1):
            problems.append(
                f"{where}: {key}: expected an integer from 1 to {MAX_LENGTH}, found {shown(value)}"
            )
    for key, wanted in (("fields", dict), ("names", bool), ("source", dict)):
        if not isinstance(notes.get(key), wanted):
            problems.append(f"{where}: {key}: expected {wanted.__name__}, found {shown(notes.get(key))}")
    checksums = notes.get("checksums", False)
    if not isinstance(checksums, bool):
        problems.append(f"{where}: checksums: expected bool, found {shown(checksums)}")
    names, found = _parse_fields(notes.get("fields"))
    problems += [f"{where}: {problem}" for problem in found]
    source = notes.get("source")
    layout = StoreLayout(
        lengths["samples"],
        lengths["batch_size"],
        lengths["batch_size"],
        (),
        notes.get("names") is True,
        source if isinstance(source, dict) else {},
        checksums is True,
    )
    return layout, names, problems


def parse_group(document: Mapping[str, Any], where: str) -> list[str]:
    """Say what is wrong with a `zarr.json` as that of a group."""
    problems = _expect(document, {"zarr_format": 3, "node_type": "group"}, where)
    return problems + _foreign_keys(document, _GROUP_KEYS, where)


def _parse_fields(fields: object) -> tuple[list[str], list[str]]:
    """Return the names that a field can have, and what is wrong."""
    if not isinstance(fields, dict):
        return [], []
    problems = [] if fields else ["fields: expected at least one, found none"]
    faults = name_faults(fields)
    problems += [f"the field name {shown(name)} {reason}" for name, reason, _ in faults]
    problems += [
        f"the note {shown(note)} of field {shown(name)} is of a later version; install a newer mmapload"
        for name, note in fields.items()
        if parse_note(note) is None
    ]
    faulty = {name for name, _, _ in faults}
    return [name for name in fields if name not in faulty], problems


def parse_field(
    name: str,
    document: Mapping[str, Any],
    samples: int,
    batch_size: int,
    where: str,
    meaning: DtypeNote | None = None,
) -> tuple[FieldLayout | None, list[str]]:
    """Read an array's `zarr.json`, of such a meaning; None where the list of problems is not empty."""
    dtype, codec, problems = _parse_kind(document, where)
    shape, chunk_shape, found = _parse_shapes(document, samples, batch_size)
    problems += [f"{where}: {problem}" for problem in found]
    problems += _too_large(codec, dtype, chunk_shape, where)
    problems += _other_meaning(meaning, dtype, shape[1:], where)
    if problems or codec is None:
        return None, problems
    return FieldLayout(name, dtype, shape[1:], chunk_shape[0], codec, meaning=meaning), []


def parse_ragged(
    name: str, note: FieldNote, document: Mapping[str, Any], chunks: int, chunk_length: int, where: str
) -> tuple[FieldLayout | None, list[str]]:
    """Read the `zarr.json` of a field whose samples differ in shape; None where there are problems.

    Parameters
    ----------
    note : FieldNote
        With the axes of a sample.
    chunks, chunk_length : int
        How many chunks there are, and of how many samples, as the array of extents says.
    """
    dtype, codec, problems = _parse_kind(document, where)
    shape, grid = _lengths(document.get("shape")), _regular_grid(document.get("chunk_grid"))
    if len(shape) != 2 or shape[0] < chunks:
        found = shown(document.get("shape"))
        problems.append(f"{where}: shape: expected at least {chunks} chunks, and their values, found {found}")
    if len(grid) != 2 or grid[0] != 1 or grid[1] < 1:
        found = shown(document.get("chunk_grid"))
        problems.append(f"{where}: chunk_grid: expected a regular grid of 1 x some values, found {found}")
    problems += _too_large(codec, dtype, grid, where)
    problems += _other_meaning(note.dtype, dtype, (), where)
    if problems or codec is None:
        return None, problems
    return FieldLayout(name, dtype, (-1,) * note.ragged, chunk_length, codec, grid[1], note.dtype), []


def _other_meaning(
    meaning: DtypeNote | None, dtype: np.dtype[Any], shape: tuple[int, ...], where: str
) -> list[str]:
    """Say whether an array cannot hold what is noted on it."""
    if meaning is None or (
        dtype == meaning.stored and shape[len(shape) - len(meaning.axes) :] == meaning.axes
    ):
        return []
    last = f" with {meaning.axes[0]} along the last axis" if meaning.axes else ""
    found = f"{dtype.name} {shown(shape)}" if meaning.axes else dtype.name
    return [f"{where}: data_type: expected {meaning.stored}{last}, to hold {meaning}, found {found}"]


def _too_large(
    codec: Codec | None, dtype: np.dtype[Any], chunk_shape: tuple[int, ...], where: str
) -> list[str]:
    most = BLOSC_MAX_BYTES if isinstance(codec, BloscCodec) else MAX_LENGTH
    nbytes = dtype.itemsize * math.prod(chunk_shape)
    if codec is None or nbytes <= most:
        return []
    return [f"{where}: chunk_shape: a chunk of {nbytes} bytes, more than the {most} possible"]


def _parse_kind(document: Mapping[str, Any], where: str) -> tuple[np.dtype[Any], Codec | None, list[str]]:
    """Return data type and codec of an array, some type and no codec if they are none, and what is wrong."""
    encoding = {"name": "default", "configuration": {"separator": "."}}
    wanted = {"zarr_format": 3, "node_type": "array", "chunk_key_encoding": encoding}
    problems = _expect(document, wanted, where) + _foreign_keys(document, _ARRAY_KEYS, where)
    if document.get("storage_transformers", []) != []:
        problems.append(
            f"{where}: storage_transformers: expected none, found {shown(document['storage_transformers'])}"
        )
    data_type = document.get("data_type")
    dtype = CORE_DTYPES.get(data_type) if isinstance(data_type, str) else None
    if dtype is None:
        problems.append(f"{where}: data_type: expected a core Zarr type, found {shown(data_type)}")
        dtype = np.dtype("u1")
    codec = None
    try:
        codec = parse_chain(document.get("codecs"), dtype.itemsize)
    except ValueError as error:
        problems.append(f"{where}: {error}")
    return dtype.newbyteorder("<"), codec, problems


def _parse_shapes(
    document: Mapping[str, Any], samples: int, batch_size: int
) -> tuple[tuple[int, ...], tuple[int, ...], list[str]]:
    """Return `shape` and `chunk_shape`, each empty if it is none, and what is wrong."""
    shape, chunk_shape = _lengths(document.get("shape")), _regular_grid(document.get("chunk_grid"))
    problems = []
    if not shape:
        found = shown(document.get("shape"))
        problems.append(f"shape: expected 1 to {MAX_AXES} integers from 0 to {MAX_LENGTH}, found {found}")
    elif shape[0] < samples:
        problems.append(f"shape: expected at least {samples} samples, found {shape[0]}")
    if not chunk_shape:
        problems.append(
            "chunk_grid: expected a regular grid with a chunk_shape of as many integers as shape has, "
            f"found {shown(document.get('chunk_grid'))}"
        )
        return shape, chunk_shape, problems
    if shape and chunk_shape[1:] != tuple(max(1, length) for length in shape[1:]):
        problems.append(
            f"chunk_shape: expected to cover the axes {shown(shape[1:])} whole, found {shown(chunk_shape)}"
        )
    if chunk_shape[0] < 1 or chunk_shape[0] % batch_size:
        problems.append(
            f"chunk_shape: expected a multiple of batch size {batch_size}, found {chunk_shape[0]}"
        )
    return shape, chunk_shape, problems


def _regular_grid(grid: object) -> tuple[int, ...]:
    if not isinstance(grid, dict) or set(grid) != {"name", "configuration"} or grid["name"] != "regular":
        return ()
    settings = grid.get("configuration")
    if not isinstance(settings, dict) or set(settings) != {"chunk_shape"}:
        return ()
    return _lengths(settings["chunk_shape"])


def _expect(document: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> list[str]:
    return [
        f"{where}: {key}: expected {value!r}, found {shown(document.get(key))}"
        for key, value in wanted.items()
        if type(document.get(key)) is not type(value) or document[key] != value
    ]


def _foreign_keys(document: Mapping[str, Any], known: AbstractSet[str], where: str) -> list[str]:
    """Name what may change the meaning of all else: any unknown key, unless it says that it does not."""
    return [
        f"{where}: the key {shown(key)} is none of this format's, and is not marked by must_understand: false"
        for key, value in document.items()
        if key not in known and not (isinstance(value, dict) and value.get("must_understand") is False)
    ]


def _is_length(value: object, least: int = 0) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_LENGTH


def _lengths(value: object) -> tuple[int, ...]:
    if (
        not isinstance(value, list)
        or len(value) > MAX_AXES
        or not all(_is_length(length) for length in value)
    ):
        return ()
    return tuple(value)
