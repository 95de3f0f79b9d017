"""SPDL: the same .npz files, read by threads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peers.describing import CORES, Epochs, Peer, Way

if TYPE_CHECKING:
    from collections.abc import Iterator

    from settings import Case

READY = 2
"""Batches that may be ready: what torch's DataLoader has for each worker."""


def ways(case: Case, _: Path) -> list[Way]:
    """Read by threads: "Data Format and Performance": spdl.io.load_npz, and multi-threading."""
    fields = {field.name: field.dtype for field in case.store.layout.fields}

    def load(files: list[str]) -> dict[str, torch.Tensor]:
        import spdl.io

        found: list[Any] = [spdl.io.load_npz(Path(file).read_bytes()) for file in files]
        return {
            name: torch.from_numpy(np.stack([np.asarray(arrays[name], dtype) for arrays in found]))
            for name, dtype in fields.items()
        }

    def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
        from spdl.pipeline import PipelineBuilder

        order = np.random.default_rng(number).permutation(len(case.files))
        starts = range(0, len(order), case.batch)
        batches = [[case.files[row] for row in order[start : start + case.batch]] for start in starts]
        # "Building High-Performance DataLoaders": a source of indices, a pipe with concurrency, a sink.
        pipeline = (
            PipelineBuilder()
            .add_source(batches)
            .pipe(load, concurrency=CORES)
            .add_sink(READY)
            .build(num_threads=CORES)
        )
        with pipeline.auto_stop():
            yield from pipeline

    return [Way(f"SPDL over .npz, {CORES} threads", 0, lambda: Epochs(epoch), tuple(case.files))]


PEER = Peer("spdl", "spdl", ("spdl.io", "spdl.pipeline"), ways)
