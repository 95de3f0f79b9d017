"""In how many samples of a chunk there are values that are NaN or infinite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.spent import now, spend
from mmapload.writer.chunks import RaggedChunk

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

__all__ = ["count_non_finite_samples"]

_NO_SIGN: Final = np.uint16(0x7FFF)
_HALF_INFINITY: Final = 0x7C00
_AT_ONCE: Final = 1 << 16
"""Elements that are looked at one by one: what this takes stays in the processor's cache."""


def count_non_finite_samples(
    rows: Mapping[str, npt.NDArray[Any] | RaggedChunk], samples: int
) -> dict[str, int]:
    """Count the samples with a value that is NaN or infinite, by field; those that have none are left out.

    Parameters
    ----------
    rows : mapping of str to ndarray or RaggedChunk
        Arrays of shape (at least samples, *shape), or samples of different shapes.

    Examples
    --------
    >>> count_non_finite_samples({"x": np.array([[1, np.nan], [2, 3], [np.inf, 4]]), "y": np.ones(3)}, 3)
    {'x': 2}
    """
    since = now()
    found = {name: _count(values, samples) for name, values in rows.items()}
    spend("encoding", since)
    return {name: count for name, count in found.items() if count}


def _count(values: npt.NDArray[Any] | RaggedChunk, samples: int) -> int:
    if isinstance(values, RaggedChunk):
        if values.values.dtype.kind not in "fc" or _is_surely_finite(values.values):
            return 0
        ends = np.cumsum(values.shapes.prod(axis=1, dtype=np.int64))
        places = np.flatnonzero(~np.isfinite(values.values))
        return len(np.unique(np.searchsorted(ends, places, side="right")))
    if values.dtype.kind not in "fc" or _is_surely_finite(values[:samples]):
        return 0
    size = math.prod(values.shape[1:])
    if size > _AT_ONCE:
        return sum(not _is_finite(sample) for sample in values[:samples])
    flat, step = values[:samples].reshape(samples, size), _AT_ONCE // size
    blocks = (flat[start : start + step] for start in range(0, samples, step))
    return sum(len(block) - int(np.count_nonzero(np.isfinite(block).all(axis=1))) for block in blocks)


def _is_surely_finite(values: npt.NDArray[Any]) -> bool:
    """Tell by the sum, many times faster than by each value: only a sum of finite values can be finite.

    That of half-precision numbers overflows too often. Of these the bits tell: none has a larger exponent.
    """
    if not values.size:
        return True
    if values.dtype == np.float16:
        bits = values.reshape(-1).view(np.uint16)
        blocks = (bits[at : at + _AT_ONCE] & _NO_SIGN for at in range(0, bits.size, _AT_ONCE))
        return all(int(block.max()) < _HALF_INFINITY for block in blocks)
    with np.errstate(all="ignore"):
        return bool(np.isfinite(np.add.reduce(values, axis=None)))


def _is_finite(sample: npt.NDArray[Any]) -> bool:
    flat = sample.reshape(-1)
    return all(np.isfinite(flat[at : at + _AT_ONCE]).all() for at in range(0, flat.size, _AT_ONCE))
