"""What loading a store takes on this machine: memory for chunks, and shared memory for torch's workers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from mmapload.budget import available_memory, resolve_budget
from mmapload.room import most_chunks
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.store import Store

__all__ = ["describe_machine", "machine_rows"]

_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - nothing is made there
_MANY_WORKERS: Final = 64
_BATCHES_AHEAD: Final = 3
"""Of each worker of torch's: two that are prepared ahead (`prefetch_factor`), and the one in work."""


def describe_machine(store: Store, shared_memory: str = _SHARED_MEMORY) -> dict[str, Any]:
    """Return what a store's chunks and batches take here, in bytes, and how much room there is.

    Parameters
    ----------
    store : Store
        What will be loaded, all its fields.
    shared_memory : str
        Where torch's worker processes put their batches.
    """
    layout = store.layout
    sizes = store.chunk_nbytes(layout.fields)
    budget = resolve_budget("auto")
    batch = layout.batch_size * sum(store.sample_nbytes(field) for field in layout.fields)
    try:
        status = os.statvfs(shared_memory)
        free = status.f_bavail * status.f_frsize
    except OSError:
        free = None
    return {
        "available_bytes": available_memory(),
        "budget_bytes": budget,
        "chunks_held": min(layout.chunks, most_chunks(sizes, budget)),
        "batch_bytes": batch,
        "worker_bytes": _BATCHES_AHEAD * batch,
        "shared_bytes": free,
    }


def machine_rows(told: Mapping[str, Any], chunks: int) -> list[tuple[str, str]]:
    """Write it for people: a name and a sentence for each thing.

    Parameters
    ----------
    told : mapping
        From `describe_machine`.
    chunks : int
        Of the store.

    Examples
    --------
    >>> here = {"available_bytes": 2**30, "budget_bytes": 2**29, "chunks_held": 4, "shared_bytes": 2**26}
    >>> for row in machine_rows({**here, "batch_bytes": 2**23, "worker_bytes": 3 * 2**23}, chunks=9):
    ...     print(*row)
    memory 512 MiB for chunks with memory="auto", of 1 GiB available here: 4 of 9 chunks
    workers 24 MiB of /dev/shm for each of torch's DataLoader: 64 MiB free, for 2; ChunkDataLoader's take none
    """
    held = told["chunks_held"]
    which = f"all {chunks:,} chunks" if held == chunks else f"{held:,} of {chunks:,} chunks"
    which = which if held else "NOT ONE CHUNK: preprocess with a smaller --chunk-bytes"
    budget, available = format_size(told["budget_bytes"]), format_size(told["available_bytes"])
    rows = [("memory", f'{budget} for chunks with memory="auto", of {available} available here: {which}')]
    free, each = told["shared_bytes"], told["worker_bytes"]
    if free is not None:
        number = free // max(1, each)
        room = f"for {number:,}; ChunkDataLoader's take none"
        if not number:
            room = "TOO LITTLE: a container's --shm-size, num_workers=0, or ChunkDataLoader, which takes none"
        if number > _MANY_WORKERS:
            room = f"for more than {_MANY_WORKERS}; ChunkDataLoader's take none"
        what = f"{format_size(each)} of {_SHARED_MEMORY} for each of torch's DataLoader"
        rows.append(("workers", f"{what}: {format_size(free)} free, {room}"))
    return rows
