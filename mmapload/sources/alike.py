"""Arrays from values in an array of objects: one array of those that are alike, or values and shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["apart_from_shapes", "is_list_of_arrays", "regular", "rows_of"]

_GROWTH: Final = 1032
"""Elements may be one array, named again and again: so much larger than its pickle may all of them be."""
_PLAIN: Final = {bool: "?", int: "i8", float: "f8", complex: "c16"}


def regular(values: Sequence[Any], shape: tuple[int, ...], nbytes: int) -> npt.NDArray[Any]:
    """Make one array of values that are all alike.

    Parameters
    ----------
    values : sequence
        Arrays of one dtype and shape, numbers of one kind, or texts.
    shape : tuple of int
        Their number, as the axes before their own.
    nbytes : int
        Bytes of the pickle that they come from.

    Raises
    ------
    ValueError
        If they are not alike, or something else; says what to do.

    Examples
    --------
    >>> regular([1, 2], (2,), 99), regular(["a", "bc"], (1, 2), 99).shape
    (array([1, 2]), (1, 2))
    """
    if not values:
        raise ValueError(
            "there is none, so that nothing tells what they would be: save an empty array of numbers"
        )
    kinds = {type(value) for value in values}
    if kinds == {np.ndarray}:
        return _stacked(values, nbytes).reshape(shape + values[0].shape)
    if kinds == {str}:
        if any(value.endswith("\0") for value in values):
            raise ValueError("a text ends in a zero byte, which an array of text cannot hold")
        _check_growth(len(values) * max(map(len, values)) * np.dtype("U1").itemsize, nbytes)
        return np.array(values).reshape(shape)
    if len(kinds) == 1 and (dtype := _PLAIN.get(kinds.pop())) is not None:
        try:
            return np.array(values, dtype).reshape(shape)
        except OverflowError:
            raise ValueError("a whole number is beyond 64 bits: save it as text, or as float64") from None
    names = sorted({type(value).__name__ for value in values})
    raise ValueError(
        f"the elements are {', '.join(names)}; arrays of one shape, numbers of one kind or texts can be "
        "stored: save plain arrays, one under each key"
    )


def apart_from_shapes(
    arrays: Sequence[npt.NDArray[Any]], nbytes: int, kind: tuple[np.dtype[Any], int] | None = None
) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Put the values of arrays of different shapes in a row.

    Parameters
    ----------
    arrays : sequence of ndarray
        Of one dtype and number of axes.
    nbytes : int
        Bytes of the pickle that they come from.
    kind : (dtype, int), optional
        Dtype and number of axes, if there is no array.

    Returns
    -------
    values : ndarray, shape (values,)
        Those of all arrays, one after the other, each in C order.
    shapes : ndarray of int64, shape (arrays, axes)
        Of each array.

    Raises
    ------
    ValueError
        If they differ in dtype or number of axes, or are no numbers.

    Examples
    --------
    >>> values, shapes = apart_from_shapes([np.ones((2, 3)), np.zeros((1, 3))], 999)
    >>> values.size, shapes.tolist()
    (9, [[2, 3], [1, 3]])
    """
    dtype, axes = kind or (arrays[0].dtype, arrays[0].ndim)
    if dtype.hasobject or dtype.kind in "USV":
        raise ValueError(f"arrays are of dtype {dtype}, which no ragged field can be: save numbers")
    other = next((each for each in arrays if (each.dtype, each.ndim) != (dtype, axes)), None)
    if other is not None and other.dtype != dtype:
        raise ValueError(f"arrays are {dtype} and {other.dtype}: convert them to one, and save again")
    if other is not None or not axes:
        found = axes if other is None else f"{axes} and {other.ndim}"
        raise ValueError(
            f"arrays have {found} axes: a list of arrays that all have as many, and one at least"
        )
    _check_growth(sum(each.nbytes for each in arrays), nbytes)
    values = np.concatenate([each.reshape(-1) for each in arrays]) if arrays else np.empty(0, dtype)
    return values, np.array([each.shape for each in arrays], np.int64).reshape(len(arrays), axes)


def _stacked(values: Sequence[npt.NDArray[Any]], nbytes: int) -> npt.NDArray[Any]:
    first = values[0]
    for value in values:
        if value.dtype.hasobject:
            raise ValueError("one is an array of objects again: save its elements under keys of their own")
        if value.dtype != first.dtype:
            raise ValueError(
                f"arrays are {first.dtype} and {value.dtype}: convert them to one, and save again"
            )
        if value.shape != first.shape:
            raise ValueError(
                f"arrays have the shapes {first.shape} and {value.shape}, a ragged array: name the field by "
                "--ragged (or --ragged auto), which takes values and shapes for two fields; or save each of "
                "them as a sample of its own"
            )
    _check_growth(len(values) * first.dtype.itemsize * math.prod(first.shape), nbytes)
    return np.stack(values)


def _check_growth(total: int, nbytes: int) -> None:
    if total > nbytes * _GROWTH:
        raise ValueError(
            f"arrays take {total} bytes, and their pickle {nbytes}: it says the same again and again"
        )


def is_list_of_arrays(value: Any) -> bool:
    """Say whether an array of objects has one axis, and arrays in it."""
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and all(isinstance(each, np.ndarray) for each in value.tolist())
    )


def rows_of(value: Any, shape: tuple[int, ...], nbytes: int) -> list[npt.NDArray[Any]]:
    """Return the arrays of a list; where all had one shape, numpy has made one array of its numbers.

    Raises
    ------
    ValueError
        If it is something else.
    """
    if isinstance(value, np.ndarray) and value.shape == shape and len(shape) > 1:
        return list(regular(value.reshape(-1).tolist(), shape, nbytes))
    if not is_list_of_arrays(value) or value.shape != shape:
        raise ValueError("one is no array: only lists of arrays can be ragged")
    arrays: list[npt.NDArray[Any]] = value.tolist()
    return arrays
