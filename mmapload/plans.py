"""What the order of a loader's epochs is made from, for a person or a log to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmapload.order import Mode, Remainder
    from mmapload.samplers import ChunkSampler

__all__ = ["LoaderPlan", "plan_of"]


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """What the order of every epoch is made from, with the epoch's number: `docs/order.md`.

    Attributes
    ----------
    mode : {"window", "batch", "full", "sequential"}
        How samples are shuffled.
    window : int or None
        Samples that are mixed with each other, after the window was cut to what memory holds; None unless
        the mode is "window".
    lanes : int or None
        Groups of ranks with windows of their own; None unless the mode is "window".
    seed : int or None
        Of the order; None if the mode is "sequential".
    batch_size : int
        Samples in a batch of one rank.
    world_size, rank : int
        How many ranks share each epoch, and which of them this is.
    remainder : {"keep", "pad", "drop"}
        What becomes of the last samples where they do not fill a batch on every rank.
    steps : int
        Batches in an epoch, the same on every rank.
    samples : int
        Samples in an epoch of this rank.
    """

    mode: Mode
    window: int | None
    lanes: int | None
    seed: int | None
    batch_size: int
    world_size: int
    rank: int
    remainder: Remainder
    steps: int
    samples: int


def plan_of(sampler: ChunkSampler) -> LoaderPlan:
    """Return what a sampler's order is made from."""
    return LoaderPlan(
        mode=sampler.mode,
        window=sampler.window,
        lanes=sampler.lanes if sampler.mode == "window" else None,
        seed=None if sampler.mode == "sequential" else sampler.seed,
        batch_size=sampler.batch_size,
        world_size=sampler.num_replicas,
        rank=sampler.rank,
        remainder=sampler.remainder,
        steps=sampler.steps,
        samples=sampler.num_samples,
    )
