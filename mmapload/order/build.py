"""From a caller's arguments to the order of an epoch, every number checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.order.arrangements import BatchArrangement, FullArrangement, SequentialArrangement
from mmapload.order.checks import check_arguments, check_chosen, check_lanes, check_units
from mmapload.order.deal import Deal
from mmapload.order.epoch import EpochOrder
from mmapload.order.geometry import auto_window
from mmapload.order.windows import WindowArrangement

if TYPE_CHECKING:
    from mmapload.order.arrangements import Arrangement
    from mmapload.order.chosen import Chosen
    from mmapload.order.geometry import Geometry, Mode, Remainder

__all__ = ["epoch_order"]


def epoch_order(
    geometry: Geometry,
    *,
    global_batch: int,
    mode: Mode = "window",
    seed: int = 0,
    epoch: int = 0,
    window: int | None = None,
    lanes: int = 1,
    remainder: Remainder = "keep",
    allow_empty: bool = False,
    chosen: Chosen | None = None,
) -> EpochOrder:
    """Make the order of one epoch: a pure function of its arguments, the same on every machine.

    Parameters
    ----------
    geometry : Geometry
        How the store is cut; `samples` is the number of the chosen ones, if they are.
    global_batch : int
        Samples G of all ranks together in a step: the batch size per rank times the number of ranks.
    mode : {"window", "batch", "full", "sequential"}
        "window" permutes chunks and then samples inside windows; "batch" permutes the store's own
        batches whole; "full" permutes all samples; "sequential" permutes nothing.
    seed, epoch : int
        What the order is drawn from, each in [0, 2**64).
    window : int, optional
        Samples in the windows of all lanes together, for mode "window" only; `auto_window` if None.
    lanes : int
        Stretches that ranks can share out among nodes, for mode "window" only. Divides the global batch
        and the window.
    remainder : {"drop", "pad", "keep"}
        The last N mod G samples are left out, filled up with the first ones of their lanes, or served
        as a smaller global batch.
    allow_empty : bool
        Let a last batch that is kept leave ranks without a sample.
    chosen : Chosen, optional
        The samples of the store that the order is over; it gives positions among them. By default all.

    Returns
    -------
    EpochOrder

    Raises
    ------
    ValueError
        Numbers do not fit each other. The message names the nearest that do.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> order = epoch_order(Geometry(10, 4, 2), global_batch=4, window=8, seed=1)
    >>> [order.step_batch(step).tolist() for step in range(order.steps)]
    [[7, 0, 6, 8], [5, 4, 1, 9], [3, 2]]
    """
    check_arguments(global_batch, mode, remainder, seed, epoch)
    if chosen is not None:
        check_chosen(geometry, chosen)
    if mode != "window" and (lanes != 1 or window is not None):
        raise ValueError(
            f"window and lanes belong to mode 'window', found {window=}, {lanes=} in mode {mode!r}"
        )
    arrangement: Arrangement
    if mode == "window":
        if window is None:
            in_a_chunk = geometry.chunk_length if chosen is None else chosen.most_in_a_chunk
            window = auto_window(geometry.samples, in_a_chunk, max(lanes, 1))
        check_lanes(geometry, global_batch, window, lanes)
        arrangement = WindowArrangement(geometry, seed, epoch, window, lanes, chosen)
    elif mode == "batch":
        check_units(geometry, global_batch)
        arrangement = BatchArrangement(geometry, seed, epoch)
    elif mode == "full":
        arrangement = FullArrangement(geometry, seed, epoch)
    else:
        arrangement = SequentialArrangement(geometry, chosen)
    deal = Deal(geometry.samples, lanes, global_batch, remainder)
    return EpochOrder(
        geometry,
        seed,
        epoch,
        mode,
        window,
        lanes,
        global_batch,
        remainder,
        allow_empty,
        chosen,
        arrangement,
        deal,
    )
