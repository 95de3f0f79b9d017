"""Append samples to a finished store: what has to be the same, what is written, what its root says then."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from mmapload.errors import MmaploadError, SourceError, StateMismatchError, StoreNotFoundError
from mmapload.opening import root_document
from mmapload.preprocessing.appended import AppendedSource, AppendedStream, Extension
from mmapload.preprocessing.plan import PreprocessPlan
from mmapload.preprocessing.staleness import added_contents
from mmapload.sources import ArraySpec
from mmapload.store import open_store
from mmapload.writer.extension import commit, committed
from mmapload.writer.journal import read_journal
from mmapload.writer.workfolder import partial_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mmapload.layout import StoreLayout
    from mmapload.preprocessing.build import SkippedSample
    from mmapload.writer.workfolder import WorkFolder

__all__ = ["AppendPlan", "appending_plan", "is_appendable", "open_extension"]


def open_extension(target: str) -> Extension:
    """Open the store at a path to append to it.

    Raises
    ------
    StoreNotFoundError, LayoutError
        If there is none, or not one that can be read.
    MmaploadError
        If it has fields that cannot be appended to yet.
    """
    try:
        store = open_store(target)
    except StoreNotFoundError as error:
        raise StoreNotFoundError(
            f"nothing can be appended: {error}; leave out --append to make one"
        ) from None
    notes = root_document(target)["attributes"]["mmapload"]
    noted = [name for name, note in notes["fields"].items() if note]
    if noted:
        raise MmaploadError(
            f"{target} has fields that cannot be appended to yet, {', '.join(map(repr, noted))}: preprocess "
            "all samples again"
        )
    entries = read_journal(os.path.join(partial_path(target), "journal"))[0]
    # The last step of an append that was cut off may be done already: it is to be recognised as what it is.
    return Extension(store, min(committed(entries), len(store)) or len(store))


def _check_same(extension: Extension, plan: PreprocessPlan) -> dict[str, ArraySpec]:
    """Return the schema in the store's order, if new samples and options suit the store.

    Raises
    ------
    StateMismatchError
        Naming the first difference, and both sides.
    """
    layout, path = extension.store.layout, extension.store.path
    options, schema, filled = plan.options, plan.schema, layout.source.get("fill", {})
    if layout.source.get("optional"):
        raise MmaploadError(
            f"{path} has optional fields, and cannot be appended to yet: preprocess all samples"
        )
    codecs = ", ".join(sorted({field.codec.name for field in layout.fields}))
    for what, saved, now in (
        ("batch size (--batch-size)", layout.batch_size, options.batch_size),
        ("codec (--codec)", codecs, options.codec),
        ("order of writing (--shuffle)", layout.source.get("shuffle"), options.shuffle),
        *(
            (f"value for {name} (--fill)", filled.get(name, value.note), value.note)
            for name, value in plan.fill.items()
        ),
    ):
        if saved != now:
            raise StateMismatchError(
                f"{path} was written with another {what}: append with the same", str(saved), str(now)
            )
    expected = {field.name: str(ArraySpec(field.dtype, field.shape)) for field in layout.fields}
    found = {name: str(ArraySpec(spec.dtype, spec.shape)) for name, spec in schema.items()}
    if expected != found:
        differing = {name for name, _ in expected.items() ^ found.items()}
        told = (
            ", ".join(f"{name} {fields[name]}" for name in sorted(differing) if name in fields)
            or "no such field"
            for fields in (expected, found)
        )
        raise StateMismatchError(
            f"{path} has other fields than these samples: choose and rename by --fields, give --fill for "
            "those that are missing, or write another store",
            *told,
        )
    return {field.name: schema[field.name] for field in layout.fields}


def is_appendable(plan: PreprocessPlan) -> bool:
    """Whether what a plan would write can be appended to the finished store at its place."""
    try:
        _check_same(open_extension(plan.out), plan)
    except MmaploadError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class AppendPlan(PreprocessPlan):
    """What will be appended to a finished store.

    Its samples are those of the last chunk, if it is not full, and the new ones.

    Attributes
    ----------
    extension : Extension
        The store, and how many samples it has.
    """

    extension: Extension | None = None

    @property
    def base(self) -> Extension:
        """The store."""
        if self.extension is None:
            raise AssertionError("a plan to append to nothing")
        return self.extension

    @property
    def anew(self) -> str:
        """The options that give up what is unfinished; the second alone would replace the store."""
        return "--append --overwrite (append=True, overwrite=True)"

    @property
    def has_names(self) -> bool:
        """Whether the store keeps names."""
        return self.base.store.layout.has_names

    def layout(self, samples: int | None, skipped: int = 0) -> StoreLayout:
        """Return the layout of so many samples, in chunks like the store's."""
        made, length = PreprocessPlan.layout(self, samples, skipped), self.base.chunk_length
        fields = tuple(replace(field, chunk_length=length) for field in made.fields)
        return replace(made, chunk_length=length, fields=fields)

    def describe(self) -> str:
        """Write the plan for people, several lines."""
        text = PreprocessPlan.describe(self)
        if self.samples is not None:
            new = f": {self.samples - self.base.rows:,} samples"
            text = text.replace(f": {self.samples:,} samples", new, 1)
        return text

    def commit(self, work: WorkFolder, part: StoreLayout, names: Iterable[str], skipped: int) -> None:
        """Make all ready that is to be put in its place.

        Raises
        ------
        SourceError
            If no new sample is sound.
        """
        base = self.base
        if part.samples <= base.rows:
            raise SourceError("the source", None, "there is no sound sample in it")
        commit(work, base.store, base.samples, part, names, _source(base, part, skipped))

    def place_of(self, index: int) -> int | None:
        """Return the place of a sample behind all that the store was made of before."""
        before = self.base.store.layout.source.get("skipped", 0)
        if not isinstance(self.source, AppendedSource) or index < self.base.rows:
            return None
        return self.base.samples + int(before) + self.source.original(index)

    def skipped_of_source(self, skipped: Sequence[SkippedSample]) -> list[SkippedSample]:
        """Return samples that were left out with their numbers in the source."""
        if isinstance(self.source, AppendedSource):
            return [replace(each, index=self.source.original(each.index)) for each in skipped]
        return [replace(each, index=each.index - self.base.rows) for each in skipped]


def appending_plan(plan: PreprocessPlan, extension: Extension) -> AppendPlan:
    """Return the plan that appends what another would write into a store of its own.

    Raises
    ------
    StateMismatchError
        If its samples or options do not suit the store; naming the first difference, and both sides.
    """
    schema = _check_same(extension, plan)
    found = {field.name: getattr(plan, field.name) for field in fields(plan)}
    source: AppendedSource | AppendedStream
    if plan.samples is None:
        source, samples = AppendedStream(extension, plan.stream), None
    else:
        source = AppendedSource(extension, plan.indexed, plan.options.shuffle)
        samples = len(source)
    found |= {"source": source, "schema": schema, "samples": samples}
    found["options"] = replace(plan.options, shuffle=None)
    return AppendPlan(**found, extension=extension)


def _source(base: Extension, part: StoreLayout, skipped: int) -> dict[str, Any]:
    """Return what the root is to say of how the store was made."""
    old = dict(base.store.layout.source)
    new = dict(part.source)
    kind, _, _ = str(new.get("kind")).partition(", appended")
    kinds = str(old.get("kind")).split(", ")
    before = old.get("skipped", 0)
    made = {**old, "kind": ", ".join(dict.fromkeys([*kinds, kind]))}
    made["skipped"] = (before if isinstance(before, int) else 0) + skipped
    before, after = (each.pop("contents", None) for each in (made, new))
    made.pop("files", None)
    if before and after:
        made["contents"] = added_contents(before, after)
    if "fill" in new:
        made["fill"] = {**old.get("fill", {}), **new["fill"]}
    return made
