"""How mixed the labels of a batch are: their entropy, beside that of a full shuffle."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mmapload.layout import FieldLayout
    from mmapload.store import Store

__all__ = ["MOST_VALUES", "batch_entropy", "chunks_to_read", "label_codes", "label_field"]

MOST_VALUES: Final = 10_000
"""Different values that a field may hold to count as a label."""

_MOST_FILES: Final = 4096
_MOST_BYTES: Final = 2**30


def label_field(store: Store, name: str) -> FieldLayout:
    """Return the layout of the field that holds labels.

    Raises
    ------
    ValueError
        If there is no such field, or it holds more than one value a sample.
    """
    if name not in store.fields:
        raise ValueError(
            f"{store.path} has no field {name!r} to take as label, only {', '.join(store.fields)}"
        )
    field = store.field(name)
    if math.prod(field.shape) != 1:
        raise ValueError(
            f"a label is one value a sample, and field {name!r} has shape {field.shape}: name a "
            "field of scalars"
        )
    return field


def chunks_to_read(field: FieldLayout) -> int:
    """Return how many chunks of labels to read at most: 4,096, or a GiB of them, 16 at least."""
    return max(16, min(_MOST_FILES, _MOST_BYTES // field.chunk_nbytes))


def label_codes(store: Store, name: str, samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Read labels and number their values.

    Parameters
    ----------
    store : Store
        Chunks that hold one of the samples are read, once each.
    name : str
        The field.
    samples : int64 ndarray, shape (n,)
        Rising.

    Returns
    -------
    codes : int64 ndarray, shape (n,)
        The number of each sample's label.
    values : int
        How many different labels there are among them.

    Raises
    ------
    ValueError
        If there are more than 10,000.
    ChunkError
        If a chunk cannot be read.
    """
    chunks = samples // store.layout.chunk_length
    cuts = np.flatnonzero(np.diff(chunks)) + 1
    found: list[NDArray[Any]] = []
    for part in np.split(samples, cuts):
        chunk = int(part[0]) // store.layout.chunk_length
        rows = part - chunk * store.layout.chunk_length
        found.append(store.read_chunk(name, chunk).reshape(-1)[rows])
    values, codes = np.unique(np.concatenate(found), return_inverse=True)
    if len(values) > MOST_VALUES:
        raise ValueError(
            f"field {name!r} has {len(values):,} different values in {len(samples):,} samples, too many for "
            f"a label (at most {MOST_VALUES:,})"
        )
    return codes.astype(np.int64), len(values)


def batch_entropy(batches: Sequence[NDArray[np.int64]], values: int) -> float:
    """Return the mean entropy of batches of label numbers, in bits.

    Parameters
    ----------
    batches : sequence of int64 ndarrays
        Label numbers in [0, values); none empty.
    values : int
        How many labels there are.

    Examples
    --------
    >>> batch_entropy([np.array([0, 0, 1, 1]), np.array([2, 2, 2, 2])], 3)
    0.5
    """
    sizes = np.array([len(batch) for batch in batches])
    keys = np.repeat(np.arange(len(batches)), sizes) * values + np.concatenate(batches)
    found, counts = np.unique(keys, return_counts=True)
    sums = np.bincount(found // values, counts * np.log2(counts), minlength=len(batches))
    return float((np.log2(sizes) - sums / sizes).mean())
