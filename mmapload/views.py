"""What of a store a process reads: which fields, which samples, inside which budget."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.budget import most_maps, resolve_budget
from mmapload.checks import VERIFY, Checks, Verify
from mmapload.chunkfile import expect_size
from mmapload.gather import BatchReader
from mmapload.order import Geometry
from mmapload.ranks import processes_here
from mmapload.readers import reader_for
from mmapload.residency import Residency
from mmapload.room import most_chunks, nbytes_of_most
from mmapload.selection import chosen_fields
from mmapload.sizes import format_size
from mmapload.store import StrPath, open_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from mmapload.order import Chosen

__all__ = ["StoreView"]


class StoreView:
    """Fields and samples of a store, read within a budget by every process for itself.

    Parameters
    ----------
    path, fields, memory, verify
        As for `ChunkDataset`.

    Attributes
    ----------
    chosen : Chosen or None
        The samples, by their numbers in the store; None: all.
    workers : int
        Processes that read beside this one, told by whoever starts them, so that a window fits in each.
    """

    def __init__(
        self, path: StrPath, fields: Sequence[str] | None, memory: str | float, verify: Verify
    ) -> None:
        if verify not in VERIFY:
            raise ValueError(f"verify is one of {', '.join(VERIFY)}, not {verify!r}")
        self.store = open_store(path)
        self.fields = chosen_fields(self.store, fields)
        self.store.expect_all_files(self.fields)
        self._chunk_sizes: NDArray[np.int64] | None = None
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
        self.chosen: Chosen | None = None
        self.workers = 0
        self._portion = 1.0  # of the budget, where what is resident cannot be shared
        self._checks = self._make_checks(verify)
        self._reading: BatchReader | None = None

    def _make_checks(self, verify: Verify) -> Checks:
        # Without a chunk file there is nothing to check, however many chunks the store says that it has.
        return Checks(verify, len(self.fields), self.store.layout.chunks if self.chunk_nbytes else 0)

    @property
    def field_names(self) -> tuple[str, ...]:
        """Names of the fields that are loaded."""
        return tuple(field.name for field in self.fields)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.store.layout.samples if self.chosen is None else self.chosen.samples

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The numbers of the samples in the store, int64, made when asked for."""
        return np.arange(self.samples) if self.chosen is None else self.chosen.all_numbers()

    def stored(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers in the store of samples by their numbers here, each in [0, samples)."""
        return samples if self.chosen is None else self.chosen.numbers(samples)

    @property
    def fingerprint(self) -> str:
        """The store's, or of chosen samples one that they have a part in."""
        if self.chosen is None:
            return self.store.fingerprint
        return hashlib.sha256(self.store.fingerprint.encode() + self.chosen.digest()).hexdigest()[:16]

    @property
    def geometry(self) -> Geometry:
        """What an order needs to know of the store, and the number of samples here."""
        layout = self.store.layout
        return Geometry(self.samples, layout.chunk_length, layout.batch_size)

    @property
    def chunks(self) -> int:
        """Number of chunks that hold any of the samples."""
        return self.store.layout.chunks if self.chosen is None else len(self.chosen.chunks)

    @property
    def chunk_nbytes(self) -> int:
        """Decoded bytes of one chunk of the chosen fields; the largest where they differ."""
        sizes = self._sizes
        return sizes if isinstance(sizes, int) else int(sizes.max())

    @property
    def _sizes(self) -> int | NDArray[np.int64]:
        """Decoded bytes of a chunk: one number for all, or each chunk's own where a field is ragged."""
        if not self.is_ragged:
            return sum(field.chunk_nbytes for field in self.fields)
        if self._chunk_sizes is None:
            self._chunk_sizes = self.store.chunk_nbytes(self.fields)
        return self._chunk_sizes

    @property
    def is_ragged(self) -> bool:
        """Whether samples of any chosen field differ in shape."""
        return any(field.is_ragged for field in self.fields)

    def shapes(self, field: str) -> NDArray[np.int64]:
        """Return the shape of every sample of a field, shape (samples, axes): to make buckets of, say.

        Raises
        ------
        KeyError
            If there is no such field.
        ChunkError
            If a file that says how long samples are is missing or damaged.

        Examples
        --------
        >>> import mmapload, numpy as np, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> samples = [{"words": np.arange(length)} for length in (3, 0, 9, 4)]
        >>> _ = mmapload.preprocess(samples, folder.name + "/store", 2, ragged="words")
        >>> mmapload.ChunkDataset(folder.name + "/store").shapes("words")[:, 0].tolist()
        [3, 0, 9, 4]
        """
        found = self.store.field(field)
        if not found.is_ragged:
            return np.broadcast_to(np.array(found.shape, np.int64), (self.samples, len(found.shape)))
        return self.reading.residency.reader.places(field, self.numbers)[1]

    @property
    def sample_nbytes(self) -> int:
        """Bytes of a sample of the chosen fields; on average where they differ."""
        return sum(map(self.store.sample_nbytes, self.fields))

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
        if self.is_raw:
            # Half of the maps that a process may have: one each, and another for the gap behind it in a span.
            fields = sum(2 for field in self.fields if field.sample_nbytes or field.is_ragged)
            chunks = max(1, most_maps() // 2 // max(1, fields))
            most = self.memory if self.chunks <= chunks else nbytes_of_most(self._sizes, chunks)
            return min(self.memory, max(most, self.chunk_nbytes))
        return int(self.memory // processes_here(self.workers) * self._portion)

    @property
    def chunks_held(self) -> int:
        """Number of chunks that a process which reads may hold."""
        return max(1, min(self.chunks, most_chunks(self._sizes, self._share)))

    @property
    def _all_nbytes(self) -> int:
        sizes = self._sizes
        if isinstance(sizes, int):
            return self.chunks * sizes
        return int((sizes if self.chosen is None else sizes[np.asarray(self.chosen.chunks)]).sum())

    @property
    def residency(self) -> Residency:
        """Which chunks are in this process's memory; made anew in every process."""
        return self.reading.residency

    @property
    def reading(self) -> BatchReader:
        """What puts batches together in this process, and counts them."""
        found = self._reading
        if found is not None and found.pid == os.getpid():
            return found
        # After a fork the parent's locks and threads do not exist here. What it held stays referenced,
        # untouched: taking it apart would need those locks.
        self._inherited = found
        exceeds = self.exceeds_memory
        reader = reader_for(self.store, self.fields, self._checks, drop_behind=exceeds, held=self.chunks_held)
        residency = Residency(reader, self._sizes, self.chunks, self._share)
        ragged = sum(self.store.sample_nbytes(field) for field in self.fields if field.is_ragged)
        self._reading = made = BatchReader(residency, self.fields, self.store.layout.chunk_length, ragged)
        return made

    def part(self, positions: Chosen, portion: float = 1.0) -> Any:
        """Return a view, of the same class, of the samples at positions among these.

        Parameters
        ----------
        positions : Chosen
            Without repeats.
        portion : float
            Of the budget, where what is resident cannot be shared with other parts.
        """
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("_inherited", None)
        chosen = positions if self.chosen is None else self.chosen.among(positions)
        made.chosen = None if chosen.span == (0, self.store.layout.samples) else chosen
        made.workers = 0
        made._portion = self._portion * portion
        made._reading = None
        return made

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state.pop("_inherited", None)
        state["_checks"] = self._checks.verify
        state["_reading"] = state["_chunk_sizes"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._checks = self._make_checks(state["_checks"])
