"""Which chunk files are there, by one listing of a folder and without a walk through all that are claimed."""

from __future__ import annotations

import os
import re
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mmapload.layout import FieldLayout

__all__ = ["MOST_MISSING", "chunks_there", "missing_chunks"]

MOST_MISSING: Final = 1000
"""How many missing chunk files of a field are named: a store may claim 2**53."""

_KEY: Final = re.compile(r"c\.(0|[1-9][0-9]{0,15})(?:\.0)*")


def chunks_there(folder: str, layout: FieldLayout, chunks: int) -> set[int]:
    """Return the numbers below `chunks` of the chunk files in a folder; none if there is no folder."""
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    numbers = (int(found[1]) for name in names if (found := _KEY.fullmatch(name)))
    keys = set(names)
    return {number for number in numbers if number < chunks and layout.chunk_key(number) in keys}


def missing_chunks(there: set[int], chunks: int) -> list[int]:
    """Return the first numbers below `chunks` that are not there, in order, at most `MOST_MISSING`.

    Examples
    --------
    >>> missing_chunks({0, 1, 3}, 6)
    [2, 4, 5]
    """
    return list(islice((chunk for chunk in range(chunks) if chunk not in there), MOST_MISSING))
