"""TensorStore: whole chunks of the same store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from peers.describing import Epochs, Peer, Way, chunk_batches, chunk_spans, store_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from settings import Case

AHEAD = 1
"""Chunks that are read while another is used."""


def ways(case: Case, _: Path) -> list[Way]:
    """Read chunk after chunk, in random order, one ahead."""

    def make() -> Epochs:
        import tensorstore

        def opened(name: str) -> Any:
            path = os.path.join(os.path.abspath(case.store.path), name)
            # "Context framework": no cache_pool limit is given, so nothing is cached beside the page cache;
            # "recheck_cached_metadata": "open" spares a look at the metadata for each read.
            spec = {
                "driver": "zarr3",
                "kvstore": {"driver": "file", "path": path},
                "recheck_cached_metadata": "open",
            }
            return tensorstore.open(spec, read=True).result()

        arrays = {field.name: opened(field.name) for field in case.store.layout.fields}

        def chunks(number: int) -> Iterator[dict[str, Any]]:
            # "Tutorial": reads are asynchronous, so what comes next is read meanwhile.
            coming: list[dict[str, Any]] = []
            for first, end in chunk_spans(case, number):
                coming.append({name: array[first:end].read() for name, array in arrays.items()})
                if len(coming) > AHEAD:
                    yield {name: future.result() for name, future in coming.pop(0).items()}
            for futures in coming:
                yield {name: future.result() for name, future in futures.items()}

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            return chunk_batches(case, number, chunks(number))

        return Epochs(epoch)

    return [Way("TensorStore, whole chunks", 0, make, store_files(case))]


PEER = Peer("tensorstore", "tensorstore", ("tensorstore",), ways)
