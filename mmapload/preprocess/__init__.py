"""From a source to a store: plan, execute, resume.

`preprocess` does all of it; `plan_preprocess` and `execute` are its two halves, for those who show the plan
first or want to know what was skipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from mmapload.preprocess.plan import OnError, Options, PreprocessPlan
from mmapload.progress import Progress, progress_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mmapload.store import Store, StrPath

    Source: TypeAlias = StrPath | Sequence[StrPath] | Sequence[Mapping[str, Any]] | Iterable[Mapping[str, Any]]
    Fields: TypeAlias = str | Sequence[str] | Mapping[str, str]

__all__ = [
    "OnError",
    "Options",
    "PreprocessPlan",
    "PreprocessResult",
    "SkippedSample",
    "execute",
    "plan_preprocess",
    "preprocess",
]


@dataclass(frozen=True, slots=True)
class SkippedSample:
    """A sample that was left out: its number and file in the source, the member at fault, and why."""

    index: int
    file: str
    member: str | None
    cause: str


@dataclass(frozen=True, slots=True)
class PreprocessResult:
    """What `execute` did.

    Attributes
    ----------
    store : Store
        The finished store.
    skipped : tuple of SkippedSample
        In the source's order; empty unless `on_error="skip"`.
    resumed_samples : int
        Samples that an interrupted run had left.
    seconds : float
        Wall time of this run.
    """

    store: Store
    skipped: tuple[SkippedSample, ...]
    resumed_samples: int
    seconds: float


def plan_preprocess(
    source: Source | None,
    out: StrPath,
    batch_size: int,
    *,
    codec: str = "raw",
    chunk_bytes: str | int = "64MiB",
    jobs: int | None = None,
    fields: Fields | None = None,
    shuffle: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    list_file: StrPath | None = None,
) -> PreprocessPlan:
    raise NotImplementedError


def execute(plan: PreprocessPlan, progress: Progress | None = None) -> PreprocessResult:
    raise NotImplementedError


def preprocess(
    source: Source | None,
    out: StrPath,
    batch_size: int,
    *,
    codec: str = "raw",
    chunk_bytes: str | int = "64MiB",
    jobs: int | None = None,
    fields: Fields | None = None,
    shuffle: int | None = None,
    on_error: OnError = "fail",
    overwrite: bool = False,
    list_file: StrPath | None = None,
    quiet: bool = True,
) -> Store:
    plan = plan_preprocess(
        source,
        out,
        batch_size,
        codec=codec,
        chunk_bytes=chunk_bytes,
        jobs=jobs,
        fields=fields,
        shuffle=shuffle,
        on_error=on_error,
        overwrite=overwrite,
        list_file=list_file,
    )
    return execute(plan, progress_to(quiet=quiet)).store
