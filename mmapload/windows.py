"""How many samples a shuffled window has: what was asked for, cut to what memory holds on every rank."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING

import numpy as np

from mmapload.order import auto_window
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from mmapload.order import Geometry
    from mmapload.ranks import Ranks

__all__ = ["checked_integer", "fit_window", "levels_to_caller"]


def checked_integer(name: str, value: object, least: int) -> int:
    """Return a whole number from `least` up; anything else is a ValueError that names the argument."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name} is an integer from {least} up, not {value!r}")
    return int(value)


def levels_to_caller() -> int:
    """Count the frames up to the first one outside the package: where a warning should point."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - the documented way, public but for its underscore
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__ + "."):
        level, frame = level + 1, frame.f_back
    return level


def fit_window(
    asked: int | str, geometry: Geometry, *, lanes: int, capacity: int, memory: int, ranks: Ranks
) -> int:
    """Return the window to shuffle in, the same on all ranks.

    Parameters
    ----------
    asked : int or "auto"
        Samples.
    geometry : Geometry
        Of the store.
    lanes : int
        Groups of ranks with windows of their own.
    capacity : int
        Chunks that this process may hold; two windows have to fit.
    memory : int
        The budget in bytes, to be named in messages.
    ranks : Ranks
        Agree on the least window of all; where they were given by hand they cannot, and it is a ValueError.

    Warns
    -----
    UserWarning
        On rank 0, if the window is smaller than what was asked for.
    """
    length = geometry.chunk_length
    if asked == "auto":
        window = auto_window(geometry.samples, length, lanes)
    elif isinstance(asked, str):
        raise ValueError(f"window is a number of samples or 'auto', not {asked!r}")
    else:
        window = checked_integer("window", asked, 1)
    # Two windows in a row touch one chunk more than their length says, since windows cut chunks; and one
    # more again where they begin inside of chunks and the short last chunk lies between.
    touched = -(-2 * window // length) + 1
    if geometry.samples % length and (window % length or lanes > 1):
        touched += 1
    fits = capacity >= min(touched, geometry.chunks)
    whole = max(1, min((capacity - 1) // 2, window // length)) * length
    room = max(whole // lanes * lanes, lanes)
    own = window if fits else min(window, room)
    if own < window and ranks.by_hand:
        raise ValueError(
            f"two windows of {window} samples do not fit in the dataset's memory budget of "
            f"{format_size(memory)}, and with rank and world_size given by hand the ranks cannot agree on a "
            f"smaller one: pass window={own} on every rank, or give more memory"
        )
    agreed = ranks.least(own)
    if agreed < window and ranks.rank == 0:
        budget = f"the dataset's memory budget of {format_size(memory)}"
        warnings.warn(
            f"two windows of {window} samples do not fit in "
            f"{budget if agreed == own else 'the memory budget of another rank'}: samples are shuffled in "
            f"windows of {agreed}. Pass window={agreed} to have this order anywhere, or give "
            "ChunkDataset(memory=...) more",
            stacklevel=levels_to_caller(),
        )
    return agreed
