"""What most samples have, told by a few of them: the first may be the odd one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["usual_sample"]

_LOOKED_AT: Final = 9


def usual_sample(source: IndexedSource, indices: Sequence[int]) -> tuple[int, dict[str, ArraySpec]] | None:
    """Return number and schema of a sound sample that is as most are, of nine that are spread over all.

    Where no schema is more frequent than others, it is that of the first sound sample.

    Parameters
    ----------
    source : IndexedSource
        Where the samples are.
    indices : sequence of int
        Which of them may be looked at.

    Returns
    -------
    (int, dict of str to ArraySpec) or None
        None if no sample is sound.

    Examples
    --------
    >>> import numpy as np
    >>> from mmapload.sources.samples import SequenceSource
    >>> samples = [{"x": np.zeros(9)}] + [{"x": np.zeros(3)}] * 20
    >>> number, schema = usual_sample(SequenceSource(samples), range(21))
    >>> number, str(schema["x"])
    (2, 'float64 (3,)')
    """
    first = next((at for at in range(len(indices)) if _schema(source, indices[at]) is not None), None)
    if first is None:
        return None
    last = len(indices) - 1
    spread = dict.fromkeys(first + (last - first) * part // (_LOOKED_AT - 1) for part in range(_LOOKED_AT))
    found = {at: schema for at in spread if (schema := _schema(source, indices[at])) is not None}
    counts = Counter(map(_key, found.values()))
    usual = max(found, key=lambda at: counts[_key(found[at])], default=first)  # of equals the first
    return indices[usual], found[usual]


def _schema(source: IndexedSource, index: int) -> dict[str, ArraySpec] | None:
    try:
        return source.schema(index)
    except SourceError:
        return None


def _key(schema: dict[str, ArraySpec]) -> frozenset[tuple[str, str, tuple[int, ...]]]:
    """Return what is equal for samples that fit each other: text may be of any length."""
    return frozenset(
        (name, spec.dtype.kind if spec.is_text else spec.dtype.str, spec.shape)
        for name, spec in schema.items()
    )
