"""A torch Dataset over a store: `ds[i]` is a sample, a list of indices is a batch, both from memory."""

from __future__ import annotations

import mmap
import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import Dataset, get_worker_info

from mmapload.batches import ReadyBatch, Sample
from mmapload.budget import resolve_budget
from mmapload.checks import VERIFY, Checks, Verify
from mmapload.chunkfile import expect_size
from mmapload.gather import BatchReader, Take
from mmapload.order import Geometry
from mmapload.ranks import processes_here
from mmapload.readers import reader_for
from mmapload.residency import Residency
from mmapload.selection import chosen_fields, sample_numbers
from mmapload.sizes import format_size
from mmapload.store import StrPath, open_store
from mmapload.streams import EPOCH_UNKNOWN, PLAIN, rng_passing, stream_of, with_rngs
from mmapload.workers.indices import SlotIndices

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    from mmapload.streams import Stream

__all__ = ["ChunkDataset", "Sample"]


class ChunkDataset(Dataset[Any]):
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
        Whether samples have one more entry, `index`: the sample's number, int64.

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
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify is one of {', '.join(VERIFY)}, not {verify!r}")
        self.store = open_store(path)
        self.fields = chosen_fields(self.store, fields)
        self.transform = transform
        self.with_index = with_index
        if with_index and "index" in self.field_names:
            raise ValueError("with_index adds an entry named 'index', and the store has a field of that name")
        self.store.expect_all_files(self.fields)
        self.memory = resolve_budget(memory)
        if self.memory < self.chunk_nbytes:
            for field in self.fields:
                if field.sample_nbytes:  # blame a store that claims larger chunks than its files can hold
                    expect_size(field, 0, self.store.chunk_path(field, 0))
            raise ValueError(
                f"memory={memory!r} is {format_size(self.memory)} here, and one chunk takes "
                f"{format_size(self.chunk_nbytes)}: give more memory, load fewer fields, or preprocess "
                "with a smaller --chunk-bytes"
            )
        self.follows_chunks = False
        self.workers = 0  # told by ChunkDataLoader, so that a window fits in each
        self._checks = self._make_checks(verify)
        self._reading: BatchReader | None = None
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

    def _make_checks(self, verify: Verify) -> Checks:
        # Without a chunk file there is nothing to check, however many chunks the store says that it has.
        return Checks(verify, len(self.fields), self.store.layout.chunks if self.chunk_nbytes else 0)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields that are loaded."""
        return tuple(field.name for field in self.fields)

    @property
    def geometry(self) -> Geometry:
        """What an order needs to know of the store."""
        layout = self.store.layout
        return Geometry(layout.samples, layout.chunk_length, layout.batch_size)

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of one chunk of the chosen fields."""
        return sum(field.chunk_nbytes for field in self.fields)

    @property
    def is_raw(self) -> bool:
        """Whether all chosen fields can be mapped, so that processes share what is resident."""
        return all(field.codec.is_raw for field in self.fields)

    @property
    def exceeds_memory(self) -> bool:
        """Whether the chunks do not all fit in the budget."""
        return self._all_nbytes > self.memory

    @property
    def _share(self) -> int:
        """Bytes that resident chunks may take in this process."""
        return self.memory if self.is_raw else self.memory // processes_here(self.workers)

    @property
    def chunks_held(self) -> int:
        """Number of chunks that a process which reads may hold."""
        return max(1, min(self.store.layout.chunks, self._share // max(1, self.chunk_nbytes)))

    @property
    def _all_nbytes(self) -> int:
        return self.store.layout.chunks * self.chunk_nbytes

    @property
    def residency(self) -> Residency:
        """Which chunks are in this process's memory; made anew in every process."""
        return self._read_here().residency

    @property
    def reading(self) -> BatchReader:
        """What puts batches together in this process, and counts them."""
        return self._read_here()

    def __len__(self) -> int:
        return self.store.layout.samples

    def __getitem__(self, index: int) -> Any:
        if not hasattr(index, "__index__"):
            raise TypeError(f"ds[i] takes the number of one sample, not {index!r}")
        return self.finish(self.read([index]), stream_of([index]))[0]

    def __iter__(self) -> Iterator[Any]:
        # Without this, Python would end the loop at any IndexError, one in a user's transform too.
        for index in range(len(self)):
            yield self[index]

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return the samples of a batch: what torch's DataLoader calls.

        Without a transform, the samples come as a `ReadyBatch`: a sequence of samples for a user's
        own `collate_fn`, which torch's default collation passes through as one dict of stacked tensors.
        """
        if type(self).__getitem__ is not ChunkDataset.__getitem__:
            return [self[index] for index in indices]
        stream = stream_of(indices) if self.takes_rng else None
        if self.takes_rng and stream is None and not self._warned[1]:
            self._warn_once(1, EPOCH_UNKNOWN)
        if not isinstance(indices, SlotIndices):
            return self.finish(self.read(indices), stream)
        batch = self._read_before(indices)
        taken = indices.take if self.transform is None else None
        return self.finish(batch or self.read(indices, taken), stream)

    def _read_before(self, indices: SlotIndices) -> ReadyBatch | None:
        """Return a batch that another process has read for this one, None if it has not."""
        tensors, arrays = indices.tensors, indices.arrays(self.fields)
        if arrays is not None:
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            if self.with_index:
                tensors["index"] = torch.from_numpy(sample_numbers(indices, len(self)))
        if tensors is None:
            return None
        return ReadyBatch(tensors, len(indices), sample_numbers(indices, len(self)))

    def finish(self, batch: ReadyBatch, stream: Stream | None = None) -> Sequence[Any]:
        """Apply the transform, if there is one, to every sample of a batch.

        Parameters
        ----------
        batch : ReadyBatch
            With the numbers of its samples.
        stream : Stream, optional
            Where their generators come from; by default that of seed 0 and epoch 0.
        """
        if self.transform is None:
            return batch
        if self._passing is None or batch.numbers is None:
            return [self.transform(sample) for sample in batch.samples()]
        rngs = map((stream or PLAIN).rng, batch.numbers)
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
            If an index lies outside the store.
        TypeError
            If one is no integer.
        ChunkError
            If a chunk's file is missing, of the wrong size, or damaged.
        """
        samples = sample_numbers(indices, len(self))
        reading = self._read_here()
        arrays = reading.batch(samples, take)
        if reading.wanders and not (self._warned[0] or self.follows_chunks):
            self._warn_once(
                0,
                f"samples are read at random from {format_size(self._all_nbytes)}, of which "
                f"{format_size(self.memory)} fit in memory, so most come from the disk one by one. In the "
                "DataLoader, replace shuffle=True by sampler=mmapload.ChunkSampler(dataset, batch_size), or "
                "use mmapload.ChunkDataLoader; a Subset needs a store of its own (preprocess --list FILE)",
            )
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        if self.with_index:
            tensors["index"] = torch.from_numpy(samples)
        return ReadyBatch(tensors, len(samples), samples)

    def _read_here(self) -> BatchReader:
        found = self._reading
        if found is not None and found.pid == os.getpid():
            return found
        # After a fork the parent's locks and threads do not exist here. What it held stays referenced,
        # untouched: taking it apart would need those locks.
        self._inherited = found
        layout = self.store.layout
        exceeds = self.exceeds_memory
        reader = reader_for(self.store, self.fields, self._checks, drop_behind=exceeds)
        residency = Residency(reader, self.chunk_nbytes, layout.chunks, self._share)
        self._reading = made = BatchReader(residency, self.fields, layout.chunk_length)
        return made

    def _warn_once(self, which: int, text: str) -> None:
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            self._warned[which] = 1
            warnings.warn(text, stacklevel=4)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_inherited", None)
        state["_checks"] = self._checks.verify
        state["_reading"] = None
        state["_warned"] = self._warned[:]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._checks = self._make_checks(state["_checks"])
        self._warned = mmap.mmap(-1, 2)
        self._warned[:] = state["_warned"]
