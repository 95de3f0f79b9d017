"""Philox4x32-10, the counter-based generator that every order is drawn from.

Written out here, after Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011, https://doi.org/10.1145/2063384.2063405), because no library promises its stream for ever.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Key", "Purpose", "philox4x32", "scale", "stream_key"]

Key: TypeAlias = tuple[int, int]
"""Two 32-bit words."""

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_SHIFT = np.uint64(32)
_MASK = np.uint64(_WORD)


class Purpose(IntEnum):
    """What a stream of random words is for; part of the order's definition."""

    CHUNKS = 1
    WINDOW = 2
    UNITS = 3
    FULL = 4
    SPLIT = 5
    WEIGHTS = 6


def philox4x32(
    counter: tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]], key: Key
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Apply ten rounds of Philox4x32 to every counter.

    Parameters
    ----------
    counter : tuple of four uint64 ndarrays
        The four words, each below 2**32; their shapes broadcast.
    key : tuple of two int
        Each below 2**32.

    Returns
    -------
    tuple of four uint64 ndarrays
        The four words of every result, each below 2**32, in the broadcast shape.

    Examples
    --------
    >>> zero = np.zeros(1, np.uint64)
    >>> [f"{int(word[0]):08x}" for word in philox4x32((zero, zero, zero, zero), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0 = x0 * np.uint64(_MULTIPLIERS[0])
        product1 = x2 * np.uint64(_MULTIPLIERS[1])
        x0 = (product1 >> _SHIFT) ^ x1 ^ np.uint64(k0)
        x1 = product1 & _MASK
        x2 = (product0 >> _SHIFT) ^ x3 ^ np.uint64(k1)
        x3 = product0 & _MASK
        k0 = (k0 + _WEYL[0]) & _WORD
        k1 = (k1 + _WEYL[1]) & _WORD
    return x0, x1, x2, x3


def scale(low: NDArray[np.uint64], high: NDArray[np.uint64], size: int) -> NDArray[np.uint64]:
    """Reduce 64 random bits to [0, size): the upper half of the 128-bit product with `size`.

    A value is more likely than another by at most size / 2**64, relatively.

    Parameters
    ----------
    low, high : uint64 ndarrays
        The lower and upper 32 bits.
    size : int
        At most 2**32 - 1.

    Returns
    -------
    uint64 ndarray
        floor((high * 2**32 + low) * size / 2**64).

    Examples
    --------
    >>> words = np.array([0, 2**31, 2**32 - 1], np.uint64)
    >>> scale(words, words, 10).tolist()
    [0, 5, 9]
    """
    factor = np.uint64(size)
    return (high * factor + ((low * factor) >> _SHIFT)) >> _SHIFT


def stream_key(seed: int, epoch: int, purpose: Purpose, lane: int = 0) -> Key:
    """Derive the key of one stream: the first two words of Philox of (purpose, lane, epoch) under `seed`.

    Parameters
    ----------
    seed, epoch : int
        Each below 2**64.
    purpose : Purpose
        What the stream is for.
    lane : int
        Below 2**32.

    Returns
    -------
    tuple of two int
        Each below 2**32.

    Examples
    --------
    >>> stream_key(0, 0, Purpose.CHUNKS)
    (4175744164, 1555169499)
    """
    words = (purpose, lane, epoch & _WORD, epoch >> 32)
    x0, x1, x2, x3 = (np.array([word], np.uint64) for word in words)
    first, second, _, _ = philox4x32((x0, x1, x2, x3), (seed & _WORD, seed >> 32))
    return int(first[0]), int(second[0])
