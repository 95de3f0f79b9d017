"""What lies in a place where a store was looked for."""

from __future__ import annotations

import os
import shlex
from typing import Final

__all__ = ["other_format", "what_is_there"]

_OTHER_FORMATS: Final = {
    ".zgroup": "a Zarr v2 group",
    ".zarray": "a Zarr v2 array",
    "attributes.json": "N5 data",
}


def what_is_there(folder: str, given: str) -> str:
    """Say what is in a place where a store was looked for.

    Parameters
    ----------
    folder : str
        Absolute.
    given : str
        The same as the user wrote it, for a command to type.
    """
    parent, name = os.path.split(folder)
    if os.path.isdir(os.path.join(parent, f".{name}.partial")):
        return (
            f"{folder} is unfinished: it is being preprocessed, or that was interrupted; running the same "
            "`mmapload preprocess` command again finishes it, or says which process is at work"
        )
    if name.startswith(".") and name.endswith(".partial") and os.path.isdir(folder):
        whole = os.path.join(parent, name[1 : -len(".partial")])
        return f"{folder} is the unfinished {whole}: finish it by the same `mmapload preprocess` command"
    if os.path.islink(folder) and not os.path.exists(folder):
        return f"{folder} is a symbolic link to {os.readlink(folder)}, where there is nothing"
    if not os.path.exists(folder):
        command = f"mmapload preprocess SOURCE {shlex.quote(given)} --batch-size B"
        return f"there is no store at {folder}; `{command}` makes one"
    kind = "a folder without zarr.json" if os.path.isdir(folder) else "a file"
    return (
        f"{folder} is {other_format(folder) or kind}, not a store; give the folder that "
        "`mmapload preprocess` wrote"
    )


def other_format(folder: str) -> str | None:
    """Name the format of what is in a folder, if it is a known one."""
    there = (kind for name, kind in _OTHER_FORMATS.items() if os.path.lexists(os.path.join(folder, name)))
    return next(there, None)
