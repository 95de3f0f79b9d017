"""A torch Dataset over a store: `ds[i]` is a sample, a list of indices is a batch, both from memory."""

from __future__ import annotations

import mmap
import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

import torch
from torch.utils.data import Dataset, get_worker_info

from mmapload.batches import ReadyBatch, Sample
from mmapload.forms import RaggedForm, checked_form
from mmapload.order import Chosen
from mmapload.selection import sample_numbers
from mmapload.served import served_batch
from mmapload.sizes import format_size
from mmapload.streams import EPOCH_UNKNOWN, PLAIN, EndingNoLoop, rng_passing, streams_of, with_rngs
from mmapload.subsets import chosen_positions, drawn_parts
from mmapload.views import StoreView
from mmapload.workers.indices import SlotIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from mmapload.checks import Verify
    from mmapload.gather import Take
    from mmapload.store import StrPath
    from mmapload.streams import Stream
    from mmapload.subsets import SplitBy

__all__ = ["ChunkDataset", "Sample"]


class ChunkDataset(StoreView, Dataset[Any]):
    """Samples of a store, for torch's DataLoader or mmapload's.

    Parameters
    ----------
    path : str or path-like
        A store that `mmapload preprocess` made.
    fields : sequence of str, optional
        The fields to load; all by default.
    transform : callable, optional
        Called with every sample, a dict of field name to tensor; its result takes the sample's place. One
        with a parameter `rng`, or two positional ones, gets a `numpy.random.Generator` as well, keyed by
        seed, epoch and sample: see `docs/resume.md`.
    memory : "auto", a size such as "8GiB" or a number of bytes, or a fraction of the available memory
        Budget for resident chunks on this machine, for all its workers and ranks together: chunks of a raw
        store are shared through the page cache, those of a compressed one divide it. "auto" is 0.6 of what
        is available to the process, its container's limit counted.
    verify : {"first", "never", "always"}
        When the checksum of a chunk is computed: the first time it is loaded, never, or every time.
    with_index : bool
        Whether samples have one more entry, `index`: the sample's number in the store, int64.
    ragged : {"list", "pad", "nested"}
        What a batch has of samples that differ in shape: a list; one tensor filled up with zeros, beside it
        `NAME_mask` (where values are) and `NAME_lengths`; or torch's nested tensor.

    Raises
    ------
    StoreNotFoundError, LayoutError
        If there is no store, or not one that can be read.
    ChunkError
        If the file of a chunk is missing.
    ValueError
        If a field does not exist, or the budget cannot hold one chunk.

    Notes
    -----
    `ds[i]` accepts what `operator.index` does (negative numbers, numpy integers, 0-d integer tensors, and
    True as 1); slices and lists are a TypeError. Every tensor is writable, and writing into it reaches
    neither the store nor a later read. A generator for the transform is of seed 0 and epoch 0 then.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
    >>> ds = mmapload.ChunkDataset(folder.name + "/store")
    >>> len(ds), ds[-1]
    (10, {'x': tensor([9, 9, 9])})
    """

    def __init__(
        self,
        path: StrPath,
        fields: Sequence[str] | None = None,
        transform: Callable[..., Any] | None = None,
        *,
        memory: str | float = "auto",
        verify: Verify = "first",
        with_index: bool = False,
        ragged: RaggedForm = "list",
    ) -> None:
        super().__init__(path, fields, memory, verify)
        self.ragged = checked_form(ragged, self.fields)
        self.transform, self.with_index = transform, with_index
        if with_index and "index" in self.field_names:
            raise ValueError("with_index adds an entry named 'index', and the store has a field of that name")
        self.follows_chunks = False
        self._warned = mmap.mmap(-1, 2)  # bytes that forked workers share, those of every epoch

    @property
    def transform(self) -> Callable[..., Any] | None:
        """What is called with every sample."""
        return self._transform

    @transform.setter
    def transform(self, transform: Callable[..., Any] | None) -> None:
        self._transform = transform
        self._passing = rng_passing(transform)

    @property
    def takes_rng(self) -> bool:
        """Whether the transform asks for a generator."""
        return self._passing is not None

    def subset(
        self, indices: slice | Sequence[int] | Sequence[bool] | npt.NDArray[Any] | torch.Tensor
    ) -> Self:
        """Return a dataset of some of the samples, in the order of the store.

        It follows the chunks as the whole does, in samplers and loaders of mmapload and of torch.

        Parameters
        ----------
        indices : slice, sequence of int, or sequence of bool
            Numbers of samples in this dataset, rising, of which negative ones count from the end; or a mask,
            one entry a sample.

        Returns
        -------
        ChunkDataset
            Its sample k is the k-th of them; `numbers` has all their numbers in the store, and the entry
            `index` that `with_index` adds has them too. It has a budget of its own, as large as this one's.

        Raises
        ------
        ValueError
            If none is chosen, they do not rise, or the mask is of another length.
        IndexError
            If a number lies outside.
        TypeError
            If they are neither numbers nor a mask.

        Examples
        --------
        >>> import mmapload, numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
        >>> ds = mmapload.ChunkDataset(folder.name + "/store")
        >>> odd = ds.subset(slice(1, None, 2))
        >>> len(odd), odd[-1], odd.numbers
        (5, {'x': tensor([9, 9, 9])}, array([1, 3, 5, 7, 9]))
        """
        return self._part(chosen_positions(indices, len(self), self.store.layout.chunk_length))

    def split(self, fraction: float, *, seed: int = 0, by: SplitBy = "sample") -> tuple[Self, Self]:
        """Return two datasets, for training and validation, that share the samples out at random.

        They are as `subset` makes them; parts of a compressed store divide its budget.

        Parameters
        ----------
        fraction : float
            How much of the samples is in the first, to the nearest whole number.
        seed : int
            The same seed draws the same parts, on every machine.
        by : {"sample", "chunk"}
            Single samples are drawn, as by torch's `random_split`; or whole chunks, so that no chunk is read
            for both parts, and batches stay in one piece. Samples of a chunk may be alike, unless the store
            was written with `--shuffle`.

        Raises
        ------
        ValueError
            If a part would have no sample.

        Examples
        --------
        >>> import mmapload, numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
        >>> train, val = mmapload.ChunkDataset(folder.name + "/store").split(0.7)
        >>> train.numbers, val.numbers
        (array([0, 1, 2, 3, 4, 6, 7]), array([5, 8, 9]))
        """
        length = self.store.layout.chunk_length
        whole = self.chosen or Chosen.between(0, len(self), length)
        first, second = drawn_parts(whole, fraction, seed, by)
        share = first.samples / len(self)
        return self._part(first, share), self._part(second, 1 - share)

    def _part(self, positions: Chosen, portion: float = 1.0) -> Self:
        made: Self = self.part(positions, portion)
        made.follows_chunks = False
        made._warned = mmap.mmap(-1, 2)
        return made

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        if not hasattr(index, "__index__"):
            raise TypeError(f"ds[i] takes the number of one sample, not {index!r}")
        batch = self.read([index])
        batch.streams = streams_of([index])
        return self.finish(batch)[0]

    def __iter__(self) -> Iterator[Any]:
        # Without this, Python would end the loop at any IndexError, one in a user's subclass too.
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples of a batch: what torch's DataLoader calls.

        Without a transform, the samples come as a `ReadyBatch`: a sequence of samples for a user's
        own `collate_fn`, which torch's default collation passes through as one dict of stacked tensors.
        """
        if type(self).__getitem__ is not ChunkDataset.__getitem__:
            return [self[index] for index in indices]
        streams = streams_of(indices) if self.takes_rng else None
        if self.takes_rng and streams is None and not self._warned[1]:
            self._warn_once(1, EPOCH_UNKNOWN)
        batch = take = None
        if isinstance(indices, SlotIndices):
            batch = self._read_before(indices)
            take = indices.take if self.transform is None else None
        batch = batch or self.read(indices, take)
        batch.streams = streams
        return self.finish(batch)

    def _read_before(self, indices: SlotIndices) -> ReadyBatch | None:
        """Return a batch that another process has read for this one, None if it has not."""
        tensors, arrays = indices.tensors, indices.arrays(self.fields)
        if arrays is not None:
            tensors = served_batch(self.fields, arrays)
            if self.with_index:
                tensors["index"] = torch.from_numpy(self.stored(sample_numbers(indices, len(self))))
        if tensors is None:
            return None
        return ReadyBatch(tensors, len(indices), self.stored(sample_numbers(indices, len(self))))

    def finish(self, batch: ReadyBatch, stream: Stream | None = None) -> Sequence[Any]:
        """Apply the transform, if there is one, to every sample of a batch.

        Parameters
        ----------
        batch : ReadyBatch
            With the numbers of its samples, and their streams of random numbers if they have any.
        stream : Stream, optional
            Where generators come from otherwise; by default that of seed 0 and epoch 0.
        """
        if self.transform is None:
            return batch
        with EndingNoLoop():
            if self._passing is None or batch.numbers is None:
                return [self.transform(sample) for sample in batch.samples()]
            streams = batch.streams or repeat(stream or PLAIN)
            rngs = (own.rng(number) for own, number in zip(streams, batch.numbers, strict=False))
            return with_rngs(self.transform, self._passing, batch.samples(), rngs)

    def read(self, indices: Sequence[int] | npt.NDArray[np.int64], take: Take | None = None) -> ReadyBatch:
        """Read a batch, without the transform.

        Parameters
        ----------
        indices : sequence of int
            In any order, repeats allowed; negative ones count from the end.
        take : callable, optional
            As for `BatchReader.batch`.

        Returns
        -------
        ReadyBatch
            Tensors of shape (len(indices), *field shape), in memory that nobody else holds.

        Raises
        ------
        IndexError
            If an index lies outside the dataset.
        TypeError
            If one is no integer.
        ChunkError
            If a chunk's file is missing, of the wrong size, or damaged.
        """
        samples = self.stored(sample_numbers(indices, len(self)))
        reading = self.reading
        arrays = reading.batch(samples, take)
        if reading.wanders and not (self._warned[0] or self.follows_chunks):
            self._warn_once(
                0,
                f"samples are read at random from {format_size(self._all_nbytes)}, of which "
                f"{format_size(self.memory)} fit in memory, so most come from the disk one by one. In the "
                "DataLoader, replace shuffle=True by sampler=mmapload.ChunkSampler(dataset, batch_size), or "
                "use mmapload.ChunkDataLoader; for parts of a store, dataset.subset() and dataset.split()",
            )
        tensors = served_batch(self.fields, arrays, self.ragged)
        if self.with_index:
            tensors["index"] = torch.from_numpy(samples)
        return ReadyBatch(tensors, len(samples), samples)

    def _warn_once(self, which: int, text: str) -> None:
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            self._warned[which] = 1
            warnings.warn(text, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_warned": self._warned[:]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._warned = mmap.mmap(-1, 2)
        self._warned[:] = state["_warned"]
