"""Execute a plan: lock, resume or begin, write all chunks, finish, publish."""

from __future__ import annotations

import itertools
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmapload.errors import MmaploadError, StateMismatchError
from mmapload.preprocessing.appending import AppendPlan
from mmapload.preprocessing.build import Build, SkippedSample, chunk_folders
from mmapload.preprocessing.parallel import run_parallel
from mmapload.preprocessing.planning import check_target
from mmapload.preprocessing.proofs import run_proved
from mmapload.preprocessing.resume import (
    check_names,
    check_options,
    check_source,
    check_written,
    done_files,
    first_line,
    is_same_store,
    replay,
    write_source_names,
)
from mmapload.preprocessing.sequential import run_sequential
from mmapload.preprocessing.skipped import remove_skipped, write_skipped
from mmapload.preprocessing.stream import run_stream
from mmapload.progress import SilentProgress
from mmapload.sizes import format_size
from mmapload.spent import Spent
from mmapload.store import METADATA, Store, open_store
from mmapload.writer.checksums import write_checksums
from mmapload.writer.documents import root_document_text
from mmapload.writer.durable import explained, sync_folder, write_durably
from mmapload.writer.extension import committed, put_in_place, without_commit
from mmapload.writer.journal import Journal, read_journal
from mmapload.writer.names import write_names
from mmapload.writer.ragged import field_documents, group_documents, write_ragged
from mmapload.writer.workfolder import WorkFolder

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Mapping, Sequence

    from mmapload.layout import StoreLayout
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.progress import Progress
    from mmapload.sources.casting import CastCounts

__all__ = ["PreprocessResult", "execute"]


@dataclass(frozen=True, slots=True)
class PreprocessResult:
    """What a run did.

    Attributes
    ----------
    store : Store
        The finished store.
    skipped : tuple of SkippedSample
        What was left out, in the source's order; empty unless `on_error` is "skip".
    resumed_samples : int
        Samples that an interrupted run had left.
    seconds : float
        Wall time of this run.
    filled : mapping of str to int
        For every field of `fill` the number of samples that lacked it, those of an interrupted run included.
    spent : mapping of str to float
        Seconds of all threads together, by what they did: reading, encoding (and checksums), writing (and
        flushing), waiting.
    cast : mapping of str to CastCounts
        For every field that was cast what this did to the values that this run has read.
    non_finite : mapping of str to int
        In how many samples a field has a value that is NaN or infinite, if in any; as `filled`.
    """

    store: Store
    skipped: tuple[SkippedSample, ...]
    resumed_samples: int
    seconds: float
    filled: Mapping[str, int]
    spent: Mapping[str, float]
    cast: Mapping[str, CastCounts]
    non_finite: Mapping[str, int]


def execute(plan: PreprocessPlan, progress: Progress | None = None) -> PreprocessResult:
    """Write the store that a plan describes.

    Parameters
    ----------
    plan : PreprocessPlan
        From `plan_preprocess`. One that takes its samples from an iterator can be executed once.
    progress : Progress, optional
        What to tell how far it has come; by default nothing.

    Raises
    ------
    SourceError
        If a sample is bad and `on_error` is "fail", or all are.
    StateMismatchError
        If an interrupted run had other options or another source, and `overwrite` is not given.
    ChunkError
        If a chunk cannot be written: the disk is full, for instance. The same call continues.
    MmaploadError
        If there is something at the target, another process writes there, or there is too little room.
    KeyboardInterrupt
        With a text that says how to go on.
    """
    progress = progress or SilentProgress()
    started = time.monotonic()
    if not plan.fits:
        raise MmaploadError(
            f"{plan.out} takes {format_size(plan.store_bytes or 0)}, and its file system has "
            f"{format_size(plan.free_bytes + plan.present_bytes)} free: make room, or give another place"
        )
    _check_target(plan)
    with WorkFolder(plan.out) as work:
        work.expect_no(work.export, "an unfinished export")
        _check_again(plan, work)
        try:
            run = _run_stream if plan.samples is None else _run_indexed
            spent, began = Spent(), time.monotonic()
            layout, skipped, (stand_ins, odd), resumed = run(plan, work, progress, spent)
            seconds = dict(spent.seconds)
            seconds["waiting"] = max(0.0, plan.jobs * (time.monotonic() - began) - sum(seconds.values()))
        except StateMismatchError:
            if isinstance(plan, AppendPlan) and _is_being_put_in_place(plan, read_journal(work.journal)[0]):
                _finish_other(plan, work)
            raise
        finally:
            progress.close()
        if isinstance(plan, AppendPlan):
            skipped = plan.skipped_of_source(skipped)
            write_skipped(plan.out, skipped, more=True)
            put_in_place(work, plan.base.store, plan.base.samples)
        else:
            found = open_store(work.store).layout
            if found != layout:
                raise MmaploadError(f"{work.store} reads otherwise than written: {found}, not {layout}")
            write_skipped(plan.out, skipped)
            work.publish()
            if not skipped:
                remove_skipped(plan.out)
    facts = {name: stand_ins[name] for name in plan.fill}, seconds, getattr(plan.source, "counts", {}), odd
    store = open_store(plan.out)
    return PreprocessResult(store, tuple(skipped), resumed, time.monotonic() - started, *facts)


def _check_target(plan: PreprocessPlan) -> None:
    check_target(plan.out, overwrite=plan.options.overwrite, append=isinstance(plan, AppendPlan))


def _finish_other(plan: AppendPlan, work: WorkFolder) -> None:
    """Take an append of other samples to its end, which was cut off when its last step had begun."""
    put_in_place(work, plan.base.store, plan.base.samples)
    raise MmaploadError(
        f"an append that was interrupted in its last step is finished now, and {plan.out} has "
        f"{len(open_store(plan.out)):,} samples: if these are others, run the same command again"
    )


def _check_again(plan: PreprocessPlan, work: WorkFolder) -> None:
    """Look at the target once more, now that nobody else can put something there."""
    try:
        _check_target(plan)
    except MmaploadError:
        if not os.path.exists(work.journal):
            work.discard()
        raise


def _run_indexed(
    plan: PreprocessPlan, work: WorkFolder, progress: Progress, spent: Spent
) -> tuple[StoreLayout, list[SkippedSample], tuple[Counter[str], Counter[str]], int]:
    entries, whole = read_journal(work.journal)
    build = _resumed(plan, work, entries, whole, progress) if entries else None
    if build is None:
        entries, build = [], _begun(plan, work)
    build.spent = spent
    resumed = build.done_samples
    try:
        if not committed(entries):
            progress.start(build.layout.samples, plan.sample_bytes, resumed)
            run = run_parallel if build.source.parallel else run_sequential
            run_proved(run, build, progress)
            progress.at(build.layout.samples)
            work.keep_only(done_files(build))
            _finish(plan, work, build.layout, build.stored_names(), len(build.skipped))
    except BaseException as error:
        build.close()
        # Ctrl-C may have come between a line of the journal and its mark in memory: the journal is right.
        build.replay(without_commit(read_journal(work.journal)[0][1:]))
        if not build.done:
            work.discard()
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(_interrupted(build)) from None
        raise
    build.close()
    skipped = sorted(build.skipped.values(), key=lambda each: each.index)
    return build.layout, skipped, build.counts(), resumed


def _interrupted(build: Build) -> str:
    if not build.done:
        return "interrupted; nothing was written yet"
    kept = f"{build.done_samples:,} of {build.layout.samples:,} samples"
    return f"interrupted; {kept} are kept in {build.work.path}: the same command continues"


def _resumed(
    plan: PreprocessPlan,
    work: WorkFolder,
    entries: Sequence[dict[str, Any]],
    whole: int,
    progress: Progress,
) -> Build | None:
    """Take over what an interrupted run has left; None if it is of no use and may be thrown away."""
    try:
        check_options(plan, entries)
        check_names(plan, work.names)
        build = Build(plan, work, Journal(work.journal, whole))
        try:
            replay(build, without_commit(entries[1:]))
            check_source(build)
            if committed(entries):
                return build
            progress.note(f"resuming: reading the {len(build.done):,} chunks that are there, to check them")
            damaged = check_written(build)
            work.keep_only(done_files(build))
        except BaseException:
            build.close()
            raise
    except StateMismatchError:
        if not plan.options.overwrite or _is_being_put_in_place(plan, entries):
            raise
        return None
    if damaged:
        progress.note(f"{damaged} chunks are not as they were written, and are written again")
    there = f"{build.done_samples:,} of {build.layout.samples:,} samples"
    progress.note(f"resuming: {there} are already there")
    return build


def _begun(plan: PreprocessPlan, work: WorkFolder) -> Build:
    """Start anew."""
    work.clear()
    try:
        work.keep_only({name: set() for name in chunk_folders(plan.layout(plan.samples))})
        write_source_names(work.names, plan.indexed)
        sync_folder(work.store)
        sync_folder(work.path)
        journal = Journal(work.journal)
        journal.append([first_line(plan)])
    except BaseException:
        work.discard()
        raise
    return Build(plan, work, journal)


def _run_stream(
    plan: PreprocessPlan, work: WorkFolder, progress: Progress, spent: Spent
) -> tuple[StoreLayout, list[SkippedSample], tuple[Counter[str], Counter[str]], int]:
    entries, _ = read_journal(work.journal)
    if entries and (not plan.options.overwrite or _is_being_put_in_place(plan, entries)):
        check_options(plan, entries)
    work.clear()
    try:
        work.keep_only({name: set() for name in chunk_folders(plan.layout(plan.samples))})
        with Journal(work.journal) as journal:
            journal.append([first_line(plan)])
        progress.start(None, plan.sample_bytes)
        layout, skipped, counts = run_stream(plan, work, progress, spent)
        _finish(plan, work, layout, itertools.repeat("", layout.samples), len(skipped))
    except BaseException:
        if not committed(read_journal(work.journal)[0]):
            work.discard()  # nothing could take it up again
        raise
    return layout, skipped, counts, 0


def _is_being_put_in_place(plan: PreprocessPlan, entries: Sequence[dict[str, Any]]) -> bool:
    return isinstance(plan, AppendPlan) and committed(entries) > 0 and is_same_store(plan, entries)


def _finish(
    plan: PreprocessPlan, work: WorkFolder, layout: StoreLayout, names: Iterable[str], skipped: int
) -> None:
    """Write all but the chunk files."""
    if isinstance(plan, AppendPlan):
        plan.commit(work, layout, names, skipped)
    else:
        _write_documents(work.store, layout, names if plan.has_names else None)


def _write_documents(folder: str, layout: StoreLayout, names: Iterable[str] | None) -> None:
    """Write the metadata, the root's last: with it the store is whole."""
    documents = field_documents(folder, layout)
    for name, text in documents.items():
        _write_document(os.path.join(folder, name), text)
    if names is not None:
        write_names(folder, names)
    if layout.ragged:
        write_ragged(folder, layout)
    write_checksums(folder, layout)
    for name, text in group_documents(layout).items():
        _write_document(os.path.join(folder, name), text)
    _write_document(folder, root_document_text(layout.root_attributes(), documents))


def _write_document(folder: str, text: bytes) -> None:
    path = os.path.join(folder, METADATA)
    with explained(path, len(text)):
        write_durably(path, [text])
    sync_folder(folder)
