"""Look at a source before anything is written: fields, dtypes, shapes, stand-ins, and how many samples."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mmapload.errors import SourceError
from mmapload.preprocessing.fill import StandIn, stand_in
from mmapload.preprocessing.headers import Expected, others_bad, schemas
from mmapload.preprocessing.ragged import AUTO, survey_shapes
from mmapload.preprocessing.usual import unlike_first, usual_sample
from mmapload.preprocessing.widths import widened
from mmapload.sources.badfiles import looked_at, others_told
from mmapload.sources.grouped import grouped
from mmapload.sources.samples import IterableSource
from mmapload.writer.names import name_nbytes, names_nbytes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from mmapload.preprocessing.fill import Number
    from mmapload.preprocessing.opening import OpenedSource
    from mmapload.preprocessing.plan import Options
    from mmapload.preprocessing.ragged import RaggedPlan
    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["NO_RAGGED_STREAM", "Survey", "survey", "with_fill"]

NO_RAGGED_STREAM = (
    "ragged needs to know all shapes before the first sample is written, and an iterable comes once: make it "
    "a sequence (which is gone through twice), such as a list, or write files first"
)

_LOOKED_AT = 1024
"""Of a Python sequence at most so many samples are taken to find a field; of files all headers are read."""


@dataclass(frozen=True, slots=True)
class Survey:
    """What a source turns out to have.

    Attributes
    ----------
    schema : mapping of str to ArraySpec
        Every field's dtype and shape.
    fill : mapping of str to StandIn
        What is stored for which field in samples that lack it; in the schema's order.
    samples : int or None
        How many there are; None if only the end of the source will tell.
    names_bytes : int
        Bytes of the files that keep the samples' names; 0 if the source has none.
    first : int
        The number of the sample that the schema is from.
    ragged : mapping of str to RaggedPlan
        The fields whose samples differ in shape.
    """

    schema: Mapping[str, ArraySpec]
    fill: Mapping[str, StandIn]
    samples: int | None
    names_bytes: int
    first: int = 0
    ragged: Mapping[str, RaggedPlan] = field(default_factory=dict)


def survey(opened: OpenedSource, options: Options, fill: Mapping[str, Number | StandIn]) -> Survey:
    """Look at a source, as `_survey`; the error of a bad sample names the others that are bad."""
    source = opened.source
    try:
        _check_names(opened, options)
        return _survey(opened, options, fill)
    except SourceError as error:
        if isinstance(source, IterableSource) or options.on_error == "skip" or opened.listing is None:
            raise
        index = next((each for each in range(len(source)) if source.describe(each) == error.file), None)
        others = (
            ""
            if index is None
            else others_bad(source, index, error, _expected(opened, source, options, fill))
        )
        if not others:
            raise
        raise SourceError(error.file, error.member, f"{error.cause}; {others}") from error.__cause__


def _check_names(opened: OpenedSource, options: Options) -> None:
    """Refuse the first file whose name is not UTF-8 before anything is written.

    When it is renamed, the samples are others, and an unfinished run could not be continued.
    """
    source, listing = opened.source, opened.listing
    if isinstance(source, IterableSource) or listing is None or not listing.misnamed:
        return
    if options.on_error == "fail":
        misnamed = {os.path.join(listing.root, name) for name in listing.misnamed}
        found = [index for index in range(len(source)) if source.describe(index) in misnamed]
        try:
            for index in found:
                source.schema(index)
        except SourceError as error:
            if source.parallel:
                raise  # the caller looks at all others
            bad, of = {error.cause: found[1:]}, looked_at(len(source), len(source), "samples")
            others = others_told(bad, error.cause, of, lambda other: source.name(other) or "")
            raise SourceError(error.file, None, f"{error.cause}; {others}".removesuffix("; ")) from None


def _expected(
    opened: OpenedSource, source: IndexedSource, options: Options, fill: Mapping[str, Number | StandIn]
) -> Expected:
    """Return what the first sound sample has, or most others if it is the odd one."""
    for index, schema in schemas(source, range(min(len(source), _LOOKED_AT))):
        if not isinstance(schema, SourceError):
            return _expecting(_unless_odd(opened, source, (index, schema), options, fill)[1], options, fill)
    return Expected()


def _expecting(
    schema: Mapping[str, ArraySpec], options: Options, fill: Mapping[str, Number | StandIn]
) -> Expected:
    return Expected(schema, fill, schema if options.ragged == (AUTO,) else options.ragged)


def _survey(opened: OpenedSource, options: Options, fill: Mapping[str, Number | StandIn]) -> Survey:
    """Read one sample's schema, and others' until every field that a number fills is found.

    Raises
    ------
    SourceError
        If there is no sample, or one that is looked at is bad and `on_error` is "fail".
    ValueError
        If stand-ins do not fit the samples, or nothing says their dtype and shape.
    """
    source, skip, index = opened.source, options.on_error == "skip", 0
    if isinstance(source, IterableSource):
        if options.shuffle is not None:
            raise ValueError(
                "shuffle needs a length, which an iterable lacks: make it a sequence, or shuffle before"
            )
        if options.ragged:
            raise ValueError(NO_RAGGED_STREAM)
        first: Mapping[str, ArraySpec] = source.schema(skip=skip)
        # A generator may yield one dict again and again, so that only one sample can be kept for later.
        schema = with_fill("the first sample", first, {}, fill, "the first sample of an iterable lacks", ())
        samples, names_bytes = None, 0
    else:
        samples, names_bytes = len(source), _names_bytes(source)
        if samples == 0:
            raise SourceError("the source", None, "there is no sample in it")
        index, first = _first_schema(source, skip=skip)
        if not skip:
            index, first = _unless_odd(opened, source, (index, first), options, fill)
        numbers = {name for name, value in fill.items() if not isinstance(value, StandIn)}
        last = samples if opened.listing is not None else min(samples, index + _LOOKED_AT)
        later = _later_specs(
            source, numbers - first.keys(), range(0 if skip or index else 1, last), skip=skip
        )
        lacking = "no sample has" if last == samples else f"none of the first {last:,} samples has"
        schema = with_fill(source.describe(index), first, later, fill, lacking, options.ragged)
    if options.fields is not None:
        schema = {name: schema[name] for _, name in options.fields}
    stand_ins = {
        name: value
        if isinstance(value := fill[name], StandIn)
        else stand_in(name, value, spec, optional=name in options.optional)
        for name, spec in schema.items()
        if name in fill
    }
    if not isinstance(source, IterableSource):
        schema = widened(source, index, schema, _heads(source, range(len(source))), skip=skip)
    ragged: Mapping[str, RaggedPlan] = {}
    if options.ragged and not isinstance(source, IterableSource):
        ragged = survey_shapes(source, index, schema, options.ragged, stand_ins, skip=skip)
    return Survey(schema, stand_ins, samples, names_bytes, index, ragged)


def _names_bytes(source: IndexedSource) -> int:
    if not len(source) or source.name(0) is None:
        return 0
    if (many := grouped(source)) is not None:
        return names_nbytes(len(source), many.names_nbytes())
    return names_nbytes(len(source), sum(name_nbytes(source.name(i) or "") for i in range(len(source))))


def _first_schema(source: IndexedSource, *, skip: bool) -> tuple[int, Mapping[str, ArraySpec]]:
    """Return number and schema of the first sample that has one, or of one that is as most are."""
    heads = _heads(source, range(len(source)))
    if skip and (usual := usual_sample(source, heads)) is not None:
        return usual  # others are left out, which should not be most of them
    fault: SourceError | None = None
    for index in heads:
        try:
            return index, source.schema(index)
        except SourceError as error:
            if not skip:
                raise
            fault = fault or error
    if fault is None:
        raise AssertionError("a source without samples")
    raise SourceError(fault.file, fault.member, f"{fault.cause}; and no other sample is sound")


def _unless_odd(
    opened: OpenedSource,
    source: IndexedSource,
    first: tuple[int, Mapping[str, ArraySpec]],
    options: Options,
    fill: Mapping[str, Number | StandIn],
) -> tuple[int, Mapping[str, ArraySpec]]:
    """Return the first sample's number and schema; another's if it is like most and the first is not.

    Then the first is told as the bad one, in place of all others, and no chunk is as large as it asks for.
    """
    files = 0 if opened.listing is None else len(opened.listing)
    if first[0] or not files or not (source.parallel or files == len(source)) or grouped(source) is not None:
        return first
    usual = unlike_first(source, first[1])
    if usual is None:
        return first
    own, other = (_expecting(schema, options, fill) for _, schema in (first, usual))
    return usual if own.fault(usual[1]) and other.fault(first[1]) else first


def _heads(source: IndexedSource, indices: range) -> Sequence[int]:
    """Return those of these samples whose schemas differ, as far as that is known beforehand."""
    many = grouped(source)
    if many is None:
        return indices
    return [head for head in many.heads(range(len(source))) if head in indices]


def _later_specs(
    source: IndexedSource, wanted: Collection[str], indices: range, *, skip: bool
) -> dict[str, ArraySpec]:
    """Return dtype and shape of these fields, each from the first sample that has it."""
    found: dict[str, ArraySpec] = {}
    for index in _heads(source, indices):
        if len(found) == len(wanted):
            break
        try:
            schema = source.schema(index)
        except SourceError:
            if not skip:
                raise
            continue
        found = {name: schema[name] for name in wanted if name in schema} | found
    return found


def with_fill(
    sample: str,
    first: Mapping[str, ArraySpec],
    later: Mapping[str, ArraySpec],
    fill: Mapping[str, Number | StandIn],
    lacking: str,
    ragged: tuple[str, ...],
) -> dict[str, ArraySpec]:
    """Return the first sample's schema with the fields that it lacks and that are filled, behind the others.

    Parameters
    ----------
    sample : str
        Names the first sample.
    later : mapping of str to ArraySpec
        Fields that other samples have.
    lacking : str
        Says before a field's name that it was not found.
    ragged : tuple of str
        Fields whose samples may differ in shape.
    """
    schema = dict(first)
    for name, value in fill.items():
        if isinstance(value, StandIn):
            may_differ = name in ragged or AUTO in ragged
            if not _is_like(schema.setdefault(name, value.spec), value.spec, ragged=may_differ):
                raise ValueError(
                    f"fill: {name!r} is given as {value.spec}, and in {sample} it is {first[name]}: "
                    "give an array like those that samples have"
                )
        elif name not in first and name not in later:
            has = ", ".join(repr(each) for each in first)
            option = shlex.quote(f"{name}={value}:float32:4x256x448")
            raise ValueError(
                f"fill: {lacking} {name!r} (the first has {has}), so nothing says its dtype and shape: check "
                f"the name, or give them, as in --fill {option} for float32 (4, 256, 448), or in Python an "
                "array like those that are missing"
            )
        elif name not in first:
            schema[name] = later[name]
    return schema


def _is_like(one: ArraySpec, other: ArraySpec, *, ragged: bool) -> bool:
    return (
        one.holds(other)
        or other.holds(one)
        or (ragged and one.dtype == other.dtype and len(one.shape) == len(other.shape))
    )
