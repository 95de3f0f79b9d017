"""Read samples whole, and keep only what is unusual in them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from mmapload.budget import available_memory
from mmapload.checking.report import SampleFault
from mmapload.errors import SourceError
from mmapload.sizes import format_size

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    import numpy.typing as npt

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["Block", "Reader", "Usual", "count_non_finite", "fault_of", "may_differ"]

_SURELY_THERE: Final = 64 << 20
_OF_A_BOMB: Final = 100
"""So many times the bytes of its file are more than a sample has that is unlike most."""
_AT_ONCE: Final = 1 << 16
"""Elements that are looked at for NaN at a time: they stay in the processor's cache."""

Schema: TypeAlias = "Mapping[str, ArraySpec]"


@dataclass(frozen=True, slots=True)
class Usual:
    """What samples usually have.

    Attributes
    ----------
    schema : mapping of str to ArraySpec
        Of most of them; empty if no sample has one.
    ragged : tuple of str
        Fields whose shapes may differ; or "auto".
    """

    schema: Schema
    ragged: tuple[str, ...] = ()

    def is_like(self, schema: Schema) -> bool:
        """Whether a sample that has this is as most are, but for shapes that may differ."""
        return schema.keys() == self.schema.keys() and all(
            own == (usual := self.schema[field])
            or (
                may_differ(field, own, self.ragged)
                and (own.dtype, len(own.shape)) == (usual.dtype, len(usual.shape))
            )
            for field, own in schema.items()
        )


def may_differ(field: str, spec: ArraySpec, ragged: tuple[str, ...]) -> bool:
    """Whether samples of a field may have other shapes."""
    return (field in ragged or ragged == ("auto",)) and bool(spec.shape) and not spec.is_text


@dataclass(slots=True)
class Block:
    """What was found in some samples, one after the other in the source."""

    samples: int = 0
    nbytes: int = 0
    faults: list[SampleFault] = field(default_factory=list)
    unlike: list[tuple[int, Schema]] = field(default_factory=list)
    values: list[tuple[int, str, int, int]] = field(default_factory=list)

    def moved(self, by: int) -> Block:
        """Return the same of samples whose numbers are higher by so many."""
        return Block(
            self.samples,
            self.nbytes,
            [replace(fault, index=fault.index + by) for fault in self.faults],
            [(index + by, schema) for index, schema in self.unlike],
            [(index + by, name, nan, inf) for index, name, nan, inf in self.values],
        )


class Reader:
    """Reads samples into memory that is used again, and looks at their values.

    Parameters
    ----------
    usual : Usual
        What a sample is first tried to be read as.
    stopped : threading.Event, optional
        Set when the sample that is being read is to be the last.
    """

    def __init__(self, usual: Usual, stopped: threading.Event | None = None) -> None:
        self._usual = usual
        self._stopped = stopped
        self._memory: dict[str, npt.NDArray[np.uint8]] = {}
        self._places: dict[str, npt.NDArray[Any]] | None = None

    def read(self, source: IndexedSource, indices: range) -> Block:
        """Read samples."""
        block = Block()
        for index in indices:
            if self._stopped is not None and self._stopped.is_set():
                break
            block.samples += 1
            try:
                self._read_one(source, index, block)
            except SourceError as error:
                block.faults.append(fault_of(index, error))
        return block

    def _read_one(self, source: IndexedSource, index: int, block: Block) -> None:
        usual = self._usual.schema
        if not self._usual.ragged:  # else few may be as the first one is
            with contextlib.suppress(SourceError):
                self._read_usual(source, index, block)
                return
        schema = source.schema(index)
        if not self._usual.is_like(schema):
            _refuse_bomb(source, index, schema)
        self._places = None
        places = self._room(source, index, schema)
        absent = source.read(index, places) or ()
        if schema != usual:
            block.unlike.append((index, schema))
        _count(index, {name: values for name, values in places.items() if name not in absent}, block)

    def _read_usual(self, source: IndexedSource, index: int, block: Block) -> None:
        """Read a sample as what nearly all are, without asking what it is."""
        usual = self._usual.schema
        if self._places is None:
            self._places = self._room(source, index, usual)
        places = self._places
        absent = source.read(index, places) or ()
        if absent:
            block.unlike.append((index, {k: v for k, v in usual.items() if k not in absent}))
            places = {name: values for name, values in places.items() if name not in absent}
        _count(index, places, block)

    def _room(self, source: IndexedSource, index: int, schema: Schema) -> dict[str, npt.NDArray[Any]]:
        return {
            name: self._memory_of(source, index, name, spec)[: spec.nbytes]
            .view(spec.dtype)
            .reshape(spec.shape)
            for name, spec in schema.items()
        }

    def _memory_of(
        self, source: IndexedSource, index: int, name: str, spec: ArraySpec
    ) -> npt.NDArray[np.uint8]:
        memory = self._memory.get(name)
        if memory is not None and memory.nbytes >= spec.nbytes:
            return memory
        # A few bytes can inflate to a thousand times as many: the system would give them, and run out later.
        if spec.nbytes < _SURELY_THERE or spec.nbytes < available_memory():
            with contextlib.suppress(MemoryError, ValueError):
                memory = self._memory[name] = np.empty(max(1, spec.nbytes), np.uint8)
                return memory
        text = f"{spec} takes {format_size(spec.nbytes)}, more memory than there is: not read"
        raise SourceError(source.describe(index), name, text)


def _count(index: int, places: Mapping[str, npt.NDArray[Any]], block: Block) -> None:
    for name, values in places.items():
        block.nbytes += values.nbytes
        nan, inf = count_non_finite(values)
        if nan or inf:
            block.values.append((index, name, nan, inf))


def _refuse_bomb(source: IndexedSource, index: int, schema: Schema) -> None:
    """Refuse to inflate what is unlike most samples, large, and nearly nothing in its file."""
    nbytes = sum(spec.nbytes for spec in schema.values())
    if nbytes < _SURELY_THERE:
        return
    path = source.describe(index)
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError):
        return  # a sample that is no file
    if nbytes > _OF_A_BOMB * size:
        times = f"{nbytes // max(1, size):,} times as much as the file of {format_size(size)}"
        what = f"its arrays take {format_size(nbytes)}, {times}, and it is unlike most samples"
        raise SourceError(path, None, f"{what}: a decompression bomb, or all zeros; not read")


def fault_of(index: int, error: SourceError) -> SampleFault:
    """Return what is told of a sample that cannot be read."""
    return SampleFault(index, error.file, error.member, error.cause)


def count_non_finite(values: npt.NDArray[Any]) -> tuple[int, int]:
    """Count values that are NaN, and values that are infinite.

    Examples
    --------
    >>> count_non_finite(np.array([1, np.nan, -np.inf, np.inf]))
    (1, 2)
    """
    if values.dtype.kind not in "fc":
        return 0, 0
    flat = values.reshape(-1)
    nan = inf = 0
    for at in range(0, flat.size, _AT_ONCE):
        some = flat[at : at + _AT_ONCE]
        finite = np.isfinite(some)
        if not finite.all():
            missing = int(np.count_nonzero(np.isnan(some)))
            nan += missing
            inf += some.size - int(np.count_nonzero(finite)) - missing
    return nan, inf
