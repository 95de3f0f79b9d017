"""What every rank runs for tests/test_torchrun.py: epochs of several loaders, their numbers left as JSON."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from mmapload import ChunkDataLoader, ChunkDataset, ChunkSampler
from tests.numbered_samples import SAMPLE_BYTES, numbers


def by_torch(ds: ChunkDataset, **arguments: Any) -> list[list[list[int]]]:
    """Two epochs the way DistributedSampler is used."""
    sampler = ChunkSampler(ds, 4, **arguments)
    loader = DataLoader(ds, batch_size=4, sampler=sampler)
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append(steps(loader))
    return epochs


def by_mmapload(ds: ChunkDataset, **arguments: Any) -> list[list[list[int]]]:
    """Two epochs of a ChunkDataLoader."""
    loader = ChunkDataLoader(ds, 4, **arguments)
    return [steps(loader) for _ in range(2)]


def steps(loader: Any) -> list[list[int]]:
    """An epoch in which ranks wait for each other at every step, as DDP makes them."""
    batches = []
    for batch in loader:
        batches += numbers([batch])
        together = torch.tensor([len(batches)])
        dist.all_reduce(together)
        assert int(together) == len(batches) * dist.get_world_size()
    return batches


def train(even: str, odd: str) -> dict[str, Any]:
    """Run everything on this rank."""
    rank = dist.get_rank()
    found: dict[str, Any] = {
        "even": by_torch(ChunkDataset(even)),
        "even, workers": [numbers(ChunkDataLoader(even, 4, shuffle=True, num_workers=1))],
        "default": by_torch(ChunkDataset(odd)),
        "drop": by_mmapload(ChunkDataset(odd), shuffle="full", drop_last=True),
    }
    for remainder in ("keep", "pad"):
        found[remainder] = by_mmapload(ChunkDataset(odd), shuffle=True, remainder=remainder)
    # Memory for 14, 11, 7 or 9 chunks of 8: the least decides.
    small = ChunkDataset(even, memory=(14, 11, 7, 9)[rank] * 8 * SAMPLE_BYTES)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found["shrunken"] = by_torch(small)
        found["window"] = ChunkSampler(small, 4).window
    found["warnings"] = [str(each.message) for each in caught if "window" in str(each.message)]
    found["sequential"] = by_mmapload(ChunkDataset(odd))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ChunkSampler(ChunkDataset(odd), 4)
        apart = ChunkDataset(odd)
        found["apart"] = by_mmapload(apart, shuffle=True, lanes=dist.get_world_size(), remainder="keep")[:1]
    found["decoded"] = apart.residency.reader.chunks_loaded
    found["advice"] = [str(each.message) for each in caught if "decodes" in str(each.message)]
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    result = train(*sys.argv[1:3])
    with open(f"{sys.argv[3]}/{dist.get_rank()}.json", "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()
