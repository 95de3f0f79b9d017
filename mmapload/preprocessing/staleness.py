"""What a finished store was made of, and whether a source is still that."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from mmapload.errors import MmaploadError, SourceError
from mmapload.layout import CONTENTS
from mmapload.preprocessing.build import DIGEST_BYTES, digest_of
from mmapload.preprocessing.gathering import many_of, sums_of
from mmapload.reserved import read_names
from mmapload.stages import reached
from mmapload.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.preprocessing.build import Build
    from mmapload.preprocessing.plan import PreprocessPlan
    from mmapload.sources import IndexedSource
    from mmapload.sources.grouped import Sums
    from mmapload.store import Store

__all__ = ["added_contents", "contents_of", "has_some", "what_changed"]

_TOLD_EVERY: Final = 1000
_UNREADABLE: Final = bytes(DIGEST_BYTES)


def contents_of(build: Build) -> dict[str, str]:
    """Return what changes with the contents of any sample, when all are written, to be kept in the store.

    `contents` is a sum over the samples by their places in the source, so that those of an append are added;
    of sources whose files hold many samples it is `files`, to which nothing can be added.
    """
    many = many_of(build.plan)
    if many is not None:
        return {"files": _files(build.plan, build.sums if many.rereads else {})}
    place, total = build.plan.place_of, 0
    for done in build.done.values():
        digests = bytes.fromhex(done.digests)
        for number, index in enumerate(build.heads(done.chunk)):
            total += _weight(place(index), digests[number * DIGEST_BYTES :][:DIGEST_BYTES])
    skipped = build.indices(list(build.skipped_digests))
    for index, digest in zip(skipped, build.skipped_digests.values(), strict=True):
        total += _weight(place(index), bytes.fromhex(digest) or _UNREADABLE)
    return {"contents": _digits(total)}


def added_contents(first: str, second: str) -> str:
    """Return the `contents` of a store to which samples were appended.

    Examples
    --------
    >>> added_contents("00000000000000ff", "ffffffffffffff02")
    '0000000000000001'
    """
    return _digits(int(first, 16) + int(second, 16))


def what_changed(plan: PreprocessPlan) -> str:
    """Say how the finished store at a plan's place differs from what the plan would write.

    Reads what a source's fingerprints need: of `.npz` files the directory, of most others all.
    """
    try:
        store = open_store(plan.out)
        return _options_changed(plan, store) or _samples_changed(plan, store)
    except MmaploadError as error:
        return f"which cannot be read: {error}"


def has_some(plan: PreprocessPlan) -> bool:
    """Whether the finished store at a plan's place has samples by the names of any of the plan's.

    True of a store that cannot be read: no sample is known to be new then.
    """
    try:
        store = open_store(plan.out)
        if plan.samples is None or not store.layout.has_names:
            return False
        return not set(read_names(store.path, len(store))).isdisjoint(_names_of(plan))
    except MmaploadError:
        return True


def _options_changed(plan: PreprocessPlan, store: Store) -> str:
    there, made = store.layout, plan.layout(plan.samples)
    told = [
        (name, saved, now)
        for name, saved, now in (
            ("batch size", there.batch_size, made.batch_size),
            ("kind of source", there.source.get("kind"), made.source.get("kind")),
            ("shuffle", there.source.get("shuffle"), made.source.get("shuffle")),
            ("fill", there.source.get("fill"), made.source.get("fill")),
            ("set of fields", [each.name for each in there.fields], [each.name for each in made.fields]),
        )
        if saved != now
    ]
    for saved, now in zip(there.fields, made.fields, strict=False):
        told += [
            (f"{what} of {now.name}", one, other)
            for what, one, other in (
                ("dtype", saved.values_name, now.values_name),
                ("shape", saved.values_shape, now.values_shape),
                ("codec", saved.codec.name, now.codec.name),
            )
            if one != other
        ]
    if not told and there.chunk_length != made.chunk_length and len(store) == plan.samples:
        told.append(("chunk length", there.chunk_length, made.chunk_length))
    return f"with another {told[0][0]}, {told[0][1]} and not {told[0][2]}" if told else ""


def _samples_changed(plan: PreprocessPlan, store: Store) -> str:
    if plan.samples is None or not store.layout.has_names:
        return ""
    skipped = store.layout.source.get("skipped")
    then, now = Counter(read_names(store.path, len(store))), Counter(_names_of(plan))
    gone, new = then - now, now - then
    kept = {name: told for name, told in store.layout.source.items() if name in CONTENTS}
    if not gone and len(store) == plan.samples - (skipped if isinstance(skipped, int) else 0):
        if not kept or kept == _contents_now(plan):
            known = "" if kept else ", by their names: it does not keep what was in them"
            return f"made of these very samples{known}"
        return "made of samples by these names, of which the contents have changed since: it is STALE"
    what = [
        f"{next(iter(names))}{f' and {names.total() - 1:,} more' if names.total() > 1 else ''} {how}"
        for names, how in ((gone, "no longer there"), (new, "not in it"))
        if names
    ]
    return f"made of other samples ({', '.join(what) or 'in another number'}): it is STALE"


def _names_of(plan: PreprocessPlan) -> Iterator[str]:
    source, many = plan.indexed, many_of(plan)
    if many is not None:
        yield from many.names(range(len(source)))
    else:
        yield from (source.name(index) or "" for index in range(len(source)))


def _contents_now(plan: PreprocessPlan) -> dict[str, str]:
    source, many = plan.indexed, many_of(plan)
    if many is not None:
        sums: Sums = {}
        if many.rereads:
            with contextlib.suppress(SourceError):
                sums = sums_of(plan, many, range(len(source)))
        return {"files": _files(plan, sums)}
    total = 0
    with ThreadPoolExecutor(plan.jobs if source.parallel else 1) as pool:
        for index, digest in enumerate(pool.map(lambda each: _digest(source, each), range(len(source)))):
            total += _weight(index, digest)
            if not index % _TOLD_EVERY:
                reached("samples compared", index, len(source))
    return {"contents": _digits(total)}


def _files(plan: PreprocessPlan, sums: Sums) -> str:
    source, many = plan.indexed, many_of(plan)
    heads = [] if many is None else many.heads(range(len(source)))
    total = sum(_weight(place, _digest(source, index)) for place, index in enumerate(heads))
    return _digits(total + _weight(len(heads), json.dumps(sorted(sums.items())).encode()))


def _digest(source: IndexedSource, index: int) -> bytes:
    try:
        return bytes.fromhex(digest_of(source, index))
    except SourceError:
        return _UNREADABLE


def _weight(place: int | None, digest: bytes) -> int:
    """Return what a sample adds to the sum, by its place and digest; 0 without a place."""
    if place is None:
        return 0
    told = hashlib.blake2b(place.to_bytes(8, "little") + digest, digest_size=DIGEST_BYTES)
    return int.from_bytes(told.digest(), "little")


def _digits(total: int) -> str:
    return f"{total % 256**DIGEST_BYTES:0{2 * DIGEST_BYTES}x}"
