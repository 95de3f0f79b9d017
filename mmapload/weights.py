"""Epochs in which samples come as often as their weights say, each once more or less at most.

Nothing is drawn independently: an epoch has its samples by systematic sampling (Madow, "On the theory of
systematic sampling, II", 1949) along a permutation of its own, in whole numbers throughout.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.order.bijection import bijection
from mmapload.order.philox import Purpose, stream_key
from mmapload.selection import checked_integer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Weights", "checked_weights"]

_MOST = 2**31 - 1  # samples, and draws of an epoch: products of two of them fit in 64 bits


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """How often each sample comes, relatively, and how many make an epoch; made by `checked_weights`.

    Attributes
    ----------
    shares : int64 ndarray, shape (n,)
        Weights in units so small that the largest is 2**k, and their sum is below 2**62.
    length : int
        Samples of an epoch.
    """

    shares: NDArray[np.int64]
    length: int

    def drawn(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the samples of an epoch, not falling, each as often as it comes.

        A sample that is expected e times, `length` times its share of the sum, comes floor(e) or ceil(e)
        times, and e times on average over epochs.

        Examples
        --------
        >>> weights = checked_weights([1, 1, 0, 6], samples=4, length=4)
        >>> [weights.drawn(seed=0, epoch=epoch).tolist() for epoch in range(3)]
        [[0, 3, 3, 3], [1, 3, 3, 3], [0, 3, 3, 3]]
        """
        permuted = bijection(len(self.shares), stream_key(seed, epoch, Purpose.WEIGHTS)).forward(
            np.arange(len(self.shares))
        )
        sums = np.cumsum(self.shares[permuted])
        total = int(sums[-1])
        low, high = stream_key(seed, epoch, Purpose.WEIGHTS, lane=1)
        shift, shift_rest = divmod((low + (high << 32)) * total >> 64, self.length)
        step, rest = divmod(total, self.length)
        turns = np.arange(self.length)
        points = turns * step + shift + (turns * rest + shift_rest) // self.length
        # A sample comes as often as points fall into its stretch, which ends where its sum does.
        counts = np.empty_like(permuted)
        counts[permuted] = np.diff(np.searchsorted(points, sums), prepend=0)
        samples: NDArray[np.int64] = np.repeat(np.arange(len(counts)), counts)
        return samples

    def digest(self) -> bytes:
        """Return the SHA-256 of the length and the shares, as little-endian int64."""
        numbers = np.concatenate([[self.length], self.shares]).astype("<i8")
        return hashlib.sha256(numbers.tobytes()).digest()


def checked_weights(weights: Any, samples: int, length: int | None) -> Weights:
    """Return the weights of so many samples, checked.

    Parameters
    ----------
    weights : sequence of float, shape (samples,)
        From 0 up; they need not have any sum. Less than about 2**-31 of the largest counts as 0.
    samples : int
        Up to 2**31 - 1.
    length : int, optional
        Samples of an epoch, likewise; by default as many as there are.

    Raises
    ------
    ValueError
        If they are not as many, one is below 0 or not finite, or all are 0.
    """
    found = np.asarray(weights, np.float64)
    if found.shape != (samples,):
        raise ValueError(f"weights are one for each of {samples} samples, not of shape {found.shape}")
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if wrong.size:
        at = int(wrong[0])
        raise ValueError(f"a weight is a finite number from 0 up, and that of sample {at} is {found[at]}")
    largest = found.max()
    if not largest:
        raise ValueError(f"the weights of all {samples} samples are 0: no sample would come")
    length = samples if length is None else checked_integer("epoch_length", length, 1)
    if max(samples, length) > _MOST:
        raise ValueError(f"weights are for up to 2**31 - 1 samples in an epoch, found {max(samples, length)}")
    bits = min(52, 62 - samples.bit_length())
    return Weights(np.floor(np.ldexp(found / largest, bits)).astype(np.int64), length)
