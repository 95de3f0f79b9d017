"""LitData: chunks optimised for streaming."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from peers.describing import CORES, Peer, Way, sample

if TYPE_CHECKING:
    from pathlib import Path

    from settings import Case

LARGE = 2**20
"""Bytes from which on a sample is a large one, for the choice of a chunk size."""


def _tensors(case: Case, file: str) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in sample(case, file).items()}


def convert(case: Case, folder: Path) -> None:
    """Write chunks as large as the FAQ advises."""
    import litdata

    # README, FAQ "What chunk_bytes should I use?": 64MB, and 256 to 512MB where a sample has a few MB.
    size = "256MB" if case.nbytes // len(case.files) > LARGE else "64MB"
    litdata.optimize(
        partial(_tensors, case),
        list(case.files),
        str(folder),
        chunk_bytes=size,
        num_workers=CORES,
        start_method="fork",
        verbose=False,
    )


def ways(case: Case, folder: Path) -> list[Way]:
    """Load by worker processes."""

    def make() -> Any:
        from litdata import StreamingDataLoader, StreamingDataset

        # README, "Shuffle, seed, and drop_last": shuffle=True. drop_last=True is advised for training, but
        # here every sample has to come.
        data = StreamingDataset(str(folder), shuffle=True, drop_last=False)
        return StreamingDataLoader(data, batch_size=case.batch, num_workers=CORES)

    return [Way(f"LitData, {CORES} workers", CORES, make)]


PEER = Peer("litdata", "litdata", ("litdata",), ways, convert)
