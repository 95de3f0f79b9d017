"""What samples may differ in: what a source is checked for is what `preprocess` will be told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mmapload.sources import ArraySpec
from mmapload.sources.absent import lacking_advice
from mmapload.sources.samples import IterableSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.checking.report import Variety
    from mmapload.preprocessing.fill import Number, StandIn
    from mmapload.preprocessing.opening import OpenedSource
    from mmapload.preprocessing.plan import Samples
    from mmapload.store import StrPath

__all__ = ["Allowed", "open_allowing", "parse_allowed", "problems_of"]


@dataclass(frozen=True, slots=True)
class Allowed:
    """What is no fault, as `preprocess` takes it.

    Attributes
    ----------
    fields : mapping of str to str, or None
        The arrays that are taken, and their new names.
    ragged : tuple of str
        Fields whose shapes may differ; or "auto".
    optional : tuple of str
        Fields that samples may lack, each with a mask.
    fill : mapping of str to number or StandIn
        What stands in for fields that samples may lack, those of `optional` among them.
    cast : tuple of (str, str)
        Fields and the types that they are cast to.
    """

    fields: Mapping[str, str] | None = None
    ragged: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    fill: Mapping[str, Number | StandIn] | None = None
    cast: tuple[tuple[str, str], ...] = ()

    @property
    def lacking(self) -> Mapping[str, Number | StandIn]:
        """The fields that a sample may lack."""
        return self.fill or {}


def parse_allowed(fields: Any, ragged: Any, optional: Any, fill: Any, cast: Any) -> Allowed:
    """Read the options, as `preprocess` does.

    Raises
    ------
    ValueError, TypeError
        If one is not as `preprocess` takes it.

    Examples
    --------
    >>> allowed = parse_allowed("a=b", "auto", "b", None, None)
    >>> allowed.fields, allowed.ragged, dict(allowed.lacking)
    ({'a': 'b'}, ('auto',), {'b': 0})
    """
    from mmapload.preprocessing.fill import check_fill
    from mmapload.preprocessing.opening import parse_fields
    from mmapload.preprocessing.optional import check_optional, with_optional
    from mmapload.preprocessing.ragged import check_ragged
    from mmapload.sources.casting import parse_casts

    chosen = parse_fields(fields)
    names = check_optional(optional)
    filled = check_fill(with_optional(fill, names), chosen)
    return Allowed(chosen, check_ragged(ragged), names, filled, parse_casts(cast))


def open_allowing(
    source: Any, list_file: StrPath | None, samples: Samples, allowed: Allowed, *, allow_pickle: bool
) -> OpenedSource:
    """Open a source as `preprocess` does, but for fields that are selected and missing: they are told later.

    Raises
    ------
    SourceError, ValueError, TypeError
        As `open_source`; and if shapes of samples that come once may differ.
    """
    from mmapload.preprocessing.opening import open_source
    from mmapload.preprocessing.survey import NO_RAGGED_STREAM
    from mmapload.sources.castsource import cast_source

    lacking = {*allowed.lacking, *(() if allowed.fields is None else allowed.fields.values())}
    opened = open_source(
        source,
        allowed.fields,
        list_file,
        lacking,
        samples,
        allow_pickle=allow_pickle,
        skip=True,  # a file of many samples that is bad is a fault like others
        ragged=allowed.ragged,
    )
    if allowed.ragged and isinstance(opened.source, IterableSource):
        raise ValueError(NO_RAGGED_STREAM)
    if allowed.cast:
        opened = replace(opened, source=cast_source(opened.source, allowed.cast))
    return opened


def problems_of(schema: Mapping[str, ArraySpec | Variety], allowed: Allowed) -> list[str]:
    """Say what is wrong with names of fields, and with the options, where most samples have this schema."""
    from mmapload.preprocessing.fill import StandIn, stand_in
    from mmapload.preprocessing.optional import with_masks
    from mmapload.preprocessing.planning import schema_problems
    from mmapload.preprocessing.ragged import expect_empty, ragged_candidates
    from mmapload.preprocessing.survey import with_fill
    from mmapload.sources.casting import check_casts

    new = allowed.fields or {}
    if not schema:
        return []
    problems = [
        f"most samples have no array {old!r}, which is selected: check its name; {lacking_advice([name])}"
        for old, name in new.items()
        if name not in schema and name not in allowed.lacking
    ]
    specs = {
        name: spec if isinstance(spec, ArraySpec) else ArraySpec(spec.dtype, spec.longest)
        for name, spec in schema.items()
    }
    problems += schema_problems(specs, {name: old for old, name in new.items()})
    differing = {name for name, spec in schema.items() if not isinstance(spec, ArraySpec)}
    try:
        full = with_fill("most samples", specs, {}, allowed.lacking, "no sample has", allowed.ragged)
        ragged_candidates(full, allowed.ragged)
        for name, value in allowed.lacking.items():
            marked = name in allowed.optional
            found = (
                value if isinstance(value, StandIn) else stand_in(name, value, full[name], optional=marked)
            )
            if found is not value and (name in allowed.ragged or name in differing):
                expect_empty(name, found)
        check_casts(allowed.cast, with_masks(full, allowed.optional)[0])
    except ValueError as error:
        problems.append(str(error))
    return problems
