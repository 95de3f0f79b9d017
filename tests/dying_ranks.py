"""What every rank runs for tests/test_dying_ranks.py: the last kills itself, others say how far they come.

A rank that hangs says where each of its threads is, and ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

import torch
import torch.distributed as dist

from mmapload import ChunkDataLoader, ChunkDataset, ChunkSampler

TOO_LONG = 100
"""Seconds, on whatever machine: it takes two."""


def die() -> None:
    """End as a process ends for which there was no memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def before_it_agrees(path: str, *, last: bool) -> None:
    """Die before the ranks agree on a window."""
    if last:
        die()
    try:
        ChunkSampler(ChunkDataset(path), 4)
    except RuntimeError as error:
        print("not made:", type(error).__name__)


def in_mid_epoch(path: str, *, last: bool, workers: int) -> None:
    """Die between two steps; the others meet the error of the collective, and then take what is left."""
    loader = ChunkDataLoader(path, 4, shuffle=True, num_workers=workers)
    batches = iter(loader)
    for step, batch in enumerate(batches, 1):
        if last and step == 4:
            die()
        try:
            dist.all_reduce(batch["number"])
        except RuntimeError as error:
            print(f"step {step}:", type(error).__name__)
            break
    print("left:", sum(1 for _ in batches), "state:", loader.state_dict()["step"])
    print("next epoch:", len(list(loader)))


def at_the_first_error(path: str, *, last: bool) -> None:
    """Die between two steps; the others do nothing about the error."""
    for step, batch in enumerate(ChunkDataLoader(path, 4, shuffle=True, num_workers=1), 1):
        print("step", step, flush=True)
        if last and step == 4:
            die()
        dist.all_reduce(batch["number"])


def main(path: str, when: str) -> None:
    """Begin, and die as asked."""
    faulthandler.dump_traceback_later(TOO_LONG, exit=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    last = dist.get_rank() == dist.get_world_size() - 1
    dist.barrier()
    if when == "before":
        before_it_agrees(path, last=last)
    elif when == "error":
        at_the_first_error(path, last=last)
    else:
        in_mid_epoch(path, last=last, workers=int(when))


if __name__ == "__main__":
    main(*sys.argv[1:])
