"""What a field may be called: its name is a folder's, on any file system."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from mmapload.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_field_names", "name_faults"]

_MOST_TYPED: Final = 1000

# ASCII and C1 controls, marks and changes of direction, line ends, and surrogates that are no text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def check_field_names(names: Iterable[str], sources: Mapping[str, str] | None = None) -> list[str]:
    """Return what is wrong with these names of fields, with the renaming to type; empty if nothing is.

    Parameters
    ----------
    sources : mapping of str to str, optional
        The names of the arrays that fields are made from, where they have others.

    Examples
    --------
    >>> check_field_names(["image", "enc/W"])
    ["the field name 'enc/W' contains '/': rename it, for instance --fields enc/W=enc_W"]
    """
    return [
        f"the field name {shown(name)} {reason}: {_renaming((sources or {}).get(name, name), better)}"
        for name, reason, better in name_faults(names)
    ]


def name_faults(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return the names that no field can have, each with what is wrong with it and a better one.

    Examples
    --------
    >>> name_faults(["image", "enc/W"])
    [('enc/W', "contains '/'", 'enc_W')]
    """
    faults = []
    seen: dict[str, str] = {}
    for name in names:
        reason, better = _name_fault(name)
        if reason is None:
            # Some file systems take names for equal that differ so (Unicode, section 3.13, D145).
            folded = normalize("NFD", normalize("NFD", name).casefold())
            if (other := seen.get(folded)) is not None:
                reason, better = _likeness(name, other), name + "_2"
            else:
                seen[folded] = name
        if reason is not None:
            faults.append((name, reason, better))
    return faults


def _likeness(name: str, other: str) -> str:
    if name == other:
        return "is there twice"
    by_case = name.casefold() == other.casefold()
    return f"differs from {shown(other)} only by {'case' if by_case else 'how its accents are encoded'}"


def _renaming(name: str, better: str) -> str:
    """Write what to type, or what to call where the command line cannot name the field."""
    if not name or len(name) > _MOST_TYPED:
        return "rename it where it is written, or leave it out by naming the others: --fields a,b"
    if name.isprintable() and not {",", "="} & set(name) and name == name.strip():
        return f"rename it, for instance --fields {shlex.quote(f'{name}={better}')}"
    return f"rename it, for instance in Python by preprocess(..., fields={{{name!r}: {better!r}}})"


def _name_fault(name: str) -> tuple[str | None, str]:
    plain = "".join(c if c.isalnum() or c in "_-. " else "_" for c in name).strip("._ ") or "field"
    if not name:
        return "is empty", plain
    if "/" in name or "\\" in name:
        return f"contains {'/' if '/' in name else chr(92)!r}", plain
    if _CONTROL.search(name):
        return "contains a control character", plain
    if name == "zarr.json":
        return "is that of a file of the store", "zarr"
    if name.startswith("__"):
        return "starts with '__', which is reserved", plain
    if set(name) == {"."}:
        return "consists of dots", plain
    if len(name.encode()) > 255 - 16:
        return "is too long for a file system", plain[:64]
    return None, plain
