"""Sources some of whose fields are cast as they are read."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.errors import SourceError
from mmapload.notes import BFLOAT16
from mmapload.sources import ArraySpec
from mmapload.sources.casting import CastCounts, cast_values, castable
from mmapload.sources.grouped import grouped
from mmapload.sources.named import named
from mmapload.sources.samples import IterableSource
from mmapload.sources.values import take_array

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import numpy.typing as npt

    from mmapload.sources import IndexedSource
    from mmapload.sources.grouped import Gathered, GroupedSource

__all__ = ["CastGroups", "CastIterable", "CastSource", "cast_source"]


def cast_source(
    source: IndexedSource | IterableSource, casts: Sequence[tuple[str, str]]
) -> CastSource | CastIterable:
    """Return a source whose fields of these names have these types."""
    dtypes = {field: BFLOAT16 if name == "bfloat16" else np.dtype(name) for field, name in casts}
    if isinstance(source, IterableSource):
        return CastIterable(source, dtypes)
    many = grouped(source)
    return CastSource(source, dtypes) if many is None else CastGroups(many, dtypes)


def _cast_specs(
    specs: Mapping[str, ArraySpec], dtypes: Mapping[str, np.dtype[Any]], where: str
) -> dict[str, ArraySpec]:
    for field in dtypes.keys() & specs.keys():
        if not castable(specs[field].dtype):
            raise SourceError(where, field, f"is {specs[field]}, and only numbers can be cast")
    return {field: ArraySpec(dtypes.get(field, spec.dtype), spec.shape) for field, spec in specs.items()}


def _noted(source: object, dtypes: Mapping[str, np.dtype[Any]]) -> dict[str, Any]:
    names = {field: "bfloat16" if dtype == BFLOAT16 else dtype.name for field, dtype in dtypes.items()}
    return {**getattr(source, "notes", {}), "cast": names}


class CastSource:
    """Samples of another source, with some fields cast.

    Parameters
    ----------
    source : IndexedSource
        The other.
    dtypes : mapping of str to numpy.dtype
        What becomes of which field.

    Examples
    --------
    >>> from mmapload.sources.samples import SequenceSource
    >>> source = cast_source(SequenceSource([{"x": 0.1}, {"x": 5}]), [("x", "float32")])
    >>> x = np.empty((), np.float32)
    >>> [str(source.schema(0)["x"]), source.read(0, {"x": x}), source.read(1, {"x": x})]
    ['float32 ()', (), ()]
    >>> print(source.counts["x"])
    1 of 2 values changed
    """

    def __init__(self, source: IndexedSource, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.kind = source.kind
        self.parallel = source.parallel
        self._source = source
        self._dtypes = dict(dtypes)
        self._before: dict[str, np.dtype[Any]] = {}
        # By sample, so that one that is read twice counts once.
        self._counts = {field: np.zeros((len(source), 4), np.int64) for field in dtypes}

    @property
    def notes(self) -> dict[str, Any]:
        """What the store keeps about its source."""
        return _noted(self._source, self._dtypes)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What was noticed of the source."""
        return tuple(getattr(self._source, "remarks", ()))

    @property
    def counts(self) -> dict[str, CastCounts]:
        """What casting has done to each field of the samples that were read."""
        return {field: CastCounts(*found.sum(axis=0).tolist()) for field, found in self._counts.items()}

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._source)

    def name(self, index: int) -> str | None:
        """Name a sample as the other source does."""
        return self._source.name(index)

    def describe(self, index: int) -> str:
        """Say which sample it is, as the other source does."""
        return self._source.describe(index)

    def fingerprint(self, index: int) -> bytes:
        """Summarise what is cast."""
        return self._source.fingerprint(index)

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Return the types after casting.

        Raises
        ------
        SourceError
            As the other source; and if a field that is to be cast has no numbers.
        """
        specs = self._source.schema(index)
        for field in self._dtypes.keys() & specs.keys():
            self._before.setdefault(field, specs[field].dtype)
        return _cast_specs(specs, self._dtypes, self.describe(index))

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> Collection[str]:
        """Read a sample, and cast.

        Raises
        ------
        SourceError
            As the other source; and if a value would be lost.
        """
        given = self._memory(into, self._before)
        try:
            absent = self._source.read(index, {**into, **given}) or ()
        except SourceError:
            specs: Mapping[str, ArraySpec] = {}
            with suppress(SourceError):
                specs = self._source.schema(index)
            own = {field: specs[field].dtype for field in given if field in specs}
            if all(own[field] == given[field].dtype for field in own):
                raise
            given = self._memory(into, {**self._before, **own})
            absent = self._source.read(index, {**into, **given}) or ()
        for field, values in given.items():
            if field not in absent:
                self._cast(index, field, values, into[field])
        return absent

    def _memory(
        self, into: Mapping[str, npt.NDArray[Any]], before: Mapping[str, np.dtype[Any]]
    ) -> dict[str, npt.NDArray[Any]]:
        return {
            field: np.empty(into[field].shape, before.get(field, dtype))
            for field, dtype in self._dtypes.items()
            if field in into
        }

    def _cast(self, index: int, field: str, values: npt.NDArray[Any], into: npt.NDArray[Any]) -> None:
        try:
            into[...], found = cast_values(values, self._dtypes[field])
        except ValueError as error:
            raise SourceError(self.describe(index), field, f"cast: {error}") from None
        self._counts[field][index] = (found.values, found.changed, found.infinite, found.nan)


class CastGroups(CastSource):
    """The same, of a source that reads many samples at a time."""

    def __init__(self, source: GroupedSource, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        super().__init__(source, dtypes)
        self._many = source

    def __getattr__(self, name: str) -> Any:
        # What concerns names, files and proofs only is the other source's.
        if name in {"rereads", "at_once", "heads", "names", "names_nbytes", "roll", "prove", "prove_rest"}:
            return getattr(self._many, name)
        raise AttributeError(name)

    def read_many(self, indices: Sequence[int], into: Mapping[str, npt.NDArray[Any]]) -> Gathered:
        """Read samples, and cast; as the other source."""
        given = self._memory(into, self._before)
        gathered = self._many.read_many(indices, {**into, **given})
        for field, values in given.items():
            absent = set(gathered.absent.get(field, ()))
            for place, index in enumerate(indices):
                if place not in absent:
                    self._cast(index, field, values[place], into[field][place, ...])
        return gathered


class CastIterable(IterableSource):
    """The same, of samples that come once."""

    def __init__(self, source: IterableSource, dtypes: Mapping[str, np.dtype[Any]]) -> None:
        self.kind = source.kind
        self.counts = {field: CastCounts() for field in dtypes}
        self._source = source
        self._dtypes = dict(dtypes)

    @property
    def notes(self) -> dict[str, Any]:
        """What the store keeps about its source."""
        return _noted(self._source, self._dtypes)

    def schema(self, *, skip: bool = False) -> dict[str, ArraySpec]:
        """Return the types of the first sample after casting; as `IterableSource`."""
        return _cast_specs(self._source.schema(skip=skip), self._dtypes, "the first sample")

    def __iter__(self) -> Iterator[Any]:
        """Yield every sample, or what is wrong with it, to be raised when it is to be stored."""
        for index, sample in enumerate(self._source):
            try:
                yield self._cast(named(sample), f"sample {index}")
            except SourceError as error:
                yield error

    def _cast(self, sample: Any, where: str) -> Any:
        if not isinstance(sample, Mapping):
            return sample
        found = {}
        for field in self._dtypes.keys() & sample.keys():
            array, spec = take_array(sample, field, where)
            if not castable(spec.dtype):
                raise SourceError(where, field, f"is {spec}, and only numbers can be cast")
            try:
                found[field], counts = cast_values(array.astype(spec.dtype, copy=False), self._dtypes[field])
            except ValueError as error:
                raise SourceError(where, field, f"cast: {error}") from None
            self.counts[field] += counts
        return {name: found.get(name, sample[name]) for name in sample}
