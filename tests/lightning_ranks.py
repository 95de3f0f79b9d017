"""What every rank runs for tests/test_example_lightning.py: what Lightning does to loaders of mmapload."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

from mmapload import ChunkDataLoader, ChunkDataset


class Counting(lightning.LightningModule):
    """Keeps the numbers of the samples that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append(batch["number"].tolist())
        return self.layer(batch["flow"]).mean()

    def predict_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(batch["number"].tolist())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(**arguments: Any) -> lightning.Trainer:
    return lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy="ddp",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **arguments,
    )


def refused(run: Any, *arguments: Any) -> str:
    try:
        run(Counting(), *arguments)
    except (RuntimeError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(path: str, out: str) -> None:
    """Run everything on this rank."""
    ds = ChunkDataset(path)
    early = ChunkDataLoader(ds, 4, shuffle=True)
    found: dict[str, Any] = {"early": refused(trainer().fit, early)}
    late = ChunkDataLoader(ds, 4, shuffle=True)  # there are ranks now
    model = Counting()
    trainer().fit(model, late)
    found["late"] = model.seen
    found["predicting"] = refused(trainer().predict, late)
    model = Counting()
    trainer().predict(model, DataLoader(ds, 4))
    found["predicted"] = model.seen
    found["overfit"] = refused(trainer(overfit_batches=2).fit, late)
    with open(f"{out}/{os.environ['RANK']}.json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
