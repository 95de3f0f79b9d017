"""The natural order of paths, in which `frame_2` comes before `frame_10`."""

from __future__ import annotations

import re

__all__ = ["natural_key", "part_key"]

_DIGITS = re.compile("([0-9]+)")


def natural_key(path: str) -> tuple[tuple[tuple[str | tuple[int, str], ...], str], ...]:
    """Give the key to sort relative paths by, so that `frame_2` comes before `frame_10`.

    Paths are compared part by part. A part is cut into stretches of other characters and of the digits 0 to
    9, in turn, the first perhaps empty; these are compared by code point and by value. Where two parts are
    equal so (`01` and `1`), they are compared by code point, before the next part is looked at. The order
    depends on the paths alone, and no two paths are equal in it.

    Parameters
    ----------
    path : str
        Relative, with `/` between its parts.

    Returns
    -------
    tuple
        To be compared with the keys of other paths.

    Examples
    --------
    >>> sorted(["a10/x.npz", "a2/x.npz", "a/10.npz", "a/9.npz", "a/09.npz"], key=natural_key)
    ['a/09.npz', 'a/9.npz', 'a/10.npz', 'a2/x.npz', 'a10/x.npz']
    """
    return tuple(part_key(part) for part in path.split("/"))


def part_key(part: str) -> tuple[tuple[str | tuple[int, str], ...], str]:
    """Give the key to sort parts of paths by; as `natural_key`."""
    stretches: list[str | tuple[int, str]] = list(_DIGITS.split(part))
    for at in range(1, len(stretches), 2):
        digits = str(stretches[at]).lstrip("0")
        stretches[at] = (len(digits), digits)  # compares as the number does, of any length
    return tuple(stretches), part
