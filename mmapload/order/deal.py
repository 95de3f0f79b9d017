"""How positions are dealt: to every step, and within it to every rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmapload.order.geometry import Remainder

__all__ = ["Deal", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """Positions of one lane that a rank takes at a step, half open; beyond the lane's end they repeat it."""

    lane: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Deal:
    """Global batches made of equal stretches of every lane, cut among ranks.

    Parameters
    ----------
    samples, lanes : int
        Number of samples N, and of the lanes L that they fill: lane l holds those from floor(l N / L)
        up to floor((l + 1) N / L).
    global_batch : int
        Samples of all ranks in a step; a multiple of `lanes`.
    remainder : {"drop", "pad", "keep"}
        What becomes of the last N mod G samples.
    """

    samples: int
    lanes: int
    global_batch: int
    remainder: Remainder

    @property
    def left_over(self) -> int:
        """Number of samples that do not fill a global batch."""
        return self.samples % self.global_batch

    @property
    def steps(self) -> int:
        """Number of steps of the epoch."""
        return self.samples // self.global_batch + (self.left_over > 0 and self.remainder != "drop")

    @property
    def regular_steps(self) -> int:
        """Number of steps that hold `global_batch` samples; of the rest there is one at most."""
        return self.steps - (self.left_over > 0 and self.remainder == "keep")

    @property
    def stride(self) -> int:
        """Positions by which a lane moves on in a step."""
        return self.global_batch // self.lanes

    def shares(self, step: int, rank: int, world_size: int) -> list[Share]:
        """Return what a rank takes at a step: one share for each lane that it draws from, none empty.

        The step's samples, lane after lane, are cut among ranks by the rule that cuts samples among
        lanes. Both cuts therefore fall together wherever they can, in a smaller last step too.

        Examples
        --------
        >>> deal = Deal(samples=21, lanes=2, global_batch=8, remainder="keep")
        >>> deal.shares(2, rank=1, world_size=2)
        [Share(lane=1, start=8, stop=11)]
        """
        size = self.global_batch if step < self.regular_steps else self.left_over
        first, last = rank * size // world_size, (rank + 1) * size // world_size
        found = []
        for lane in range(first * self.lanes // size, -(-last * self.lanes // size)):
            begin, end = lane * size // self.lanes, (lane + 1) * size // self.lanes
            low, high = max(first, begin), min(last, end)
            if low < high:
                origin = step * self.stride - begin
                found.append(Share(lane, origin + low, origin + high))
        return found
