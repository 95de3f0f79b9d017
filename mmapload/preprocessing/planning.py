"""Make the plan of a run: schema from the first sample, arithmetic, and every check before writing."""

from __future__ import annotations

import operator
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from mmapload.budget import available_memory
from mmapload.codecs import BLOSC_MAX_BYTES, CODEC_NAMES
from mmapload.errors import MmaploadError
from mmapload.fieldnames import check_field_names, renaming_all
from mmapload.layout import CORE_DTYPES
from mmapload.metadata import MAX_LENGTH
from mmapload.notes import note_of
from mmapload.preprocessing.appending import appending_plan, is_appendable, open_extension
from mmapload.preprocessing.fill import check_fill
from mmapload.preprocessing.opening import open_source, parse_fields
from mmapload.preprocessing.optional import check_optional, with_masks, with_optional
from mmapload.preprocessing.pieces import with_pieces
from mmapload.preprocessing.plan import OnError, Options, PreprocessPlan, Samples
from mmapload.preprocessing.ragged import check_ragged
from mmapload.preprocessing.staleness import has_some, what_changed
from mmapload.preprocessing.survey import survey
from mmapload.sizes import format_size, parse_size
from mmapload.sources.casting import check_casts, parse_casts
from mmapload.sources.castsource import cast_source
from mmapload.sources.likeness import likeness
from mmapload.sources.takelists import parse_take
from mmapload.writer.durable import free_bytes
from mmapload.writer.workfolder import is_store, partial_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mmapload.preprocessing.opening import OpenedSource
    from mmapload.sources import ArraySpec
    from mmapload.sources.listing import Listing
    from mmapload.store import StrPath

__all__ = ["check_target", "make_plan", "schema_problems"]

Choice = TypeVar("Choice", bound=str)

_MOST_JOBS = 8
_MEMORY_SHARE = 4
"""Buffers take at most this part of the available memory, unless jobs are given."""
_LONGEST_NAME = 255 - len(".skipped.jsonl.tmp")
_MOST_AXES = 31
"""Of a sample; the store's arrays have one more."""


def make_plan(
    source: Any,
    out: StrPath,
    batch_size: int,
    *,
    codec: str,
    chunk_bytes: str | int,
    jobs: int | None,
    fields: str | Sequence[str] | Mapping[str, str] | None,
    shuffle: int | None,
    on_error: OnError,
    overwrite: bool,
    list_file: StrPath | None,
    fill: Mapping[str, Any] | None,
    samples: Samples = "files",
    take: Any = None,
    allow_pickle: bool = False,
    append: bool = False,
    ragged: str | Sequence[str] | None = None,
    optional: str | Sequence[str] | None = None,
    cast: str | Sequence[str] | Mapping[str, str] | None = None,
) -> PreprocessPlan:
    """Plan a run; `preprocess` has the parameters."""
    chosen = parse_fields(fields)
    taken = None if take is None else parse_take(take)
    options = Options(
        _positive("batch_size", batch_size),
        _one_of("codec", codec, CODEC_NAMES),
        parse_size(chunk_bytes),
        None if chosen is None else tuple(chosen.items()),
        _seed(shuffle),
        _one_of("on_error", on_error, get_args(OnError)),
        overwrite,
        samples=_one_of("samples", samples, get_args(Samples)),
        take=None if taken is None else taken.note,
        allow_pickle=allow_pickle,
        ragged=check_ragged(ragged),
        optional=check_optional(optional),
        cast=parse_casts(cast),
    )
    wanted = None if jobs is None else _positive("jobs", jobs)
    target = _target(out)
    finished = is_store(target) and not (overwrite or append)
    if not finished:
        _check_writable(os.path.dirname(target))
    extension = open_extension(target) if append else None
    wanted_fill = check_fill(with_optional(fill, options.optional), chosen)
    opened = open_source(
        source,
        chosen,
        list_file,
        wanted_fill,
        options.samples,
        allow_pickle=allow_pickle,
        in_order=shuffle is None and (taken is None or taken.rising),
        skip=on_error == "skip",
        scratch=os.path.dirname(target),
        ragged=options.ragged,
    )
    if taken is not None:
        opened = opened.take(taken)
    if options.cast:
        opened = replace(opened, source=cast_source(opened.source, options.cast))
    check_target(target, overwrite=overwrite or finished, append=append)
    if opened.listing is not None:
        _check_apart(target, opened.listing)
    found = survey(opened, options, wanted_fill)
    schema, masks = with_masks(found.schema, options.optional)
    _check_schema(schema, {new: old for old, new in options.fields or ()})
    check_casts(options.cast, schema)
    plan = PreprocessPlan(
        source=opened.source,
        out=target,
        options=options,
        jobs=1,
        schema=schema,
        fill=found.fill,
        samples=found.samples,
        names_bytes=found.names_bytes,
        free_bytes=free_bytes(_existing_folder(target)),
        present_bytes=_size_of(os.path.join(partial_path(target), "store")),
        hidden=opened.listing.hidden if opened.listing else 0,
        foreign=opened.listing.foreign if opened.listing else 0,
        remarks=() if opened.listing is None else opened.listing.notes,
        likeness=_likeness(opened, found.schema) if options.samples == "files" else "",
        in_source=_lies_in(target, opened.folders),
        source_bytes=opened.listing.stamps.nbytes if opened.listing and opened.listing.stamps else None,
        first=found.first,
        ragged=found.ragged,
        masks=masks,
        files=None if opened.source.kind in {"npz", "npy"} else opened.listing,
    )
    plan = with_pieces(plan)
    if finished:
        changed = what_changed(plan)
        raise _finished(target, changed, append=is_appendable(plan) and not has_some(plan))
    plan = plan if extension is None else appending_plan(plan, extension)
    _check_chunks(plan)
    wanted = wanted or _default_jobs(plan.memory_bytes)
    return replace(plan, jobs=wanted if plan.chunks is None else min(wanted, plan.chunks))


def _likeness(opened: OpenedSource, schema: Mapping[str, ArraySpec]) -> str:
    """Say what else a sample might be, by the schema of one file."""
    if opened.listing is None or opened.source.kind not in {"npz", "npy"}:
        return ""
    return likeness(schema, len(opened.listing))


def _target(out: StrPath) -> str:
    """Return the absolute path of the store to be: what a link leads to, not the link.

    Raises
    ------
    ValueError, MmaploadError
        If no store can come to be there, which would else be found when all of it is written.
    """
    if not os.fspath(out):
        raise ValueError("out is empty: give the store's path")
    path = os.path.abspath(out)
    path = os.path.realpath(path) if os.path.islink(path) else path
    if os.path.ismount(path):
        raise MmaploadError(
            f"a file system is mounted at {path}, and a store comes to its place by renaming: "
            f"give a name in it, such as {os.path.join(path, 'store')}"
        )
    if len(os.fsencode(os.path.basename(path))) > _LONGEST_NAME:
        raise MmaploadError(
            f"the name of {path} is too long: beside it come files with longer names; "
            f"give one of at most {_LONGEST_NAME} bytes"
        )
    return path


def _check_writable(folder: str) -> None:
    """Refuse a folder in which no store can be made, before a source is looked through for it."""
    there = _existing_folder(folder)
    own = os.access in os.supports_effective_ids
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=own):
        fixed = os.statvfs(there).f_flag & os.ST_RDONLY
        why = "is on a read-only file system" if fixed else "may not be written by this user"
        raise MmaploadError(f"{there} {why}: give OUT in a folder that can be written")


def _positive(name: str, value: int) -> int:
    if isinstance(value, bool) or operator.index(value) < 1:
        raise ValueError(f"{name} must be an integer of at least 1, not {value!r}")
    return operator.index(value)


def _one_of(name: str, value: Choice, choices: Sequence[str]) -> Choice:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    return value


def _seed(seed: int | None) -> int | None:
    if seed is None:
        return None
    if isinstance(seed, bool) or not 0 <= operator.index(seed) < 2**64:
        raise ValueError(f"shuffle takes a seed, an integer from 0 to 2**64 - 1, not {seed!r}")
    return operator.index(seed)


def _default_jobs(memory_per_job: int) -> int:
    """Choose how many chunks are filled side by side.

    Two for each core (at least two, at most eight), so that one flushes its chunk while the other reads or
    compresses; fewer where the buffers would take more than a quarter of the memory that there is.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = available_memory() // _MEMORY_SHARE // max(1, memory_per_job)
    return max(1, min(2 * cores, _MOST_JOBS, room))


def check_target(out: str, *, overwrite: bool, append: bool = False) -> None:
    """Refuse a target that holds something.

    Raises
    ------
    MmaploadError
        If there is a finished store and it is not to be overwritten, or anything else but an empty folder.
    """
    if not os.path.lexists(out) or (os.path.isdir(out) and not os.listdir(out)):
        return
    if not is_store(out):
        kind = "a folder with other things in it" if os.path.isdir(out) else "a file"
        raise MmaploadError(
            f"{out} is {kind}, not a store alone, and never overwritten: give another name, or move it away"
        )
    if not (overwrite or append):
        raise _finished(out)


def _finished(out: str, changed: str = "", *, append: bool = False) -> MmaploadError:
    """Say what can be done; an append only where it is accepted, and adds nothing that is there already."""
    what = f", {changed}" if changed else ""
    ways = ["--append (append=True) to add these samples to it"] if append else []
    ways = ["another name", *ways, "--overwrite (overwrite=True) to replace it"]
    if changed.endswith("STALE") and not append:
        ways.reverse()
    return MmaploadError(f"{out} is a finished store{what}: give {', '.join(ways[:-1])}, or {ways[-1]}")


def _check_apart(out: str, listing: Listing) -> None:
    real = os.path.join(os.path.realpath(out), "")
    for below in {os.path.dirname(name) for name in listing.names}:
        folder = os.path.join(listing.root, below)
        if os.path.join(os.path.realpath(folder), "").startswith(real):
            raise MmaploadError(f"the source's folder {folder} lies inside {out}: give OUT another name")


def _lies_in(out: str, folders: Iterable[str]) -> bool:
    real = os.path.realpath(out)
    return any(real.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders)


def schema_problems(schema: Mapping[str, ArraySpec], sources: Mapping[str, str]) -> list[str]:
    """Say of which fields no store can be made, and why; `sources` has the names of renamed arrays."""
    problems = check_field_names(schema, sources)
    problems += [
        f"field {name!r} has dtype {spec.dtype}, which a store cannot hold; it holds {', '.join(CORE_DTYPES)}"
        for name, spec in schema.items()
        if spec.dtype.name not in CORE_DTYPES and note_of(spec.dtype) is None
    ]
    problems += [
        f"field {name!r} has {len(spec.shape)} axes, and a store holds at most {_MOST_AXES}: reshape it"
        for name, spec in schema.items()
        if len(spec.shape) > _MOST_AXES - spec.is_text
    ]
    return problems


def _check_schema(schema: Mapping[str, ArraySpec], sources: Mapping[str, str]) -> None:
    if problems := schema_problems(schema, sources):
        others = [name for name in schema if not check_field_names([name])]
        hint = f" (--fields also selects: name the others too, {','.join(others)})" if others else ""
        if whole := renaming_all(schema, sources) if check_field_names(schema) else "":
            hint = f"; all of them in one option: {whole}"
        raise ValueError("; ".join(problems) + hint)


def _check_chunks(plan: PreprocessPlan) -> None:
    largest = max(plan.layout(plan.samples).fields, key=lambda field: field.chunk_nbytes)
    if max(largest.chunk_nbytes, largest.chunk_length) > MAX_LENGTH:
        raise ValueError(
            f"a chunk of field {largest.name!r} has {largest.chunk_length:,} samples of "
            f"{largest.sample_nbytes:,} bytes, more than a store can hold: choose a smaller batch size"
        )
    if plan.options.codec.startswith("blosc") and largest.chunk_nbytes > BLOSC_MAX_BYTES:
        raise ValueError(
            f"a chunk of field {largest.name!r} has {format_size(largest.chunk_nbytes)}, and blosc takes "
            "at most 2 GiB: choose another codec, a smaller batch size or smaller chunks"
        )


def _existing_folder(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _size_of(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(folder) for name in names
    )
