"""Groups of samples, each batch having one: read and checked, and what they make of the memory budget."""

from __future__ import annotations

import hashlib
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.order import Groups
from mmapload.sizes import format_size
from mmapload.windows import Lookahead, levels_to_caller

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from mmapload.order import GroupedOrder
    from mmapload.views import StoreView

__all__ = [
    "checked_groups",
    "chunks_waiting",
    "few_rows",
    "grouped_look_ahead",
    "groups_of",
    "warn_of_small_groups",
    "warn_of_waiting",
]

_SPREAD: Final = 2**20  # group numbers that lie no further apart are counted, not sorted

_PLANNED: Final = 2**19  # samples that are planned at once, at most: some 130 bytes each

_CALL_BYTES: Final = 2**18  # a row that is read by itself takes as long as so many bytes more of a chunk


def checked_groups(groups: Any, samples: int) -> Groups:
    """Return the groups of so many samples, checked.

    Parameters
    ----------
    groups : sequence of int, shape (samples,)
        Any numbers of 64 bits, the same for the samples of a group.
    samples : int
        How many.

    Raises
    ------
    ValueError
        If they are not as many, or too large.
    TypeError
        If they are no integers.

    Examples
    --------
    >>> found = checked_groups([640, -1, 640, 320], samples=4)
    >>> found.numbers.tolist(), found.sizes.tolist(), found.codes.tolist()
    ([-1, 320, 640], [1, 1, 2], [2, 0, 2, 1])
    """
    found = np.asarray(groups)
    if found.shape != (samples,):
        raise ValueError(f"groups are one number for each of {samples} samples, not of shape {found.shape}")
    if found.dtype.kind not in "iu":
        raise TypeError(f"the group of a sample is an integer, not {found.dtype}")
    if found.max() >= 2**63:
        raise ValueError(f"group numbers are below 2**63, and one is {found.max()}")
    whole = found.astype(np.int64)
    least, most = int(whole.min()), int(whole.max())
    if most - least < _SPREAD:
        counted = np.bincount(whole - least)
        present = np.flatnonzero(counted)
        numbers, sizes = present + least, counted[present]
        codes = (np.cumsum(counted > 0) - 1)[whole - least]
    else:
        numbers, codes, sizes = np.unique(whole, return_inverse=True, return_counts=True)
    digest = hashlib.sha256(whole.astype("<i8", copy=False).tobytes()).digest()
    return Groups(codes.astype(np.min_scalar_type(len(numbers) - 1)), numbers, sizes, digest)


def groups_of(dataset: StoreView, groups: Any) -> Groups:
    """Return the groups of a dataset's samples, given as numbers or by the name of a field of its store.

    Raises
    ------
    ValueError
        If they are not one integer for each sample.
    TypeError
        If they are no integers.
    ChunkError
        If a chunk of the field cannot be read.
    """
    if isinstance(groups, str):
        groups = _values(dataset, groups)
    return checked_groups(groups, dataset.samples)


def _values(dataset: StoreView, name: str) -> NDArray[Any]:
    """Read an integer field of scalars for all samples, whether the dataset loads it or not."""
    store = dataset.store
    if name not in store.fields:
        raise ValueError(f"{store.path} has no field {name!r} to group by, only {', '.join(store.fields)}")
    field = store.field(name)
    if field.shape or field.dtype.kind not in "iu":
        raise ValueError(
            f"samples are grouped by one integer each, and field {name!r} is {field.dtype} of shape "
            f"{field.shape}"
        )
    length, numbers = store.layout.chunk_length, dataset.numbers
    found = np.empty(len(numbers), field.dtype)
    cuts = [0, *(np.flatnonzero(np.diff(numbers // length)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(cuts):
        chunk = int(numbers[start]) // length
        found[start:stop] = store.read_chunk(name, chunk)[numbers[start:stop] - chunk * length]
    return found


def grouped_look_ahead(order: GroupedOrder, *, capacity: int, lag: int | None) -> tuple[Lookahead, int]:
    """Divide the memory budget among what is coming, what waits for its batch to be full, and what stays.

    Parameters
    ----------
    order : GroupedOrder
        Of any epoch.
    capacity : int
        Chunks that the budget holds.
    lag : int, optional
        Steps that training is behind; by default a quarter of the steps ahead.

    Returns
    -------
    ahead : Lookahead
    stay : int
        Steps for which a chunk may stay for the sake of one visit.

    Examples
    --------
    >>> from mmapload.order import Geometry, GroupedOrder, epoch_order
    >>> walk = epoch_order(Geometry(1000, 10, 5), global_batch=5, window=100)
    >>> order = GroupedOrder(walk, checked_groups(np.arange(1000) % 4, 1000))
    >>> grouped_look_ahead(order, capacity=50, lag=2)
    (Lookahead(steps=20, lag=2, kept=14), 25)
    """
    size, (chunks, in_a_chunk) = order.global_batch, _chunks_of(order)
    held, window = capacity * in_a_chunk, order.window or in_a_chunk
    steps = max(1, min(window, held // 4) // size)
    lag = steps // 4 if lag is None else lag
    # A batch of a group that has one sample in m takes m batches' worth of samples to be full.
    rarest = min(order.steps, -(-order.geometry.samples // int(order.groups.sizes.min())))
    through = window // size + 1
    stay = max(through, min(through + rarest, (held - window) // size - steps - lag))
    stay = min(stay, max(1, _PLANNED // size))
    needed = -(-((stay + steps + lag + 1) * size + window) // in_a_chunk) + 2
    return Lookahead(steps, lag, max(0, min(capacity, chunks) - needed)), stay


def chunks_waiting(order: GroupedOrder) -> int:
    """Return how many chunks' worth of samples a window and batches that are not full yet have, at most."""
    chunks, in_a_chunk = _chunks_of(order)
    window = order.window or in_a_chunk
    return min(-(-(window + len(order.groups.sizes) * order.global_batch) // in_a_chunk), chunks)


def few_rows(dataset: StoreView, world_size: int, *, crowded: bool) -> int:
    """Return up to how many rows of a chunk, for one rank, are sooner read by themselves than with the chunk.

    They are read when they are asked for, not ahead, so that this is for an eighth of the time only; but for
    all of it where chunks could not stay until their rows are due. Of a compressed store no row can be read
    by itself, and where everything stays in memory none is read twice.

    Parameters
    ----------
    dataset : StoreView
        Of the samples.
    world_size : int
        How many ranks share each batch, and the chunks.
    crowded : bool
        Whether memory does not hold what waits.
    """
    if not dataset.is_raw or not dataset.exceeds_memory:
        return 0
    row = sum(field.sample_nbytes for field in dataset.fields)
    return dataset.chunk_nbytes // ((1 if crowded else 8) * (row + _CALL_BYTES) * world_size)


def _chunks_of(order: GroupedOrder) -> tuple[int, int]:
    """Return the number of chunks, and of samples in one of them."""
    chosen = order.chosen
    if chosen is None:
        return order.geometry.chunks, order.geometry.chunk_length
    return len(chosen.chunks), chosen.mean_in_a_chunk


def warn_of_waiting(waiting: int, chunk_nbytes: int, memory: int) -> None:
    """Warn that memory does not hold what `chunks_waiting` says."""
    warnings.warn(
        f"a window, and batches of all groups that are not full yet, take up to {waiting} chunks of "
        f"{format_size(chunk_nbytes)}, more than the dataset's memory budget of {format_size(memory)} holds: "
        "the order is the same, but chunks are read more than once. Give ChunkDataset(memory=...) more, or "
        "take fewer groups or a smaller batch_size",
        stacklevel=levels_to_caller(),
    )


def warn_of_small_groups(groups: Groups, global_batch: int) -> None:
    """Warn if groups do not fill a single batch, so that remainder "drop" leaves them out in every epoch."""
    small = groups.sizes < global_batch
    if small.any() and not small.all():
        warnings.warn(
            f"{np.count_nonzero(small)} of {len(small)} groups, {groups.sizes[small].sum()} of "
            f"{groups.sizes.sum()} samples, do not fill one batch of {global_batch} over all ranks, and "
            "remainder='drop' (or drop_last=True) leaves them out of every epoch: take a smaller batch_size, "
            "or 'pad' or 'keep'",
            stacklevel=levels_to_caller(),
        )
