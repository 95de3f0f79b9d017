"""Training with Hugging Face Accelerate over a store: the loader is left out of `prepare`.

A loader of mmapload serves each process its own part and puts it on the device. Accelerate would divide that
part once more; mmapload refuses it. The loader is made after the Accelerator, which tells it the ranks.

Examples
--------
accelerate launch --num-processes 2 examples/accelerate_loop.py FOLDER    # on GPUs; on CPUs it starts one
torchrun --standalone --nproc-per-node 2 examples/accelerate_loop.py FOLDER --cpu
"""

from __future__ import annotations

import argparse
import os
import shutil

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

import mmapload


def make_store(path: str) -> None:
    """Preprocess 240 samples of a line with noise."""
    random = np.random.default_rng(0)
    xs = random.normal(size=(240, 16)).astype(np.float32)
    small = "1KiB"  # for so few samples
    mmapload.preprocess([{"x": x, "y": x.sum()} for x in xs], path, batch_size=8, chunk_bytes=small)


def save(accelerator: Accelerator, folder: str) -> None:
    """Write a checkpoint beside the last one, and then in its place."""
    accelerator.save_state(f"{folder}/new")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(f"{folder}/checkpoint", ignore_errors=True)
        os.replace(f"{folder}/new", f"{folder}/checkpoint")
    accelerator.wait_for_everyone()


def train(accelerator: Accelerator, options: argparse.Namespace) -> None:
    """Train from the beginning, or from the checkpoint in the folder if there is one."""
    torch.manual_seed(0)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    dataset = mmapload.ChunkDataset(f"{options.folder}/store", with_index=True)
    loader = mmapload.ChunkDataLoader(
        dataset, options.batch_size, shuffle=True, window=64, device=accelerator.device
    )
    accelerator.register_for_checkpointing(loader)
    if os.path.exists(f"{options.folder}/checkpoint"):
        accelerator.load_state(f"{options.folder}/checkpoint")
    for epoch in range(loader.state_dict()["epoch"], options.epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step = loader.state_dict()["step"]
            if options.verbose:
                print(epoch, step, *batch["index"].tolist(), flush=True)
            if step % options.every == 0:
                save(accelerator, options.folder)
                accelerator.print(f"epoch {epoch}, step {step} of {len(loader)}: loss {loss.item():.4f}")


def main() -> None:
    """Make the store in one process if it is not there, and train in all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", help="where the store and the checkpoint are, or will be")
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a process in a step (16)")
    parser.add_argument("--epochs", type=int, default=2, help="(2)")
    parser.add_argument("--every", type=int, default=4, help="steps from one checkpoint to the next (4)")
    parser.add_argument("--cpu", action="store_true", help="leave GPUs alone")
    parser.add_argument("--verbose", action="store_true", help="print epoch, step and samples of each batch")
    options = parser.parse_args()
    accelerator = Accelerator(cpu=options.cpu)
    if accelerator.is_main_process and not os.path.exists(f"{options.folder}/store"):
        make_store(f"{options.folder}/store")
    accelerator.wait_for_everyone()
    train(accelerator, options)
    accelerator.end_training()


if __name__ == "__main__":
    main()
