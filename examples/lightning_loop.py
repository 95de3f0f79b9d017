"""Training with PyTorch Lightning over a store, stopped at any step and resumed.

Lightning leaves the sampler of a ChunkDataLoader as it is, names its epoch, and keeps the loader's state in
its checkpoints. The loader is made in `train_dataloader`, where the ranks are known.

Examples
--------
python examples/lightning_loop.py FOLDER --devices 2
torchrun --standalone --nproc-per-node 2 examples/lightning_loop.py FOLDER --devices 2
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

import mmapload


class StoreData(lightning.LightningDataModule):
    """A store for training and one for validation."""

    def __init__(self, folder: str, batch_size: int) -> None:
        super().__init__()
        self.folder, self.batch_size = folder, batch_size

    def prepare_data(self) -> None:
        """Preprocess samples of a line with noise; Lightning calls this in one process."""
        small = "1KiB"  # for so few samples
        for name, count in (("train", 240), ("validation", 50)):
            if not os.path.exists(f"{self.folder}/{name}.mml"):
                xs = np.random.default_rng(count).normal(size=(count, 16)).astype(np.float32)
                samples = [{"x": x, "y": x.sum()} for x in xs]
                mmapload.preprocess(samples, f"{self.folder}/{name}.mml", batch_size=8, chunk_bytes=small)

    def train_dataloader(self) -> mmapload.ChunkDataLoader:
        """Return the loader of this rank."""
        dataset = mmapload.ChunkDataset(f"{self.folder}/train.mml", with_index=True)
        return mmapload.ChunkDataLoader(dataset, self.batch_size, shuffle=True, window=64)

    def val_dataloader(self) -> mmapload.ChunkDataLoader:
        """Return a loader that repeats no sample on any number of ranks."""
        return mmapload.ChunkDataLoader(f"{self.folder}/validation.mml", self.batch_size, remainder="keep")


class Line(lightning.LightningModule):
    """A linear layer."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__()
        self.verbose = verbose
        self.layer = nn.Linear(16, 1)

    def loss(self, batch: dict[str, torch.Tensor], reduction: str = "mean") -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(self.layer(batch["x"])[:, 0], batch["y"], reduction=reduction)

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return what is minimised."""
        if self.verbose:
            print(self.current_epoch, batch_idx + 1, *batch["index"].tolist(), flush=True)
        return self.loss(batch)

    def on_validation_epoch_start(self) -> None:
        """Begin the sum of losses and the count of samples."""
        self.summed = torch.zeros(2)

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        """Add a batch to both."""
        self.summed += torch.stack([self.loss(batch, "sum"), torch.tensor(float(len(batch["y"])))])

    def on_validation_epoch_end(self) -> None:
        """Sum over the ranks, whose last batches may differ by one sample."""
        total, count = self.trainer.strategy.reduce(self.summed, reduce_op="sum").tolist()
        if self.trainer.is_global_zero:
            print(
                f"epoch {self.current_epoch}: loss {total / count:.4f} over {count:.0f} samples", flush=True
            )

    def configure_optimizers(self) -> Any:
        """Return the optimiser."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def main() -> None:
    """Train from the beginning, or from the checkpoint in the folder if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", help="where the stores and the checkpoint are, or will be")
    parser.add_argument("--devices", type=int, default=1, help="processes (1)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples of a process in a step (16)")
    parser.add_argument("--epochs", type=int, default=2, help="(2)")
    parser.add_argument("--every", type=int, default=4, help="steps from one checkpoint to the next (4)")
    parser.add_argument("--verbose", action="store_true", help="print epoch, step and samples of each batch")
    options = parser.parse_args()
    lightning.seed_everything(0)
    checkpoint = f"{options.folder}/last.ckpt"
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=options.devices,
        strategy="ddp" if options.devices > 1 else "auto",
        max_epochs=options.epochs,
        callbacks=[ModelCheckpoint(options.folder, every_n_train_steps=options.every, save_last=True)],
        default_root_dir=options.folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    trainer.fit(
        Line(verbose=options.verbose),
        datamodule=StoreData(options.folder, options.batch_size),
        ckpt_path=checkpoint if os.path.exists(checkpoint) else None,
    )


if __name__ == "__main__":
    main()
