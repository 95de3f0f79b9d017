"""What becomes of a batch once its samples are read: transformed, collated, pinned, sent to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.pin_memory import pin_memory

from mmapload.batches import ReadyBatch, Sample
from mmapload.mixed import MixedDataset
from mmapload.pipeline import Prepared
from mmapload.served import served
from mmapload.streams import streams_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from mmapload.dataset import ChunkDataset
    from mmapload.devices import DeviceCopy
    from mmapload.streams import Stream

__all__ = ["Finishing", "TransformedCollate", "read_group"]


class TransformedCollate:
    """A collate function with a transform of whole batches after it; as picklable as the two are.

    Examples
    --------
    >>> TransformedCollate(default_collate, torch.sum)([1, 2, 3])
    tensor(6)
    """

    def __init__(self, collate_fn: Callable[[Any], Any], batch_transform: Callable[[Any], Any]) -> None:
        self.collate_fn = collate_fn
        self.batch_transform = batch_transform

    def __call__(self, samples: Any) -> Any:
        """Collate the samples and transform the batch."""
        return self.batch_transform(self.collate_fn(samples))


class Finishing:
    """Makes of samples that were read what is delivered.

    Parameters
    ----------
    dataset : ChunkDataset or MixedDataset
        Its transform is for single samples.
    collate_fn, batch_transform : callable
        Called one after the other; the second may be None.
    pins : bool
        Whether tensors are put into pinned memory.
    copying : DeviceCopy or None
        Where the batch goes then.
    stream : Stream, optional
        Where a transform's generators come from, unless samples have streams of their own.

    Attributes
    ----------
    in_threads : bool
        Whether all of it may be done in several threads at once: a `transform` and a `collate_fn` that came
        without a `batch_transform` run in the thread that iterates, as they do with torch.
    """

    def __init__(
        self,
        dataset: ChunkDataset | MixedDataset,
        collate_fn: Callable[[Any], Any],
        batch_transform: Callable[[Any], Any] | None,
        *,
        pins: bool,
        copying: DeviceCopy | None,
        stream: Stream | None = None,
    ) -> None:
        self._dataset = dataset
        self._collate_fn = collate_fn
        self._batch_transform = batch_transform
        self._pins = pins
        self._copying = copying
        self._stream = stream
        self._is_plain = dataset.transform is None and collate_fn is default_collate
        self.in_threads = self._is_plain or batch_transform is not None

    def prepare(self, group: Sequence[npt.NDArray[np.int64] | list[int]]) -> Iterator[Prepared]:
        """Read some batches and do with them what may be done in threads."""
        for indices, batch in zip(group, read_group(self._dataset, group), strict=False):
            if isinstance(indices, list):
                batch.streams = streams_of(indices)
            yield Prepared(self._finish(batch) if self.in_threads else batch, len(batch))

    def deliver(self, prepared: Prepared) -> Any:
        """Return the batch to whoever asked for it; do what is left to be done."""
        batch, prepared.batch = prepared.batch, None
        if not self.in_threads:
            batch = self._finish(batch)
        return batch if self._copying is None else self._copying.arrive(batch)

    def _finish(self, batch: ReadyBatch) -> Any:
        found: Any = batch.collated() if self._is_plain else None
        if not self._is_plain:
            found = self._collate_fn(self._dataset.finish(batch, self._stream))
        if self._batch_transform is not None:
            found = self._batch_transform(found)
        if self._pins:
            found = pin_memory(found)  # type: ignore[no-untyped-call] # torch's has no types
        return found if self._copying is None else self._copying.start(found)


def read_group(
    dataset: ChunkDataset | MixedDataset, group: Sequence[npt.NDArray[np.int64] | list[int]]
) -> Iterator[ReadyBatch]:
    """Read batches with one call, and give each tensors of its own over a part of what was read.

    If that fails, they are read one by one: those before the one at fault are delivered.
    """
    if len(group) == 1 or isinstance(dataset, MixedDataset):
        yield from map(dataset.read, group)
        return
    samples = np.concatenate(group)
    reading = dataset.reading
    try:
        if samples.view(np.uint64).max() >= len(dataset):  # below 0, too
            raise IndexError  # noqa: TRY301 - what is wrong with it is said below
        samples = dataset.stored(samples)
        arrays = reading.batch(samples)
    except Exception:  # noqa: BLE001 - raised again by the batch that it concerns
        yield from map(dataset.read, group)
        return
    reading.copies += len(group) - 1  # counted as one batch so far
    fields = {field.name: field for field in dataset.fields}
    start = 0
    for indices in group:
        stop = start + len(indices)
        # Not slices of tensors: those would share one storage, all of which is saved with any of them.
        parts: Sample = {
            name: served(fields[name], array[start:stop], dataset.ragged) for name, array in arrays.items()
        }
        if dataset.with_index:
            parts["index"] = torch.from_numpy(samples[start:stop])
        yield ReadyBatch(parts, stop - start, samples[start:stop])
        start = stop
