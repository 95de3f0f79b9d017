"""Which fields, samples and orders are asked for, checked."""

from __future__ import annotations

import operator
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from mmapload.layout import FieldLayout
    from mmapload.order import Mode
    from mmapload.store import Store

__all__ = ["checked_integer", "chosen_fields", "mode_of", "sample_numbers"]

_MODES: Final[dict[Any, Mode]] = {
    None: "sequential",
    False: "sequential",
    True: "window",
    "window": "window",
    "batch": "batch",
    "full": "full",
}


def checked_integer(name: str, value: object, least: int) -> int:
    """Return a whole number from `least` up; anything else is a ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} is an integer from {least} up, not {value!r}")
    return int(value)


def chosen_fields(store: Store, names: Sequence[str] | None) -> tuple[FieldLayout, ...]:
    """Return the fields of these names, in that order; all for None.

    Raises
    ------
    ValueError
        If there is no such field, none is named, or one twice.
    """
    if names is None:
        return store.layout.fields
    if isinstance(names, str) or not names:
        raise ValueError(f"fields is a list of field names, not {names!r}")
    absent = [name for name in names if name not in store.fields]
    if absent:
        raise ValueError(f"{store.path} has no field {absent[0]!r}; it has {', '.join(store.fields)}")
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ValueError(f"fields names {twice[0]!r} twice")
    return tuple(store.field(name) for name in names)


def mode_of(shuffle: object) -> Mode:
    """Return the mode of the order that `shuffle` asks for.

    Raises
    ------
    ValueError
        If it is no such value.

    Examples
    --------
    >>> mode_of(True), mode_of(None)
    ('window', 'sequential')
    """
    mode = _MODES.get(shuffle) if isinstance(shuffle, Hashable) else None
    if mode is None:
        raise ValueError(f"shuffle is True, False, 'window', 'batch' or 'full', not {shuffle!r}")
    return mode


def sample_numbers(indices: Sequence[int] | npt.NDArray[np.int64], samples: int) -> npt.NDArray[np.int64]:
    """Return indices into a store of so many samples as numbers from 0 up; negative ones count from the end.

    Raises
    ------
    IndexError
        If one lies outside.
    TypeError
        If one is no integer.

    Examples
    --------
    >>> sample_numbers([3, -1], 10)
    array([3, 9])
    """
    if not isinstance(indices, np.ndarray):
        listed = list(map(operator.index, indices))
        # Python integers may be too large for any array: their bounds are compared before.
        _refuse_outside([min(listed, default=0), max(listed, default=0)], samples)
        numbers = np.array(listed, np.int64)
    elif indices.ndim == 1 and indices.dtype.kind in "iu":
        _refuse_outside(indices[(indices < -samples) | (indices >= samples)][:1], samples)
        numbers = indices.astype(np.int64)
    else:
        raise TypeError(f"indices are integers in one row, not {indices.dtype} of shape {indices.shape}")
    numbers[numbers < 0] += samples
    return numbers


def _refuse_outside(numbers: Iterable[int], samples: int) -> None:
    for number in numbers:
        if not -samples <= number < samples:
            raise IndexError(f"sample {number} of a store of {samples}")
