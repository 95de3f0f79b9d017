"""Refusals: numbers that do not fit each other, and the nearest ones that do."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from mmapload.order.geometry import Mode, Remainder

if TYPE_CHECKING:
    from mmapload.order.chosen import Chosen
    from mmapload.order.geometry import Geometry

__all__ = [
    "check_arguments",
    "check_chosen",
    "check_lanes",
    "check_last_batch",
    "check_units",
    "check_world_size",
]


def check_arguments(global_batch: int, mode: str, remainder: str, seed: int, epoch: int) -> None:
    """Check each argument by itself."""
    if mode not in get_args(Mode):
        raise ValueError(f"unknown mode {mode!r}: use one of {', '.join(get_args(Mode))}")
    if remainder not in get_args(Remainder):
        raise ValueError(f"unknown remainder {remainder!r}: use one of {', '.join(get_args(Remainder))}")
    if global_batch < 1:
        raise ValueError(f"a global batch holds at least 1 sample, found {global_batch}")
    for name, value in (("seed", seed), ("epoch", epoch)):
        if not 0 <= value < 2**64:
            raise ValueError(f"{name} must lie in [0, 2**64), found {value}")


def check_chosen(geometry: Geometry, chosen: Chosen) -> None:
    """Check that the samples are as many as the geometry says, of chunks as long."""
    said, found = (geometry.samples, geometry.chunk_length), (chosen.samples, chosen.chunk_length)
    if said != found:
        raise ValueError(
            f"{found[0]} samples are chosen from chunks of {found[1]}, and the geometry says {said[0]} "
            f"and {said[1]}"
        )


def check_lanes(geometry: Geometry, global_batch: int, window: int, lanes: int) -> None:
    """Check that lanes divide the global batch and the window, and that none is empty."""
    if lanes < 1:
        raise ValueError(f"an order has at least 1 lane, found {lanes}")
    if window < 1:
        raise ValueError(f"a window holds at least 1 sample, found {window}")
    if lanes > geometry.samples:
        raise ValueError(
            f"{geometry.samples} samples cannot fill {lanes} lanes: use at most {geometry.samples} lanes"
        )
    if global_batch % lanes:
        raise ValueError(
            f"{lanes} lanes do not divide a global batch of {global_batch}: use a global batch of "
            f"{_choice(_multiples(global_batch, lanes))}, or {_choice(_divisors(global_batch, lanes))} lanes"
        )
    if window % lanes:
        raise ValueError(
            f"{lanes} lanes do not divide a window of {window} samples: use a window of "
            f"{_choice(_multiples(window, lanes))}, or {_choice(_divisors(window, lanes))} lanes"
        )


def check_units(geometry: Geometry, global_batch: int) -> None:
    """Check that mode "batch" can make global batches of whole units, or units of whole global batches."""
    unit = geometry.unit
    if global_batch % unit and unit % global_batch:
        near = _divisors(unit, global_batch) if global_batch < unit else _multiples(global_batch, unit)
        raise ValueError(
            f"in mode 'batch' the global batch must be a multiple or a divisor of the {unit} samples that "
            f"the store was aligned to, found {global_batch}: use {_choice(near)}, or mode 'window'"
        )


def check_world_size(global_batch: int, world_size: int) -> None:
    """Check that ranks can share a global batch evenly."""
    if world_size < 1:
        raise ValueError(f"there is at least 1 rank, found a world size of {world_size}")
    if global_batch % world_size:
        batches = _choice(_multiples(global_batch, world_size))
        ranks = _choice(_divisors(global_batch, world_size))
        raise ValueError(
            f"a global batch of {global_batch} cannot be shared evenly by {world_size} ranks: "
            f"use a global batch of {batches}, or {ranks} ranks"
        )


def check_last_batch(samples: int, global_batch: int, world_size: int) -> None:
    """Check that a last, smaller global batch holds a sample for every rank."""
    last = samples % global_batch
    if not 0 < last < world_size:
        return
    batch = global_batch // world_size
    works = [
        next((size for size in candidates if not 0 < samples % (size * world_size) < world_size), None)
        for candidates in (range(batch - 1, 0, -1), range(batch + 1, 2 * batch + samples // world_size + 2))
    ]
    near = [size for size in works if size is not None]
    advice = f"use a batch size of {_choice(near)} per rank, or " if near else "use "
    raise ValueError(
        f"the last global batch has {last} of {samples} samples, fewer than the {world_size} ranks: "
        f"{advice}remainder='pad' or 'drop'"
    )


def _multiples(value: int, factor: int) -> list[int]:
    """Return the multiples of `factor` on both sides of `value`."""
    below = value // factor * factor
    return [near for near in (below, below + factor) if near]


def _divisors(value: int, near: int) -> list[int]:
    """Return the divisors of `value` on both sides of `near`."""
    below = next((divisor for divisor in range(min(near, value), 0, -1) if value % divisor == 0), None)
    above = next((divisor for divisor in range(near + 1, value + 1) if value % divisor == 0), None)
    return [divisor for divisor in (below, above) if divisor is not None]


def _choice(values: list[int]) -> str:
    return " or ".join(str(value) for value in values)
