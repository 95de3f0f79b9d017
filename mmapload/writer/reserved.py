"""Write the arrays of the reserved group, in little memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.reserved import reserved_path
from mmapload.store import METADATA
from mmapload.writer.chunks import write_field_chunk
from mmapload.writer.documents import field_document
from mmapload.writer.durable import sync_folder, write_durably

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.layout import FieldLayout

__all__ = ["ReservedArray"]


class ReservedArray:
    """An array that grows along its first axis, of which one chunk is in memory.

    Parameters
    ----------
    store : str
        The store; the array's folder is made in it.
    array : FieldLayout
        One of the reserved arrays.
    length : int
        Rows that are there already, in whole chunks.

    Attributes
    ----------
    length : int
        Rows so far.
    """

    def __init__(self, store: str, array: FieldLayout, length: int = 0) -> None:
        self._array = array
        self._folder = os.path.dirname(reserved_path(store, array, 0))
        os.makedirs(self._folder, exist_ok=True)
        self._rows = np.zeros((array.chunk_length, *array.shape), array.dtype)
        self.length = length

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Append rows."""
        while len(values):
            first = self.length % len(self._rows)
            taken = values[: len(self._rows) - first]
            self._rows[first : first + len(taken)] = taken
            self.length += len(taken)
            values = values[len(taken) :]
            if self.length % len(self._rows) == 0:
                self._write(self.length // len(self._rows) - 1)

    def close(self) -> None:
        """Write what is left, padded with zeros, and the metadata."""
        left = self.length % len(self._rows)
        if left:
            self._rows[left:] = 0
            self._write(self.length // len(self._rows))
        write_durably(os.path.join(self._folder, METADATA), [field_document(self._array, self.length)])
        sync_folder(self._folder)

    def _write(self, chunk: int) -> None:
        write_field_chunk(self._folder, self._array, chunk, self._rows)
