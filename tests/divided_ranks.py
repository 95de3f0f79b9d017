"""What every rank runs for tests/test_division.py: loaders whose samples nobody divides, or two do."""

from __future__ import annotations

import json
import sys
from typing import Any

from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler
from tests.numbered_samples import numbers


def refused(loader: Any) -> str:
    """What the first batch is refused with."""
    try:
        next(iter(loader))
    except RuntimeError as error:
        return str(error)
    return ""


def main(path: str, out: str) -> None:
    """Run everything on this rank."""
    ds = ChunkDataset(path)
    early = ChunkDataLoader(ds, 4, shuffle=True)
    early_by_torch = DataLoader(ds, 4, sampler=ChunkSampler(ds, 4))
    early_prepared = ChunkBatchSampler(ds, 4)
    found: dict[str, Any] = {"alone": len(early)}
    accelerator = Accelerator(cpu=True)
    found["early"] = [refused(loader) for loader in (early, early_by_torch)]
    both = (
        ChunkDataLoader(ds, 4, shuffle=True),
        ChunkDataLoader(ds, 4, shuffle=True, num_workers=1),
        DataLoader(ds, 4, sampler=ChunkSampler(ds, 4)),
        DataLoader(ds, batch_sampler=ChunkBatchSampler(ds, 4)),
    )
    found["twice"] = [refused(accelerator.prepare(loader)) for loader in both]
    found["left out"] = [numbers(loader) for loader in both]
    by_hand = ChunkBatchSampler(ds, 4, rank=0, world_size=1)
    found["by Accelerate"] = [
        numbers(accelerator.prepare(DataLoader(ds, batch_sampler=sampler)))
        for sampler in (by_hand, early_prepared)
    ]
    if accelerator.is_main_process:  # the other would wait for what it sends
        accelerator.dataloader_config = DataLoaderConfiguration(dispatch_batches=True)
        found["sent"] = refused(accelerator.prepare(ChunkDataLoader(ds, 4)))
    accelerator.wait_for_everyone()
    with open(f"{out}/{accelerator.process_index}.json", "w") as file:
        json.dump(found, file)
    accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
