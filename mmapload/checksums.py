"""The list of what every chunk file's checksum has to be, so that files which changed places are noticed.

A chunk file ends in its own checksum, and one that stands in another's place is sound in itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.chunkfile import shown_checksum
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.errors import ChunkError
from mmapload.opening import root_document
from mmapload.reserved import checksums_array, read_elements
from mmapload.seals import appending

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["ChecksumList"]

_SWAPPED: Final = "give the files their names back, restore them from a copy, or preprocess again"


class ChecksumList:
    """The checksums that a store lists, read in pieces of some 64 KiB when one of them is asked for.

    Thread-safe. Pickles without what it has read.
    """

    def __init__(self, store: str, layout: StoreLayout) -> None:
        self._store = store
        self._layout = layout
        self._array = checksums_array(len(layout.fields))
        self._columns = {field.name: column for column, field in enumerate(layout.fields)}
        self._pieces: dict[int, npt.NDArray[np.uint32]] = {}

    def expect(self, field: FieldLayout, chunk: int, path: str, trailer: bytes) -> None:
        """Compare the checksum that ends a chunk file with the one that is listed for it.

        Raises
        ------
        ChunkError
            If they differ, with the chunk whose file it is if the list has it; or if the list is damaged.
        """
        column = self._columns[field.name]
        number, row = divmod(chunk, self._array.chunk_length)
        listed = self._piece(number)[row, column]
        if listed.tobytes() == trailer:
            return
        if chunk == self._layout.chunks - 1 and self._appended(number, row, column, path, trailer):
            return
        place = self._place_of(int.from_bytes(trailer, "little"), column)
        text, advice = "which this store lists for no file: it belongs to another store", ""
        if place is not None:
            other = "this field" if place[1] == field.name else f"field {place[1]!r}"
            text, advice = f"which is that of chunk {place[0]} of {other}: the files were swapped", _SWAPPED
        raise ChunkError(
            field.name,
            chunk,
            path,
            f"checksum {shown_checksum(listed.tobytes())}",
            f"{shown_checksum(trailer)}, {text}",
            advice,
        )

    def _appended(self, number: int, row: int, column: int, path: str, trailer: bytes) -> bool:
        """Whether the last chunk is another one because samples are, or were, appended meanwhile.

        The samples that it had are the same in it.
        """
        under_way = appending(root_document(self._store))
        if under_way is not None and under_way.checksums[column : column + 1] == (
            int.from_bytes(trailer, "little"),
        ):
            return True
        self._pieces.pop(number, None)
        now = self._piece(number)[row, column].tobytes()
        return bool(now in {trailer, _end_of(path)})  # or the file was read before it was replaced

    def _piece(self, number: int) -> npt.NDArray[np.uint32]:
        found = self._pieces.get(number)
        if found is None:
            start = number * self._array.chunk_length
            stop = min(start + self._array.chunk_length, self._layout.chunks)
            found = read_elements(self._store, self._array, start, stop).view("<u4")
            found = self._pieces[number] = found.reshape(stop - start, len(self._columns))
        return found

    def _place_of(self, value: int, column: int) -> tuple[int, str] | None:
        """Find the chunk and the field that a checksum is listed for; in this column if possible."""
        elsewhere = None
        for number in range(-(-self._layout.chunks // self._array.chunk_length)):
            try:
                found = np.argwhere(self._piece(number) == value)
            except ChunkError:
                break  # what is wrong with the file in question can be said without this
            found[:, 0] += number * self._array.chunk_length
            here = found[found[:, 1] == column]
            if len(here):
                return int(here[0, 0]), self._layout.fields[column].name
            if len(found) and elsewhere is None:
                elsewhere = int(found[0, 0]), self._layout.fields[int(found[0, 1])].name
        return elsewhere

    def __reduce__(self) -> tuple[type[ChecksumList], tuple[Any, ...]]:
        return type(self), (self._store, self._layout)


def _end_of(path: str) -> bytes:
    """Return the checksum that a file ends with; nothing if there is none."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, CHECKSUM_BYTES, max(0, os.fstat(fd).st_size - CHECKSUM_BYTES))
    except OSError:
        return b""
    finally:
        os.close(fd)
