"""How many values each chunk of the ragged fields has, and which files it has for that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import ChunkError
from mmapload.metadata import MAX_LENGTH
from mmapload.ragged import chunk_files, piece_path
from mmapload.reserved import elements_array, read_elements, reserved_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["ElementCounts", "absent_files"]

_FEW_FILES: Final = 1024
"""So many are looked for without a question."""


class ElementCounts:
    """The numbers of values, read when they are first asked for. Pickles without what it has read."""

    def __init__(self, store: str, layout: StoreLayout) -> None:
        self._store = store
        self._layout = layout
        self._columns = {field.name: column for column, field in enumerate(layout.ragged)}
        self._counts: npt.NDArray[np.int64] | None = None

    def of(self, field: FieldLayout) -> npt.NDArray[np.int64]:
        """Return how many values each chunk of a ragged field has.

        Raises
        ------
        ChunkError
            If a file that says so is missing or damaged.
        """
        if self._counts is None:
            self._counts = self._read()
        return self._counts[:, self._columns[field.name]]

    def _read(self) -> npt.NDArray[np.int64]:
        array = elements_array(len(self._columns))
        chunks = self._layout.chunks
        counts = read_elements(self._store, array, 0, chunks).view("<i8").reshape(chunks, -1)
        wrong = np.argwhere((counts < 0) | (counts > MAX_LENGTH))
        if len(wrong):
            row, column = wrong[0].tolist()
            path = reserved_path(self._store, array, row // array.chunk_length)
            found = f"{counts[row, column]} for chunk {row}"
            raise ChunkError(array.name, row // array.chunk_length, path, "numbers of values", found)
        for field in self._layout.ragged:
            _expect_as_many_files(self._store, field, counts[:, self._columns[field.name]])
        return counts

    def __reduce__(self) -> tuple[type[ElementCounts], tuple[Any, ...]]:
        return type(self), (self._store, self._layout)


def _expect_as_many_files(store: str, field: FieldLayout, counts: npt.NDArray[np.int64]) -> None:
    """Refuse numbers of values for which far more files would be needed than are there.

    Some that are lost are told one by one. Numbers that were made up would have whoever looks for their files
    look for ever.
    """
    pieces = -(-counts // field.piece_length)
    if (expected := int(pieces.sum())) <= _FEW_FILES:
        return
    chunk = int(pieces.argmax())
    path = piece_path(store, field, chunk, 0)
    there = len(_names(os.path.dirname(path)))
    if expected > 2 * there + _FEW_FILES:
        raise ChunkError(field.name, chunk, path, f"{expected:,} files of values", f"{there:,} files there")


def absent_files(store: str, field: FieldLayout, counts: npt.NDArray[np.int64]) -> Iterator[tuple[int, str]]:
    """Yield chunk and path of the files of a ragged field that are not there, by one listing a folder.

    Parameters
    ----------
    counts : ndarray of int64
        How many values each chunk has.
    """
    there: dict[str, set[str]] = {}
    for chunk, values in enumerate(counts.tolist()):
        for _, path in chunk_files(store, field, chunk, values):
            folder, name = os.path.split(path)
            if folder not in there:
                there[folder] = _names(folder)
            if name not in there[folder]:
                yield chunk, path


def _names(folder: str) -> set[str]:
    try:
        return set(os.listdir(folder))
    except OSError:
        return set()
