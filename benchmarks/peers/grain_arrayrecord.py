"""Grain over ArrayRecord files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from peers.describing import CORES, Epochs, Peer, Way, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case

AHEAD = 2
"""Batches to read ahead where samples are larger than what Grain's defaults are for."""


def convert(case: Case, folder: Path) -> None:
    """Write one sample a record, its fields end to end."""
    from array_record.python.array_record_module import ArrayRecordWriter

    # ArrayRecord's "Performance Guide", random access: group_size:1. Uncompressed, as all other copies are.
    writer = ArrayRecordWriter(str(folder / "samples.arrayrecord"), "group_size:1,uncompressed")
    for arrays in samples(case):
        writer.write(b"".join(array.tobytes() for array in arrays.values()))
    writer.close()


def ways(case: Case, folder: Path) -> list[Way]:
    """Read by threads."""
    fields = [(field.name, field.dtype, field.shape) for field in case.store.layout.fields]
    sizes = [field.sample_nbytes for field in case.store.layout.fields]
    ends = np.cumsum(sizes)

    def parse(record: bytes) -> dict[str, Any]:
        return {
            name: np.frombuffer(record[end - size : end], dtype).reshape(shape)
            for (name, dtype, shape), size, end in zip(fields, sizes, ends, strict=True)
        }

    def make() -> Epochs:
        import grain
        from grain.sources import ArrayRecordDataSource

        source = ArrayRecordDataSource([str(folder / "samples.arrayrecord")])
        # grain.ReadOptions: the defaults (16 threads, 500 elements) are for elements of 1 to 10 KiB.
        is_large = case.nbytes // len(case.files) > 10 * 2**10
        options = (
            grain.ReadOptions(num_threads=2 * CORES, prefetch_buffer_size=AHEAD * case.batch)
            if is_large
            else grain.ReadOptions()
        )

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            # "MapDataset": global shuffle, then map; batches are made of what has been read ahead.
            data = grain.MapDataset.source(source).shuffle(seed=number).map(parse)
            for batch in data.to_iter_dataset(options).batch(case.batch):
                yield {name: torch.from_numpy(array) for name, array in batch.items()}

        return Epochs(epoch)

    return [Way("Grain over ArrayRecord", 0, make)]


PEER = Peer("grain", "grain", ("grain", "array_record.python.array_record_module"), ways, convert)
