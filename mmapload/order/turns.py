"""Whose turn it is: samples of several stores one after another, each store's as often as its share says."""

from __future__ import annotations

from fractions import Fraction
from math import gcd, lcm
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MOST_TURNS", "Turns", "whole_shares"]

MOST_TURNS = 10_000
"""The longest period: shares are whole numbers whose sum is no larger."""


class Turns:
    """An endless sequence of turns, the same again after as many as the sum of the shares.

    Of the first t turns store s has its share of them, w_s t / D, to the next whole number below or above,
    for every t: by the quota method of Balinski and Young ("The quota method of apportionment", 1975).

    Parameters
    ----------
    shares : sequence of int
        Of every store, from 1 up; their sum D is the period.

    Examples
    --------
    >>> turns = Turns([3, 1])
    >>> turns.whose(0, 8).tolist(), turns.counts(6)
    ([0, 0, 0, 1, 0, 0, 0, 1], [5, 1])
    >>> turns.turn(1, 1)
    7
    """

    def __init__(self, shares: Sequence[int]) -> None:
        self.shares = tuple(shares)
        self.period = sum(shares)
        whose = _one_period(self.shares)
        self._whose = np.array(whose)
        self._turns = [np.flatnonzero(self._whose == store) for store in range(len(self.shares))]

    def whose(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the store of every turn from `start` up to `stop`."""
        found: NDArray[np.int64] = self._whose[(start % self.period + np.arange(stop - start)) % self.period]
        return found

    def counts(self, turn: int) -> list[int]:
        """Return how many turns each store has had before this one."""
        periods, rest = divmod(turn, self.period)
        return [
            periods * share + int(np.searchsorted(turns, rest))
            for share, turns in zip(self.shares, self._turns, strict=True)
        ]

    def turn(self, store: int, number: int) -> int:
        """Return the turn at which a store has had `number` turns before."""
        periods, rest = divmod(number, self.shares[store])
        return periods * self.period + int(self._turns[store][rest])


def _one_period(shares: Sequence[int]) -> list[int]:
    period, counts, whose = sum(shares), [0] * len(shares), []
    for turn in range(1, period + 1):
        chosen = -1
        for store, share in enumerate(shares):
            if counts[store] * period >= share * turn:  # it would have more than the next whole number
                continue
            if chosen < 0 or share * (counts[chosen] + 1) > shares[chosen] * (counts[store] + 1):
                chosen = store
        counts[chosen] += 1
        whose.append(chosen)
    return whose


def whole_shares(proportions: Sequence[float]) -> tuple[int, ...]:
    """Return proportions as whole numbers without a common divisor, their sum at most `MOST_TURNS`.

    They are exact where that can be. Else they are rounded to 10,000ths of their sum: down first, and then up
    for as many as are missing, the largest remainders first, of equal ones the first.

    Parameters
    ----------
    proportions : sequence of float
        Above 0 and finite, with any sum.

    Raises
    ------
    ValueError
        If one comes out as 0.

    Examples
    --------
    >>> whole_shares([6, 2]), whole_shares([0.5, 2]), whole_shares([0.7, 0.3]), whole_shares([1, 2**0.5])
    ((3, 1), (1, 4), (7, 3), (2071, 2929))
    """
    exact = [Fraction(each) for each in proportions]
    whole = [int(each * lcm(*(one.denominator for one in exact))) for each in exact]
    if sum(whole) // gcd(*whole) <= MOST_TURNS:
        return tuple(each // gcd(*whole) for each in whole)
    scaled = [each * MOST_TURNS / sum(exact) for each in exact]
    shares = [int(each) for each in scaled]
    missing = sorted(range(len(shares)), key=lambda store: (shares[store] - scaled[store], store))
    for store in missing[: MOST_TURNS - sum(shares)]:
        shares[store] += 1
    if 0 in shares:
        store = shares.index(0)
        raise ValueError(
            f"the proportion of store {store} is {proportions[store]} of {float(sum(exact)):g}, less than a "
            f"{MOST_TURNS:,}th: leave the store out, or give it more"
        )
    return tuple(share // gcd(*shares) for share in shares)
