"""One sample from Python: its arrays, what they will be stored as, and their way into a chunk, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError
from mmapload.layout import CORE_DTYPES
from mmapload.notes import BFLOAT16, note_of
from mmapload.sources import ArraySpec
from mmapload.sources.absent import absent_fields, difference_advice, selection_advice
from mmapload.sources.named import named

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    import numpy.typing as npt

__all__ = ["as_array", "names_in", "refused", "select", "spec_of", "specs_of", "store_sample", "take_array"]


def as_array(value: Any) -> npt.NDArray[Any]:
    """Take a value of a sample for an array.

    Raises
    ------
    ValueError, TypeError, RuntimeError
        As numpy or the value's own conversion has it: ragged lists, tensors of a type numpy lacks; and of
        a masked array, which numpy would take without its mask.
    """
    if isinstance(value, np.ma.MaskedArray) or (isinstance(value, list | tuple) and _holds_masks(value)):
        raise TypeError("a store cannot hold a mask: fill it in (array.filled), or give it a name of its own")
    detach = getattr(value, "detach", None)
    if str(getattr(value, "dtype", "")).endswith("bfloat16"):
        return _bfloat16(value if detach is None else detach())
    try:
        array = np.asarray(value if detach is None else detach())
    except TypeError as error:
        if "ScalarType" in str(error):  # torch's word for a type that numpy lacks
            advice = f"its bits as tensor.view(torch.uint8), or a type that numpy has ({error})"
            raise TypeError(f"a store cannot hold {value.dtype}: give {advice}") from None
        raise
    if array.dtype.kind in "US" and isinstance(value, list | tuple):
        _expect_text(value, array.dtype.kind)
    return array


_TEXT: Final = {"U": str, "S": bytes}


def _bfloat16(value: Any) -> npt.NDArray[Any]:
    """Take a tensor of torch, or an array of the package ml_dtypes, for its bits."""
    if not isinstance(value, np.ndarray | np.generic):
        # Without an import of torch: a tensor has a dtype to ask for.
        value = np.asarray(value.view(value.new_empty(0).short().dtype))
    return np.asarray(value).view(np.uint16).view(BFLOAT16)


def _expect_text(values: Iterable[Any], kind: str) -> None:
    """Refuse nested lists of text in which there is anything else, which numpy would write out as text."""
    for each in values:
        if isinstance(each, list | tuple):
            _expect_text(each, kind)
        elif not isinstance(each, _TEXT[kind]) and getattr(getattr(each, "dtype", None), "kind", "") != kind:
            what = f"{_TEXT[kind].__name__} and {type(each).__name__}"
            raise TypeError(f"a list with both {what}: make two fields of it")


def _holds_masks(values: Iterable[Any]) -> bool:
    """Whether a masked array, or `np.ma.masked`, is somewhere in nested lists."""
    return any(
        isinstance(each, np.ma.MaskedArray) or (isinstance(each, list | tuple) and _holds_masks(each))
        for each in values
    )


def spec_of(array: npt.NDArray[Any]) -> ArraySpec:
    """Return how an array will be stored.

    Raises
    ------
    ValueError
        If a store cannot hold its dtype.

    Examples
    --------
    >>> str(spec_of(np.zeros((2, 3), ">f4")))
    'float32 (2, 3)'
    """
    dtype = _storable(array.dtype)
    if dtype is None:
        raise ValueError(f"a store cannot hold {refused(array.dtype)}")
    return ArraySpec(dtype, array.shape)


def refused(dtype: np.dtype[Any]) -> str:
    """Name a dtype that a store cannot hold, and say what to do instead.

    Examples
    --------
    >>> print(refused(np.dtype([("x", "f4"), ("y", "f4")])))
    a structured dtype: give each of its fields ('x', 'y') an array and a name of its own
    """
    if dtype.names:
        shown_names = ", ".join(map(repr, dtype.names[:8]))
        return f"a structured dtype: give each of its fields ({shown_names}) an array and a name of its own"
    if dtype.hasobject:
        return "Python objects (dtype object): give plain arrays of numbers or text"
    if dtype.kind in "fc":
        return f"{dtype.name}, which differs from machine to machine: give it as float64 or complex128"
    advice = "give it as uint8, or as one of the types that numpy and torch compute with"
    return f"dtype {dtype}: {advice} ({', '.join(CORE_DTYPES)}, bfloat16, times and text)"


@lru_cache(maxsize=64)  # numpy takes longer to name a dtype than to copy a small array
def _storable(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    if dtype.kind in "biufc":
        return CORE_DTYPES.get(dtype.name)
    note = note_of(dtype)
    return note.carrier if note else None


def specs_of(sample: Any, where: str, optional: Collection[str] = ()) -> dict[str, ArraySpec]:
    """Return the schema of one sample, which may lack the optional fields.

    Raises
    ------
    SourceError
        If it is no mapping of names to arrays that a store can hold.
    """
    sample = _mapping(sample, where)
    specs = {}
    for name in names_in(sample, where):
        if not isinstance(name, str):
            raise SourceError(where, None, f"the names of arrays must be text, found {name!r}")
        _, specs[name] = take_array(sample, name, where)
    if not specs and not optional:
        raise SourceError(where, None, "a sample without arrays")
    return specs


def take_array(sample: Mapping[str, Any], name: str, where: str) -> tuple[npt.NDArray[Any], ArraySpec]:
    """Take one array of a sample, and how it will be stored.

    Raises
    ------
    SourceError
        If a store cannot hold it, or its mapping, which may load it only now, raises anything.
    """
    try:
        array = as_array(sample[name])
        return array, spec_of(array)
    except Exception as error:
        raise SourceError(where, name, str(error)) from error


def names_in(sample: Mapping[Any, Any], where: str) -> list[Any]:
    """List the names of a sample's arrays.

    Raises
    ------
    SourceError
        If its mapping raises anything.
    """
    try:
        return list(sample)
    except Exception as error:
        raise _unlisted(where, error) from error


def _unlisted(where: str, error: Exception) -> SourceError:
    """Return the error of a mapping that raises where it is asked which names it has."""
    return SourceError(where, None, f"its mapping raised {type(error).__name__}: {error}")


def _mapping(sample: Any, where: str) -> Mapping[Any, Any]:
    found = named(sample)
    if not isinstance(found, Mapping):
        raise SourceError(
            where,
            None,
            f"expected a mapping of names to arrays, found {type(sample).__name__}; "
            "yield for instance {'image': image, 'label': label}, or a tuple",
        )
    return found


def store_sample(
    sample: Any, into: Mapping[str, npt.NDArray[Any]], where: str, optional: Collection[str] = ()
) -> tuple[str, ...]:
    """Copy a sample into the arrays given, exactly: nothing is cast but the byte order.

    Parameters
    ----------
    where : str
        Names the sample in errors.
    optional : collection of str
        Fields that it may lack.

    Returns
    -------
    tuple of str
        The fields that it lacks; their arrays are left as they are.

    Raises
    ------
    SourceError
        If its fields, dtypes or shapes are not those of `into`; names both sides.
    """
    if isinstance(sample, SourceError):
        raise sample  # looked at before, when the schema was sought
    sample = _mapping(sample, where)
    try:
        absent = absent_fields(sample, into, optional)
        names = list(sample) if absent is None else []
    except Exception as error:
        raise _unlisted(where, error) from error
    if absent is None:
        missing = [name for name in into if name not in names and name not in optional]
        extra = [name for name in names if name not in into]
        common = [name for name in into if name in names]
        raise SourceError(
            where,
            None,
            f"its fields are {_listed(names)}, expected {_listed(into)}; "
            f"{difference_advice(missing, extra, common, files=False)}",
        )
    for name, place in into.items():
        if name in absent:
            continue
        array, found = take_array(sample, name, where)
        expected = ArraySpec(place.dtype, place.shape)
        if not expected.holds(found):
            raise SourceError(where, name, f"{found}, expected {expected}{_wider(found, expected)}")
        place[...] = array
    return absent


def _wider(found: ArraySpec, expected: ArraySpec) -> str:
    if not found.holds(expected):
        return ""
    return (
        "; of an iterable the first sample says how long text may be: give numpy.array(text, '<U64') there, "
        "or make it a sequence (which is gone through twice), such as a list"
    )


def select(sample: Any, fields: Mapping[str, str] | None, where: str, optional: Collection[str] = ()) -> Any:
    """Take some arrays of a sample, under the names of their fields; what is no mapping stays as it is.

    Raises
    ------
    SourceError
        If one of them is not there and not optional, or its mapping fails to load it.
    """
    sample = named(sample)
    if fields is None or not isinstance(sample, Mapping):
        return sample
    try:
        has = {name for name in fields if name in sample}
        names = list(sample) if len(has) < len(fields) else []
    except Exception as error:
        raise _unlisted(where, error) from error
    absent = {name: field for name, field in fields.items() if name not in has and field not in optional}
    if absent:
        what = f"has no array {_listed(absent)}; it has {_listed(names)}"
        raise SourceError(where, None, f"{what}; {selection_advice(absent, names)}")
    try:
        return {field: sample[name] for name, field in fields.items() if name in has}
    except Exception as error:
        raise SourceError(where, None, str(error)) from error


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
