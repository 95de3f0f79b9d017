"""tensordict: one MemoryMappedTensor a field, gathered by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from peers.describing import Epochs, Peer, Way, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Fill memory-mapped tensors row by row."""
    from tensordict import TensorDict

    count = len(case.files)
    # "Using TensorDict for datasets": memory-mapped tensors are allocated first, then filled.
    dtypes = {field.name: torch.from_numpy(_empty(field)).dtype for field in case.store.layout.fields}
    shapes = {field.name: field.shape for field in case.store.layout.fields}
    like = {name: torch.zeros((), dtype=dtypes[name]).expand(count, *shapes[name]) for name in shapes}
    data = TensorDict(like, batch_size=[count]).memmap_like(str(folder))
    for number, arrays in enumerate(samples(case)):
        for name, array in arrays.items():
            data[name][number] = torch.from_numpy(array)


def _empty(field: Any) -> Any:
    import numpy as np

    return np.empty(0, field.dtype)


def ways(case: Case, folder: Path) -> list[Way]:
    """Gather whole batches of random rows."""

    def make() -> Epochs:
        from tensordict import TensorDict

        data = TensorDict.load_memmap(str(folder))
        names = [field.name for field in case.store.layout.fields]
        # "Load data and share it between processes": collate_fn=lambda x: x keeps the batch that one index
        # operation reads; no worker processes there.
        loader = DataLoader(data, case.batch, shuffle=True, collate_fn=lambda batch: batch)

        def epoch(_: int) -> Iterator[dict[str, torch.Tensor]]:
            for batch in loader:
                yield {name: batch[name] for name in names}

        return Epochs(epoch)

    return [Way("tensordict memmap", 0, make)]


PEER = Peer("tensordict", "tensordict", ("tensordict",), ways, convert)
