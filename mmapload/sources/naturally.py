"""The natural order of paths, in which `frame_2` comes before `frame_10`."""

from __future__ import annotations

import re

__all__ = ["natural_key", "part_key"]

_DIGITS = re.compile("([0-9]+)")
_END = "\0"


def natural_key(path: str) -> tuple[str, ...]:
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


def part_key(part: str) -> str:
    """Give the key to sort parts of paths by; as `natural_key`.

    One text takes a fraction of the memory that nested tuples do, of which there would be a million. Zero
    bytes, which no path has, end stretches of other characters; before digits comes their number, so that
    they compare as numbers do.
    """
    stretches = _DIGITS.split(part)
    for at in range(1, len(stretches), 2):
        digits = stretches[at].lstrip("0")
        stretches[at] = f"{_END}{chr(1 + len(digits))}{digits}"
    return f"{''.join(stretches)}{_END}{_END}{part}"
