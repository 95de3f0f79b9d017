"""A small training loop over a store, in one process or several.

Examples
--------
python examples/train.py
torchrun --standalone --nproc-per-node 2 examples/train.py
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import mmapload


def make_store(folder: Path) -> Path:
    """Write samples of a line with noise as .npz files, and preprocess them once."""
    random = np.random.default_rng(0)
    (folder / "npz").mkdir()
    for number in range(256):
        x = random.normal(size=16).astype(np.float32)
        np.savez(folder / "npz" / f"{number}.npz", x=x, y=np.float32(x.sum()), number=np.int64(number))
    mmapload.preprocess(folder / "npz", folder / "store", batch_size=16)
    return folder / "store"


def train(store: Path, epochs: int = 3) -> list[float]:
    """Fit a linear layer; return the mean loss of every epoch."""
    model: nn.Module = nn.Linear(16, 1)
    if torch.distributed.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = mmapload.ChunkDataLoader(store, batch_size=16, shuffle=True, window=64)
    means = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        losses = []
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        means.append(sum(losses) / len(losses))
        print(f"rank {loader.sampler.rank}, epoch {epoch}: loss {means[-1]:.4f} over {len(losses)} steps")
    return means


def main() -> None:
    """Make the store on one rank, train on all."""
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        first = torch.distributed.get_rank() == 0
        folder = [tempfile.mkdtemp() if first else ""]
        torch.distributed.broadcast_object_list(folder)
        if first:
            make_store(Path(folder[0]))
        torch.distributed.barrier()
        train(Path(folder[0]) / "store")
        torch.distributed.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder_name:
            losses = train(make_store(Path(folder_name)))
            if not losses[-1] < losses[0]:
                raise SystemExit(f"the loss did not go down: {losses}")


if __name__ == "__main__":
    main()
