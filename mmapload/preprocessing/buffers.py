"""Sets of chunk buffers, used again and again: memory that was used before is filled many times faster."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mmapload.errors import MmaploadError
from mmapload.sizes import format_size
from mmapload.writer.chunks import RaggedChunk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["BufferSets", "RaggedRows", "Rows", "chunk_rows"]


class RaggedRows:
    """The samples of one chunk of a field whose samples differ in shape, one after the other.

    Parameters
    ----------
    dtype : numpy.dtype
        Of the values.
    values : int
        For how many there is room at first; more is made where it is needed.
    samples, axes : int
        Samples in a chunk, and axes of each.
    """

    def __init__(self, dtype: np.dtype[Any], values: int, samples: int, axes: int) -> None:
        self._values = np.empty(values, dtype)
        self._ends = np.zeros(samples + 1, np.int64)
        self._shapes = np.zeros((samples, axes), np.int64)

    def place(self, row: int, shape: Sequence[int]) -> npt.NDArray[Any]:
        """Return the place of a sample behind those before it, whose places were asked for in order."""
        self._shapes[row] = shape
        start = int(self._ends[row])
        stop = start + int(self._shapes[row].prod())
        self._ends[row + 1] = stop
        if stop > len(self._values):
            grown = np.empty(stop + stop // 4, self._values.dtype)
            grown[:start] = self._values[:start]
            self._values = grown
        return self._values[start:stop].reshape(shape)

    def filled(self, samples: int) -> RaggedChunk:
        """Return the first samples."""
        return RaggedChunk(self._values[: self._ends[samples]], self._shapes[:samples])


Rows: TypeAlias = "dict[str, npt.NDArray[Any] | RaggedRows]"
"""For every field the samples of one chunk: shape (chunk length, *sample shape), if that is one for all."""


class BufferSets:
    """A fixed number of sets, each made when it is first needed.

    Parameters
    ----------
    layout : StoreLayout
        Says how large a chunk of every field is.
    count : int
        How many sets there may be.
    longest : mapping of str to int
        How many values the longest chunk of a ragged field has.
    """

    def __init__(self, layout: StoreLayout, count: int, longest: Mapping[str, int]) -> None:
        self._layout = layout
        self._longest = longest
        self._idle: SimpleQueue[Rows | None] = SimpleQueue()
        for _ in range(count):
            self._idle.put(None)

    def take(self) -> Rows:
        """Wait for a set that nobody uses.

        Raises
        ------
        MmaploadError
            If there is no memory for another one.
        """
        return self._idle.get() or {
            field.name: _memory(field, self._longest.get(field.name, 0)) for field in self._layout.fields
        }

    def give(self, rows: Rows) -> None:
        """Return a set."""
        self._idle.put(rows)


def _memory(field: FieldLayout, longest: int) -> npt.NDArray[Any] | RaggedRows:
    try:
        if field.is_ragged:
            return RaggedRows(field.source_dtype, longest, field.chunk_length, len(field.shape))
        return np.empty((field.chunk_length, *field.values_shape), field.source_dtype)
    except (MemoryError, ValueError):  # ValueError: more than there are addresses
        raise MmaploadError(
            f"no memory for a chunk of field {field.name!r}: {field.chunk_length:,} samples of "
            f"{format_size(field.sample_nbytes)} each, as the first one has; take a smaller batch size, "
            "smaller chunks or fewer jobs, or store smaller arrays"
        ) from None


def chunk_rows(rows: Rows, samples: int, length: int) -> dict[str, npt.NDArray[Any] | RaggedChunk]:
    """Return the rows of a chunk of `length` of which `samples` are filled, the others zero bytes."""
    found: dict[str, npt.NDArray[Any] | RaggedChunk] = {}
    for name, values in rows.items():
        if isinstance(values, RaggedRows):
            found[name] = values.filled(samples)
        else:
            # As bytes: in text, 0 would be the digit.
            values[samples:length].reshape(-1).view(np.uint8)[...] = 0
            found[name] = values[:length]
    return found
