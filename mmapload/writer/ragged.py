"""Write what a store says about fields whose samples differ in shape, beside their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from mmapload.layout import RESERVED_GROUP
from mmapload.opening import METADATA
from mmapload.ragged import EXTENTS, extents_array, extents_folder, extents_path, field_groups
from mmapload.reserved import elements_array
from mmapload.writer.documents import field_document, group_document
from mmapload.writer.durable import explained, sync_folder, write_durably
from mmapload.writer.reserved import ReservedArray

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["chunk_values", "field_documents", "group_documents", "write_ragged"]


def chunk_values(folder: str, field: FieldLayout, chunk: int, samples: int) -> int:
    """Return how many values a chunk of a ragged field has, as the file of its extents says."""
    offset = (samples - 1) * extents_array(field).sample_nbytes
    with open(extents_path(folder, field, chunk), "rb", buffering=0) as file:
        return int.from_bytes(os.pread(file.fileno(), 8, offset), "little")


def _all_values(folder: str, layout: StoreLayout, field: FieldLayout) -> Iterator[int]:
    for chunk in range(layout.chunks):
        yield chunk_values(folder, field, chunk, layout.chunk_samples(chunk))


def field_documents(folder: str, layout: StoreLayout) -> dict[str, bytes]:
    """Return the `zarr.json` of every field of a store with all chunk files."""
    found = {}
    for field in layout.fields:
        if field.is_ragged:
            width = max(_all_values(folder, layout, field))
            found[field.name] = field_document(field, layout.chunks, width)
        else:
            found[field.name] = field_document(field, layout.samples)
    return found


def group_documents(layout: StoreLayout) -> dict[str, bytes]:
    """Return the `zarr.json` of every group but the root: those in which fields lie, and the reserved one."""
    names, ragged = [field.name for field in layout.fields], [field.name for field in layout.ragged]
    return dict.fromkeys([*field_groups(names, ragged), RESERVED_GROUP], group_document({}))


def write_ragged(folder: str, layout: StoreLayout) -> None:
    """Write how many values each chunk of the ragged fields has, and the metadata of their extents."""
    ragged = layout.ragged
    listed = ReservedArray(folder, elements_array(len(ragged)))
    for row in zip(*(_all_values(folder, layout, field) for field in ragged), strict=True):
        listed.extend(np.array([row], np.int64))
    listed.close()
    for field in ragged:
        _write_document(
            os.path.join(folder, extents_folder(field)), field_document(extents_array(field), layout.samples)
        )
    _write_document(os.path.join(folder, RESERVED_GROUP, EXTENTS), group_document({}))


def _write_document(folder: str, text: bytes) -> None:
    path = os.path.join(folder, METADATA)
    with explained(path, len(text)):
        write_durably(path, [text])
    sync_folder(folder)
