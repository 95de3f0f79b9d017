"""Data-parallel training over a store: stopped at any step, it goes on with any number of ranks.

Beside a loop over a DataLoader with a DistributedSampler, the lines marked 1, 2 and 3 are other ones. The
second command goes on where the first was stopped: 2 x 16 and 4 x 8 samples are the same global batch.

Examples
--------
torchrun --standalone --nproc-per-node 2 examples/ddp.py FOLDER
torchrun --standalone --nproc-per-node 4 examples/ddp.py FOLDER --batch-size 8
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

import mmapload


def make_store(path: str, samples: int) -> None:
    """Preprocess samples of a line with noise."""
    random = np.random.default_rng(0)
    xs = random.normal(size=(samples, 16)).astype(np.float32)
    small = "1KiB"  # for so few samples
    mmapload.preprocess([{"x": x, "y": x.sum()} for x in xs], path, batch_size=8, chunk_bytes=small)


def save(state: dict[str, Any], path: str) -> None:
    """Write a checkpoint so that there is a whole one at any moment."""
    torch.save(state, f"{path}.new")
    os.replace(f"{path}.new", path)


def train(options: argparse.Namespace) -> None:
    """Train from the beginning, or from the checkpoint in the folder if there is one."""
    rank, checkpoint = dist.get_rank(), f"{options.folder}/checkpoint.pt"
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dataset = mmapload.ChunkDataset(f"{options.folder}/store", with_index=True)
    loader = mmapload.ChunkDataLoader(dataset, options.batch_size, shuffle=True, window=64)  # 1
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.state_dict()["epoch"], options.epochs):
        loader.set_epoch(epoch)  # 2
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            position = loader.state_dict()
            if options.verbose:
                print(epoch, position["step"], *batch["index"].tolist(), flush=True)
            if rank == 0 and position["step"] % options.every == 0:
                parts = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                save(parts | {"loader": position}, checkpoint)  # 3
                print(f"epoch {epoch}, step {position['step']} of {len(loader)}: loss {loss.item():.4f}")


def main() -> None:
    """Make the store on one rank if it is not there, and train on all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", help="where the store and the checkpoint are, or will be")
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a rank in a step (16)")
    parser.add_argument("--epochs", type=int, default=3, help="(3)")
    parser.add_argument("--every", type=int, default=4, help="steps from one checkpoint to the next (4)")
    parser.add_argument("--samples", type=int, default=256, help="in the store, if it has to be made (256)")
    parser.add_argument("--verbose", action="store_true", help="print epoch, step and samples of each batch")
    options = parser.parse_args()
    dist.init_process_group("gloo")  # or "nccl", with the model and ChunkDataLoader(device=...) on GPUs
    if dist.get_rank() == 0 and not os.path.exists(f"{options.folder}/store"):
        make_store(f"{options.folder}/store", options.samples)
    dist.barrier()
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
