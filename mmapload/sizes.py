"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["format_size", "parse_size"]

_UNITS: Final = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGTP", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000), ("", 1024))
}


def parse_size(text: str | int) -> int:
    """Read a size: a number of bytes, or a number with a unit.

    KiB, MiB, GiB, ... and the bare letters K, M, G are powers of 1,024; kB, MB, GB are powers of 1,000.
    Case does not matter.

    Raises
    ------
    ValueError
        If it is no size, or not positive.

    Examples
    --------
    >>> parse_size("64MiB"), parse_size("2GB"), parse_size(4096), parse_size("1.5k")
    (67108864, 2000000000, 4096, 1536)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)\s*", str(text))
    units = {unit.upper(): factor for unit, factor in _UNITS.items()}
    if found is None or isinstance(text, bool) or found[2].upper() not in units:
        raise ValueError(f"{text!r} is no size; write for instance 64MiB, 160KiB or 2GB")
    size = (
        int(float(found[1]) * units[found[2].upper()])
        if "." in found[1]
        else int(found[1]) * units[found[2].upper()]
    )
    if size < 1:
        raise ValueError(f"a size must be at least one byte, not {text!r}")
    return size


def format_size(size: float) -> str:
    """Write a size for people, in powers of 1,024.

    Examples
    --------
    >>> format_size(0), format_size(1536), format_size(64 * 2**20), format_size(2.87 * 2**30)
    ('0 B', '1.5 KiB', '64 MiB', '2.87 GiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.3g} {unit}" if abs(size) < 999.5 else f"{size:.0f} {unit}"
        size /= 1024
    raise AssertionError
