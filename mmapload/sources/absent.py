"""Fields that a sample lacks: those that it may lack, and what to say of the others."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from mmapload.errors import shown

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["absent_fields", "difference_advice", "fill_advice", "lacking_advice", "selection_advice"]

_LONGEST_TYPED: Final = 100
"""Characters of a name that is part of an option to type, at most."""

_MOST_TYPED: Final = 8
"""Names in an option that is to be typed."""


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


def lacking_advice(fields: Sequence[str]) -> str:
    """Write what to do where samples lack fields.

    Examples
    --------
    >>> print(lacking_advice(["flow"]))
    keep what some lack, with a mask: --optional flow (optional=['flow']); where an array is missing, a value can stand in: --fill flow=0 (fill={'flow': 0})
    """  # noqa: E501
    return f"{_optional_advice(fields)}; {fill_advice(fields)}"


def difference_advice(
    missing: Sequence[str], extra: Sequence[str], common: Sequence[str], *, files: bool = True
) -> str:
    """Write what to do where a sample has other fields than the first one.

    Parameters
    ----------
    missing, extra, common : sequence of str
        Fields of the first sample alone, of this one alone, and of both.
    files : bool
        Whether samples lie in files, which can be preprocessed apart from each other.

    Examples
    --------
    >>> print(difference_advice(["flow"], [], ["image"]))
    take what all have: --fields image (fields=['image']); or keep what some lack, with a mask: --optional flow (optional=['flow']); where an array is missing, a value can stand in: --fill flow=0 (fill={'flow': 0})
    >>> print(difference_advice(["latents"], ["arr_0"], []))
    if 'arr_0' is 'latents' by another name, preprocess such files by themselves with --fields arr_0=latents, and the others with --append; or keep what some lack, with a mask: --optional latents,arr_0 (optional=['latents', 'arr_0'])
    """  # noqa: E501
    parts = []
    if missing and extra:
        parts.append(_renaming(extra[0], missing[0], common, files=files))
    if common:
        parts.append(f"take what all have: --fields {_typed(common)} (fields={_listed(common)})")
    differing = [*missing, *extra]
    parts.append(_optional_advice(differing))
    advice = "; or ".join(parts)
    return advice if missing and extra else f"{advice}; {fill_advice(differing[:_MOST_TYPED])}"


def _renaming(old: str, new: str, common: Sequence[str], *, files: bool) -> str:
    """Write what to do where a field goes by two names, beside others that all have."""
    one = f"if {shown(old)} is {shown(new)} by another name,"
    if not files:
        return f"{one} give it one name in all samples"
    option = _typed([f"{old}={new}", *common])
    return f"{one} preprocess such files by themselves with --fields {option}, and the others with --append"


def _optional_advice(fields: Sequence[str]) -> str:
    return f"keep what some lack, with a mask: --optional {_typed(fields)} (optional={_listed(fields)})"


def _listed(names: Sequence[str]) -> str:
    """Write names as a list in Python; one that is cut short cannot be taken for the whole."""
    return f"[{', '.join([*map(repr, names[:_MOST_TYPED]), *['...'] * (len(names) > _MOST_TYPED)])}]"


def _typed(names: Sequence[str]) -> str:
    return shlex.quote(",".join(names[:_MOST_TYPED]) + ",..." * (len(names) > _MOST_TYPED))


def selection_advice(absent: Mapping[str, str], found: Collection[str], asked: Collection[str] = ()) -> str:
    """Write what to do where arrays that were selected are missing in a sample.

    Parameters
    ----------
    absent : mapping of str to str
        The names that were not found, and those of their fields.
    found : collection of str
        The names of the sample's arrays.
    asked : collection of str
        All names that were selected.

    Examples
    --------
    >>> print(selection_advice({"frames": "images"}, ["images"]))
    fields are given as old=new: did you mean images=frames?
    """
    swapped = {old: new for old, new in absent.items() if new in found}
    others = [new for old, new in absent.items() if old not in swapped]
    unasked = [name for name in found if name not in asked and len(name) <= _LONGEST_TYPED] if asked else []
    parts = []
    if swapped:
        turned = ",".join(f"{new}={old}" for old, new in swapped.items())
        parts.append(f"fields are given as old=new: did you mean {turned}?")
    if others and unasked and not swapped:
        parts.append(_renaming(unasked[0], others[0], [name for name in asked if name in found], files=True))
    if others:
        example = shlex.quote(f"{others[0]}=0:float32:4x256x448")
        parts.append(
            f"{lacking_advice(others)}; where no sample has it, with its dtype and shape, as in "
            f"--fill {example}"
        )
    return "; ".join(parts)
