"""What a line of a journal may be: it lies on a disk, and might have been written by anyone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmapload.errors import shown
from mmapload.preprocessing.build import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.preprocessing.build import Build

__all__ = ["check_replayed", "checked_entry"]


def checked_entry(entry: Mapping[str, Any], build: Build) -> Mapping[str, Any]:
    """Return a line of a journal, other than the first, that is of the form that `Build` writes.

    Raises
    ------
    ValueError
        Naming the key of what is otherwise.
    """
    total = len(build.source)
    if "skip" in entry:
        _expect("from", entry.get("from"), _is_number(entry.get("from"), total + 1))
        _expect("skip", entry["skip"], isinstance(entry["skip"], list))
        for note in entry["skip"]:
            _expect("skip", note, isinstance(note, dict))
            for key in ("position", "index"):
                _expect(key, note.get(key), _is_number(note.get(key), total))
            for key in ("file", "cause", "digest"):
                _expect(key, note.get(key), isinstance(note.get(key), str))
            _expect("member", note.get("member", 0), isinstance(note.get("member", 0), str | None))
        return entry
    if "undo" in entry:
        chunks = entry["undo"]
        below = build.plan.chunks or 0
        holds = isinstance(chunks, list) and all(_is_number(chunk, below) for chunk in chunks)
        _expect("undo", chunks, holds)
        return entry
    # A store with all samples has the most chunks.
    _expect("chunk", entry.get("chunk"), _is_number(entry.get("chunk"), build.plan.chunks or 0))
    _expect("digests", entry.get("digests"), isinstance(entry.get("digests"), str))
    files = entry.get("files")
    fields = build.layout.fields
    _expect("files", files, isinstance(files, list) and len(files) == len(fields))
    for field, file in zip(fields, files or (), strict=True):
        if field.is_ragged:
            _expect("files", file, isinstance(file, list) and len(file) > 0 and all(map(_is_file, file)))
        else:
            _expect("files", file, _is_file(file) if field.sample_nbytes else file is None)
    counts = entry.get("stand_ins", {})
    _expect("stand_ins", counts, isinstance(counts, dict) and counts.keys() <= build.plan.fill.keys())
    for count in counts.values():
        _expect("stand_ins", count, _is_number(count, total + 1))
    odd = entry.get("non_finite", {})
    _expect("non_finite", odd, isinstance(odd, dict) and odd.keys() <= {field.name for field in fields})
    for count in odd.values():
        _expect("non_finite", count, _is_number(count, total + 1))
    sums = entry.get("sums", {})
    _expect("sums", sums, isinstance(sums, dict) and all(map(_is_sum, sums.values())))
    return entry


def check_replayed(build: Build) -> None:
    """Check what all lines together say.

    Raises
    ------
    ValueError
        If they leave out all samples, or speak of a chunk that there is not, or of more samples than it has.
    """
    _expect("skip", f"all {len(build.skipped)} samples", len(build.skipped) < len(build.source))
    for chunk, done in build.done.items():
        _expect("chunk", chunk, chunk < build.layout.chunks)
        digits = 2 * DIGEST_BYTES * len(build.heads(chunk))
        _expect("digests", f"{len(done.digests)} digits", len(done.digests) == digits)


def _is_number(value: object, below: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < below


def _is_file(file: object) -> bool:
    """Whether it is a chunk file's size and checksum."""
    return (
        isinstance(file, list) and len(file) == 2 and _is_number(file[0], 2**63) and isinstance(file[1], str)
    )


def _is_sum(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(_is_number(each, 2**63) for each in value)


def _expect(key: str, value: object, holds: bool) -> None:
    if not holds:
        raise ValueError(f"{key}: {shown(value)}")
