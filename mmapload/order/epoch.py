"""The order of one epoch: which samples every rank gets at every step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mmapload.order.checks import check_last_batch, check_world_size
from mmapload.order.plan import Located, own_and_repeated, plan_uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.arrangements import Arrangement
    from mmapload.order.chosen import Chosen
    from mmapload.order.deal import Deal, Share
    from mmapload.order.geometry import Geometry, Mode, Remainder, Use

__all__ = ["EpochOrder"]

_BLOCK = (
    32768  # samples computed at once while streaming: numpy's calls are shared, the first batch stays quick
)


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch, computed only where it is asked for; made by `epoch_order`.

    Position k of an epoch costs none of its predecessors, so a start at any step costs nothing.

    Attributes
    ----------
    geometry : Geometry
        How the store is cut.
    seed, epoch : int
        What the order is drawn from.
    mode : {"window", "batch", "full", "sequential"}
        How samples are shuffled.
    window : int or None
        Samples in the windows of all lanes together, in mode "window"; otherwise None.
    lanes : int
        Number of lanes.
    global_batch : int
        Samples of all ranks together in a step.
    remainder : {"drop", "pad", "keep"}
        What becomes of the samples that do not fill a last global batch.
    allow_empty : bool
        Whether a last batch that is kept may leave ranks without a sample.
    chosen : Chosen or None
        The samples of the store that the order is over, sample k being the k-th of them; None: all.
    """

    geometry: Geometry
    seed: int
    epoch: int
    mode: Mode
    window: int | None
    lanes: int
    global_batch: int
    remainder: Remainder
    allow_empty: bool
    chosen: Chosen | None
    _arrangement: Arrangement = field(repr=False, compare=False)
    _deal: Deal = field(repr=False, compare=False)

    @property
    def steps(self) -> int:
        """Number of global batches, the same on every rank; 0 if all samples are dropped."""
        return self._deal.steps

    @property
    def dropped(self) -> int:
        """Number of samples left out by remainder "drop"."""
        return self._deal.left_over if self.remainder == "drop" else 0

    @property
    def padded(self) -> int:
        """Number of samples that remainder "pad" serves once more, below `global_batch`."""
        return self.steps * self.global_batch - self.geometry.samples if self.remainder == "pad" else 0

    def check_world_size(self, world_size: int) -> None:
        """Check that so many ranks can share this order; every method that takes ranks does so first.

        Parameters
        ----------
        world_size : int
            Number of ranks.

        Raises
        ------
        ValueError
            The ranks do not divide the global batch, or remainder "keep" would leave some without a
            sample at the last step. The message names the nearest numbers that work.
        """
        check_world_size(self.global_batch, world_size)
        if self.remainder == "keep" and not self.allow_empty:
            check_last_batch(self.geometry.samples, self.global_batch, world_size)

    def step_batch(self, step: int) -> NDArray[np.int64]:
        """Return the samples of all ranks at one step, in the ranks' order.

        Parameters
        ----------
        step : int
            In [0, steps).

        Returns
        -------
        int64 ndarray, shape (global_batch,), or less at the last step of remainder "keep"

        Examples
        --------
        >>> from mmapload.order import Geometry, epoch_order
        >>> order = epoch_order(Geometry(10, 4, 2), global_batch=4, mode="sequential", remainder="pad")
        >>> [order.step_batch(step).tolist() for step in range(order.steps)]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 1]]
        """
        return self._batch(step, 0, 1)

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at positions of an epoch in one lane, whatever batches are made of them.

        Parameters
        ----------
        positions : int64 ndarray, shape (n,)
            Each in [0, samples), best few windows apart.

        Examples
        --------
        >>> from mmapload.order import Geometry, epoch_order
        >>> order = epoch_order(Geometry(10, 4, 2), global_batch=4, window=8, seed=1)
        >>> order.step_batch(0), order.at(np.arange(4))
        (array([7, 0, 6, 8]), array([7, 0, 6, 8]))
        """
        return self._arrangement.samples(0, positions)

    def rank_batch(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """Return the samples of one rank at one step.

        Parameters
        ----------
        step : int
            In [0, steps).
        rank, world_size : int
            Which rank, of how many.

        Returns
        -------
        int64 ndarray, shape (global_batch / world_size,), or less at the last step of remainder "keep"

        Raises
        ------
        IndexError
            There is no such step or rank.
        ValueError
            The ranks cannot share the global batch; see `check_world_size`.

        Examples
        --------
        >>> from mmapload.order import Geometry, epoch_order
        >>> order = epoch_order(Geometry(10, 4, 2), global_batch=4, mode="sequential")
        >>> order.rank_batch(1, rank=1, world_size=2)
        array([6, 7])
        """
        self._check_rank(rank, world_size)
        return self._batch(step, rank, world_size)

    def rank_batches(self, rank: int, world_size: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Iterate over the samples of one rank, step by step; quicker than asking for each.

        Parameters
        ----------
        rank, world_size : int
            Which rank, of how many.
        start : int
            First step, in [0, steps]; any costs the same.

        Returns
        -------
        iterator of int64 ndarrays
            What `rank_batch` returns for `start`, `start` + 1, ... `steps` - 1.

        Raises
        ------
        IndexError, ValueError
            As `rank_batch` does, at the call and not at the first batch.
        """
        self._check_rank(rank, world_size)
        self._check_start(start)
        return self._stream(rank, world_size, start)

    def rank_length(self, rank: int, world_size: int) -> int:
        """Return the number of samples that one rank gets in the whole epoch.

        Parameters
        ----------
        rank, world_size : int
            Which rank, of how many.

        Returns
        -------
        int

        Raises
        ------
        IndexError, ValueError
            As `rank_batch` does.
        """
        self._check_rank(rank, world_size)
        regular, steps = self._deal.regular_steps, self._deal.steps
        last = self._deal.shares(regular, rank, world_size) if regular < steps else []
        return regular * (self.global_batch // world_size) + sum(share.stop - share.start for share in last)

    def uses(self, rank: int, world_size: int, start: int = 0) -> Iterator[Use]:
        """Iterate over what of the store one rank touches and when, as far ahead as it is consumed.

        Parameters
        ----------
        rank, world_size : int
            Which rank, of how many.
        start : int
            First step, in [0, steps]; any costs the same.

        Returns
        -------
        iterator of Use
            By rising first step. Mode "window": a Use for each chunk of each lane that the rank draws
            from, live from the first to the last step at which the rank takes samples from the windows
            that the chunk lies in. "batch": one for each unit part. "sequential": one for each chunk.
            "full": none, since any step may touch any chunk. The repeated samples of remainder "pad"
            have Uses of their own, the last ones.

        Raises
        ------
        IndexError, ValueError
            As `rank_batch` does, at the call.

        Examples
        --------
        >>> from mmapload.order import Geometry, epoch_order
        >>> order = epoch_order(Geometry(10, 4, 2), global_batch=4, mode="sequential")
        >>> next(order.uses(rank=1, world_size=2))
        Use(chunk=0, start=2, stop=4, first_step=0, last_step=0)
        """
        self._check_rank(rank, world_size)
        self._check_start(start)
        if self.mode == "full":
            return iter(())
        located = Located(self.geometry.chunk_length, self.chosen)
        return plan_uses(self._arrangement, self._deal, located, rank, world_size, start)

    def _check_rank(self, rank: int, world_size: int) -> None:
        self.check_world_size(world_size)
        if not 0 <= rank < world_size:
            raise IndexError(f"expected a rank in [0, {world_size}), found {rank}")

    def _check_start(self, start: int) -> None:
        if not 0 <= start <= self.steps:
            raise IndexError(f"expected a first step in [0, {self.steps}], found {start}")

    def _batch(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        if not 0 <= step < self.steps:
            raise IndexError(f"expected a step in [0, {self.steps}), found {step}")
        parts: list[NDArray[np.int64]] = []
        for share in self._deal.shares(step, rank, world_size):
            parts += own_and_repeated(self._arrangement, share)
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _stream(self, rank: int, world_size: int, start: int) -> Iterator[NDArray[np.int64]]:
        """Compute blocks of full steps at once; the last step, if it differs, by itself."""
        full = self.geometry.samples // self.global_batch
        step = start
        while step < full:
            shares = self._deal.shares(step, rank, world_size)
            count = min(self._block_steps(shares), full - step)
            moves = np.arange(count)[:, np.newaxis] * self._deal.stride
            parts = [
                self._arrangement.samples(
                    share.lane, (moves + np.arange(share.start, share.stop)).ravel()
                ).reshape(count, -1)
                for share in shares
            ]
            yield from np.concatenate(parts, axis=1)
            step += count
        for last in range(step, self.steps):
            yield self._batch(last, rank, world_size)

    def _block_steps(self, shares: list[Share]) -> int:
        """Return how many steps to compute at once."""
        stride, grain = self._deal.stride, self._arrangement.grain
        if grain == 1:  # only what the rank takes is computed
            return max(1, _BLOCK // sum(share.stop - share.start for share in shares))
        return max(1, _BLOCK // (stride * len(shares)), 2 * grain // stride)
