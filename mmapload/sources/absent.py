"""Fields that a sample lacks: those that it may lack, and what to say of the others."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

__all__ = ["absent_fields", "fill_advice", "selection_advice"]


def absent_fields(
    found: Collection[str], expected: Collection[str], optional: Collection[str]
) -> tuple[str, ...] | None:
    """Return the fields that a sample lacks, all of them optional; None if its fields do not fit.

    Parameters
    ----------
    found : collection of str
        The sample's fields.
    expected : collection of str
        All fields.
    optional : collection of str
        Those that a sample may lack.

    Examples
    --------
    >>> absent_fields(["image"], ["image", "flow"], {"flow"})
    ('flow',)
    >>> absent_fields(["image"], ["image", "flow"], ()) is None
    True
    """
    absent = tuple(field for field in expected if field not in found)
    fits = len(found) + len(absent) == len(expected) and all(field in optional for field in absent)
    return absent if fits else None


def fill_advice(fields: Iterable[str]) -> str:
    """Write what to type, or to give in Python, so that a value stands in for fields that are missing.

    Examples
    --------
    >>> print(fill_advice(["flow"]))
    where an array is missing, a value can stand in: --fill flow=0 (fill={'flow': 0})
    """
    named = list(fields)
    options = " ".join(f"--fill {shlex.quote(f'{field}=0')}" for field in named)
    return f"where an array is missing, a value can stand in: {options} (fill={dict.fromkeys(named, 0)})"


def selection_advice(absent: Mapping[str, str], found: Collection[str]) -> str:
    """Write what to do where arrays that were selected are missing in a sample.

    Parameters
    ----------
    absent : mapping of str to str
        The names that were not found, and those of their fields.
    found : collection of str
        The names of the sample's arrays.

    Examples
    --------
    >>> print(selection_advice({"frames": "images"}, ["images"]))
    fields are given as old=new: did you mean images=frames?
    """
    swapped = {old: new for old, new in absent.items() if new in found}
    others = [new for old, new in absent.items() if old not in swapped]
    parts = []
    if swapped:
        turned = ",".join(f"{new}={old}" for old, new in swapped.items())
        parts.append(f"fields are given as old=new: did you mean {turned}?")
    if others:
        example = shlex.quote(f"{others[0]}=0:float32:4x256x448")
        parts.append(
            f"{fill_advice(others)}; where no sample has it, with its dtype and shape, as in --fill {example}"
        )
    return "; ".join(parts)
