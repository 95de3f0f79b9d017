"""From a store and the arguments of a loader to the report on its order."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.order import Geometry, auto_window, epoch_order
from mmapload.quality.counts import batches_at, chosen_steps, count_order, mates_apart
from mmapload.quality.expected import Batching, expected_pairs, pairs_of, short_slot, uniform_rate
from mmapload.quality.labels import batch_entropy, chunks_to_read, label_codes, label_field
from mmapload.quality.values import Comparison, ShuffleQuality
from mmapload.selection import checked_integer
from mmapload.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order import EpochOrder, Mode
    from mmapload.store import StrPath

__all__ = ["halving_window", "order_of", "shuffle_quality"]

_WHOLE: Final = 2**22
"""Samples over all epochs up to which every batch is looked at; beyond, it is the most in sampled ones."""

_SAMPLED: Final = 2000
"""Batches over all epochs where they are sampled."""

_MODES: Final[dict[bool | str, Mode]] = {
    False: "sequential",
    True: "window",
    "window": "window",
    "batch": "batch",
    "full": "full",
}


def shuffle_quality(
    store: Store | StrPath,
    *,
    batch_size: int | None = None,
    world_size: int = 1,
    shuffle: bool | str = "window",
    window: int | str = "auto",
    seed: int = 0,
    epochs: int = 4,
    lanes: int = 1,
    label: str | None = None,
) -> ShuffleQuality:
    """Measure how far the order of training is from a true permutation of all samples.

    Parameters
    ----------
    store : Store or path
        What is trained on. Only its metadata is read, and the chunks of labels.
    batch_size : int, optional
        Samples per rank; the store's own by default.
    world_size : int
        Number of ranks. Batches are looked at as all ranks have them together: what one gradient is made of.
    shuffle : {"window", "batch", "full"} or bool
        As for `ChunkSampler`.
    window : int or "auto"
        Likewise. A loader whose memory budget cannot hold two windows takes a smaller one, with a warning:
        name that one here.
    seed, epochs : int
        Epochs 0 up to `epochs` of this seed are looked at.
    lanes : int
        As for `ChunkSampler`, where a run has several machines.
    label : str, optional
        A field of one value a sample, with at most 10,000 different ones.

    Returns
    -------
    ShuffleQuality

    Raises
    ------
    ValueError
        If the numbers do not fit together, or the field holds no labels.
    TypeError
        If `store` is neither, a dataset for instance: subsets and weights are not measured.
    StoreNotFoundError, LayoutError, ChunkError
        If the store cannot be read.

    Notes
    -----
    Up to 4 million samples over all epochs, all batches are looked at; beyond, 2,000 at most, spread evenly.
    Of labels at most 4,096 chunks are read for either order, or 1 GiB of them (16 chunks at least, and never
    less than one batch an epoch needs), so labels may be those of fewer batches; the result has the number.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> sorted_by_class = [{"x": np.zeros(4), "y": np.int64(i // 100)} for i in range(1000)]
    >>> _ = mmapload.preprocess(sorted_by_class, folder.name + "/store", 10, chunk_bytes=320)
    >>> quality = shuffle_quality(folder.name + "/store", window=40, label="y")
    >>> f"{quality.same_chunk.found:.2f} {quality.same_chunk.expected:.2f} {quality.same_chunk.uniform:.2f}"
    '0.23 0.23 0.01'
    >>> quality.halving_window
    90
    >>> round(quality.label_entropy.ratio, 2)
    0.62
    """
    if not isinstance(store, (Store, str, os.PathLike)):
        raise TypeError(
            f"shuffle_quality measures the order of a whole store: pass dataset.store, or its path, not a "
            f"{type(store).__name__}"
        )
    store = store if isinstance(store, Store) else open_store(os.fspath(store))
    field = None if label is None else label_field(store, label)
    batching = _batching(store, batch_size, world_size, shuffle, window, lanes)
    seed, epochs = checked_integer("seed", seed, 0), checked_integer("epochs", epochs, 1)
    order_of(batching, seed, epochs - 1).check_world_size(world_size)
    samples = batching.geometry.samples
    whole = samples * epochs <= _WHOLE
    most = min(_SAMPLED, _WHOLE // batching.global_batch)
    steps = chosen_steps(batching.steps, batching.steps if whole else max(1, most // epochs))
    counts = [count_order(order_of(batching, seed, epoch), steps) for epoch in range(epochs)]
    looked_at, pairs = sum(each.samples for each in counts), sum(each.pairs for each in counts)
    shorts = [short_slot(batching.geometry, seed, epoch) for epoch in range(epochs)]
    same_chunk = Comparison(
        sum(each.same_chunk for each in counts) / max(pairs, 1),
        uniform_rate(batching.geometry),
        sum(expected_pairs(batching, steps, short) for short in shorts) / max(pairs, 1),
    )
    labels: dict[str, Any] = {}
    if field is not None:
        chunks, room = batching.geometry.chunks, chunks_to_read(field)
        if chunks > room:
            fewer = room // (min(batching.global_batch, chunks) * epochs)
            steps_of_labels = chosen_steps(batching.steps, max(1, min(len(steps), fewer)))
        else:
            steps_of_labels = steps
        labels = _labels(store, field.name, batching, seed, epochs, steps_of_labels)
    return ShuffleQuality(
        batching,
        seed,
        epochs,
        batches=len(steps) * epochs,
        batches_in_all=batching.steps * epochs,
        displacement=Comparison(
            sum(each.moved for each in counts) / looked_at,
            sum(each.moved_uniform for each in counts) / looked_at,
        ),
        mates_apart=_mates(batching, seed, epochs) if whole else None,
        same_chunk=same_chunk,
        halving_window=halving_window(batching, seed),
        written_shuffled=store.layout.source.get("shuffle") is not None,
        **labels,
    )


def _batching(
    store: Store, batch_size: int | None, world_size: int, shuffle: bool | str, window: int | str, lanes: int
) -> Batching:
    if not isinstance(shuffle, (bool, str)) or shuffle not in _MODES:
        raise ValueError(f"shuffle is True, False, 'window', 'batch' or 'full', not {shuffle!r}")
    mode = _MODES[shuffle]
    layout = store.layout
    geometry = Geometry(layout.samples, layout.chunk_length, layout.batch_size)
    size = layout.batch_size if batch_size is None else checked_integer("batch_size", batch_size, 1)
    global_batch = size * checked_integer("world_size", world_size, 1)
    lanes = checked_integer("lanes", lanes, 1)
    if mode != "window":
        if window != "auto" or lanes != 1:
            raise ValueError(f"window and lanes belong to shuffle='window', and shuffle is {shuffle!r}")
        return Batching(geometry, global_batch, mode)
    if window == "auto":
        window = auto_window(geometry.samples, geometry.chunk_length, lanes)
    elif isinstance(window, str):
        raise ValueError(f"window is a number of samples or 'auto', not {window!r}")
    return Batching(geometry, global_batch, mode, checked_integer("window", window, 1), lanes)


def order_of(batching: Batching, seed: int, epoch: int) -> EpochOrder:
    """Make the order of an epoch, in which every sample is once.

    Raises
    ------
    ValueError
        If the numbers do not fit together.
    """
    return epoch_order(
        batching.geometry,
        global_batch=batching.global_batch,
        mode=batching.mode,
        seed=seed,
        epoch=epoch,
        window=batching.window,
        lanes=batching.lanes,
        remainder="keep",
    )


def _mates(batching: Batching, seed: int, epochs: int) -> Comparison | None:
    apart = [mates_apart(order_of(batching, seed, epoch)) for epoch in range(epochs)]
    known = [each for each in apart if each is not None]
    return Comparison(sum(known) / len(known), (batching.geometry.samples + 1) / 3) if known else None


def halving_window(batching: Batching, seed: int) -> int | None:
    """Return the least window of whole chunks for which the closed form is half of what it is now, or less.

    Parameters
    ----------
    batching : Batching
        What is now, in any mode.
    seed : int
        Of the order, whose first epoch's cuts are taken.

    Returns
    -------
    int or None
        Samples, rounded up to a multiple of the lanes. None if even the whole store is too small a window.
    """
    geometry = batching.geometry
    steps = chosen_steps(batching.steps, _SAMPLED)
    short = short_slot(geometry, seed, 0)
    enough = expected_pairs(batching, steps, short) / 2
    if not enough or not pairs_of(batching, steps):
        return None

    def window_of(chunks: int) -> int:
        return -(-chunks * geometry.chunk_length // batching.lanes) * batching.lanes

    def halves(chunks: int) -> bool:
        wider = replace(batching, mode="window", window=window_of(chunks))
        return expected_pairs(wider, steps, short) <= enough * (1 + 1e-9)

    low, high = 0, geometry.chunks
    if not halves(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if halves(middle) else (middle, high)
    return window_of(high)


def _labels(
    store: Store, name: str, batching: Batching, seed: int, epochs: int, steps: NDArray[np.int64]
) -> dict[str, Any]:
    """Measure the entropy of labels in this order and in mode "full"."""
    full = Batching(batching.geometry, batching.global_batch, "full")
    batches = [list(_batches(each, seed, epochs, steps)) for each in (batching, full)]
    samples, places = np.unique(np.concatenate([*batches[0], *batches[1]]), return_inverse=True)
    codes, values = label_codes(store, name, samples)
    cuts = np.cumsum([len(batch) for batch in (*batches[0], *batches[1])])[:-1]
    labels = np.split(codes[places], cuts)
    count = len(batches[0])
    found, uniform = batch_entropy(labels[:count], values), batch_entropy(labels[count:], values)
    return {
        "label": name,
        "label_entropy": Comparison(found, uniform),
        "label_values": values,
        "label_batches": count,
    }


def _batches(
    batching: Batching, seed: int, epochs: int, steps: NDArray[np.int64]
) -> Iterator[NDArray[np.int64]]:
    for epoch in range(epochs):
        yield from batches_at(order_of(batching, seed, epoch), steps)
