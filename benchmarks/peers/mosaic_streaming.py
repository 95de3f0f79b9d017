"""MosaicML Streaming: shards of the MDS format."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from peers.describing import CORES, Peer, Way, samples

if TYPE_CHECKING:
    from pathlib import Path

    from settings import Case


def convert(case: Case, folder: Path) -> None:
    """Write shards of the default size."""
    from streaming import MDSWriter

    # "Dataset Conversion Guide": ndarray with dtype and shape, which then need not be stored in each sample.
    columns = {
        field.name: f"ndarray:{field.dtype.name}:{','.join(map(str, field.shape))}"
        for field in case.store.layout.fields
    }
    with MDSWriter(out=str(folder), columns=columns) as writer:
        for arrays in samples(case):
            writer.write(arrays)


def ways(case: Case, folder: Path) -> list[Way]:
    """Load by worker processes, without which it does nothing ahead."""

    def make() -> Any:
        from streaming import StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        clean_stale_shared_memory()  # "FAQs and Tips": after a process that was killed
        # "Shuffling": shuffle=True alone is performant in nearly all cases; batch_size as the loader's
        # ("StreamingDataset"), local alone where the data are on this disk.
        data = StreamingDataset(local=str(folder), shuffle=True, batch_size=case.batch)
        return DataLoader(data, batch_size=case.batch, num_workers=CORES)

    return [Way(f"MosaicML Streaming, {CORES} workers", CORES, make)]


PEER = Peer("streaming", "mosaicml-streaming", ("streaming",), ways, convert)
