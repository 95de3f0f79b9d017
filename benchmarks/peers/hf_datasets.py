"""Hugging Face datasets: Arrow files, memory-mapped."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from peers.describing import CORES, Peer, Way, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Write Arrow files by a generator, and keep those alone."""
    import datasets

    def feature(field: Any) -> Any:
        kind = field.dtype.name
        if len(field.shape) == 1:
            return datasets.List(datasets.Value(kind), length=field.shape[0])
        # "Use with PyTorch", N-dimensional arrays: the Array features, for arrays of one shape.
        return getattr(datasets, f"Array{len(field.shape)}D")(shape=field.shape, dtype=kind)

    def generate() -> Iterator[dict[str, Any]]:
        yield from samples(case)

    features = datasets.Features({field.name: feature(field) for field in case.store.layout.fields})
    cache = folder / "cache"
    datasets.disable_progress_bars()
    # "Create a dataset": from_generator, the memory-saving way; rows are written out batch by batch.
    datasets.Dataset.from_generator(
        generate, features=features, cache_dir=str(cache), writer_batch_size=case.batch
    )
    for number, file in enumerate(sorted(cache.rglob("*.arrow"))):
        file.rename(folder / f"{number:04}.arrow")
    shutil.rmtree(cache)


def ways(case: Case, folder: Path) -> list[Way]:
    """Read random rows by worker processes."""
    fields = case.store.layout.fields

    def collate(table: Any) -> dict[str, torch.Tensor]:
        """Take a table for what it is: arrays end to end, below their lists."""
        found = {}
        for field in fields:
            column = table[field.name].combine_chunks()
            column = getattr(column, "storage", column)
            while hasattr(column, "flatten") and hasattr(column.type, "value_type"):
                column = column.flatten()
            array = column.to_numpy(zero_copy_only=False).reshape(-1, *field.shape)
            found[field.name] = torch.from_numpy(array if array.flags.writeable else array.copy())
        return found

    def make() -> Any:
        import datasets

        parts = [datasets.Dataset.from_file(str(file)) for file in sorted(folder.glob("*.arrow"))]
        # "Use with PyTorch": a BatchSampler, so that a batch is one query; several workers. The format is
        # "arrow", since "torch" and "numpy" make int64 of uint8 ("Dataset format").
        data = datasets.concatenate_datasets(parts).with_format("arrow")
        return DataLoader(
            data,
            sampler=BatchSampler(RandomSampler(data), case.batch, drop_last=False),
            batch_size=None,
            collate_fn=collate,
            num_workers=CORES,
        )

    return [Way(f"HF datasets, {CORES} workers", CORES, make)]


PEER = Peer("datasets", "datasets", ("datasets",), ways, convert)
