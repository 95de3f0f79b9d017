"""Tell by a file that its rows, or its arrays, may be meant as samples, where each file is taken for one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.sources import ArraySpec

__all__ = ["likeness"]

_LEAST_ROWS: Final = 16
_LEAST_KEYS: Final = 4
_ROWS_A_FILE: Final = 10
"""Rows look meant where a file has so many times more of them than there are files."""
_DIGITS: Final = re.compile("[0-9]+")


def likeness(specs: Mapping[str, ArraySpec], files: int) -> str:
    """Say what else the samples might be, and name the option; empty if nothing suggests it.

    Arrays look like samples if a file has at least four, and more than there are files, of one dtype, which
    differ at most in the length of their first axis, and whose names differ in numbers alone. Rows look like
    samples if all arrays have the same number of them, at least 16, and ten times more than there are files;
    or if each of several such numbers belongs to two arrays or more, as in a training and a test set.

    Parameters
    ----------
    specs : mapping of str to ArraySpec
        The arrays of the first file.
    files : int
        How many files there are.

    Examples
    --------
    >>> import numpy as np
    >>> from mmapload.sources import ArraySpec
    >>> specs = {"x": ArraySpec(np.dtype("u1"), (60000, 28, 28)), "y": ArraySpec(np.dtype("u1"), (60000,))}
    >>> print(likeness(specs, 1))
    all arrays of the first file have 60,000 rows: if each is a sample, give --samples rows (samples='rows')
    >>> likeness(specs, 20_000)
    ''
    >>> test = {name: ArraySpec(np.dtype("u1"), (100, 5)) for name in ("x_test", "y_test")}
    >>> print(likeness(specs | test, 1).partition(":")[0])
    the arrays of the first file have 60,000 and 100 rows
    """
    if _are_keys(specs) and len(specs) > files:
        what, option = f"the first file has {len(specs):,} arrays alike: if each", "keys"
    elif (rows := _common_rows(specs)) >= max(_LEAST_ROWS, _ROWS_A_FILE * files):
        array = "all arrays of the first file have" if len(specs) > 1 else "the array of the first file has"
        what, option = f"{array} {rows:,} rows: if each", "rows"
    elif parts := _parts(specs, max(_LEAST_ROWS, _ROWS_A_FILE * files)):
        rows, names = max(parts.items())
        counts = " and ".join(f"{each:,}" for each in sorted(parts, reverse=True))
        fields = ",".join(names)
        return (
            f"the arrays of the first file have {counts} rows: if each is a sample, give --samples rows and "
            f"the arrays of one part, --fields {fields} (samples='rows', fields={names!r})"
        )
    else:
        return ""
    return f"{what} is a sample, give --samples {option} (samples={option!r})"


def _parts(specs: Mapping[str, ArraySpec], least: int) -> dict[int, list[str]]:
    """Return the arrays by their numbers of rows; nothing if these look like no parts of a data set."""
    parts: dict[int, list[str]] = {}
    for name, spec in specs.items():
        parts.setdefault(spec.shape[0] if spec.shape else 0, []).append(name)
    return parts if min(parts) >= least and all(len(names) > 1 for names in parts.values()) else {}


def _are_keys(specs: Mapping[str, ArraySpec]) -> bool:
    kinds = {(spec.dtype, spec.shape[1:], len(spec.shape)) for spec in specs.values() if spec.nbytes}
    stems = {_DIGITS.sub("0", name) for name in specs}
    return len(specs) >= _LEAST_KEYS and len(kinds) == 1 and len(stems) == 1


def _common_rows(specs: Mapping[str, ArraySpec]) -> int:
    counts = {spec.shape[0] if spec.shape else 0 for spec in specs.values()}
    return counts.pop() if len(counts) == 1 else 0
