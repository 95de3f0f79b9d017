"""An unfinished store: which chunks are done, which samples are left out, and what each chunk holds.

Samples are counted in three ways. Their *index* is the source's. Their *position* is where they stand in
the order of writing, which a shuffle permutes. Chunk i holds the positions i x C to (i + 1) x C of those
that are not left out. The journal keeps all of it, so that another run can go on.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError
from mmapload.order.bijection import bijection
from mmapload.order.philox import Purpose, stream_key
from mmapload.preprocessing.gathering import added, many_of
from mmapload.preprocessing.outcomes import BadSample, DoneChunk, SkippedSample
from mmapload.ragged import extents_folder
from mmapload.spent import Spent, now, spend
from mmapload.writer.durable import explained, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from mmapload.layout import StoreLayout
    from mmapload.order.bijection import Bijection
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.sources import IndexedSource
    from mmapload.sources.grouped import Sums
    from mmapload.writer.journal import Journal
    from mmapload.writer.workfolder import WorkFolder

__all__ = [
    "BadSample",
    "Build",
    "DoneChunk",
    "SkippedSample",
    "chunk_folders",
    "counted",
    "digest_of",
    "writing_order",
]

DIGEST_BYTES: Final = 8
_NAMES_AT_ONCE: Final = 4096
_WRITING_LANE: Final = 2**32 - 1
"""Keeps the order of writing apart from every epoch's order: there are never so many lanes."""


def digest_of(source: IndexedSource, index: int) -> str:
    """Return 16 hexadecimal digits that change with the sample."""
    since = now()
    digest = hashlib.blake2b(source.fingerprint(index), digest_size=DIGEST_BYTES).hexdigest()
    spend("reading", since)
    return digest


def counted(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Add up counts of samples of all chunks.

    Examples
    --------
    >>> sorted(counted([{"x": 2}, {"x": 1, "y": 1}]).items())
    [('x', 3), ('y', 1)]
    """
    return sum(map(Counter, counts), Counter())


def writing_order(samples: int, seed: int | None) -> Bijection | None:
    """Return the index of the sample at each position in the order of writing; None if they are the same."""
    return None if seed is None else bijection(samples, stream_key(seed, 0, Purpose.FULL, _WRITING_LANE))


def chunk_folders(layout: StoreLayout) -> list[str]:
    """List the folders below a store in which chunk files of its fields lie."""
    return [field.name for field in layout.fields] + [extents_folder(field) for field in layout.ragged]


class Build:
    """The state of a run over an indexed source; used by one thread.

    Parameters
    ----------
    plan : PreprocessPlan
        With a known number of samples.
    work : WorkFolder
        Where the store is built.
    journal : Journal
        Where every step is noted.

    Attributes
    ----------
    done : dict of int to DoneChunk
        What is written and noted, by chunk.
    done_samples : int
        How many samples these chunks hold.
    skipped : dict of int to SkippedSample
        What is left out, by position.
    skipped_digests : dict of int to str
        `digest_of` these, empty where it could not be told.
    sums : Sums
        Of all chunks that are done.
    spent : Spent
        What threads spend their time on.
    """

    def __init__(self, plan: PreprocessPlan, work: WorkFolder, journal: Journal) -> None:
        self.plan = plan
        self.source = plan.indexed
        self.work = work
        self.done: dict[int, DoneChunk] = {}
        self.skipped: dict[int, SkippedSample] = {}
        self.skipped_digests: dict[int, str] = {}
        self.sums: Sums = {}
        self.spent = Spent()
        self._many = many_of(plan)
        self._journal = journal
        self._total = len(self.source)
        self.done_samples = 0
        self._order = writing_order(self._total, plan.options.shuffle)
        self._layout: StoreLayout | None = None

    @property
    def layout(self) -> StoreLayout:
        """The store as it will be if no more samples are left out."""
        if self._layout is None:
            self._layout = self.plan.layout(self._total - len(self.skipped), len(self.skipped))
        return self._layout

    def keep_contents(self, contents: Mapping[str, str]) -> None:
        """Let the store say what was in its samples; nothing may be left out any more."""
        self._layout = replace(self.layout, source={**self.layout.source, **contents})

    def missing(self) -> list[int]:
        """List the chunks that are not done, in order."""
        return [chunk for chunk in range(self.layout.chunks) if chunk not in self.done]

    def positions(self, chunk: int) -> list[int]:
        """List the positions of the samples of a chunk, in order."""
        start = chunk * self.layout.chunk_length
        return self._remaining(start, start + self.layout.chunk_samples(chunk))

    def indices(self, positions: Sequence[int]) -> list[int]:
        """Return the indices in the source of the samples at these positions."""
        if self._order is None:
            return list(positions)
        found: list[int] = self._order.forward(np.array(positions, np.int64)).tolist()
        return found

    def heads(self, chunk: int) -> list[int]:
        """Return the indices of the samples of a chunk whose digests are kept, in order."""
        indices = self.indices(self.positions(chunk))
        return indices if self._many is None else self._many.heads(indices)

    def left(self) -> list[int]:
        """Return the indices of all samples that are not left out."""
        return self.indices(self._remaining(0, self.layout.samples))

    def positions_of(self, indices: Sequence[int]) -> list[int]:
        """Return the positions of samples of the source."""
        if self._order is None:
            return list(indices)
        found: list[int] = self._order.inverse(np.array(indices, np.int64)).tolist()
        return found

    def chunks_of(self, positions: Sequence[int]) -> list[int]:
        """List the chunks that the samples at these positions are in, none of which is left out."""
        before = np.searchsorted(np.array(sorted(self.skipped), np.int64), positions)
        found: list[int] = np.unique((np.array(positions) - before) // self.layout.chunk_length).tolist()
        return found

    def stored_names(self) -> Iterator[str]:
        """Names of all samples, as they are stored."""
        for start in range(0, self.layout.samples, _NAMES_AT_ONCE):
            stop = min(start + _NAMES_AT_ONCE, self.layout.samples)
            indices = self.indices(self._remaining(start, stop))
            if self._many is not None:
                yield from self._many.names(indices)
            else:
                yield from (self.source.name(index) or "" for index in indices)

    def counts(self) -> tuple[Counter[str], Counter[str]]:
        """Count the samples that are done and have stand-ins, and those with NaN or infinity, by field."""
        done = self.done.values()
        return counted(each.stand_ins for each in done), counted(each.non_finite for each in done)

    def _remaining(self, start: int, stop: int) -> list[int]:
        ranks = np.arange(start, stop, dtype=np.int64)
        skipped = np.array(sorted(self.skipped), np.int64)
        # skipped[k] - k samples remain before the k-th one that was left out.
        before = np.searchsorted(skipped - np.arange(skipped.size), ranks, side="right")
        found: list[int] = (ranks + before).tolist()
        return found

    def commit(self, chunks: Sequence[DoneChunk]) -> None:
        """Note that chunks are done: their files are flushed, now also their names, then the journal.

        Raises
        ------
        UnsoundFileError
            If a file proves not sound of which everything is read now. The chunks are noted all the same.
        """
        if not chunks:
            return
        for folder in chunk_folders(self.layout):
            sync_folder(os.path.join(self.work.store, folder))
        self._note(done.note for done in chunks)
        self.done.update((done.chunk, done) for done in chunks)
        self.done_samples += sum(self.layout.chunk_samples(done.chunk) for done in chunks)
        if self._many is not None:
            self.sums = added([self.sums, *(done.sums for done in chunks)])
            self._many.prove({key: self.sums[key] for done in chunks for key in done.sums})

    def undo(self, chunks: Sequence[int]) -> None:
        """Note that chunks are not done after all."""
        self._note([{"undo": list(chunks)}])
        self.keep([chunk for chunk in self.done if chunk not in chunks])

    def skip(self, bad: Sequence[BadSample], first: int) -> None:
        """Leave samples out, the first of them in chunk `first`: it and all later ones are no longer done.

        Raises
        ------
        SourceError
            If no sample is left.
        """
        ordered = sorted(bad, key=lambda each: each.position)
        notes = [
            asdict(each.skipped) | {"position": each.position, "digest": each.digest} for each in ordered
        ]
        self._note([{"skip": notes, "from": first}])
        self._leave_out(notes, first)
        if len(self.skipped) == self._total:
            worst = min(self.skipped.values(), key=lambda each: each.index)
            raise SourceError(worst.file, worst.member, f"{worst.cause}; and no other sample is sound")

    def replay(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Take what a journal says, after its first line, for what is done and left out."""
        self.done, self.skipped, self.skipped_digests, self._layout = {}, {}, {}, None
        for entry in entries:
            if "skip" in entry:
                self._leave_out(entry["skip"], entry["from"])
            elif "undo" in entry:
                self.done = {chunk: done for chunk, done in self.done.items() if chunk not in entry["undo"]}
            else:
                self.done[entry["chunk"]] = DoneChunk.from_note(entry)
        self.keep(self.done)

    def _leave_out(self, notes: Iterable[Mapping[str, Any]], first: int) -> None:
        for note in notes:
            self.skipped[note["position"]] = SkippedSample(
                note["index"], note["file"], note["member"], note["cause"]
            )
            self.skipped_digests[note["position"]] = note["digest"]
        self._layout = None
        self.keep(chunk for chunk in self.done if chunk < first)

    def keep(self, chunks: Iterable[int]) -> None:
        """Take only these chunks for done."""
        self.done = {chunk: self.done[chunk] for chunk in chunks}
        self.done_samples = sum(self.layout.chunk_samples(chunk) for chunk in self.done)
        self.sums = added(done.sums for done in self.done.values())

    def close(self) -> None:
        """Close the journal."""
        self._journal.close()

    def _note(self, entries: Iterable[Mapping[str, Any]]) -> None:
        with explained(self.work.journal, 2**12):
            self._journal.append(entries)
