"""Write what a store says about fields whose samples differ in shape, beside their values."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from mmapload.extents import extents_columns
from mmapload.ragged import extents_path
from mmapload.reserved import elements_array
from mmapload.writer.reserved import ReservedArray

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.layout import StoreLayout

__all__ = ["write_elements"]


def write_elements(folder: str, layout: StoreLayout) -> npt.NDArray[np.int64]:
    """Write how many values each chunk of the ragged fields has, as the files of their extents say.

    Returns
    -------
    ndarray of int64
        Shape (chunks, ragged fields).
    """
    ragged = layout.ragged
    listed = ReservedArray(folder, elements_array(len(ragged)))
    found = np.zeros((layout.chunks, len(ragged)), np.int64)
    for chunk in range(layout.chunks):
        last = layout.chunk_samples(chunk) - 1
        for column, field in enumerate(ragged):
            offset = last * extents_columns(len(field.shape)) * 8
            path = extents_path(folder, field, chunk)
            with open(path, "rb", buffering=0) as file:
                found[chunk, column] = int.from_bytes(os.pread(file.fileno(), 8, offset), "little")
        listed.extend(found[chunk : chunk + 1])
    listed.close()
    return found
