"""WebDataset: tar files of .npy members."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from peers.describing import CORES, Epochs, Peer, Way, samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from settings import Case

SHARDS = 32
"""Enough to be shuffled, and a multiple of the workers that they are dealt to."""


def convert(case: Case, folder: Path) -> None:
    """Write equal shards."""
    import webdataset

    # "Sharding, Parallel I/O, and DataLoader": many shards, for parallel reading and for shuffling.
    length = -(-len(case.files) // SHARDS)
    pattern = str(folder / "%06d.tar")
    with webdataset.ShardWriter(pattern, maxcount=length, maxsize=2**40, verbose=0) as writer:
        for number, arrays in enumerate(samples(case)):
            members = {f"{name}.npy": array for name, array in arrays.items()}
            writer.write({"__key__": f"{number:08}"} | members)


def ways(case: Case, folder: Path) -> list[Way]:
    """Load by worker processes."""
    # "Sharding, Parallel I/O, and DataLoader": .shuffle(100); README: .shuffle(1000), which would hold all of
    # the large samples in memory.
    mixed = 100 if case.nbytes // len(case.files) > 2**20 else 1000
    names = [field.name for field in case.store.layout.fields]

    def make() -> Any:
        import webdataset

        shards = sorted(map(str, folder.glob("*.tar")))
        data = (
            webdataset.WebDataset(shards, shardshuffle=len(shards))
            .shuffle(mixed)
            .decode()
            .to_tuple(*(f"{name.lower()}.npy" for name in names))
            .batched(case.batch)  # wds-distributed: batch inside the workers, samples are slow to transfer
        )
        loader = webdataset.WebLoader(data, num_workers=CORES, batch_size=None)

        def epoch(_: int) -> Iterator[dict[str, torch.Tensor]]:
            for batch in loader:
                yield {name: torch.as_tensor(array) for name, array in zip(names, batch, strict=True)}

        return Epochs(epoch)

    return [Way(f"WebDataset, {CORES} workers", CORES, make)]


PEER = Peer("webdataset", "webdataset", ("webdataset",), ways, convert)
