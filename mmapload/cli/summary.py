"""What a run of `preprocess` made, in a few lines: samples, bytes, seconds, and where they went."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from mmapload.progress import rate_of
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.preprocessing import PreprocessPlan, PreprocessResult

__all__ = ["summary"]

_MOST_CAUSES: Final = 5
_MOST_OF_A_CAUSE: Final = 200


def summary(plan: PreprocessPlan, result: PreprocessResult) -> str:
    """Write what a run made and what it took; several lines."""
    return "\n".join(_lines(plan, result))


def _lines(plan: PreprocessPlan, result: PreprocessResult) -> Iterator[str]:
    from mmapload.cli.files import survey
    from mmapload.preprocessing.appending import AppendPlan

    layout = result.store.layout
    on_disk = sum(survey(result.store, field).nbytes for field in layout.fields)
    written = layout.samples if plan.samples is None else plan.samples  # of an append, those of its chunks
    nbytes = layout.sample_nbytes * (written - len(result.skipped) - result.resumed_samples)
    chunks = f"{layout.chunks:,} chunk{'s' * (layout.chunks > 1)}"
    rate = rate_of(written - len(result.skipped) - result.resumed_samples, nbytes, result.seconds)
    took = f"in {_duration(result.seconds)} ({rate})"
    yield f"{result.store.path}: {layout.samples:,} samples in {chunks}, {format_size(on_disk)}, {took}"
    if plan.source_bytes and plan.options.take is None and not isinstance(plan, AppendPlan):
        ratio = on_disk / plan.source_bytes
        yield f"read: files of {format_size(plan.source_bytes)}; the store takes {ratio:.2f} times as much"
    yield f"spent: {_spent(plan, result)}"
    if result.resumed_samples:
        yield f"resumed: {result.resumed_samples:,} samples were there already"
    for name, count in result.filled.items():
        yield f"filled: {name} in {count:,} of {layout.samples:,} samples"
    dtypes = dict(plan.options.cast)
    for name, counts in result.cast.items():
        yield f"cast: {name} to {dtypes[name]}: {counts}" + (" in this run" if result.resumed_samples else "")
    for name, count in result.non_finite.items():
        yield f"NaN or infinite: {name} in {count:,} of {layout.samples:,} samples; mmapload check lists them"
    if plan.passed_over:
        yield f"skipped {plan.passed_over} of the source"
    if result.skipped:
        yield from _left_out(result)
    if plan.likeness:
        again = "" if isinstance(plan, AppendPlan) else ", and --overwrite"
        yield f"WARNING: each file was taken for one sample; {plan.likeness}{again}"


def _spent(plan: PreprocessPlan, result: PreprocessResult) -> str:
    total = sum(result.spent.values()) or 1.0
    parts = ", ".join(f"{what} {100 * seconds / total:.0f} %" for what, seconds in result.spent.items())
    return f"{parts} of the time of {plan.jobs} thread{'s' * (plan.jobs > 1)}"


def _left_out(result: PreprocessResult) -> Iterator[str]:
    from mmapload.preprocessing import skipped_path

    skipped = result.skipped
    total = result.store.layout.samples + len(skipped)
    yield (f"left out {len(skipped):,} bad of {total:,} samples, listed in {skipped_path(result.store.path)}")
    causes: dict[str, list[str]] = {}
    for each in skipped:
        cause = each.cause if each.member is None else f"member {each.member!r}: {each.cause}"
        causes.setdefault(cause, []).append(os.path.basename(each.file))
    ordered = sorted(causes.items(), key=lambda cause: -len(cause[1]))
    for cause, files in ordered[:_MOST_CAUSES]:
        shown = cause if len(cause) <= _MOST_OF_A_CAUSE else f"{cause[:_MOST_OF_A_CAUSE]}..."
        more = f" and {len(files) - 1:,} more" if len(files) > 1 else ""
        yield f"  {files[0]}{more}: {shown}"
    if len(ordered) > _MOST_CAUSES:
        yield f"  and {len(ordered) - _MOST_CAUSES:,} other causes"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f} min {rest:.0f} s" if minutes else f"{rest:.1f} s"
