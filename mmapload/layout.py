"""What a store looks like: its metadata as frozen values, read strictly, and the arithmetic of chunks.

A store is a Zarr v3 group with one array a field; `docs/format.md` has the whole profile. Nothing here
opens a file: `store` reads the documents and `writer` writes them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES, Codec, parse_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "CORE_DTYPES",
    "FORMAT_VERSION",
    "RESERVED_GROUP",
    "FieldLayout",
    "StoreLayout",
    "check_field_names",
    "chunk_length_for",
    "parse_document",
    "parse_field",
    "parse_root",
]

FORMAT_VERSION: Final = 1
RESERVED_GROUP: Final = "__mmapload__"
"""Group beside the fields that keeps the samples' source names."""

MAX_DOCUMENT_BYTES: Final = 4 * 2**20
MAX_LENGTH: Final = 2**53
"""Largest number of samples or of elements along an axis: what JSON readers keep exact."""

_REAL = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
CORE_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name) for name in ("bool", *_REAL, "complex64", "complex128")
}
"""The data types of the Zarr v3 core specification, by their names there (and in numpy)."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field: an array of shape (samples, *shape) in chunks of `chunk_length` samples.

    Attributes
    ----------
    name : str
        Folder of the array in the store, and key in every sample.
    dtype : numpy.dtype
        Little-endian.
    shape : tuple of int
        Of one sample; `()` for a scalar.
    chunk_length : int
        Samples in a chunk; the same for all fields.
    codec : Codec
        What a chunk file holds before its checksum.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk_length: int
    codec: Codec

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample, decoded."""
        return self.dtype.itemsize * math.prod(self.shape)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk, decoded; the last chunk is as long as the others."""
        return self.sample_nbytes * self.chunk_length

    @property
    def raw_file_nbytes(self) -> int | None:
        """The size that every chunk file has, or None where the codec compresses."""
        return self.chunk_nbytes + CHECKSUM_BYTES if self.codec.is_raw else None

    def chunk_key(self, chunk: int) -> str:
        """Name of the chunk's file in the field's folder.

        Examples
        --------
        >>> from mmapload.codecs import RawCodec
        >>> FieldLayout("flow", np.dtype("f4"), (2, 64, 64), 32, RawCodec()).chunk_key(3)
        'c.3.0.0.0'
        """
        return f"c.{chunk}" + ".0" * len(self.shape)

    @property
    def zarr_chunk_shape(self) -> tuple[int, ...]:
        """`chunk_shape` in `zarr.json`: the other axes whole, and 1 where they are empty."""
        return (self.chunk_length, *(max(1, length) for length in self.shape))


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A whole store.

    Attributes
    ----------
    samples : int
        Number of samples that readers see.
    batch_size : int
        Chunk boundaries are multiples of this.
    chunk_length : int
        Samples in a chunk: a multiple of `batch_size`.
    fields : tuple of FieldLayout
        In the order in which they were written.
    has_names : bool
        Whether the source's name of every sample is kept.
    source : mapping
        How the store was made: kind of source, number of samples skipped, shuffle seed.
    """

    samples: int
    batch_size: int
    chunk_length: int
    fields: tuple[FieldLayout, ...]
    has_names: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        """Number of chunks in every field."""
        return -(-self.samples // self.chunk_length)

    def chunk_samples(self, chunk: int) -> int:
        """Count the samples in a chunk: `chunk_length`, or fewer in the last one."""
        return min(self.chunk_length, self.samples - chunk * self.chunk_length)

    @property
    def sample_nbytes(self) -> int:
        """Bytes of one sample over all fields, decoded."""
        return sum(each.sample_nbytes for each in self.fields)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk over all fields, decoded."""
        return self.sample_nbytes * self.chunk_length

    def root_attributes(self) -> dict[str, Any]:
        """Return the object under `attributes` in the root's `zarr.json`; `parse_root` reads it."""
        return {
            "mmapload": {
                "format_version": FORMAT_VERSION,
                "samples": self.samples,
                "batch_size": self.batch_size,
                "fields": {each.name: {} for each in self.fields},
                "names": self.has_names,
                "source": dict(self.source),
            }
        }


def chunk_length_for(
    samples: int | None, batch_size: int, largest_sample_nbytes: int, chunk_bytes: int
) -> int:
    """Choose the number of samples in a chunk.

    The largest multiple of `batch_size` whose chunk of the largest field stays within `chunk_bytes`; at
    least one batch; and no more than `samples` rounded up to a whole batch, where their number is known.

    Examples
    --------
    >>> chunk_length_for(1_000_000, batch_size=32, largest_sample_nbytes=4096, chunk_bytes=2**20)
    256
    >>> chunk_length_for(100, batch_size=32, largest_sample_nbytes=4096, chunk_bytes=2**30)
    128
    >>> chunk_length_for(1_000_000, batch_size=32, largest_sample_nbytes=2**20, chunk_bytes=2**20)
    32
    """
    batches = max(1, chunk_bytes // max(1, largest_sample_nbytes * batch_size))
    if samples is not None:
        batches = min(batches, max(1, -(-samples // batch_size)))
    return batches * batch_size


def check_field_names(names: Iterable[str]) -> list[str]:
    """Return what is wrong with these names of fields, with the renaming to type; empty if nothing is.

    Examples
    --------
    >>> check_field_names(["image", "enc/W"])
    ["the field name 'enc/W' contains '/': rename it, for instance --fields enc/W=enc_W"]
    """
    problems = []
    seen: dict[str, str] = {}
    for name in names:
        reason, better = _name_fault(name)
        if reason is None:
            other = seen.setdefault(name.casefold(), name)
            if other != name:
                reason, better = f"differs from {other!r} only by case", name + "_2"
            elif list(names).count(name) > 1:
                reason, better = "is there twice", name + "_2"
        if reason is not None:
            problems.append(
                f"the field name {name!r} {reason}: rename it, for instance --fields {name}={better}"
            )
    return problems


def _name_fault(name: str) -> tuple[str | None, str]:
    plain = "".join(c if c.isalnum() or c in "_-. " else "_" for c in name).strip("._ ") or "field"
    if not name:
        return "is empty", plain
    if "/" in name or "\\" in name:
        return f"contains {'/' if '/' in name else chr(92)!r}", plain
    if any(ord(c) < 32 or 0xD800 <= ord(c) < 0xE000 for c in name):
        return "contains a control character", plain
    if name == "zarr.json":
        return "is that of a file of the store", "zarr"
    if name.startswith("__"):
        return "starts with '__', which is reserved", plain
    if set(name) == {"."}:
        return "consists of dots", plain
    if len(name.encode()) > 255 - 16:
        return "is too long for a file system", plain[:64]
    return None, plain


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
    return document, [f"{where}: the key {key!r} is there twice" for key in repeated]


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
    if version != FORMAT_VERSION:
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
                f"{where}: format_version: expected {FORMAT_VERSION}, found {version!r}; {advice}",
            ],
        )
    for key, least in (("samples", 1), ("batch_size", 1)):
        if not _is_length(notes.get(key), least):
            problems.append(
                f"{where}: {key}: expected an integer of at least {least}, found {notes.get(key)!r}"
            )
    for key, kind in (("fields", dict), ("names", bool), ("source", dict)):
        if not isinstance(notes.get(key), kind):
            problems.append(f"{where}: {key}: expected {kind.__name__}, found {notes.get(key)!r}")
    if problems:
        return None, [], problems
    names = list(notes["fields"])
    if not names:
        problems.append(f"{where}: fields: expected at least one, found none")
    problems += [f"{where}: {problem.partition(': rename')[0]}" for problem in check_field_names(names)]
    problems += [
        f"{where}: the note {note!r} of field {name!r} is of a later version; install a newer mmapload"
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
            f"{where}: storage_transformers: expected none, found {document['storage_transformers']!r}"
        )
    dtype = CORE_DTYPES.get(str(document.get("data_type")))
    if dtype is None:
        problems.append(f"{where}: data_type: expected a core Zarr type, found {document.get('data_type')!r}")
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
        problems.append(f"shape: expected at least one length, found {document.get('shape')!r}")
    elif shape[0] < samples:
        problems.append(f"shape: expected at least {samples} samples, found {shape[0]}")
    if not chunk_shape:
        problems.append(f"chunk_grid: expected a regular grid, found {grid!r}")
    elif chunk_shape[1:] != tuple(max(1, length) for length in shape[1:]):
        problems.append(f"chunk_shape: expected to cover the axes {shape[1:]} whole, found {chunk_shape}")
    elif chunk_shape[0] < 1 or chunk_shape[0] % batch_size:
        problems.append(
            f"chunk_shape: expected a multiple of batch size {batch_size}, found {chunk_shape[0]}"
        )
    return shape, chunk_shape, problems


def _expect(document: Mapping[str, Any], wanted: Mapping[str, Any], where: str) -> list[str]:
    return [
        f"{where}: {key}: expected {value!r}, found {document.get(key)!r}"
        for key, value in wanted.items()
        if document.get(key) != value
    ]


def _is_length(value: object, least: int = 0) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= MAX_LENGTH


def _lengths(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > 32 or not all(_is_length(length) for length in value):
        return ()
    return tuple(value)
