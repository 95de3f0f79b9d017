"""The order of one epoch: which samples every rank gets at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from mmapload.order.geometry import Geometry, Use

__all__ = ["EpochOrder", "Mode", "Remainder", "epoch_order"]

Mode = Literal["window", "batch", "full", "sequential"]
Remainder = Literal["drop", "pad", "keep"]


@dataclass(frozen=True, slots=True)
class EpochOrder:
    """The order of one epoch, computed where it is asked for; made by `epoch_order`."""

    geometry: Geometry
    seed: int
    epoch: int
    mode: Mode
    window: int | None
    lanes: int
    global_batch: int
    remainder: Remainder
    allow_empty: bool

    @property
    def steps(self) -> int:
        """Number of global batches, the same on every rank."""
        raise NotImplementedError

    @property
    def dropped(self) -> int:
        """Samples that `remainder="drop"` leaves out."""
        raise NotImplementedError

    @property
    def padded(self) -> int:
        """Samples that `remainder="pad"` serves a second time."""
        raise NotImplementedError

    def check_world_size(self, world_size: int) -> None:
        """Raise ValueError if the global batch cannot be shared among so many ranks."""
        raise NotImplementedError

    def step_batch(self, step: int) -> NDArray[np.int64]:
        """Sample indices of global batch `step` (all ranks)."""
        raise NotImplementedError

    def rank_batch(self, step: int, rank: int, world_size: int) -> NDArray[np.int64]:
        """Sample indices of one rank at one step, at O(1) cost in `step`."""
        raise NotImplementedError

    def rank_batches(self, rank: int, world_size: int, start: int = 0) -> Iterator[NDArray[np.int64]]:
        """Sample indices of one rank, step by step from `start`."""
        raise NotImplementedError

    def rank_length(self, rank: int, world_size: int) -> int:
        """Samples that one rank gets in the whole epoch."""
        raise NotImplementedError

    def uses(self, rank: int, world_size: int, start: int = 0) -> Iterator[Use]:
        """What of the store one rank touches and when, ordered by first step."""
        raise NotImplementedError


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
) -> EpochOrder:
    """Make the order of one epoch; raise ValueError, with values that work, where the numbers do not fit."""
    return EpochOrder(geometry, seed, epoch, mode, window, lanes, global_batch, remainder, allow_empty)
