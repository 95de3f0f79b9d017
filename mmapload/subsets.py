"""Which samples make a part of a dataset: chosen by number, by mask, by slice, or drawn at random."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from mmapload.order import Chosen
from mmapload.order.bijection import bijection
from mmapload.order.philox import Purpose, stream_key
from mmapload.selection import checked_integer, sample_numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SplitBy", "chosen_positions", "drawn_parts"]

SplitBy: TypeAlias = Literal["sample", "chunk"]
"""What a random split leaves whole."""


def chosen_positions(indices: Any, samples: int, chunk_length: int) -> Chosen:
    """Return the samples that somebody asks for, among so many.

    Parameters
    ----------
    indices : slice, sequence of int, or sequence of bool
        Rising numbers, of which negative ones count from the end; or a mask, one entry a sample.
    samples, chunk_length : int
        Of what they are chosen from.

    Raises
    ------
    ValueError
        If none is chosen, they do not rise, or the mask is of another length.
    IndexError
        If a number lies outside.
    TypeError
        If they are neither numbers nor a mask.

    Examples
    --------
    >>> chosen_positions(slice(2, 9, 3), samples=10, chunk_length=4).all_numbers().tolist()
    [2, 5, 8]
    >>> chosen_positions([3, -1], samples=10, chunk_length=4).all_numbers().tolist()
    [3, 9]
    >>> chosen_positions([3, 1], samples=10, chunk_length=4)
    Traceback (most recent call last):
      ...
    ValueError: indices of a subset rise, and at place 1 there is 1 after 3: sort them, each once \
(numpy.unique); to have samples several times, give a sampler weights
    """
    if isinstance(indices, slice):
        indices = range(*indices.indices(samples))
    if isinstance(indices, range) and indices and indices.step == 1 and indices[0] >= 0:
        sample_numbers([indices[-1]], samples)
        return Chosen.between(indices.start, indices.stop, chunk_length)
    found = np.asarray(indices)
    if found.dtype == bool and found.ndim == 1 and len(found) != samples:
        raise ValueError(f"a mask has an entry for each of {samples} samples, and this one has {len(found)}")
    if found.dtype == bool and found.ndim == 1:
        found = np.flatnonzero(found)
    if not found.size:
        raise ValueError(f"none of {samples} samples is chosen, and a subset holds at least 1")
    if found.ndim != 1 or found.dtype.kind not in "iuO":
        raise TypeError(
            f"a subset is chosen by a slice, by numbers in one row, or by a mask, not by {found.dtype} of "
            f"shape {found.shape}"
        )
    numbers = sample_numbers(found.tolist() if found.dtype.kind == "O" else found, samples)
    falls = np.flatnonzero(np.diff(numbers) <= 0)
    if falls.size:
        place = int(falls[0]) + 1
        raise ValueError(
            f"indices of a subset rise, and at place {place} there is {numbers[place]} after "
            f"{numbers[place - 1]}: sort them, each once (numpy.unique); to have samples several times, give "
            "a sampler weights"
        )
    return Chosen.of(numbers, chunk_length)


def drawn_parts(whole: Chosen, fraction: float, seed: int, by: SplitBy) -> tuple[Chosen, Chosen]:
    """Draw two parts of samples at random, as positions among them.

    Parameters
    ----------
    whole : Chosen
        All of them.
    fraction : float
        How much of them is in the first part, to the nearest whole number of samples or chunks.
    seed : int
        In [0, 2**64).
    by : {"sample", "chunk"}
        What is drawn.

    Raises
    ------
    ValueError
        If a part would have none, or an argument is not of these.

    Examples
    --------
    >>> first, second = drawn_parts(Chosen.between(0, 10, chunk_length=4), 0.7, seed=0, by="sample")
    >>> first.all_numbers().tolist(), second.all_numbers().tolist()
    ([0, 1, 2, 3, 4, 6, 7], [5, 8, 9])
    """
    if by not in get_args(SplitBy):
        raise ValueError(f"a split is by 'sample' or by 'chunk', not by {by!r}")
    if isinstance(fraction, bool) or not isinstance(fraction, (float, np.floating)) or not 0 < fraction < 1:
        raise ValueError(f"the first part's fraction is a number between 0 and 1, not {fraction!r}")
    seed = checked_integer("seed", seed, 0)
    if seed >= 2**64:
        raise ValueError(f"seed must lie in [0, 2**64), found {seed}")
    count = whole.samples if by == "sample" else len(whole.chunks)
    size = floor(float(fraction) * count + 0.5)
    if not 0 < size < count:
        raise ValueError(
            f"a fraction of {fraction} of {count} {by}s leaves none for a part: use one from {1 / count:.3g} "
            f"to {(count - 1) / count:.3g}"
            if count > 1
            else f"1 {by} cannot be split"
        )
    drawn = bijection(count, stream_key(seed, 0, Purpose.SPLIT)).forward(np.arange(size))
    mask: NDArray[np.bool_] = np.zeros(count, bool)
    mask[drawn] = True
    if by == "chunk":
        mask = np.repeat(mask, np.diff(whole.starts))
    first, second = (Chosen.of(np.flatnonzero(part), whole.chunk_length) for part in (mask, ~mask))
    return first, second
