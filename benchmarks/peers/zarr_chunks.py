"""zarr-python: whole chunks of the same store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peers.describing import Epochs, Peer, Way, chunk_batches, chunk_spans, store_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from settings import Case


def ways(case: Case, _: Path) -> list[Way]:
    """Read chunk after chunk, in random order: "Optimizing performance": access that follows the chunks."""

    def make() -> Epochs:
        import zarr

        group: Any = zarr.open_group(case.store.path, mode="r")
        arrays = {field.name: group[field.name] for field in case.store.layout.fields}

        def epoch(number: int) -> Iterator[dict[str, torch.Tensor]]:
            spans = chunk_spans(case, number)
            chunks = ({name: arrays[name][first:end] for name in arrays} for first, end in spans)
            return chunk_batches(case, number, chunks)

        return Epochs(epoch)

    return [Way("zarr-python, whole chunks", 0, make, store_files(case))]


PEER = Peer("zarr", "zarr", ("zarr",), ways)
