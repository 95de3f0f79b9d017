"""Which part of a store is measured, so that it takes about the time there is, and against what."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mmapload.bench.ceilings import chunk_files, copying, decoding, reading
from mmapload.bench.loaders import Part, fixed_buffers, loaders
from mmapload.bench.rounds import file_bytes, one_round
from mmapload.bench.source import sources

if TYPE_CHECKING:
    from mmapload.bench.matching import Arrays
    from mmapload.bench.rounds import Contender
    from mmapload.store import Store

__all__ = ["Course", "Settings"]

_TRIAL_BYTES: Final = 2**26
_TRIAL_SAMPLES: Final = 1024
"""What is tried first, of a store no larger than that all of it: it takes about a second."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to measure.

    Attributes
    ----------
    batch_size : int
        Samples in a batch.
    rounds : int
        How often each contender is measured.
    seconds : float
        About how long all of it should take; decides how many samples are loaded.
    samples : int or None
        How many, if that is given.
    cold : bool
        Whether files are dropped from the page cache before they are read. They are in any case if the store
        exceeds the memory budget, since training then finds them so.
    source : str or None
        Folder of the `.npz` files that the store was made from.
    memory : "auto", a size or a fraction
        As for `ChunkDataset`.
    """

    batch_size: int
    rounds: int = 3
    seconds: float = 30.0
    samples: int | None = None
    cold: bool = False
    source: str | None = None
    memory: str | float = "auto"


class Course:
    """Makes contenders of a part, and finds a part that takes the time there is.

    Parameters
    ----------
    store : Store
        The whole store.
    settings : Settings
        How to measure.
    arrays : Arrays or None
        Which arrays of the source's files are the fields, if there is a source.
    memory : int
        The budget in bytes.
    exceeds : bool
        Whether the store exceeds it.
    cold : bool
        Whether files are dropped from the page cache before they are read.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        arrays: Arrays | None,
        memory: int,
        *,
        exceeds: bool,
        cold: bool,
    ) -> None:
        self.store = store
        self.settings = settings
        self.arrays = arrays
        self.memory = memory
        self.exceeds = exceeds
        self.cold = cold

    def part(self, samples: int) -> Part:
        """Take about so many samples: all, or whole chunks, or whole batches of less than half a chunk."""
        length, whole = self.store.layout.chunk_length, len(self.store)
        unit = length if 2 * samples >= length else min(self.settings.batch_size, length)
        taken = max(1, samples // unit) * unit
        return Part(
            self.store,
            whole if samples >= whole else min(taken, whole),
            self.settings.batch_size,
            self.exceeds,
            self.memory,
        )

    def contenders(self, part: Part) -> list[Contender]:
        """List what is measured: loaders, the source, and ceilings."""
        files = chunk_files(self.store, part.chunks)
        paths = tuple(path for _, _, path in files)
        buffers = fixed_buffers(part)
        source = []
        if self.arrays is not None and self.settings.source is not None:
            source = list(sources(part, self.settings.source, self.arrays, buffers))
        found = [*loaders(part, buffers, paths, cold=self.cold), *source]
        layout = self.store.layout
        found += copying(buffers, part.batch_size, part.samples, part.samples * layout.sample_nbytes)
        if files:
            held, size = min(part.chunks * layout.chunk_length, layout.samples), file_bytes(paths)
            found += reading(files, held, size)
            if not all(field.codec.is_raw for field in layout.fields):
                found.append(decoding(self.store, files, held, size))
        return found

    def fitting(self, deadline: float) -> tuple[Part, list[Contender], bool]:
        """Find a part whose rounds end at about the deadline, by a round over 64 MiB or 1,024 samples.

        Parameters
        ----------
        deadline : float
            By `time.monotonic`.

        Returns
        -------
        tuple
            The part, its contenders, and whether they have run once.
        """
        start = time.monotonic()
        fewest = min(_TRIAL_SAMPLES, _TRIAL_BYTES // max(1, self.store.layout.sample_nbytes))
        part = self.part(max(self.settings.batch_size, fewest))
        contenders = self.contenders(part)
        made = time.monotonic()
        one_round(contenders, 0, cold=self.cold, done=lambda _: None)
        end = time.monotonic()
        left = deadline - end - (made - start)  # others have to be made, too: workers are started
        share = left / (self.settings.rounds + (not self.cold))
        larger = self.part(max(1, int(part.samples * share / (end - made))))
        if larger.samples <= part.samples:
            return part, contenders, True
        del contenders  # what they hold, buffers and workers, goes before others come
        return larger, self.contenders(larger), False
