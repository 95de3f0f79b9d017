"""What a sample from Python is made of: named arrays, whatever shape a dataset returns them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from mmapload.sources.npyfiles import NPY_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["named"]


def named(sample: Any) -> Any:
    """Return a sample as a mapping of names to values.

    Parameters
    ----------
    sample : object
        A mapping is returned as it is. Elements of a tuple go by their positions, "0" and so on, those of a
        named tuple by their names; and a single array or tensor by the name that arrays in `.npy` files have.
        What is in a dict within a dict goes by both names, "a/b".

    Returns
    -------
    mapping or object
        Anything else is returned as it is, to be refused by who knows where it comes from.

    Examples
    --------
    >>> from collections import namedtuple
    >>> named((1.5, 2)), named(namedtuple("Pair", "image label")(1.5, 2)), named([1.5, 2])
    ({'0': 1.5, '1': 2}, {'image': 1.5, 'label': 2}, [1.5, 2])
    >>> named({"image": 1, "target": {"box": 2, "of": {"x": 3}}})
    {'image': 1, 'target/box': 2, 'target/of/x': 3}
    """
    if isinstance(sample, dict):
        return _flat(sample) if any(isinstance(value, dict) for value in sample.values()) else sample
    if isinstance(sample, Mapping):  # which may load a value only when it is asked for
        return sample
    if isinstance(sample, tuple):
        names = getattr(sample, "_fields", None) or map(str, range(len(sample)))
        return named(dict(zip(names, sample, strict=True)))
    if hasattr(sample, "dtype") and hasattr(sample, "shape"):
        return {NPY_FIELD: sample}
    return sample


_MOST_LEVELS: Final = 16


def _flat(sample: dict[Any, Any]) -> dict[Any, Any]:
    """Return nested dicts as one; as it is, where that would give two values one name."""
    pairs = list(_pairs(sample, "", 1))
    found = dict(pairs)
    return found if len(found) == len(pairs) else sample


def _pairs(sample: dict[Any, Any], above: str, level: int) -> Iterator[tuple[Any, Any]]:
    for name, value in sample.items():
        path = f"{above}{name}" if isinstance(name, str) else name
        if isinstance(value, dict) and isinstance(name, str) and level < _MOST_LEVELS:
            yield from _pairs(value, f"{path}/", level + 1)
        else:
            yield path, value
