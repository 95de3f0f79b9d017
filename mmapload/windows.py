"""How many samples a shuffled window has, how far ahead of training chunks are loaded, and which stay.

A window is what was asked for, cut to what memory holds on every rank.
"""

from __future__ import annotations

import sys
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from mmapload.order import auto_window
from mmapload.selection import checked_integer
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from mmapload.order import Chosen, EpochOrder, Geometry, GroupedOrder, Mode
    from mmapload.ranks import Ranks

__all__ = [
    "Lookahead",
    "fit_window",
    "levels_to_caller",
    "look_ahead",
    "warn_of_lanes",
    "warn_of_order",
    "warn_of_room",
]


@dataclass(frozen=True, slots=True)
class Lookahead:
    """What an epoch makes of the memory budget.

    Attributes
    ----------
    steps : int
        How many steps ahead of the sampler chunks are loaded.
    lag : int
        How many steps training is behind the sampler.
    kept : int
        How many chunks may stay from epoch to epoch beside those that are needed for that.
    """

    steps: int
    lag: int
    kept: int


def levels_to_caller() -> int:
    """Count the frames up to the first one outside the package: where a warning should point."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - the documented way, public but for its underscore
    while frame.f_back is not None and frame.f_globals["__name__"].startswith(__package__ + "."):
        level, frame = level + 1, frame.f_back
    return level


def fit_window(
    asked: int | str,
    geometry: Geometry,
    *,
    lanes: int,
    capacity: int,
    memory: int,
    ranks: Ranks,
    chosen: Chosen | None = None,
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
    chosen : Chosen, optional
        The samples, if they are not all of the store.

    Warns
    -----
    UserWarning
        On rank 0, if the window is smaller than what was asked for.
    """
    length = geometry.chunk_length
    if asked == "auto":
        in_a_chunk = length if chosen is None else chosen.most_in_a_chunk
        window = auto_window(geometry.samples, in_a_chunk, lanes)
    elif isinstance(asked, str):
        raise ValueError(f"window is a number of samples or 'auto', not {asked!r}")
    else:
        window = checked_integer("window", asked, 1)
    fits = capacity >= _touched(2 * window, geometry, lanes, chosen)
    if chosen is None:
        whole = max(1, min((capacity - 1) // 2, window // length)) * length
    else:
        sizes = range(1, window + 1)
        whole = bisect_right(sizes, capacity, key=lambda w: _touched(2 * w, geometry, lanes, chosen))
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


def warn_of_room(
    window: int,
    geometry: Geometry,
    *,
    lanes: int,
    capacity: int,
    chunk_nbytes: int,
    chosen: Chosen | None = None,
) -> None:
    """Warn if two windows that are fixed, since an epoch began with them, do not fit in what may be held.

    Parameters
    ----------
    window, lanes : int
        Of the order.
    geometry : Geometry
        Of the store.
    capacity : int
        Chunks that this process may hold.
    chunk_nbytes : int
        Of one of them.
    chosen : Chosen, optional
        The samples, if they are not all of the store.
    """
    needed = _touched(2 * window, geometry, lanes, chosen)
    if capacity < needed:
        warnings.warn(
            f"the state goes on with windows of {window} samples, two of which take {needed} chunks of "
            f"{format_size(chunk_nbytes)}, and the dataset's memory budget holds {capacity}: the order is "
            "the same, but chunks are read more than once; give ChunkDataset(memory=...) more",
            stacklevel=levels_to_caller(),
        )


def warn_of_order(order: EpochOrder | GroupedOrder, samples: int, memory: int | None) -> None:
    """Warn if an epoch has no batch, or if samples are read one by one.

    Parameters
    ----------
    order : EpochOrder
        Of any epoch.
    samples : int
        In the store.
    memory : int or None
        The budget in bytes, if it does not hold them all.
    """
    if order.steps == 0:
        warnings.warn(
            f"{samples} samples do not fill one batch of {order.global_batch} over all ranks, and "
            "remainder='drop' (or drop_last=True) leaves none: take a smaller batch_size or 'keep'",
            stacklevel=levels_to_caller(),
        )
    if order.mode == "full" and memory is not None:
        warnings.warn(
            "shuffle='full' reads samples one by one, at random, from more than the dataset's memory "
            f"budget of {format_size(memory)} holds: shuffle='window' reads whole chunks ahead",
            stacklevel=levels_to_caller(),
        )


def warn_of_lanes(lanes: int, ranks: Ranks) -> None:
    """Warn on rank 0 if ranks of a machine share windows of a compressed store, which each then decodes.

    Parameters
    ----------
    lanes : int
        That nobody has chosen.
    ranks : Ranks
        Those that were given by hand may each have a machine.
    """
    if ranks.rank == 0 and not ranks.by_hand and lanes < ranks.world_size:
        warnings.warn(
            f"each of {ranks.world_size // ranks.nodes} ranks of a machine decodes all chunks of this "
            f"compressed store: with lanes={ranks.world_size} each has windows of its own, and a chunk is "
            f"decoded once, in another order. Pass lanes={lanes} to keep this one",
            stacklevel=levels_to_caller(),
        )


def _touched(places: int, geometry: Geometry, lanes: int, chosen: Chosen | None) -> int:
    """Count the chunks that windows in a row, so many places in all, may touch."""
    if chosen is not None:
        return min(chosen.most_touched(places) + (lanes > 1), len(chosen.chunks))
    # One chunk more than their length says, since windows cut chunks; and one more again where they begin
    # inside of chunks and the short last chunk lies between.
    length = geometry.chunk_length
    cut = geometry.samples % length and (places % (2 * length) or lanes > 1)
    return min(-(-places // length) + 1 + bool(cut), geometry.chunks)


def look_ahead(
    mode: Mode,
    geometry: Geometry,
    *,
    global_batch: int,
    capacity: int,
    window: int | None = None,
    lanes: int = 1,
    lag: int | None = None,
    chosen: Chosen | None = None,
) -> Lookahead:
    """Divide the memory budget among what is coming, what training still uses, and what stays.

    Parameters
    ----------
    mode : {"window", "batch", "full", "sequential"}
        The order.
    geometry : Geometry
        Of the store.
    global_batch : int
        Samples in a step of all ranks.
    capacity : int
        Chunks that the budget holds.
    window, lanes : int
        Of the order, if it has them.
    lag : int, optional
        Steps that training is behind; by default a quarter of the steps ahead, since that depends on a
        loader that nobody here can see.
    chosen : Chosen, optional
        The samples, if they are not all of the store.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> look_ahead("window", Geometry(1000, 10, 5), global_batch=5, capacity=50, window=100, lag=2)
    Lookahead(steps=20, lag=2, kept=28)
    """
    chunks, in_a_chunk = geometry.chunks, geometry.chunk_length
    if chosen is not None:
        chunks, in_a_chunk = len(chosen.chunks), chosen.mean_in_a_chunk
    held = capacity * in_a_chunk
    if mode == "window" and window is not None:
        steps = max(1, min(window, held // 2) // global_batch)
        lag = steps // 4 if lag is None else lag
        reach = (steps + 1) * global_batch
        windows = 1 + -(-(reach - gcd(global_batch, window)) // window)  # that it may lie in
        needed = _touched(windows * window, geometry, lanes, chosen) + -(-lag * global_batch // in_a_chunk)
    else:
        # Unless all stays in memory, a quarter of it keeps the disk busy, or four chunks; the rest spares it
        # work.
        quarter = max(held // 4, min(held // 2, 4 * in_a_chunk))
        part = held // 2 if capacity == chunks else quarter
        steps = max(1, min(auto_window(geometry.samples, in_a_chunk), part) // global_batch)
        lag = steps // 4 if lag is None else lag
        needed = -(-(steps + lag + 1) * global_batch // in_a_chunk) + 1
    return Lookahead(steps, lag, max(0, min(capacity, chunks) - needed))
