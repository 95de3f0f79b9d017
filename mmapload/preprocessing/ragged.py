"""Fields whose shape differs between samples: found in a survey of all samples, and planned from it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.codecs import BLOSC_MAX_BYTES
from mmapload.errors import SourceError
from mmapload.preprocessing.headers import schemas
from mmapload.ragged import piece_length_for

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import numpy.typing as npt

    from mmapload.order.bijection import Bijection
    from mmapload.preprocessing.fill import StandIn
    from mmapload.sources import ArraySpec, IndexedSource

__all__ = [
    "AUTO",
    "RaggedPlan",
    "check_ragged",
    "expect_empty",
    "planned",
    "ragged_advice",
    "ragged_candidates",
    "survey_shapes",
]

AUTO: Final = "auto"
"""In place of names: every field of which two samples differ in shape."""

_MOST_PIECE: Final = 2**40
_MOST_SMALL: Final = 2**32 - 1


@dataclass(frozen=True, slots=True, eq=False)
class RaggedPlan:
    """What a ragged field will be.

    Attributes
    ----------
    spec : ArraySpec
        dtype and shape of the first sample.
    shapes : ndarray
        Shape (samples of the source, axes), whole numbers; zeros for samples that lack the field.
    values : int
        How many all samples have.
    piece_length : int
        Values in each file.
    longest : int
        Values of the longest chunk.
    """

    spec: ArraySpec
    shapes: npt.NDArray[Any]
    values: int
    piece_length: int = 1
    longest: int = 0

    @property
    def axes(self) -> int:
        """Of a sample."""
        return int(self.shapes.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes of all samples."""
        return self.values * self.spec.dtype.itemsize

    @property
    def mean_nbytes(self) -> int:
        """Bytes of a sample, on average, rounded up."""
        return -(-self.nbytes // len(self.shapes))

    @property
    def note(self) -> list[Any]:
        """What decides where its values lie, for a journal."""
        shapes = np.ascontiguousarray(self.shapes.astype("<i8"))
        return [self.axes, self.piece_length, hashlib.sha256(shapes).hexdigest()[:32]]

    def __str__(self) -> str:
        least, most = self.shapes.min(axis=0).tolist(), self.shapes.max(axis=0).tolist()
        ranges = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in zip(least, most, strict=True)]
        return f"{self.spec.dtype.name} ({' x '.join(ranges)}), ragged"


def check_ragged(ragged: str | Collection[str] | None) -> tuple[str, ...]:
    """Return the names of fields that may be ragged, as they were given: "auto", "a,b", or a list.

    Raises
    ------
    ValueError, TypeError
        If it is none of these.

    Examples
    --------
    >>> check_ragged("words,masks"), check_ragged("auto"), check_ragged(None)
    (('words', 'masks'), ('auto',), ())
    """
    parts = ragged.split(",") if isinstance(ragged, str) else list(ragged or ())
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f"ragged: expected names of fields, or {AUTO!r}, found {ragged!r}")
    names = [part.strip() for part in parts]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"ragged: expected names of fields, each once, or {AUTO!r}, found {ragged!r}")
    return tuple(names)


def ragged_advice(field: str) -> str:
    """Write what to type, or to give in Python, where shapes may differ.

    Examples
    --------
    >>> print(ragged_advice("words"))
    where samples may differ in shape: --ragged words, or --ragged auto (ragged='auto')
    """
    return f"where samples may differ in shape: --ragged {field}, or --ragged auto (ragged='auto')"


def ragged_candidates(schema: Mapping[str, ArraySpec], wanted: tuple[str, ...]) -> dict[str, ArraySpec]:
    """Return the fields whose shapes may differ; of those by name all have to be such.

    Raises
    ------
    ValueError
        If a field is not there, has no axes, or is text.
    """
    auto = wanted == (AUTO,)
    candidates = {
        name: spec
        for name, spec in schema.items()
        if (auto or name in wanted) and spec.shape and not spec.is_text
    }
    lacking = [] if auto else [name for name in wanted if name not in candidates]
    if lacking:
        kind = "has no axes: its samples are single numbers" if lacking[0] in schema else "is not there"
        if lacking[0] in schema and schema[lacking[0]].is_text:
            kind = "is text, of which the longest is kept whole, and cannot differ in shape"
        raise ValueError(f"ragged: the field {lacking[0]!r} {kind}; there are {', '.join(schema)}")
    return candidates


def survey_shapes(
    source: IndexedSource,
    first: int,
    schema: Mapping[str, ArraySpec],
    wanted: tuple[str, ...],
    fill: Mapping[str, StandIn],
    *,
    skip: bool,
) -> dict[str, RaggedPlan]:
    """Look at the shapes of all samples, and return those of the fields that are ragged.

    Parameters
    ----------
    first : int
        The number of the sample that the schema is from.
    wanted : tuple of str
        Fields that are ragged, whether or not their samples differ; or "auto".
    fill : mapping of str to StandIn
        What is stored where a sample lacks a field.
    skip : bool
        Whether bad samples will be left out.

    Raises
    ------
    SourceError
        If samples differ in what must not: names both.
    ValueError
        If a field is not there, has no axes, or a number is to fill it.
    """
    auto, candidates = wanted == (AUTO,), ragged_candidates(schema, wanted)
    found = {name: _Shapes(spec, len(source), fill.get(name)) for name, spec in candidates.items()}
    for index, looked_at in schemas(source, range(len(source))):
        sample = {} if isinstance(looked_at, SourceError) else looked_at
        if isinstance(looked_at, SourceError) and not skip:
            raise looked_at
        for name, spec in schema.items():
            own = sample.get(name)
            fits = found[name].put(index, own) if name in found else own is None or spec.holds(own)
            if own is not None and not fits and not skip:
                raise _differing(source, index, first, name, own, spec)
    ragged = {name: shapes for name, shapes in found.items() if shapes.differ or not auto}
    for name in ragged:
        stand_in = fill.get(name)
        if stand_in is not None and not stand_in.array.ndim and stand_in.spec.shape == schema[name].shape:
            expect_empty(name, stand_in)
    return {name: shapes.plan() for name, shapes in ragged.items()}


class _Shapes:
    """The shapes of a field, sample by sample."""

    def __init__(self, spec: ArraySpec, samples: int, stand_in: StandIn | None) -> None:
        self.spec = spec
        self.differ = False
        self._array = np.zeros((samples, len(spec.shape)), np.uint32)
        self._absent = stand_in.spec.shape if stand_in is not None and stand_in.array.ndim else None

    def put(self, index: int, own: ArraySpec | None) -> bool:
        """Take the shape of a sample's array, if it has one; returns False if that is of another kind."""
        shape = self._absent if own is None else own.shape
        if shape is None:
            return True
        if own is not None and (own.dtype != self.spec.dtype or len(shape) != len(self.spec.shape)):
            return False
        self.differ = self.differ or shape != self.spec.shape
        if max(shape) > _MOST_SMALL and self._array.dtype == np.uint32:
            self._array = self._array.astype(np.int64)
        self._array[index] = shape
        return True

    def plan(self) -> RaggedPlan:
        return RaggedPlan(self.spec, self._array, int(_sizes(self._array).sum()))


def expect_empty(name: str, stand_in: StandIn) -> None:
    """Refuse what is to stand in for samples of a ragged field that lack it, unless it stands for none.

    Raises
    ------
    ValueError
        If it is a number other than 0.
    """
    if stand_in.array != 0:
        raise ValueError(
            f"fill: {name!r} is ragged, so nothing says how many times to store {stand_in}: give an array "
            "(in Python), or 0, which stores a sample without values"
        )


def _differing(
    source: IndexedSource, index: int, first: int, name: str, own: ArraySpec, spec: ArraySpec
) -> SourceError:
    advice = ""
    if own.dtype == spec.dtype and len(own.shape) == len(spec.shape) and spec.shape:
        advice = f"; {ragged_advice(name)}"
    cause = f"{own}, expected {spec} as in {source.describe(first)}{advice}"
    return SourceError(source.describe(index), name, cause)


def planned(plan: RaggedPlan, order: Bijection | None, chunk_length: int, codec: str) -> RaggedPlan:
    """Return the plan with pieces for chunks of so many samples.

    Parameters
    ----------
    order : Bijection or None
        In which samples are written.
    """
    sizes = _sizes(plan.shapes)
    if order is not None:
        for_position = np.empty_like(sizes)
        for start in range(0, len(sizes), 2**20):
            stop = min(start + 2**20, len(sizes))
            for_position[start:stop] = sizes[order.forward(np.arange(start, stop, dtype=np.int64))]
        sizes = for_position
    values = np.add.reduceat(sizes, np.arange(0, len(sizes), chunk_length))
    most = BLOSC_MAX_BYTES if codec.startswith("blosc") else _MOST_PIECE
    length = piece_length_for(values, plan.spec.dtype.itemsize, most)
    return replace(plan, piece_length=length, longest=int(values.max()))


def _sizes(shapes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    sizes: npt.NDArray[np.int64] = shapes.prod(axis=1, dtype=np.int64)
    return sizes
