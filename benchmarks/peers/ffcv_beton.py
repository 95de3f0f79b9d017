"""FFCV: one .beton file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from peers.describing import CORES, Epochs, Peer, Way, sample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch
    from settings import Case


class _Samples:
    """What FFCV's writer takes: tuples by number."""

    def __init__(self, case: Case) -> None:
        self.case = case

    def __len__(self) -> int:
        return len(self.case.files)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(sample(self.case, self.case.files[index]).values())


def convert(case: Case, folder: Path) -> None:
    """Write with as many processes as there are cores."""
    from ffcv.fields import NDArrayField
    from ffcv.writer import DatasetWriter

    # "Writing a dataset to FFCV format": NDArrayField for arrays of one shape; the default page size.
    fields = {field.name: NDArrayField(field.dtype, field.shape) for field in case.store.layout.fields}
    writer = DatasetWriter(str(folder / "samples.beton"), fields, num_workers=CORES)
    writer.from_indexed_dataset(_Samples(case))


def _make(case: Case, folder: Path, order: str, *, os_cache: bool) -> Epochs:
    from ffcv.fields.decoders import NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import ToTensor

    names = [field.name for field in case.store.layout.fields]
    loader = Loader(
        str(folder / "samples.beton"),
        case.batch,
        num_workers=CORES,  # ffcv.loader.Loader: consider the number of cores
        order=OrderOption[order],
        os_cache=os_cache,
        drop_last=False,
        pipelines={name: [NDArrayDecoder(), ToTensor()] for name in names},
    )

    def epoch(_: int) -> Iterator[dict[str, torch.Tensor]]:
        for batch in loader:
            yield dict(zip(names, batch, strict=True))

    return Epochs(epoch)


def ways(case: Case, folder: Path) -> list[Way]:
    """Load as the Tuning Guide has it for data that fit in memory, and for those that do not."""
    return [
        # "Tuning Guide", small dataset: os_cache=True, RANDOM.
        Way("FFCV, random", 0, partial(_make, case, folder, "RANDOM", os_cache=True)),
        # "Tuning Guide", large scale datasets: os_cache=False, QUASI_RANDOM.
        Way("FFCV, quasi-random", 0, partial(_make, case, folder, "QUASI_RANDOM", os_cache=False)),
    ]


PEER = Peer("ffcv", "ffcv", ("ffcv", "ffcv.loader"), ways, convert)
