"""Go on where an interrupted run stopped: only if options and source are what they were."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import SourceError, StateMismatchError
from mmapload.preprocessing.appended import store_of
from mmapload.preprocessing.build import DIGEST_BYTES, chunk_folders, digest_of
from mmapload.preprocessing.entries import check_replayed, checked_entry
from mmapload.preprocessing.gathering import many_of, sums_of
from mmapload.ragged import chunk_files
from mmapload.sources.grouped import grouped
from mmapload.writer.chunks import is_intact
from mmapload.writer.durable import explained, open_regular
from mmapload.writer.extension import committed
from mmapload.writer.journal import read_journal
from mmapload.writer.workfolder import partial_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mmapload.preprocessing.build import Build, DoneChunk
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.sources import IndexedSource
    from mmapload.writer.chunks import ChunkFile

__all__ = [
    "check_names",
    "check_options",
    "check_source",
    "check_written",
    "done_files",
    "first_line",
    "is_same_store",
    "replay",
    "write_source_names",
]

_FROM: Final = "from"
_STORE: Final = "store"

_MOST_SHOWN: Final = 400
_LONGEST_NAME: Final = 2**24
"""Bytes of a line that names a sample."""


def first_line(plan: PreprocessPlan) -> dict[str, Any]:
    """Return what a journal begins with: all that decides what a store holds."""
    options = plan.options
    return {
        "version": 1,
        **({_STORE: store} if (store := store_of(plan.source)) else {}),
        "kind": plan.source.kind,
        **({_FROM: place} if (place := _place_of(plan)) else {}),
        "resumable": plan.samples is not None,
        "samples": None if options.samples == "files" else options.samples,
        "take": options.take,
        "allow_pickle": options.allow_pickle or None,
        "cast": [list(pair) for pair in options.cast] or None,
        "batch_size": options.batch_size,
        "codec": options.codec,
        "chunk_bytes": options.chunk_bytes,
        "fields": None if options.fields is None else [list(pair) for pair in options.fields],
        "shuffle": options.shuffle,
        "schema": {name: str(spec) for name, spec in plan.schema.items()},
        "fill": {name: stand_in.note for name, stand_in in plan.fill.items()} or None,
        "optional": list(plan.masks.values()) or None,
        "ragged": {name: ragged.note for name, ragged in plan.ragged.items()} or None,
    }


def _place_of(plan: PreprocessPlan) -> str:
    """Return what the names of a source's samples are relative to; empty where they have none.

    A source may be moved and the store continued, so it does not decide; but it says why samples differ.
    """
    if plan.samples is None:
        return ""
    last = len(plan.indexed) - 1  # the first may be the store's, to which samples are appended
    name = plan.indexed.name(last)
    described = plan.indexed.describe(last)
    return described.removesuffix(name) if name and described.endswith(name) else ""


def _advised(plan: PreprocessPlan) -> str:
    return f"restore it to continue the unfinished store, or start anew with {plan.anew}"


def _check_place(plan: PreprocessPlan, journal: str) -> None:
    """Compare where the samples lie with where they lay, when others are found to be in them.

    Raises
    ------
    StateMismatchError
        If they lie elsewhere; names both places.
    """
    saved, current = read_journal(journal)[0][0].get(_FROM), _place_of(plan)
    if saved and current and saved != current:
        what = f"was begun with the samples in {saved}, and those in {current} are others"
        advice = f"give the first to continue it, or start anew with {plan.anew}"
        raise _mismatch(plan.out, f"{what}: {advice}", str(saved), current)


def check_options(plan: PreprocessPlan, entries: Sequence[Mapping[str, Any]]) -> None:
    """Compare a journal's beginning with this plan.

    Raises
    ------
    StateMismatchError
        Naming the first difference.
    """
    saved, current = entries[0], first_line(plan)
    if not (current["resumable"] and saved.get("resumable")):
        raise _mismatch(
            plan.out,
            f"was begun, and samples from an iterable cannot be taken up again: start anew with {plan.anew}",
            str(saved.get("kind")),
            plan.source.kind,
        )
    if not is_same_store(plan, entries):
        what = f"was begun over another store: put that back, or start anew with {plan.anew}"
        raise _mismatch(plan.out, what, str(saved.get(_STORE)), current[_STORE])
    for name in current:
        # As text, in which -0.0 is not 0.0, and the order of fields counts.
        if name not in {_FROM, _STORE} and json.dumps(saved.get(name)) != json.dumps(current[name]):
            what = f"was begun with another {name.replace('_', ' ')}; {_advised(plan)}"
            raise _mismatch(plan.out, what, _shown(saved.get(name)), _shown(current[name]))
    if plan.options.on_error == "fail" and any("skip" in entry for entry in entries):
        raise _mismatch(
            plan.out, f"has left out bad samples; {_advised(plan)}", "on_error skip", "on_error fail"
        )


def is_same_store(plan: PreprocessPlan, entries: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the store that samples are appended to, if any, holds what it held when a journal was begun."""
    saved = entries[0].get(_STORE)
    return saved is None or store_of(plan.source) in {"", saved}


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _mismatch(out: str, what: str, saved: str, current: str) -> StateMismatchError:
    if len(saved) > _MOST_SHOWN:
        saved = f"{saved[:_MOST_SHOWN]}..."
    return StateMismatchError(f"the unfinished {out} {what}", saved, current)


def replay(build: Build, entries: Sequence[Mapping[str, Any]]) -> None:
    """Take what a journal says, after its first line, for what is done and left out, if it can be so.

    Raises
    ------
    StateMismatchError
        If no run over this source can have written these lines; names the journal.
    """
    try:
        build.replay([checked_entry(entry, build) for entry in entries])
        check_replayed(build)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        what = (
            f"has a journal, {build.work.journal}, that is damaged: remove {build.work.path}, or start anew "
            f"with {build.plan.anew}"
        )
        now = f"{len(build.source):,} samples in {build.plan.chunks:,} chunks"
        raise _mismatch(build.plan.out, what, str(error), now) from None


def write_source_names(path: str, source: IndexedSource) -> None:
    """Keep the names of the source's samples, a line each."""
    with explained(path, 2**20), open(path, "w", encoding="ascii") as file:
        file.writelines(f"{line}\n" for line in _name_lines(source))
        file.flush()
        os.fsync(file.fileno())


def _name_lines(source: IndexedSource) -> Iterator[str]:
    many = grouped(source)
    names = (source.name(index) for index in range(len(source))) if many is None else many.roll()
    return map(json.dumps, names)


def check_names(plan: PreprocessPlan, path: str) -> None:
    """Compare the names that were kept with those of now.

    Raises
    ------
    StateMismatchError
        Naming the first that differs.
    """
    source = plan.indexed
    names = _name_lines(source)
    with contextlib.ExitStack() as stack:
        saved: Iterator[str] = iter(())
        with contextlib.suppress(FileNotFoundError):
            file = stack.enter_context(open_regular(path))
            lines = iter(lambda: file.readline(_LONGEST_NAME), b"")
            saved = (line.rstrip(b"\n").decode("ascii", "backslashreplace") for line in lines)
        for index, (then, now) in enumerate(zip_longest(saved, names, fillvalue="none")):
            if then != now:
                _check_place(plan, os.path.join(partial_path(plan.out), "journal"))
                what = f"was begun with another sample {index}, or another number of them; {_advised(plan)}"
                raise _mismatch(plan.out, what, then, now)


def check_unfinished(plan: PreprocessPlan) -> None:
    """Compare what an interrupted run has left, if anything, with this plan; as `execute` will, but sooner.

    Raises
    ------
    StateMismatchError
        If they do not fit together, and `overwrite` is not given.
    """
    folder = partial_path(plan.out)
    entries, _ = read_journal(os.path.join(folder, "journal"))
    if entries and not plan.options.overwrite and not committed(entries):
        check_options(plan, entries)
        check_names(plan, os.path.join(folder, "names"))


def check_source(build: Build) -> None:
    """Compare the contents of all samples that are done or left out with those of now.

    Raises
    ------
    StateMismatchError
        Naming the first sample that differs.
    """
    source = build.source
    indices = build.indices(list(build.skipped_digests))
    expected = list(build.skipped_digests.values())
    width = 2 * DIGEST_BYTES
    for done in build.done.values():
        heads = build.heads(done.chunk)
        indices += heads
        expected += [done.digests[k * width : (k + 1) * width] for k in range(len(heads))]
    if source.parallel:
        with ThreadPoolExecutor(build.plan.jobs) as pool:
            found = list(pool.map(lambda index: _digest(source, index), indices))
    else:
        found = [_digest(source, index) for index in indices]
    for index, saved, now in sorted(zip(indices, expected, found, strict=True)):
        if saved != now:
            _check_place(build.plan, build.work.journal)
            what = f"holds a {source.describe(index)} that has changed since; {_advised(build.plan)}"
            raise _mismatch(build.plan.out, what, saved or "unreadable", now or "unreadable")
    _check_contents(build)


def _check_contents(build: Build) -> None:
    """Read again what is done of files that hold many samples and say nothing of their contents."""
    many = many_of(build.plan)
    if many is None or not many.rereads:
        return
    for done in build.done.values():
        indices = build.indices(build.positions(done.chunk))
        try:
            now = sums_of(build.plan, many, indices)
        except SourceError:
            now = {}
        if now != done.sums:
            _check_place(build.plan, build.work.journal)
            first = many.describe(indices[0])
            what = f"holds samples from {first} on that have changed since; {_advised(build.plan)}"
            raise _mismatch(build.plan.out, what, f"sums {done.sums}", f"sums {now}")


def _digest(source: IndexedSource, index: int) -> str:
    try:
        return digest_of(source, index)
    except SourceError:
        return ""


def check_written(build: Build) -> int:
    """Read all chunk files that are said to be done; forget the chunks of those that are not as written.

    Reading costs a part of what writing them anew would. Returns how many chunks are forgotten.
    """
    with ThreadPoolExecutor(build.plan.jobs) as pool:
        intact = list(pool.map(lambda done: _is_whole(build, done), build.done.values()))
    before = len(build.done)
    build.keep([chunk for chunk, whole in zip(build.done, intact, strict=True) if whole])
    return before - len(build.done)


def _is_whole(build: Build, done: DoneChunk) -> bool:
    return all(is_intact(os.path.join(build.work.store, path), file) for path, file in _files(build, done))


def done_files(build: Build) -> dict[str, set[str]]:
    """Return for every folder of chunk files those that belong there."""
    found: dict[str, set[str]] = {folder: set() for folder in chunk_folders(build.layout)}
    for done in build.done.values():
        for path, _ in _files(build, done):
            folder, name = os.path.split(path)
            found[folder].add(name)
    return found


def _files(build: Build, done: DoneChunk) -> Iterator[tuple[str, ChunkFile]]:
    """Yield the files of a chunk, by their paths below the store."""
    for field, written in zip(build.layout.fields, done.files, strict=True):
        if isinstance(written, tuple):
            values = (len(written) - 1) * field.piece_length
            paths = [path for _, path in chunk_files("", field, done.chunk, values)]
            yield from zip(paths, written, strict=True)
        elif written is not None:
            yield os.path.join(field.name, field.chunk_key(done.chunk)), written
