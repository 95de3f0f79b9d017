"""Bring chunks into memory: mapped where a chunk's file is its array, read and decoded otherwise.

Both readers give equal arrays for the same store; only where the memory comes from differs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.readers.base import ChunkArrays, ChunkReader
from mmapload.readers.buffered import BufferedReader
from mmapload.readers.mapped import MappedReader

if TYPE_CHECKING:
    from mmapload.checks import Checks
    from mmapload.layout import FieldLayout
    from mmapload.store import Store

__all__ = ["BufferedReader", "ChunkArrays", "ChunkReader", "MappedReader", "reader_for"]


def reader_for(
    store: Store, fields: tuple[FieldLayout, ...], checks: Checks, *, drop_behind: bool, held: int = 1
) -> ChunkReader:
    """Choose the reader: mapped if every field is raw, else buffered, for so many chunks held at a time."""
    if all(field.codec.is_raw for field in fields):
        return MappedReader(store, fields, checks, drop_behind=drop_behind)
    return BufferedReader(store, fields, checks, drop_behind=drop_behind, held=held)
