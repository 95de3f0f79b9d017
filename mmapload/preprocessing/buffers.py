"""Sets of chunk buffers, used again and again: memory that was used before is filled many times faster."""

from __future__ import annotations

from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mmapload.errors import MmaploadError
from mmapload.sizes import format_size

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["BufferSets", "Rows", "chunk_rows"]

Rows: TypeAlias = "dict[str, npt.NDArray[Any]]"
"""For every field the samples of one chunk: shape (chunk length, *sample shape)."""


class BufferSets:
    """A fixed number of sets, each made when it is first needed.

    Parameters
    ----------
    layout : StoreLayout
        Says how large a chunk of every field is.
    count : int
        How many sets there may be.
    """

    def __init__(self, layout: StoreLayout, count: int) -> None:
        self._layout = layout
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
        return self._idle.get() or {field.name: _memory(field) for field in self._layout.fields}

    def give(self, rows: Rows) -> None:
        """Return a set."""
        self._idle.put(rows)


def _memory(field: FieldLayout) -> npt.NDArray[Any]:
    try:
        return np.empty((field.chunk_length, *field.shape), field.dtype)
    except (MemoryError, ValueError):  # ValueError: more than there are addresses
        raise MmaploadError(
            f"no memory for a chunk of field {field.name!r}: {field.chunk_length:,} samples of "
            f"{format_size(field.sample_nbytes)} each, as the first one has; take a smaller batch size, "
            "smaller chunks or fewer jobs, or store smaller arrays"
        ) from None


def chunk_rows(rows: Rows, samples: int, length: int) -> Rows:
    """Return the rows of a chunk of `length` of which `samples` are filled, the others zero bytes."""
    for values in rows.values():
        values[samples:length] = 0
    return {name: values[:length] for name, values in rows.items()}
