"""Write the reserved arrays that keep every sample's source name, in little memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES
from mmapload.layout import RESERVED_GROUP, FieldLayout
from mmapload.reserved import NAME_ARRAYS
from mmapload.store import METADATA
from mmapload.writer.chunks import write_field_chunk
from mmapload.writer.documents import field_document, group_document
from mmapload.writer.durable import sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["name_nbytes", "names_nbytes", "write_names"]


def name_nbytes(name: str) -> int:
    """Return how many bytes a name takes."""
    return len(name) if name.isascii() else len(name.encode("utf-8", "surrogateescape"))


def names_nbytes(samples: int, text_nbytes: int) -> int:
    """Return the size of all files that keep so many names of so many bytes in all."""
    lengths = {"names": text_nbytes, "ends": samples}
    return sum(
        -(-length // NAME_ARRAYS[name].chunk_length) * (NAME_ARRAYS[name].chunk_nbytes + CHECKSUM_BYTES)
        for name, length in lengths.items()
    )


def write_names(folder: str, names: Iterable[str]) -> None:
    """Write the names of all samples, in the store's order.

    Parameters
    ----------
    folder : str
        The store.
    names : iterable of str
        Bytes that are no UTF-8 stand as surrogates, as the file system encoding of Python has them.
    """
    group = os.path.join(folder, RESERVED_GROUP)
    for name in NAME_ARRAYS:
        os.makedirs(os.path.join(group, name), exist_ok=True)
    texts, ends = _ChunkedArray(group, "names"), _ChunkedArray(group, "ends")
    end = 0
    for name in names:
        text = np.frombuffer(name.encode("utf-8", "surrogateescape"), np.uint8)
        end += text.size
        texts.extend(text)
        ends.extend(np.array([end], "<i8"))
    texts.close()
    ends.close()
    write_durably(os.path.join(group, METADATA), [group_document({})])
    sync_folder(group)


class _ChunkedArray:
    """An array of one axis that grows, of which one chunk is in memory."""

    def __init__(self, group: str, name: str) -> None:
        self._layout: FieldLayout = NAME_ARRAYS[name]
        self._folder = os.path.join(group, name)
        self._rows = np.zeros(self._layout.chunk_length, self._layout.dtype)
        self._length = 0

    def extend(self, values: npt.NDArray[Any]) -> None:
        while values.size:
            first = self._length % self._rows.size
            taken = values[: self._rows.size - first]
            self._rows[first : first + taken.size] = taken
            self._length += taken.size
            values = values[taken.size :]
            if self._length % self._rows.size == 0:
                self._write(self._length // self._rows.size - 1)

    def close(self) -> None:
        left = self._length % self._rows.size
        if left:
            self._rows[left:] = 0
            self._write(self._length // self._rows.size)
        write_durably(os.path.join(self._folder, METADATA), [field_document(self._layout, self._length)])
        sync_folder(self._folder)

    def _write(self, chunk: int) -> None:
        write_field_chunk(self._folder, self._layout, chunk, self._rows)
