"""The three states of the machine in which the loaders are compared, and the running of one.

warm: all files in the page cache, the second epoch of a process. cold: none, the first epoch of a process.
limited: a cgroup holds the loader to half of the data, from the second epoch of a process on.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cgroups import NoCgroupError, memory_cgroup
from contenders import BATCH, FULL, WINDOW, Room, all_contenders, checksum_contenders
from epochs import Work, cannot_drop
from launching import LaunchError, launch

from mmapload.budget import resolve_budget
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from contenders import Contender

    from mmapload import Store

BATCHES_BESIDE: Final = 5
"""Batches that ChunkDataLoader may have beside chunks: two being put together, two ready, one in use."""

BATCHES_OF_WORKERS: Final = 5
"""Batches that there may be besides where two worker processes each have two in work."""

PROCESS_BYTES: Final = 32 * 2**20
"""What a forked process takes by writing to Python's own objects, and a little more."""

DROPPED: Final = 0.01
READ: Final = 0.95
"""The drop of the page cache is verified if at most this share of a loader's files was cached after it, and
at least that share of their bytes was read from the disk in the next epoch."""


@dataclass(frozen=True, slots=True)
class Case:
    """What is loaded.

    Attributes
    ----------
    files : sequence of str
        The `.npz` files.
    store : Store
        Made from them.
    batch : int
        Samples in a batch.
    expected : Counter of bytes
        Fingerprints of the samples.
    """

    files: Sequence[str]
    store: Store
    batch: int
    expected: Counter[bytes]

    @property
    def nbytes(self) -> int:
        """Bytes of all samples as arrays."""
        return len(self.files) * sum(each.sample_nbytes for each in self.store.layout.fields)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk of all fields."""
        return sum(each.chunk_nbytes for each in self.store.layout.fields)


@dataclass(frozen=True, slots=True)
class Setting:
    """How epochs are run.

    Attributes
    ----------
    name : str
        Of the section.
    says : str
        What a reader of its table has to know.
    contenders : list of Contender
        Who takes part.
    left_out : dict of str to str
        Who does not, and why.
    room : Room
        What the loaders of mmapload may take.
    epochs : int
        How many one process runs.
    counted_from : int
        Those before only warm up.
    intervals : tuple
        As for `Work`.
    drops : bool
        Whether a loader's files are dropped from the page cache before its process begins.
    limit : int, optional
        Bytes of memory.
    long_epochs : int
        How many epochs `WINDOW` and `BATCH` run in the first round.
    patience : float, optional
        Seconds after which an epoch is cut short.
    seconds : float, optional
        After which a process is ended.
    """

    name: str
    says: str
    contenders: list[Contender]
    left_out: dict[str, str]
    room: Room
    epochs: int
    counted_from: int
    intervals: tuple[float | None, float | None]
    drops: bool = False
    limit: int | None = None
    long_epochs: int = 0
    patience: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """One drop of a loader's files from the page cache: shares of their bytes.

    Attributes
    ----------
    name : str
        Of the loader.
    left : float
        Cached right after it.
    read : float
        Read from the disk in the epoch that followed.
    """

    name: str
    left: float
    read: float

    @property
    def is_verified(self) -> bool:
        """Whether nearly nothing was left, and nearly all was read."""
        return self.left <= DROPPED and self.read >= READ


@dataclass(slots=True)
class Section:
    """What a setting gave.

    Attributes
    ----------
    setting : Setting, or None if it was skipped
    skipped : str
        Why, if so.
    epochs : dict of str to list of dict
        All that was reported of each contender, with the number of the round.
    kills : dict of str to list of int
        The epochs that each launch which was killed had completed.
    failures : dict of str to str
        What went wrong with a peer otherwise.
    """

    name: str
    setting: Setting | None = None
    skipped: str = ""
    epochs: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    kills: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)

    def counted(self, name: str) -> list[dict[str, Any]]:
        """List the epochs of a contender that are no mere warming up; after one cut short, none follows."""
        start = self.setting.counted_from if self.setting else 0
        return [epoch for epoch in self.epochs[name] if epoch["epoch"] >= start or "cut" in epoch]

    def drops(self) -> list[Drop]:
        """List what came of each drop of the page cache."""
        return [
            Drop(each.name, epoch["cached_before"] / each.nbytes, epoch["bytes_read"] / each.nbytes)
            for each in (self.setting.contenders if self.setting else ())
            for epoch in self.epochs[each.name]
            if "cached_before" in epoch
        ]


def _with_full(case: Case) -> tuple[list[Contender], dict[str, str]]:
    """All contenders, but for the full permutation where that does not fit in memory."""
    found = all_contenders(case.files, case.store, case.batch)
    budget = resolve_budget("auto")
    nbytes = case.store.layout.chunks * case.chunk_nbytes
    if nbytes <= budget:
        return found, {}
    reason = f"the data take {format_size(nbytes)}, and {format_size(budget)} of memory may be used"
    return [each for each in found if each.name != FULL], {FULL: reason}


def warm(case: Case) -> Setting:
    """All files in the page cache; memory is looked at in the first epoch, which is not timed."""
    contenders, left_out = _with_full(case)
    can_drop = not any(cannot_drop(each.files) for each in contenders)
    filled = ", filled by each loader's first epoch" if can_drop else ""
    return Setting(
        "warm",
        f'page cache warm{filled}: the second epoch of a process; memory="auto", window="auto"',
        contenders + checksum_contenders(case.store, contenders, case.batch),
        left_out,
        Room(),
        epochs=2,
        counted_from=1,
        intervals=(0.05, None),
        drops=can_drop,  # how its files lie in the page cache is a loader's own doing then
    )


def cold(case: Case) -> Setting | str:
    """No file in the page cache: the first epoch of a process, checksums and fresh memory included."""
    contenders, left_out = _with_full(case)
    reason = next(filter(None, (cannot_drop(each.files) for each in contenders)), None)
    if reason:
        return reason
    return Setting(
        "cold",
        "page cache dropped before each epoch, which is the first one of its process; "
        'memory="auto", window="auto"',
        contenders,
        left_out,
        Room(),
        epochs=1,
        counted_from=0,
        intervals=(0.5, 0.5),
        drops=True,
    )


def limited(case: Case, long_epochs: int) -> Setting | str:
    """Memory for half of the data: that of Python, of torch, and of the fixed buffer comes on top."""
    limit = case.nbytes // 2
    room = room_within(limit, case)
    if isinstance(room, str):
        return room
    with_workers = room.with_workers or room
    contenders = all_contenders(case.files, case.store, case.batch)
    reason = next(filter(None, (cannot_drop(each.files) for each in contenders)), None)
    if reason:
        return f"what is cached outside of a limit would be read as if there were none, and {reason}"
    try:
        with memory_cgroup(limit) as cgroup:
            launch(lambda _, join: join(), cgroup)
    except NoCgroupError as error:
        return f"no memory cgroup can be made: {error}"
    except LaunchError as error:
        return f"no process can be moved into a memory cgroup: {error}"
    return Setting(
        "limited",
        f"memory limit of half the data, {format_size(limit)} (a cgroup without swap; Python, torch and "
        f"the fixed buffer do not count): from the second epoch of a process on; "
        f"memory={room.memory} ({format_size(int(room.memory))}), window={room.window}; with "
        f"worker processes, whose batches take more, {with_workers.memory} and {with_workers.window}",
        [each for each in contenders if each.name != FULL],
        {FULL: "it is for data that fit in memory"},
        room,
        epochs=2,
        counted_from=1,
        intervals=(0.25, 0.25),
        drops=True,
        limit=limit,
        long_epochs=long_epochs,
    )


def room_within(limit: int, case: Case) -> Room | str:
    """Choose budget and window for a limit, or say why nothing fits.

    The budget is as many whole chunks as the limit holds beside batches and what a process takes. The window
    is as many whole chunks as fit in the budget twice, with one chunk more, since two windows may touch that.
    """
    batch_nbytes = case.batch * case.nbytes // len(case.files)
    held, held_with_workers = (
        (limit - batches * batch_nbytes - PROCESS_BYTES) // case.chunk_nbytes
        for batches in (BATCHES_BESIDE, BATCHES_BESIDE + BATCHES_OF_WORKERS)
    )
    if held < 3:
        return (
            f"the limit, which is {format_size(limit)}, has to hold 3 chunks of "
            f"{format_size(case.chunk_nbytes)}, {BATCHES_BESIDE} batches of {format_size(batch_nbytes)} and "
            f"{format_size(PROCESS_BYTES)} for a process: take more samples, or a smaller --batch-size or "
            "--chunk-bytes"
        )
    length = case.store.layout.chunk_length
    of_workers = max(3, held_with_workers)
    return Room(
        held * case.chunk_nbytes,
        (held - 1) // 2 * length,
        Room(of_workers * case.chunk_nbytes, (of_workers - 1) // 2 * length),
    )


def measure(setting: Setting, case: Case, rounds: int) -> Section:
    """Run every contender in turn, `rounds` times, each in a process of its own.

    Raises
    ------
    LaunchError
        If a loader failed, other than by a want of memory, or delivered other samples. A peer that does so
        is noted, and left out of further rounds.
    """
    section = Section(setting.name, setting)
    for number in range(rounds):
        for each in setting.contenders:
            if each.name in section.failures:
                continue
            is_long = number == 0 and each.name in {WINDOW, BATCH}
            work = Work(
                each,
                setting.room,
                case.store.layout.fields,
                case.batch,
                case.expected,
                epochs=max(setting.epochs, setting.long_epochs if is_long else 0),
                drops=setting.drops,
                intervals=setting.intervals,
                patience=setting.patience,
            )
            try:
                if setting.limit is None:
                    done = launch(work, seconds=setting.seconds)
                else:
                    with memory_cgroup(setting.limit) as cgroup:
                        done = launch(work, cgroup, setting.seconds)
            except LaunchError as error:
                if each.is_peer:
                    section.failures[each.name] = str(error)
                    continue
                raise LaunchError(f"{setting.name}, {each.name}: {error}") from error
            section.epochs[each.name] += [{"round": number} | report for report in done.reports]
            if done.killed:
                section.kills[each.name].append(len(done.reports))
        print(f"{setting.name}: round {number + 1} of {rounds} done", file=sys.stderr)
    return section
