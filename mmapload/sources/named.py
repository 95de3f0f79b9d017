"""What a sample from Python is made of: named arrays, whatever shape a dataset returns them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmapload.sources.npyfiles import NPY_FIELD

__all__ = ["named"]


def named(sample: Any) -> Any:
    """Return a sample as a mapping of names to values.

    Parameters
    ----------
    sample : object
        A mapping is returned as it is. Elements of a tuple go by their positions, "0" and so on, those of a
        named tuple by their names; and a single array or tensor by the name that arrays in `.npy` files have.

    Returns
    -------
    mapping or object
        Anything else is returned as it is, to be refused by who knows where it comes from.

    Examples
    --------
    >>> from collections import namedtuple
    >>> named((1.5, 2)), named(namedtuple("Pair", "image label")(1.5, 2)), named([1.5, 2])
    ({'0': 1.5, '1': 2}, {'image': 1.5, 'label': 2}, [1.5, 2])
    """
    if isinstance(sample, Mapping):
        return sample
    if isinstance(sample, tuple):
        names = getattr(sample, "_fields", None) or map(str, range(len(sample)))
        return dict(zip(names, sample, strict=True))
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return {NPY_FIELD: sample}
    return sample
