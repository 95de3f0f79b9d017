"""Count what samples have, in memory that grows with what is unusual, not with how many there are."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.checking.reading import may_differ
from mmapload.checking.report import NonFinite, Outlier, SampleFault, Variety
from mmapload.sources import ArraySpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    import numpy.typing as npt

__all__ = ["Tally"]

_MOST_SPECS: Final = 64
"""Of a field so many dtypes and shapes are told one by one."""

_Kind: TypeAlias = ArraySpec | Variety | None


class Tally:
    """Counts of fields, dtypes, shapes and values; used by one thread.

    Samples that have the usual schema are only counted; of others the numbers are kept, 8 bytes each. Texts
    of different lengths are alike, for a store has room for the longest.

    Parameters
    ----------
    usual : mapping of str to ArraySpec
        The schema of the first sound sample.
    ragged : tuple of str
        Fields whose shapes may differ; or "auto".
    lacking : collection of str
        Fields that a sample may lack.
    """

    def __init__(
        self, usual: Mapping[str, ArraySpec], ragged: tuple[str, ...] = (), lacking: Collection[str] = ()
    ) -> None:
        self._ragged = ragged
        self._lacking = lacking
        self._longest: dict[tuple[str, ArraySpec], ArraySpec] = {}
        self._ranges: dict[tuple[str, ArraySpec], Variety] = {}
        self._usual = {field: self._alike(field, spec) for field, spec in usual.items()}
        self.sound = 0
        self.nbytes = 0
        self.faults: list[SampleFault] = []
        self._absent: dict[str, array[int]] = {}
        self._specs: dict[str, dict[ArraySpec | None, array[int]]] = {}
        self._rest: dict[str, dict[tuple[np.dtype[Any], int], _Rest]] = {}
        self._values: dict[str, _Values] = {}

    def add_sound(self, samples: int, nbytes: int) -> None:
        """Count samples that were read."""
        self.sound += samples
        self.nbytes += nbytes

    def add_unlike(self, index: int, schema: Mapping[str, ArraySpec]) -> None:
        """Keep what is otherwise in a sample that was counted."""
        for field in self._usual.keys() | schema.keys():
            spec = self._alike(field, schema[field]) if field in schema else None
            if spec is None and field in self._lacking:
                self._absent.setdefault(field, array("q")).append(index)
            elif spec != self._usual.get(field):
                self._add_spec(field, spec, index)

    def _alike(self, field: str, spec: ArraySpec) -> ArraySpec:
        """Return what stands for all texts of this kind and shape, or for all shapes; or what it is.

        The longest are noted.
        """
        if may_differ(field, spec, self._ragged):
            any_shape = ArraySpec(spec.dtype, (0,) * len(spec.shape))
            known = self._ranges.get((field, any_shape))
            least = tuple(map(min, known.shortest, spec.shape)) if known else spec.shape
            most = tuple(map(max, known.longest, spec.shape)) if known else spec.shape
            self._ranges[field, any_shape] = Variety(spec.dtype, least, most, ragged=True)
            return any_shape
        if not spec.is_text:
            return spec
        any_length = ArraySpec(np.dtype(spec.dtype.kind), spec.shape)
        longest = self._longest.get((field, any_length), spec)
        self._longest[field, any_length] = spec if spec.holds(longest) else longest
        return any_length

    def _told(self, field: str, kind: _Kind) -> _Kind:
        """Return a kind with the length of the longest text, if it is of text, or the range of its shapes."""
        if isinstance(kind, ArraySpec) and (found := self._ranges.get((field, kind))) is not None:
            same = found.shortest == found.longest and field not in self._ragged
            return ArraySpec(found.dtype, found.longest) if same else found
        return self._longest.get((field, kind), kind) if isinstance(kind, ArraySpec) else kind

    def _add_spec(self, field: str, spec: ArraySpec | None, index: int) -> None:
        known = self._specs.setdefault(field, {})
        if spec in known or spec is None or len(known) < _MOST_SPECS:
            known.setdefault(spec, array("q")).append(index)
            return
        rests = self._rest.setdefault(field, {})
        key = (spec.dtype, len(spec.shape))
        rests.setdefault(key, _Rest(spec.shape)).add(spec.shape, index)

    def add_values(self, index: int, field: str, nan: int, inf: int) -> None:
        """Count values of a sample that are NaN or infinite."""
        self._values.setdefault(field, _Values()).add(index, nan, inf)

    def outliers(self, samples: int) -> tuple[dict[str, ArraySpec | Variety], tuple[Outlier, ...]]:
        """Return what most samples have, and the samples that have something else.

        Parameters
        ----------
        samples : int
            How many there are, sound or not.
        """
        whole = np.ones(samples, bool)
        whole[[fault.index for fault in self.faults]] = False
        schema: dict[str, ArraySpec | Variety] = {}
        outliers = []
        for field in dict.fromkeys([*self._usual, *self._specs]):
            groups: dict[_Kind, npt.NDArray[np.int64]] = {
                spec: _rising(indices) for spec, indices in self._specs.get(field, {}).items()
            }
            for (dtype, _), rest in self._rest.get(field, {}).items():
                groups[Variety(dtype, rest.shortest, rest.longest)] = _rising(rest.indices)
            others = whole.copy()
            for indices in groups.values():
                others[indices] = False
            others[_rising(self._absent.get(field, ()))] = False
            groups[self._usual.get(field)] = np.flatnonzero(others)
            if field in self._lacking:
                groups.pop(None, None)
            most = max(groups, key=lambda kind: len(groups[kind]))
            usual = self._told(field, most)
            if usual is not None:
                schema[field] = usual
            outliers += [
                Outlier(field, self._told(field, kind), usual, indices)
                for kind, indices in sorted(groups.items(), key=lambda group: -len(group[1]))
                if kind != most and len(indices)
            ]
        return schema, tuple(outliers)

    def non_finite(self) -> tuple[NonFinite, ...]:
        """Return the fields that have NaN or infinite values."""
        return tuple(
            NonFinite(field, values.nan, values.inf, _rising(values.indices))
            for field, values in sorted(self._values.items())
        )


class _Rest:
    """Shapes of so many kinds that only their least and greatest lengths are kept."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shortest = self.longest = shape
        self.indices = array("q")

    def add(self, shape: tuple[int, ...], index: int) -> None:
        self.shortest = tuple(map(min, self.shortest, shape))
        self.longest = tuple(map(max, self.longest, shape))
        self.indices.append(index)


class _Values:
    """Values that are NaN or infinite, and the samples that have them."""

    def __init__(self) -> None:
        self.nan = self.inf = 0
        self.indices = array("q")

    def add(self, index: int, nan: int, inf: int) -> None:
        self.nan += nan
        self.inf += inf
        self.indices.append(index)


def _rising(indices: Iterable[int]) -> npt.NDArray[np.int64]:
    found = np.array(indices, np.int64)
    found.sort()
    return found
