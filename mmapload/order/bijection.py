"""Keyed permutations of [0, n) whose value at any position costs no others.

Up to `SORT_LIMIT` values the permutation comes from sorting 64-bit random keys, so that all n! orders
are equally likely. Beyond, it is a generalised Feistel network over a x b >= n that walks its cycles
until it is back below n (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
A round function takes at most ceil(sqrt(n)) different arguments, so all rounds are tabulated.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mmapload.order.philox import philox4x32, scale

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from mmapload.order.philox import Key

__all__ = [
    "SORT_LIMIT",
    "Bijection",
    "FeistelBijection",
    "SortedBijection",
    "bijection",
    "sorted_permutations",
]

SORT_LIMIT = 4096
"""Largest n whose permutation is drawn by sorting; part of the order's definition."""

_GROUPS = 4  # one Philox block a group and argument holds the bits of two rounds
_TABLE_LIMIT = 2**20  # arguments; beyond (n > 2**40) tables take longer to make than they save
_SLICE = 2**14  # Philox blocks at once: their intermediates stay in the CPU's cache


class Bijection(Protocol):
    """A permutation of [0, n), fixed by a key and an index."""

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at every position.

        Parameters
        ----------
        positions : int64 ndarray, any shape
            Each in [0, n).

        Returns
        -------
        int64 ndarray of the same shape

        Raises
        ------
        IndexError
            A position lies outside [0, n).
        """

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of every value: `forward` undone, with its shapes and errors."""


def bijection(size: int, key: Key, index: int = 0) -> Bijection:
    """Make permutation number `index` of [0, size) under `key`.

    Parameters
    ----------
    size : int
        n, 1 to 2**48.
    key : tuple of two int
        The stream's key, each word below 2**32.
    index : int
        Below 2**64.

    Returns
    -------
    Bijection
        Holds 16 * n bytes up to `SORT_LIMIT`, beyond about 32 * sqrt(n), made when first used.

    Examples
    --------
    >>> shuffled = bijection(10**8, key=(1, 2))
    >>> shuffled.forward(np.array([0, 1, 99_999_999]))
    array([ 2123667, 89630344, 89242494])
    >>> shuffled.inverse(shuffled.forward(np.array([5])))
    array([5])
    """
    return SortedBijection(size, key, index) if size <= SORT_LIMIT else FeistelBijection(size, key, index)


def sorted_permutations(size: int, key: Key, indices: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Draw several permutations of a small [0, size) at once.

    Parameters
    ----------
    size : int
        n, 1 to `SORT_LIMIT`.
    key : tuple of two int
        The stream's key.
    indices : uint64 ndarray, shape (k,)
        Which permutations of the stream.

    Returns
    -------
    int64 ndarray, shape (k, n)
        One permutation a row.

    Examples
    --------
    >>> sorted_permutations(4, (1, 2), np.arange(2, dtype=np.uint64))
    array([[0, 3, 1, 2],
           [3, 0, 1, 2]])
    """
    half = -(-size // 2)
    index = indices[:, np.newaxis]
    blocks = philox4x32(
        (
            np.arange(half, dtype=np.uint64)[np.newaxis],
            np.zeros((1, 1), np.uint64),
            index & np.uint64(0xFFFFFFFF),
            index >> np.uint64(32),
        ),
        key,
    )
    # Values i and half + i share a block. The value itself stands in the lowest bits, so keys never tie.
    bits = np.uint64(max(size - 1, 0).bit_length())
    keys = np.empty((len(indices), size), np.uint64)
    keys[:, :half] = (blocks[1] << np.uint64(32)) | blocks[0]
    keys[:, half:] = ((blocks[3] << np.uint64(32)) | blocks[2])[:, : size - half]
    keys >>= bits
    keys <<= bits
    keys |= np.arange(size, dtype=np.uint64)
    keys.sort(axis=1)
    keys &= (np.uint64(1) << bits) - np.uint64(1)
    return keys.view(np.int64)


class SortedBijection:
    """A permutation of at most `SORT_LIMIT` values, drawn by sorting random keys."""

    __slots__ = ("_index", "_key", "_size", "_tables")

    def __init__(self, size: int, key: Key, index: int) -> None:
        self._size = size
        self._key = key
        self._index = index
        self._tables: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __reduce__(self) -> tuple[type[SortedBijection], tuple[int, Key, int]]:
        return type(self), (self._size, self._key, self._index)

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at every position; see `Bijection`."""
        _check(positions, self._size)
        return self._both()[0][positions]

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of every value; see `Bijection`."""
        _check(values, self._size)
        return self._both()[1][values]

    def _both(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if self._tables is None:
            values = sorted_permutations(self._size, self._key, np.array([self._index], np.uint64))[0]
            positions = np.empty_like(values)
            positions[values] = np.arange(self._size)
            self._tables = values, positions
        return self._tables


class FeistelBijection:
    """A permutation of any number of values, by a Feistel network of eight rounds with cycle walking.

    A value x is split into L = x mod a and R = x // a, with a = ceil(sqrt(n)) and b = ceil(n / a).
    Even rounds add F(R) to L modulo a, odd rounds add F(L) to R modulo b.
    """

    __slots__ = ("_columns", "_index", "_key", "_rows", "_size", "_tables")

    def __init__(self, size: int, key: Key, index: int) -> None:
        self._size = size
        self._key = key
        self._index = index
        self._columns = isqrt(size - 1) + 1  # a
        self._rows = -(-size // self._columns)  # b
        self._tables: list[NDArray[np.uint32]] | None = None

    def __reduce__(self) -> tuple[type[FeistelBijection], tuple[int, Key, int]]:
        return type(self), (self._size, self._key, self._index)

    def forward(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at every position; see `Bijection`."""
        _check(positions, self._size)
        return self._walk(positions, self._encipher)

    def inverse(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the position of every value; see `Bijection`."""
        _check(values, self._size)
        return self._walk(values, self._decipher)

    def _walk(
        self, values: NDArray[np.int64], network: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> NDArray[np.int64]:
        """Apply the network until every value is below n, which few need more than once."""
        found = network(values.ravel())
        outside = np.flatnonzero(found >= self._size)
        while outside.size:
            found[outside] = network(found[outside])
            outside = outside[found[outside] >= self._size]
        return found.reshape(values.shape)

    def _encipher(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        left, right = self._split(values)
        for group in range(_GROUPS):
            left = _add(left, self._round(2 * group, right), self._columns)
            right = _add(right, self._round(2 * group + 1, left), self._rows)
        return self._join(left, right)

    def _decipher(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        left, right = self._split(values)
        for group in reversed(range(_GROUPS)):
            right = _subtract(right, self._round(2 * group + 1, left), self._rows)
            left = _subtract(left, self._round(2 * group, right), self._columns)
        return self._join(left, right)

    def _split(self, values: NDArray[np.int64]) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        right = values // self._columns
        return (values - right * self._columns).astype(np.uint32), right.astype(np.uint32)

    def _join(self, left: NDArray[np.uint32], right: NDArray[np.uint32]) -> NDArray[np.int64]:
        return right.astype(np.int64) * self._columns + left

    def _round(self, number: int, half: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Return the round function of every element of a half."""
        if self._columns > _TABLE_LIMIT:
            return self._draw(half.astype(np.uint64), number // 2)[number % 2]
        if self._tables is None:
            self._tables = self._tabulate()
        return np.take(self._tables[number], half)

    def _tabulate(self) -> list[NDArray[np.uint32]]:
        """Compute every round function at every argument."""
        tables = [np.empty(self._columns, np.uint32) for _ in range(2 * _GROUPS)]
        for start in range(0, self._columns, _SLICE // _GROUPS):
            stop = min(start + _SLICE // _GROUPS, self._columns)
            groups = np.arange(_GROUPS, dtype=np.uint64)[:, np.newaxis]
            even, odd = self._draw(np.arange(start, stop, dtype=np.uint64)[np.newaxis], groups)
            for group in range(_GROUPS):
                tables[2 * group][start:stop] = even[group]
                tables[2 * group + 1][start:stop] = odd[group]
        return tables

    def _draw(
        self, arguments: NDArray[np.uint64], group: int | NDArray[np.uint64]
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Draw the even and the odd round of a group from one Philox block for each argument."""
        index = np.uint64(self._index)
        counter = (
            arguments,
            np.asarray(group, np.uint64),
            np.asarray(index & np.uint64(0xFFFFFFFF)),
            np.asarray(index >> np.uint64(32)),
        )
        words = philox4x32(counter, self._key)
        even = scale(words[0], words[1], self._columns)
        odd = scale(words[2], words[3], self._rows)
        return even.astype(np.uint32), odd.astype(np.uint32)


def _check(values: NDArray[np.int64], size: int) -> None:
    if values.size and (values.min() < 0 or values.max() >= size):
        raise IndexError(f"expected positions in [0, {size}), found {values.min()} to {values.max()}")


def _add(half: NDArray[np.uint32], amount: NDArray[np.uint32], modulus: int) -> NDArray[np.uint32]:
    """Add modulo: where the sum is below the modulus, taking it away wraps to a larger number."""
    amount += half
    reduced: NDArray[np.uint32] = np.minimum(amount, amount - np.uint32(modulus))
    return reduced


def _subtract(half: NDArray[np.uint32], amount: NDArray[np.uint32], modulus: int) -> NDArray[np.uint32]:
    """Subtract modulo: where the difference wraps, adding the modulus wraps it back to a smaller number."""
    difference = half - amount
    reduced: NDArray[np.uint32] = np.minimum(difference, difference + np.uint32(modulus))
    return reduced
