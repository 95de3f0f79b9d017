"""The option `--fill`: what stands in for which field, as it is typed."""

from __future__ import annotations

import math
import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.layout import CORE_DTYPES
from mmapload.preprocessing.fill import Number, exactly

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

__all__ = ["parse_fill"]

_FORMS: Final = (
    "FIELD=VALUE, or FIELD=VALUE:DTYPE:SHAPE such as flow=0:float32:2x256x448, "
    "or label=-1:int64: for one number a sample"
)
_SHAPE: Final = "4x256x448, whole numbers joined by x, or nothing for one number a sample"
_PARTS: Final = re.compile(r"[+-]?(?:[\d_]+\.?[\d_]*|\.[\d_]+)(?:[eE][+-]?[\d_]+)?")
_WORDS: Final = {"true": True, "false": False}


def parse_fill(texts: Iterable[str]) -> dict[str, Number | npt.NDArray[Any]]:
    """Read what stands in for which field.

    Parameters
    ----------
    texts : iterable of str
        FIELD=VALUE, a number for a field that some samples have; or FIELD=VALUE:DTYPE:SHAPE, where a shape is
        lengths joined by x, and empty for a single number.

    Returns
    -------
    dict of str to number or numpy.ndarray
        The arrays take the room of one element, however large they are.

    Raises
    ------
    ValueError
        If one is neither, a field is there twice, or a dtype cannot hold its value exactly.

    Examples
    --------
    >>> fill = parse_fill(["flow=0:float32:2x4x4", "label=-1:int64:", "mask=true"])
    >>> fill["flow"].shape, fill["label"], fill["mask"]
    ((2, 4, 4), array(-1), True)
    """
    fill: dict[str, Number | npt.NDArray[Any]] = {}
    for text in texts:
        field, _, given = text.rpartition("=")
        if not field or not given:
            raise ValueError(f"fill: expected {_FORMS}, found {text!r}")
        value, *typed = given.split(":")
        number = _number(value.strip())
        if number is None:
            raise _wrong(text, f"the value {value!r} is no number", "0, -1.5, 1e-3, nan, inf, true or 1+2j")
        if len(typed) == 1:
            raise _wrong(text, f"no shape follows the dtype {typed[0]!r}", _shaped(field, value, typed[0]))
        if len(typed) > 2:
            extra = ":".join(typed[2:])
            raise _wrong(text, f"{extra!r} follows the shape {typed[1]!r}", _shaped(field, value, typed[0]))
        if field in fill:
            raise ValueError(f"fill: {field!r} is there twice")
        fill[field] = _array(text, field, number, *typed) if typed else number
    return fill


def _wrong(text: str, what: str, example: str) -> ValueError:
    return ValueError(f"fill: in {text!r} {what}; expected for example {example}")


def _shaped(field: str, value: str, dtype: str) -> str:
    return f"{field}={value}:{dtype}:4x256x448, or {field}={value}:{dtype}: for one number a sample"


def _number(text: str) -> Number | None:
    """Read a number; None if it is none, or so large or small that it would become infinite or zero."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number: Number = float(text)
    except ValueError:
        try:
            number = complex(text)
        except ValueError:
            return None
    parts = _PARTS.findall(text)  # none of them in words, such as inf
    return number if all(_is_told(part) for part in parts) else None


def _is_told(text: str) -> bool:
    """Whether a real number, as it is written, is about what it is read as, and not infinite or zero."""
    try:
        number, exact = float(text), Decimal(text)
    except (ValueError, InvalidOperation):  # an exponent beyond even what is written exactly
        return False
    return math.isfinite(number) and (number == 0) == exact.is_zero()


def _array(text: str, field: str, number: Number, dtype: str, shape: str) -> npt.NDArray[Any]:
    if dtype not in CORE_DTYPES:
        what = f"{dtype!r} is no dtype of a store, which holds {', '.join(CORE_DTYPES)}"
        raise _wrong(text, what, "float32")
    element = exactly(field, number, CORE_DTYPES[dtype])
    lengths = shape.split("x") if shape else []
    for length in lengths:
        if not (length.isascii() and length.isdecimal()):
            raise _wrong(text, f"the shape {shape!r} has {length!r} for a length", _SHAPE)
    try:
        return np.broadcast_to(element, [int(length) for length in lengths])
    except (ValueError, OverflowError):
        raise _wrong(text, f"the shape {shape!r} is more than an array can have", _SHAPE) from None
