"""The store's `zarr.json` documents: made by zarr-python, checked by our own reader, written in one form.

zarr is imported here only, when the first document is made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mmapload.chains import codec_chain
from mmapload.errors import MmaploadError
from mmapload.metadata import parse_field, parse_ragged
from mmapload.seals import document_text, sealed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.codecs import Codec
    from mmapload.layout import FieldLayout

__all__ = ["field_document", "group_document", "root_document_text"]

_FIELD_KEYS = (
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
)


def field_document(field: FieldLayout, length: int, width: int = 0) -> bytes:
    """Return the `zarr.json` of one array.

    Parameters
    ----------
    length : int
        Its first axis: the number of samples, of a ragged field that of chunks.
    width : int
        The second axis of a ragged field: values of the longest chunk.
    """
    import zarr
    from zarr.codecs import BytesCodec, Crc32cCodec

    kept: dict[str, Any] = {}
    zarr.create_array(
        zarr.storage.MemoryStore(kept),
        shape=(length, width) if field.is_ragged else (length, *field.shape),
        chunks=(1, field.piece_length) if field.is_ragged else field.zarr_chunk_shape,
        dtype=field.dtype.name,
        filters=None,
        serializer=BytesCodec(endian="little"),
        compressors=[*_compressor(field.codec), Crc32cCodec()],
        fill_value=0,
        chunk_key_encoding={"name": "default", "separator": "."},
    )
    document = json.loads(kept["zarr.json"].to_bytes())
    if field.is_ragged:
        read, problems = parse_ragged(
            field.name, field.note, document, length, field.chunk_length, "zarr.json"
        )
    else:
        read, problems = parse_field(
            field.name, document, length, field.chunk_length, "zarr.json", field.meaning
        )
    if problems or read != field:
        raise MmaploadError(
            f"zarr {zarr.__version__} describes field {field.name!r} otherwise than the format has it: "
            f"expected {field}, found {problems or read}; install a release of zarr 3 that mmapload knows"
        )
    # What zarr leaves out where it is empty differs from release to release: a store must not.
    document["codecs"] = codec_chain(field.codec, field.dtype.itemsize)
    defaults: dict[str, Any] = {"attributes": {}, "storage_transformers": []}
    return document_text({key: document.get(key, defaults.get(key)) for key in _FIELD_KEYS})


def group_document(attributes: Mapping[str, Any]) -> bytes:
    """Return the `zarr.json` of a group: the store's root, or that of the reserved arrays."""
    import zarr

    kept: dict[str, Any] = {}
    zarr.create_group(zarr.storage.MemoryStore(kept), attributes=dict(attributes), zarr_format=3)
    document = json.loads(kept["zarr.json"].to_bytes())
    return document_text({key: document.get(key, {}) for key in ("zarr_format", "node_type", "attributes")})


def root_document_text(attributes: Mapping[str, Any], fields: Mapping[str, bytes]) -> bytes:
    """Return the root's `zarr.json`, with the checksum of all documents.

    Parameters
    ----------
    fields : mapping of str to bytes
        Every field's document.
    """
    root = json.loads(group_document(attributes))
    return document_text(sealed(root, {name: json.loads(text) for name, text in fields.items()}))


def _compressor(codec: Codec) -> list[Any]:
    from zarr.codecs import BloscCodec, ZstdCodec

    entry = codec.configuration
    if entry is None:
        return []
    kinds = {"zstd": ZstdCodec, "blosc": BloscCodec}
    return [kinds[entry["name"]](**entry["configuration"])]
