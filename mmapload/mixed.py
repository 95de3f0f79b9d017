"""A torch Dataset over several stores, from which batches are mixed."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch.utils.data import Dataset

from mmapload.batches import ReadyBatch, Sample
from mmapload.buffers import BufferPool
from mmapload.dataset import ChunkDataset
from mmapload.selection import sample_numbers
from mmapload.served import served
from mmapload.streams import DrawnNumber

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.gather import Take
    from mmapload.streams import Stream

__all__ = ["MixedDataset"]

IDLE_BUFFERS: Final = 8
"""Buffers of each field kept for use again, as for batches of one store."""


class MixedDataset(Dataset[Any]):
    """Samples of several stores, those of the first, then those of the second, and so on.

    `MixedBatchSampler` orders them by proportions.

    Parameters
    ----------
    datasets : sequence of ChunkDataset
        At least two, or parts of them, of the same fields: names, dtypes and shapes. Each has its own
        transform and its own memory budget, and the budgets add up: `ChunkDataset(memory=0.3)` for two.

    Attributes
    ----------
    datasets : tuple of ChunkDataset
        As given.
    offsets : int64 ndarray, shape (len(datasets) + 1,)
        The first number of every store's samples here; the last entry is the number of all.

    Raises
    ------
    ValueError
        If fields differ, a dataset is given twice, there are fewer than two, or some have `with_index`, not
        all.
    TypeError
        If one is no ChunkDataset.

    Notes
    -----
    With `with_index`, samples have an entry `index`, their number in their own store, and an entry `store`,
    the number of that among these.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> for name, first in ("a", 0), ("b", 100):
    ...     samples = [{"x": np.full(3, first + i)} for i in range(10)]
    ...     _ = mmapload.preprocess(samples, f"{folder.name}/{name}", 4)
    >>> mixed = MixedDataset([mmapload.ChunkDataset(f"{folder.name}/{name}") for name in "ab"])
    >>> len(mixed), mixed[12]
    (20, {'x': tensor([102, 102, 102])})
    """

    transform = None  # of a whole mix: each store has its own

    def __init__(self, datasets: Sequence[ChunkDataset]) -> None:
        self.datasets = tuple(datasets)
        if len(self.datasets) < 2:
            raise ValueError(f"a mix has at least two datasets, not {len(self.datasets)}")
        for place, dataset in enumerate(self.datasets):
            if not isinstance(dataset, ChunkDataset):
                raise TypeError(f"a mix is one of ChunkDatasets, and dataset {place} is {dataset!r}")
            if any(dataset is other for other in self.datasets[:place]):
                raise ValueError(
                    f"dataset {place} is given twice, and it follows one order at a time: give it a larger "
                    "proportion, or make another ChunkDataset of the same path"
                )
            _expect_alike(self.datasets[0], dataset, place)
        self.offsets = np.cumsum([0, *map(len, self.datasets)])
        self.with_index = self.datasets[0].with_index
        if self.with_index and "store" in self.datasets[0].field_names:
            raise ValueError(
                "with_index adds an entry named 'store', and the stores have a field of that name"
            )
        self._pools: dict[str, BufferPool] = {}

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def __getitem__(self, index: int) -> Any:
        if not hasattr(index, "__index__"):
            raise TypeError(f"ds[i] takes the number of one sample, not {index!r}")
        return self.__getitems__([index])[0]

    def __iter__(self) -> Iterator[Any]:
        # Without this, Python would end the loop at any IndexError, one in a user's transform too.
        for index in range(len(self)):
            yield self[index]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples of a batch: what torch's DataLoader calls.

        Without transforms they come as a `ReadyBatch`, as those of a ChunkDataset do.
        """
        if self.is_plain:
            return self.read(indices)
        numbers = sample_numbers(indices, len(self))
        stores = np.searchsorted(self.offsets, numbers, "right") - 1
        found: list[Any] = []
        # Neighbours of one store and one stream of random numbers are transformed together.
        for (store, stream), run in groupby(
            zip(stores.tolist(), numbers.tolist(), indices, strict=True),
            key=lambda each: (each[0], each[2].stream if isinstance(each[2], DrawnNumber) else None),
        ):
            own = [number - int(self.offsets[store]) for _, number, _ in run]
            samples = self.datasets[store].__getitems__(own if stream is None else stream.numbers(own))
            samples = list(samples.samples()) if isinstance(samples, ReadyBatch) else list(samples)
            if self.with_index:
                samples = [_told(sample, store) for sample in samples]
            found += samples
        return found

    @property
    def is_plain(self) -> bool:
        """Whether samples are what the stores hold: no dataset has a transform, or a class of its own."""
        return all(type(each) is ChunkDataset and each.transform is None for each in self.datasets)

    def finish(self, batch: ReadyBatch, stream: Stream | None = None) -> Sequence[Any]:
        """Return a batch that was read as samples; the stores' own transforms are not for it."""
        return batch

    def read(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> ReadyBatch:
        """Read a batch, without transforms, each store's samples into their part of its memory.

        Raises
        ------
        IndexError, TypeError, ChunkError
            As `ChunkDataset.read` does.
        """
        numbers = sample_numbers(indices, len(self))
        stores = np.searchsorted(self.offsets, numbers, "right") - 1
        order = np.argsort(stores, kind="stable")
        sorted_already = bool((np.diff(stores) >= 0).all())
        fields = {field.name: field for field in self.datasets[0].fields}
        memory = {
            name: self._memory(name, len(numbers) * field.sample_nbytes) for name, field in fields.items()
        }
        tensors = {
            name: torch.from_numpy(np.ndarray((len(numbers), *field.shape), field.dtype, memory[name]))
            for name, field in fields.items()
        }
        own_numbers = []
        stop = 0
        for store, count in enumerate(np.bincount(stores, minlength=len(self.datasets)).tolist()):
            start, stop = stop, stop + count
            if not count:
                continue
            dataset = self.datasets[store]
            own = numbers[order[start:stop]] - self.offsets[store]
            read = dataset.read(own, _taken_in_turn(dataset, memory, start, stop)).tensors
            if self.with_index:
                own_numbers.append(read["index"])
        if self.with_index:
            tensors["index"] = torch.cat(own_numbers) if own_numbers else torch.empty(0, dtype=torch.int64)
            tensors["store"] = torch.from_numpy(stores[order])
        if not sorted_already:
            back = torch.from_numpy(np.argsort(order, kind="stable"))
            tensors = {name: tensor[back] for name, tensor in tensors.items()}
        found: Sample = tensors
        for name, field in fields.items():
            if field.meaning:
                found[name] = served(field, tensors[name].numpy())
        return ReadyBatch(found, len(numbers))

    def _memory(self, name: str, nbytes: int) -> Bytes:
        return self._pools.setdefault(name, BufferPool(IDLE_BUFFERS)).take(nbytes)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pools": {}}


def _taken_in_turn(dataset: ChunkDataset, memory: dict[str, Bytes], start: int, stop: int) -> Take:
    """Give a dataset's reader, field by field, the memory of a batch's samples `start` to `stop`."""
    coming = iter(dataset.fields)

    def take(nbytes: int) -> Bytes:  # noqa: ARG001 - it follows from the field
        field = next(coming)
        return memory[field.name][start * field.sample_nbytes : stop * field.sample_nbytes]

    return take


def _told(sample: Any, store: int) -> Any:
    """Add the number of its store to a sample that is a dict, as a transform may have left it."""
    return sample | {"store": torch.tensor(store)} if isinstance(sample, dict) else sample


def _expect_alike(first: ChunkDataset, dataset: ChunkDataset, place: int) -> None:
    ragged = next((field.name for field in dataset.fields if field.is_ragged), None)
    if ragged is not None:
        raise ValueError(
            f"samples of field {ragged!r} of store {place} differ in shape, which a mix cannot have yet: "
            "leave it out by naming the others in fields"
        )
    expected, found = (
        {field.name: f"{field.values_name} {field.shape}" for field in each.fields}
        for each in (first, dataset)
    )
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            raise ValueError(
                f"all stores of a mix have the same fields, and field {name!r} is "
                f"{expected.get(name, 'absent')} in {first.store.path}, and {found.get(name, 'absent')} in "
                f"{dataset.store.path} (dataset {place}): choose common ones by ChunkDataset(fields=...), or "
                "preprocess anew"
            )
    if dataset.with_index != first.with_index:
        raise ValueError(f"with_index is for all datasets of a mix or none, and dataset {place} differs")
