"""What stands in for an array that a sample lacks: numbers and arrays, stored exactly or refused by name."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from mmapload.notes import note_of
from mmapload.sources.values import as_array, spec_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["Number", "StandIn", "check_fill", "exactly", "read_filled", "stand_in", "write_stand_ins"]

_MOST_BITS: Final = 1024
"""Of a whole number: a float64 holds none that has more."""

Number: TypeAlias = bool | int | float | complex
"""A value for every element of an array whose dtype and shape are those that other samples have."""


@dataclass(frozen=True, slots=True, eq=False)
class StandIn:
    """What is stored for one field of the samples that lack it.

    Attributes
    ----------
    spec : ArraySpec
        The field's dtype and shape.
    array : numpy.ndarray
        Of that dtype, text perhaps shorter; and of that shape, or () where all elements are the same.
    """

    spec: ArraySpec
    array: npt.NDArray[Any]

    @property
    def note(self) -> Any:
        """What is stored, exactly, as a JSON value.

        One value for all elements is written as Zarr v3 writes a fill value: a number, true or false, "NaN",
        "Infinity", "-Infinity", the bits of another NaN such as "0x7fc00001", and a list of two of these for
        a complex number. An array whose elements differ is `{"sha256": ...}`, the hash of its bytes,
        little-endian and in C order.
        """
        if self.array.ndim or self.array.dtype.kind not in "biufc":
            return {"sha256": hashlib.sha256(self.array.tobytes()).hexdigest()}
        value = self.array[()]
        return [_noted(value.real), _noted(value.imag)] if self.array.dtype.kind == "c" else _noted(value)

    def __str__(self) -> str:
        if self.array.ndim:
            return "an array"
        return str(self.array) if self.array.dtype.kind not in "SU" else repr(self.array[()].item())


def _noted(value: Any) -> Any:
    """Write a number of numpy as Zarr v3 does."""
    plain = value.item()
    if not isinstance(plain, float) or math.isfinite(plain):
        return plain
    if math.isinf(plain):
        return "Infinity" if plain > 0 else "-Infinity"
    if value.tobytes() == value.dtype.type("nan").tobytes():
        return "NaN"
    return f"0x{value.tobytes()[::-1].hex()}"


def check_fill(
    fill: Mapping[str, Any] | None, fields: Mapping[str, str] | None
) -> dict[str, Number | StandIn]:
    """Check what is to stand in for which field, as far as that needs no sample.

    Parameters
    ----------
    fill : mapping of str to number or array, or None
        By the fields' names in the store.
    fields : mapping of str to str, or None
        The fields that are selected, by their names in the source.

    Raises
    ------
    TypeError
        If it is no mapping of names.
    ValueError
        If a field is not selected, or its value is nothing that a store can hold.

    Examples
    --------
    >>> fill = check_fill({"flow": np.zeros((2, 4, 4), "f4"), "label": -1}, None)
    >>> str(fill["flow"].spec), str(fill["flow"]), fill["label"]
    ('float32 (2, 4, 4)', '0.0', -1)
    """
    if not (fill is None or isinstance(fill, Mapping)) or not all(isinstance(key, str) for key in fill or ()):
        raise TypeError(f"fill: expected a mapping such as {{'flow': 0}}, found {fill!r}")
    checked: dict[str, Number | StandIn] = {}
    for field, value in (fill or {}).items():
        if fields is not None and field in fields and field not in fields.values():
            raise ValueError(
                f"fill: {field!r} is taken under the name {fields[field]!r}, and a stand-in goes by that: "
                f"give {fields[field]!r} in place of {field!r}"
            )
        if fields is not None and field not in fields.values():
            taken = ", ".join(repr(name) for name in fields.values())
            raise ValueError(f"fill: {field!r} is not among the fields that are taken, {taken}: add it there")
        plain = value.item() if isinstance(value, np.generic) else value
        if isinstance(plain, int) and plain.bit_length() > _MOST_BITS:
            raise ValueError(
                f"fill: {field!r} is a number of {plain.bit_length():,} bits, which no dtype holds"
            )
        checked[field] = plain if isinstance(plain, bool | int | float | complex) else _given(field, plain)
    return checked


def _given(field: str, value: Any) -> StandIn:
    try:
        array = as_array(value)
        spec = spec_of(array)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"fill: {field!r}: {error}") from None
    return StandIn(spec, _compact(array.astype(spec.dtype, copy=False)))


def _compact(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Copy an array; one element of it where they are all the same, bit by bit."""
    if array.size and not any(array.strides):  # one element, however large the shape
        return np.array(array[(0,) * array.ndim])
    copy = array.copy(order="C")
    elements = copy.reshape(-1).view(np.uint8).reshape(copy.size, copy.itemsize)
    return np.array(copy[(0,) * copy.ndim]) if copy.size and (elements == elements[0]).all() else copy


def stand_in(field: str, value: Number, spec: ArraySpec, *, optional: bool = False) -> StandIn:
    """Return what stands in for a field of which a sample is known.

    Parameters
    ----------
    optional : bool
        Whether a mask says which samples have the field, so that 0 is as good for what is no number: it then
        stands for the empty text, or the time from which a dtype counts.

    Raises
    ------
    ValueError
        If its dtype cannot hold the value.

    Examples
    --------
    >>> from mmapload.sources import ArraySpec
    >>> stand_in("note", 0, ArraySpec(np.dtype("<U5"), (2,)), optional=True).array
    array('', dtype='<U1')
    """
    if optional and spec.dtype.kind not in "biufc" and not isinstance(value, bool) and value == 0:
        # The longest text is not known yet, and what is kept of the empty one is not to depend on it.
        return StandIn(spec, np.zeros((), f"{spec.dtype.kind}1" if spec.is_text else spec.dtype))
    return StandIn(spec, exactly(field, value, spec.dtype))


def exactly(field: str, value: Number, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return a number as an array of no axes.

    Raises
    ------
    ValueError
        If the dtype cannot hold it exactly; says what it holds.

    Examples
    --------
    >>> exactly("label", 255, np.dtype("u1"))
    array(255, dtype=uint8)
    >>> exactly("label", 300, np.dtype("u1"))
    Traceback (most recent call last):
    ValueError: fill: 'label' is uint8, which cannot hold 300: it holds whole numbers from 0 to 255
    """
    if dtype.kind not in "biufc":
        kind = note_of(dtype) or dtype.name
        raise ValueError(
            f"fill: {field!r} is {kind}, for which no number stands in: give an array, in Python"
        )
    found = None
    if not isinstance(value, complex) or dtype.kind == "c":
        try:
            with np.errstate(all="ignore"):
                found = np.asarray(np.asarray(value).astype(dtype))
        except (OverflowError, TypeError, ValueError):
            found = None
    if found is None or not _is_same(found.item(), value):
        raise ValueError(
            f"fill: {field!r} is {dtype.name}, which cannot hold {value!r}: it holds {_range(dtype, found)}"
        )
    return found


def _is_same(found: Number, wanted: Number) -> bool:
    """Whether two numbers of Python are one, infinities, NaN and the sign of zero included."""
    return all(
        (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))
        or (a == b and (a != 0 or math.copysign(1, a) == math.copysign(1, b)))
        for a, b in ((found.real, wanted.real), (found.imag, wanted.imag))
    )


def _range(dtype: np.dtype[Any], nearest: npt.NDArray[Any] | None) -> str:
    if dtype.kind == "b":
        return "true and false"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return f"whole numbers from {limits.min} to {limits.max}"
    if nearest is not None and np.isfinite(nearest):
        return f"{nearest.item()!r}, the nearest to it"
    limit = np.finfo(dtype).max
    return f"{'complex' if dtype.kind == 'c' else 'real'} numbers up to {limit}"


def read_filled(
    source: IndexedSource, index: int, into: Mapping[str, npt.NDArray[Any]], fill: Mapping[str, StandIn]
) -> Collection[str]:
    """Read a sample, and write what stands in for the fields that it lacks; returns these.

    Raises
    ------
    SourceError
        As the source's `read`.
    """
    absent = source.read(index, into) or ()
    write_stand_ins(absent, into, fill)
    return absent


def write_stand_ins(
    absent: Collection[str], into: Mapping[str, npt.NDArray[Any]], fill: Mapping[str, StandIn]
) -> None:
    """Write what stands in for the fields that a sample lacks into its arrays."""
    for field in absent:
        into[field][...] = fill[field].array
