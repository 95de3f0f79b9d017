"""Cast numbers to other types, and count what that changes; what would lose a whole number is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.layout import CORE_DTYPES
from mmapload.notes import BFLOAT16, note_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

__all__ = ["CastCounts", "cast_values", "castable", "check_casts", "parse_casts"]

_TYPES: Final = {**CORE_DTYPES, "bfloat16": BFLOAT16}


@dataclass(frozen=True, slots=True)
class CastCounts:
    """What casting has done to the values of a field.

    Attributes
    ----------
    values : int
        How many were cast.
    changed : int
        How many are not what they were; those that became infinite or NaN are among them.
    infinite : int
        How many finite ones became infinite.
    nan : int
        How many became NaN that were not.
    """

    values: int = 0
    changed: int = 0
    infinite: int = 0
    nan: int = 0

    def __add__(self, other: CastCounts) -> CastCounts:
        return CastCounts(
            self.values + other.values,
            self.changed + other.changed,
            self.infinite + other.infinite,
            self.nan + other.nan,
        )

    def __str__(self) -> str:
        text = f"{self.changed:,} of {self.values:,} values changed"
        parts = {"became infinite": self.infinite, "became NaN": self.nan}
        return text + "".join(f", {count:,} {what}" for what, count in parts.items() if count)


def parse_casts(cast: str | Sequence[str] | Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Read which fields are to be cast to what: "flow=float16,label=int32", parts of it, or a mapping.

    Raises
    ------
    ValueError, TypeError
        If it is none of these, a field is there twice, or a type is none that numbers are stored in.

    Examples
    --------
    >>> parse_casts("flow=float16")
    (('flow', 'float16'),)
    """
    if isinstance(cast, Mapping):
        pairs = list(cast.items())
    else:
        parts = cast.split(",") if isinstance(cast, str) else list(cast or ())
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(f"cast: expected parts such as flow=float16, found {cast!r}")
        pairs = [
            (field.strip(), dtype.strip()) for field, _, dtype in (part.rpartition("=") for part in parts)
        ]
    found = [(str(field), dtype if isinstance(dtype, str) else _name_of(dtype)) for field, dtype in pairs]
    for field, dtype in found:
        if not field or dtype not in _TYPES:
            raise ValueError(
                f"cast: expected parts such as flow=float16, with one of {', '.join(_TYPES)}, "
                f"found {f'{field}={dtype}'!r}"
            )
    if len({field for field, _ in found}) < len(found):
        raise ValueError(f"cast: a field is there twice in {cast!r}")
    return tuple(found)


def check_casts(casts: Iterable[tuple[str, str]], fields: Iterable[str]) -> None:
    """Refuse to cast what is not there.

    Raises
    ------
    ValueError
        Naming the fields that there are.
    """
    there = list(fields)
    for name, dtype in casts:
        if name not in there:
            has = ", ".join(map(repr, there))
            raise ValueError(f"cast: there is no field {name!r} to cast to {dtype}: the fields are {has}")


def _name_of(dtype: Any) -> str:
    """Name a dtype of numpy, ml_dtypes or torch."""
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(dtype).removeprefix("torch.")


def castable(dtype: np.dtype[Any]) -> bool:
    """Say whether values of a dtype are numbers, which alone can be cast."""
    return dtype == BFLOAT16 or dtype.kind in "biufc"


def cast_values(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], CastCounts]:
    """Cast an array.

    Real and complex types take the nearest value, which is counted where it differs. Whole numbers, bool, and
    real types for complex numbers, take only values that they hold. bfloat16 is rounded from float32.

    Raises
    ------
    ValueError
        If values would be lost; says how many and the first of them.

    Examples
    --------
    >>> cast_values(np.array([0.5, 0.1, 1e6]), np.dtype("f2"))
    (array([0.5, 0.1, inf], dtype=float16), CastCounts(values=3, changed=2, infinite=1, nan=0))
    >>> cast_values(np.array([1.0, 2.5]), np.dtype("i8"))
    Traceback (most recent call last):
    ValueError: 1 of 2 values cannot be int64, the first of them 2.5; cast to a type that holds them
    """
    given = _widened(values)
    with np.errstate(all="ignore"):
        if given.dtype.kind == "c" and dtype.kind != "c":
            _refuse_lost(given, given.imag != 0, dtype)
            given = given.real
        if dtype.kind in "biu":
            found = given.astype(dtype)
            _refuse_lost(given, ~_same(found, given), dtype)
            return found, CastCounts(given.size)
        found = _to_bfloat16(given.astype(np.float32)) if dtype == BFLOAT16 else given.astype(dtype)
        seen = _widened(found)
        was_nan = np.isnan(given)
        changed = ~_same(seen, given) & ~was_nan
        infinite = np.isinf(seen) & np.isfinite(given)
        nan = np.isnan(seen) & ~was_nan
    counts = (int(np.count_nonzero(each)) for each in (changed, infinite, nan))
    return found, CastCounts(given.size, *counts)


def _refuse_lost(values: npt.NDArray[Any], lost: npt.NDArray[np.bool_], dtype: np.dtype[Any]) -> None:
    if lost.any():
        count, first = np.count_nonzero(lost), np.asarray(values)[lost][0].item()
        name = note_of(dtype) or dtype.name
        raise ValueError(
            f"{count:,} of {values.size:,} values cannot be {name}, the first of them {first!r}; "
            "cast to a type that holds them"
        )


def _same(found: npt.NDArray[Any], given: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Compare numbers of two types exactly; numpy would round whole numbers before."""
    if found.dtype.kind in "iu" and given.dtype.kind in "iu":
        return np.asarray((found.astype(given.dtype) == given) & ((found < 0) == (given < 0)))
    if found.dtype.kind in "iu" and given.dtype.kind == "f":
        return _same(given, found)
    if given.dtype.kind in "iu" and found.dtype.kind in "fc":
        real = found.real.astype(np.float64)
        limits = np.iinfo(given.dtype)
        inside = (real >= float(limits.min)) & (real < float(limits.max + 1)) & (np.trunc(real) == real)
        return np.asarray(inside & (np.where(inside, real, 0).astype(given.dtype) == given))
    return np.asarray(found == given)


def _widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return bfloat16 as float32, and anything else as it is."""
    if values.dtype != BFLOAT16:
        return values
    return (values.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Round to the nearest, to the even one of two; NaN stays NaN."""
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    found = np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)
    return found.view(BFLOAT16)
