"""What most samples have, told by a few of them: the first may be the odd one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["unlike_first", "usual_sample"]

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
    found = {
        at: schema
        for at in _spread(first, len(indices))
        if (schema := _schema(source, indices[at])) is not None
    }
    counts = Counter(map(_key, found.values()))
    usual = max(found, key=lambda at: counts[_key(found[at])], default=first)  # of equals the first
    return indices[usual], found[usual]


def unlike_first(
    source: IndexedSource, first: Mapping[str, ArraySpec]
) -> tuple[int, Mapping[str, ArraySpec]] | None:
    """Return number and schema of a sample that is as more than half are, of nine that are spread over all.

    Parameters
    ----------
    source : IndexedSource
        Where the samples are.
    first : mapping of str to ArraySpec
        What the first has.

    Returns
    -------
    (int, mapping of str to ArraySpec) or None
        None if the first is one of these, or they are too few.

    Examples
    --------
    >>> import numpy as np
    >>> from mmapload.sources.samples import SequenceSource
    >>> source = SequenceSource([{"x": np.zeros(9)}] + [{"x": np.zeros(3)}] * 20)
    >>> number, schema = unlike_first(source, source.schema(0))
    >>> number, str(schema["x"])
    (2, 'float64 (3,)')
    """
    found: dict[int, Mapping[str, ArraySpec]] = {}
    spread = _spread(0, len(source))
    for at in spread:
        schema = _schema(source, at) if at else first
        found |= {} if schema is None else {at: schema}
        if 2 * sum(_key(each) == _key(first) for each in found.values()) > len(spread):
            return None
    (usual, count), *_ = Counter(map(_key, found.values())).most_common(1)
    if usual == _key(first) or 2 * count <= len(found):
        return None
    return next((at, schema) for at, schema in found.items() if _key(schema) == usual)


def _spread(first: int, count: int) -> Collection[int]:
    steps = range(_LOOKED_AT)
    return dict.fromkeys(first + (count - 1 - first) * step // (_LOOKED_AT - 1) for step in steps)


def _schema(source: IndexedSource, index: int) -> dict[str, ArraySpec] | None:
    try:
        return source.schema(index)
    except SourceError:
        return None


def _key(schema: Mapping[str, ArraySpec]) -> frozenset[tuple[str, str, tuple[int, ...]]]:
    """Return what is equal for samples that fit each other: text may be of any length."""
    return frozenset(
        (name, spec.dtype.kind if spec.is_text else spec.dtype.str, spec.shape)
        for name, spec in schema.items()
    )
