"""The report on an order, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmapload.quality.advice import advice_on

if TYPE_CHECKING:
    from mmapload.quality.expected import Batching

__all__ = ["Comparison", "ShuffleQuality"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of an order beside that of a uniform permutation.

    Attributes
    ----------
    found : float
        As measured.
    uniform : float
        The mean over all permutations of all samples, or measured in mode "full".
    expected : float or None
        The closed form of `found`, where there is one.
    """

    found: float
    uniform: float
    expected: float | None = None

    @property
    def ratio(self) -> float:
        """`found` relative to `uniform`: 1.0 is as good as a full shuffle; NaN where nothing is to be found.

        Examples
        --------
        >>> Comparison(found=50.0, uniform=200.0).ratio
        0.25
        """
        return self.found / self.uniform if self.uniform else float("nan")


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How far an order is from a true permutation; made by `mmapload.shuffle_quality`.

    Attributes
    ----------
    batching : Batching
        What was looked at: `geometry`, `global_batch`, `mode`, `window`, `lanes`.
    seed, epochs : int
        Epochs 0 up to `epochs` of this seed.
    batches, batches_in_all : int
        Batches that were looked at, and that there are in all these epochs. Where they differ, every measured
        figure is that of a sample.
    displacement : Comparison
        Mean distance in samples from a sample's place in the store to its place in the epoch;
        (N**2 - 1) / (3 N) in a full shuffle. Blind to windows: chunks are permuted across the whole store.
    mates_apart : Comparison or None
        Mean distance in samples, in the epoch, of two samples of one chunk; (N + 1) / 3 in a full shuffle.
        None where batches were sampled, or chunks hold one sample.
    same_chunk : Comparison
        Share of the pairs of samples in a batch that come from one chunk, in [0, 1].
    halving_window : int or None
        The least window of whole chunks, in samples, for which the closed form of `same_chunk` is at most
        half of what it is now. None where no window does that.
    written_shuffled : bool
        Whether the samples were permuted when the store was written.
    label : str or None
        The field that holds labels, if one was named.
    label_entropy : Comparison or None
        Mean entropy of the labels of a batch, in bits, beside that of mode "full" in as many batches.
    label_values, label_batches : int
        How many different labels were seen, and in how many batches of either order.
    """

    batching: Batching
    seed: int
    epochs: int
    batches: int
    batches_in_all: int
    displacement: Comparison
    mates_apart: Comparison | None
    same_chunk: Comparison
    halving_window: int | None
    written_shuffled: bool
    label: str | None = None
    label_entropy: Comparison | None = None
    label_values: int = 0
    label_batches: int = 0

    @property
    def sampled(self) -> bool:
        """Whether only some of the batches were looked at."""
        return self.batches < self.batches_in_all

    @property
    def advice(self) -> str:
        """One plain sentence: what the order does, and what would mix better."""
        return advice_on(self)
