"""What a field may be called: its name is a folder's, or a path of some, on any file system."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Final
from unicodedata import normalize

from mmapload.errors import shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["check_field_names", "groups_of", "name_faults", "renaming_all"]

_MOST_TYPED: Final = 1000
_MOST_LEVELS: Final = 16
_MOST_BYTES: Final = 1024

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
    >>> check_field_names(["image", "/enc"])
    ["the field name '/enc' has an empty part: rename it, for instance --fields /enc=enc"]
    """
    return [
        f"the field name {shown(name)} {reason}: {_renaming((sources or {}).get(name, name), better)}"
        for name, reason, better in name_faults(names)
    ]


def name_faults(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return the names that no field can have, each with what is wrong with it and a better one.

    Examples
    --------
    >>> name_faults(["image", "enc/W", "enc"])
    [('enc', "is that of a group, of which 'enc/W' is a part", 'enc_2')]
    """
    faults = []
    arrays: dict[str, str] = {}
    groups: dict[str, tuple[str, str]] = {}  # with the first name of a field in each
    for name in names:
        reason, better = _path_fault(name)
        if reason is None:
            reason, better = _clash(name, arrays, groups), name.replace("/", "_") + "_2"
        if reason is not None:
            faults.append((name, reason, better))
            continue
        arrays[_folded(name)] = name
        for group in groups_of([name]):
            groups.setdefault(_folded(group), (group, name))
    return faults


def renaming_all(names: Iterable[str], sources: Mapping[str, str] | None = None) -> str:
    """Return the option that takes all fields, under other names where theirs cannot be; empty if none can.

    Parameters
    ----------
    names, sources
        As `check_field_names` takes them.

    Examples
    --------
    >>> print(renaming_all(["enc/W", "enc", "/enc", "x"]))
    --fields enc/W,enc=enc_2,/enc=enc_3,x
    """
    names = list(names)
    better = {name: other for name, _, other in name_faults(names)}
    if len(set(names)) < len(names):
        return ""
    taken = [name for name in names if name not in better]
    parts = {name: name for name in taken}
    for name, other in better.items():
        tries = (other, *(f"{other.removesuffix('_2')}_{number}" for number in range(2, len(names) + 2)))
        parts[name] = next((each for each in tries if not name_faults([*taken, each])), "")
        taken.append(parts[name])
    old = {name: (sources or {}).get(name, name) for name in names}
    if not all(parts.values()) or not all(map(_is_typed, old.values())):
        return ""
    pairs = [old[name] if parts[name] == old[name] else f"{old[name]}={parts[name]}" for name in names]
    option = shlex.quote(",".join(pairs))
    return f"--fields {option}" if len(option) <= _MOST_TYPED else ""


def _is_typed(name: str) -> bool:
    """Whether the command line can name an array."""
    return name.isprintable() and not {",", "="} & set(name) and name == name.strip() != ""


def groups_of(names: Iterable[str]) -> list[str]:
    """Return the groups in which fields of these names lie, those above first.

    Examples
    --------
    >>> groups_of(["image", "enc/1/W", "enc/1/b"])
    ['enc', 'enc/1']
    """
    found: set[str] = set()
    for name in names:
        parts = name.split("/")
        found.update("/".join(parts[:level]) for level in range(1, len(parts)))
    return sorted(found)


def _folded(name: str) -> str:
    """Return what is equal of names that some file systems take for equal (Unicode, section 3.13, D145)."""
    return normalize("NFD", normalize("NFD", name).casefold())


def _clash(name: str, arrays: Mapping[str, str], groups: Mapping[str, tuple[str, str]]) -> str | None:
    """Say why a name cannot stand beside others."""
    if (other := arrays.get(_folded(name))) is not None:
        return _likeness(name, other)
    if (group := groups.get(_folded(name))) is not None:
        return f"is that of a group, of which {shown(group[1])} is a part"
    for above in groups_of([name]):
        if (other := arrays.get(_folded(above))) is not None:
            return f"makes {shown(above)} a group, and {shown(other)} is a field"
        group = groups.get(_folded(above))
        if group is not None and group[0] != above:
            return f"is in a group that {_likeness(above, group[0])}"
    return None


def _likeness(name: str, other: str) -> str:
    if name == other:
        return "is there twice"
    by_case = name.casefold() == other.casefold()
    return f"differs from {shown(other)} only by {'case' if by_case else 'how its accents are encoded'}"


def _renaming(name: str, better: str) -> str:
    """Write what to type, or what to call where the command line cannot name the field."""
    if not name or len(name) > _MOST_TYPED:
        return "rename it where it is written, or leave it out by naming the others: --fields a,b"
    if _is_typed(name):
        return f"rename it, for instance --fields {shlex.quote(f'{name}={better}')}"
    return f"rename it, for instance in Python by preprocess(..., fields={{{name!r}: {better!r}}})"


def _path_fault(name: str) -> tuple[str | None, str]:
    """Return what is wrong with a name, or with one of the names that it is made of, and a better one."""
    reason, better = _name_fault(name)
    if reason is not None or "/" not in name:
        return reason, better
    parts = name.split("/")
    found = [_name_fault(part)[0] for part in parts]
    if "" in parts:
        return "has an empty part", better
    if len(parts) > _MOST_LEVELS or len(name.encode()) > _MOST_BYTES:
        return "is too long for a file system", better[:64]
    return next((f"has a part that {each}" for each in found if each), None), better


def _name_fault(name: str) -> tuple[str | None, str]:
    plain = "".join(c if c.isalnum() or c in "_-. " else "_" for c in name).strip("._ ") or "field"
    if not name:
        return "is empty", plain
    if "\\" in name:
        return f"contains {chr(92)!r}", plain
    if _CONTROL.search(name):
        return "contains a control character", plain
    if name == "zarr.json":
        return "is that of a file of the store", "zarr"
    if name.startswith("__"):
        return "starts with '__', which is reserved", plain
    if set(name) == {"."}:
        return "consists of dots", plain
    if "/" not in name and len(name.encode()) > 255 - 16:
        return "is too long for a file system", plain[:64]
    return None, plain
