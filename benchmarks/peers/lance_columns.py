"""Lance: a column a field, of fixed-size lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peers.describing import Epochs, Peer, Way, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Write batch by batch."""
    import lance
    import pyarrow as pa

    fields = case.store.layout.fields
    # "PyTorch Integration": fixed-size lists are what becomes tensors.
    kinds = {
        field.name: pa.list_(pa.from_numpy_dtype(field.dtype), math.prod(field.shape)) for field in fields
    }

    def batches() -> Iterator[Any]:
        rows: list[dict[str, Any]] = []
        for number, arrays in enumerate(samples(case), 1):
            rows.append(arrays)
            if len(rows) == case.batch or number == len(case.files):
                columns = []
                for name, kind in kinds.items():
                    flat = pa.array(np.concatenate([row[name].reshape(-1) for row in rows]))
                    columns.append(pa.FixedSizeListArray.from_arrays(flat, kind.list_size))
                yield pa.record_batch(columns, names=list(kinds))
                rows = []

    schema = pa.schema(list(kinds.items()))
    lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches()), folder / "samples.lance")


def _tensors(case: Case, batch: Any) -> dict[str, torch.Tensor]:
    """Take a record batch for what it is: arrays end to end."""
    found = {}
    for field in case.store.layout.fields:
        column = batch[field.name]
        column = column.combine_chunks() if hasattr(column, "combine_chunks") else column
        flat = column.flatten().to_numpy(zero_copy_only=True)
        found[field.name] = torch.from_numpy(flat.reshape(-1, *field.shape))
    return found


def ways(case: Case, folder: Path) -> list[Way]:
    """Take random rows, or ranges of rows in random order."""
    uri = str(folder / "samples.lance")

    def random_rows() -> Epochs:
        import lance

        # "PyTorch Integration": SafeLanceDataset takes a batch of rows at once. Its way over Python lists
        # would be a million objects a sample here. No workers: Lance has threads, and is not fork-safe.
        data = lance.dataset(uri)

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            order = np.random.default_rng(number).permutation(len(case.files))
            for start in range(0, len(order), case.batch):
                yield _tensors(case, data.take(order[start : start + case.batch].tolist()))

        return Epochs(epoch)

    def random_ranges() -> Epochs:
        import lance
        from lance.sampler import ShardedBatchSampler
        from lance.torch.data import LanceDataset

        data = lance.dataset(uri)

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            # "PyTorch Integration": LanceDataset with batch_readahead; sampler with randomize=True.
            loader = LanceDataset(
                data,
                case.batch,
                batch_readahead=2,
                sampler=ShardedBatchSampler(0, 1, randomize=True, seed=number),
                to_tensor_fn=lambda batch, **_: _tensors(case, batch),
            )
            yield from loader

        return Epochs(epoch)

    return [
        Way("Lance, random rows", 0, random_rows),
        Way("Lance, ranges in random order", 0, random_ranges),
    ]


PEER = Peer("lance", "pylance", ("lance", "lance.torch.data"), ways, convert)
