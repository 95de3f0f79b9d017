"""Which of how many ranks this process is, and what all of them agree on."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Final

import torch.distributed
from torch.utils.data import get_worker_info

__all__ = ["Ranks", "find_ranks", "processes_here"]

DIVIDERS: Final = {"BatchSamplerShard", "DataLoaderDispatcher"}
"""What Accelerate takes the batches of a sampler with, to divide them among its processes."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """A process among those that train together.

    Attributes
    ----------
    rank, world_size : int
        Which, of how many.
    nodes : int
        How many machines they are spread over, where the launcher says so; else 1.
    can_agree : bool
        Whether `torch.distributed` connects them.
    by_hand : bool
        Whether rank and world size were given by hand.
    """

    rank: int
    world_size: int
    nodes: int
    can_agree: bool
    by_hand: bool = False

    def least(self, value: int) -> int:
        """Return the least of all ranks' values; every rank has to call this."""
        if not self.can_agree:
            return value
        values: list[int] = [0] * self.world_size
        torch.distributed.all_gather_object(values, value)
        return min(values)

    def check_division(self) -> None:
        """Check, where an iteration begins, that samples are divided among the ranks, and that but once.

        Raises
        ------
        RuntimeError
            If Accelerate divides what has been divided; or if nobody does, since `torch.distributed` was
            initialised after rank and world size were asked of it.
        """
        divided = _is_divided_by_accelerate()
        if divided and self.world_size > 1:
            raise RuntimeError(
                "Accelerate would divide these batches among its processes again: they are those of rank "
                f"{self.rank} of {self.world_size} already, so most samples would never be seen. Iterate "
                "over the loader as you made it: leave it out of accelerator.prepare(), and give it "
                "device=accelerator.device"
            )
        if divided or self.by_hand:
            return
        now = find_ranks(None, None)
        if now.world_size not in {1, self.world_size}:
            raise RuntimeError(
                f"the sampler or loader was made for rank {self.rank} of {self.world_size}, and "
                f"torch.distributed has {now.world_size} ranks now: they would be given the same samples. "
                "Make it after init_process_group (after Accelerator(), in Lightning in train_dataloader()), "
                "or give the sampler rank and world_size"
            )


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Take rank and world size as given, else from `torch.distributed`, else one process alone.

    Raises
    ------
    ValueError
        If only one of them is given, one is no integer, or the rank is not in [0, world size).

    Examples
    --------
    >>> find_ranks(None, None)
    Ranks(rank=0, world_size=1, nodes=1, can_agree=False, by_hand=False)
    """
    if (rank is None) != (world_size is None):
        raise ValueError(f"give rank and world_size both or neither, not {rank} and {world_size}")
    if rank is not None and world_size is not None:
        if any(type(number) is not int for number in (rank, world_size)):
            raise ValueError(f"rank and world_size are integers, not {rank!r} and {world_size!r}")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must lie in [0, world_size), found {rank} of {world_size}")
        return Ranks(rank, world_size, 1, can_agree=False, by_hand=True)
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return Ranks(0, 1, 1, can_agree=False)
    size = torch.distributed.get_world_size()
    nodes = os.environ.get("GROUP_WORLD_SIZE", "1")  # torchrun's name for the number of machines
    return Ranks(torch.distributed.get_rank(), size, int(nodes) if nodes.isdigit() else 1, can_agree=size > 1)


def processes_here(workers: int) -> int:
    """Count the processes of this machine that share a budget: local ranks times DataLoader workers.

    A worker knows how many there are; the process that starts them knows if it has been told.
    """
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    worker = get_worker_info()
    return (int(ranks) if ranks.isdigit() else 1) * (worker.num_workers if worker else max(1, workers))


def _is_divided_by_accelerate() -> bool:
    """Say whether Accelerate is among those who ask for the next batch.

    It makes loaders of torch's own class around the batch samplers of others, and calls nothing of theirs
    before it asks for batches; so what shows it is who asks.
    """
    frame = sys._getframe(1) if "accelerate" in sys.modules else None  # noqa: SLF001 - the documented way
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "accelerate":
            asking = frame.f_locals.get("self")
            if type(asking).__name__ in DIVIDERS and getattr(asking, "num_processes", 2) > 1:
                return True
        frame = frame.f_back
    return False
