"""What samples have, by their headers: of all, and of those that are bad beside one that ends a run."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError
from mmapload.sources.badfiles import MOST_LOOKED_AT, cause_of, looked_at, others_told
from mmapload.sources.grouped import grouped
from mmapload.stages import reached

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["Expected", "others_bad", "schemas"]

_AT_ONCE: Final = 4096
_THREADS: Final = 4


def schemas(
    source: IndexedSource, indices: Sequence[int]
) -> Iterator[tuple[int, Mapping[str, ArraySpec] | SourceError]]:
    """Yield what samples have, or what is wrong with them, in this order; reads side by side if it can."""
    look = partial(_schema, source)
    if not source.parallel:
        yield from ((index, look(index)) for index in indices)
        return
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="mmapload-survey") as pool:
        for start in range(0, len(indices), _AT_ONCE):
            reached("headers read", start, len(indices))
            some = indices[start : start + _AT_ONCE]
            yield from zip(some, pool.map(look, some, chunksize=64), strict=True)


def _schema(source: IndexedSource, index: int) -> Mapping[str, ArraySpec] | SourceError:
    try:
        return source.schema(index)
    except SourceError as error:
        return error


@dataclass(frozen=True, slots=True)
class Expected:
    """What samples should have.

    Attributes
    ----------
    schema : mapping of str to ArraySpec
        Dtype and shape of each field; empty if nobody knows.
    lacking : collection of str
        Fields that a sample may lack.
    ragged : collection of str
        Fields whose shapes may differ.
    """

    schema: Mapping[str, ArraySpec] = field(default_factory=dict)
    lacking: Collection[str] = ()
    ragged: Collection[str] = ()

    def fault(self, own: Mapping[str, ArraySpec]) -> str:
        """Say what is otherwise in a sample that has this; empty if nothing is.

        Examples
        --------
        >>> import numpy as np
        >>> from mmapload.sources import ArraySpec
        >>> one, other = ArraySpec(np.dtype("f4"), (2,)), ArraySpec(np.dtype("f8"), (2,))
        >>> Expected({"x": one}).fault({"x": other, "y": one})
        "also has 'y'; field 'x' is float64 (2,), expected float32 (2,)"
        """
        if not self.schema:
            return ""
        missing = [name for name in self.schema if name not in own and name not in self.lacking]
        extra = [name for name in own if name not in self.schema]
        parts = [f"lacks {', '.join(map(repr, missing))}"] * bool(missing)
        parts += [f"also has {', '.join(map(repr, extra))}"] * bool(extra)
        parts += [
            f"field {name!r} is {own[name]}, expected {spec}"
            for name, spec in self.schema.items()
            if name in own and not self._fits(name, own[name], spec)
        ]
        return "; ".join(parts)

    def _fits(self, name: str, own: ArraySpec, spec: ArraySpec) -> bool:
        if spec.is_text:  # how long it is does not matter
            return (own.dtype.kind, own.shape) == (spec.dtype.kind, spec.shape)
        if name in self.ragged:
            return own.dtype == spec.dtype and len(own.shape) == len(spec.shape)
        return own == spec


def others_bad(
    source: IndexedSource,
    index: int,
    error: SourceError,
    expected: Expected,
    met: Mapping[int, SourceError] | None = None,
) -> str:
    """Name the samples that are bad beside sample `index`, of which `error` tells, as far as headers tell; empty if none is.

    So one bad file does not hide the next. At most 4,096 samples are looked at, those that follow first; none
    of sources that one thread reads, or that have many samples in a file.

    Parameters
    ----------
    met : mapping of int to SourceError, optional
        Samples that are known to be bad.

    Examples
    --------
    >>> import os, tempfile
    >>> from mmapload.sources.listing import list_files
    >>> from mmapload.sources.npz import NpzSource
    >>> folder = tempfile.TemporaryDirectory()
    >>> for number in range(3):
    ...     open(os.path.join(folder.name, f"s{number}.npz"), "wb").close()
    >>> files = list_files([folder.name])
    >>> print(others_bad(NpzSource(files), 0, SourceError(files.path(0), None, "is empty"), Expected()))
    2 others of 3 samples are bad too, as far as headers tell: s1.npz, s2.npz: the file is empty (0 bytes): fetch or write it again
    >>> folder.cleanup()
    """  # noqa: E501
    if not source.parallel or grouped(source) is not None:
        return ""
    total = len(source)
    around = [(index + step) % total for step in range(1, min(total, MOST_LOOKED_AT + 1))]
    bad: dict[str, list[int]] = {}
    for other, fault in (met or {}).items():
        bad.setdefault(cause_of(fault), []).append(other)
    for other, found in schemas(source, around):
        cause = cause_of(found) if isinstance(found, SourceError) else expected.fault(found)
        if cause and other not in (met or {}):
            bad.setdefault(cause, []).append(other)

    def name(other: int) -> str:
        return source.name(other) or source.describe(other)

    bad = {cause: sorted(indices) for cause, indices in bad.items()}
    return others_told(bad, cause_of(error), looked_at(len(around) + 1, total, "samples"), name)
