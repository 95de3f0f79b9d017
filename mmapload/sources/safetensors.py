"""Tensors in `.safetensors` files, read by position from the format's own description.

A file is eight bytes with the length of its header, the header, a JSON object that gives every tensor a
dtype, a shape and a range of bytes, and those bytes. Reading that needs no library; the format's own maps
files, which ends the process if one is cut short meanwhile, and has no numpy dtype for some of its tensors.
"""

from __future__ import annotations

import math
import os
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.notes import BFLOAT16
from mmapload.sources.arrays import explained_read
from mmapload.sources.plainfiles import open_descriptor
from mmapload.sources.signatures import FIRST_BYTES, kind_of
from mmapload.sources.stored import rows_at_once
from mmapload.strictjson import MAX_DOCUMENT_BYTES, parse_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources.stored import StoredArray

__all__ = ["SafetensorsFormat"]

_DTYPES: Final[Mapping[str, str | np.dtype[Any]]] = {
    "BOOL": "|b1",
    **{f"{letter.upper()}{8 * size}": f"<{letter}{size}" for letter in "iu" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
    "C64": "<c8",
    "BF16": BFLOAT16,
}
_OTHERS: Final = "leave it out by naming the others: --fields a,b"


class SafetensorsFormat:
    """Tensors of `.safetensors` files."""

    kind = "safetensors"
    parallel = True

    @contextmanager
    def open(self, path: str) -> Iterator[Mapping[str, StoredArray]]:
        """Open a file and read its header.

        Raises
        ------
        SourceError
            If it is no safetensors file, or its header does not fit it.
        """
        fd, status = open_descriptor(path)
        try:
            yield _tensors(fd, path, status.st_size)
        except OSError as error:
            raise explained_read(error, path) from error
        finally:
            os.close(fd)


def _tensors(fd: int, path: str, size: int) -> dict[str, StoredArray]:
    """Read the header, and check that tensors lie side by side, from the header's end to the file's."""
    first = os.pread(fd, FIRST_BYTES, 0)
    length = int.from_bytes(first[:8], "little")
    if len(first) < 8 or first[8:9] != b"{":
        what, advice = kind_of(first)
        raise SourceError(path, None, f"not a safetensors file ({size} bytes) but {what}: {advice}")
    if length > min(size - 8, MAX_DOCUMENT_BYTES):
        most = f"than the {MAX_DOCUMENT_BYTES:,} that are read" if length <= size - 8 else "than are there"
        raise SourceError(
            path, None, f"its header has {length:,} bytes, more {most}: fetch or write it again"
        )
    header = bytearray(length)
    _fill(fd, path, 8, memoryview(header))
    document, problems = parse_document(bytes(header), path)
    if problems:
        raise SourceError(path, None, "; ".join(problems).removeprefix(f"{path}: "))
    start = 8 + length
    document.pop("__metadata__", None)
    found = {name: _tensor(fd, path, name, notes, start) for name, notes in document.items()}
    at = start
    for tensor in sorted(found.values(), key=lambda tensor: (tensor.begin, tensor.end)):
        if tensor.begin != at:
            raise SourceError(path, tensor.name, f"lies at byte {tensor.begin}, expected {at}: damaged")
        at = tensor.end
    if at != size:
        raise SourceError(
            path,
            None,
            f"its tensors end at byte {at}, and it has {size}: cut short or damaged; fetch it again",
        )
    return dict(found)


def _tensor(fd: int, path: str, name: str, notes: Any, start: int) -> _Tensor:
    try:
        dtype, shape, (begin, end) = notes["dtype"], notes["shape"], notes["data_offsets"]
        sound = isinstance(dtype, str) and isinstance(shape, list)
        sound = (
            sound and all(type(each) is int and each >= 0 for each in (*shape, begin, end)) and begin <= end
        )
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise SourceError(path, name, f"its entry in the header is damaged: {shown(notes)}")
    tensor = _Tensor(fd, path, name, dtype, tuple(shape), start + begin, start + end)
    if dtype in _DTYPES and math.prod(shape) * np.dtype(_DTYPES[dtype]).itemsize != end - begin:
        what = f"{dtype} {tuple(shape)} does not take the {end - begin} bytes that it has"
        raise SourceError(path, name, f"{what}: the file is damaged")
    return tensor


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor's place in an open file."""

    fd: int
    path: str
    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    end: int
    chunked: bool = False

    @property
    def rows(self) -> int:
        """Rows in about 1 MiB."""
        return rows_at_once(self.shape, self._dtype().itemsize, None)

    def read(self, start: int | None = None, stop: int | None = None) -> npt.NDArray[Any]:
        """Read these rows, or the whole tensor."""
        dtype = self._dtype()
        shape, begin = self.shape, self.begin
        if start is not None and stop is not None:
            row = (self.end - self.begin) // max(1, self.shape[0])
            shape, begin = (stop - start, *shape[1:]), begin + start * row
        found = np.empty(shape, dtype)
        if found.nbytes:
            _fill(self.fd, self.path, begin, memoryview(found.reshape(-1).view(np.uint8)))
        return found

    def _dtype(self) -> np.dtype[Any]:
        if self.kind not in _DTYPES:
            what = f"of type {shown(self.kind)}, which a store cannot hold: convert it, or {_OTHERS}"
            raise SourceError(self.path, self.name, what)
        return np.dtype(_DTYPES[self.kind])


def _fill(fd: int, path: str, offset: int, into: memoryview) -> None:
    """Read as many bytes as there is room for; the system reads at most 2 GiB at a time."""
    got = 0
    while got < len(into):
        more = os.preadv(fd, [into[got:]], offset + got)
        if not more:
            raise SourceError(path, None, f"the file ended at byte {offset + got} while being read")
        got += more
