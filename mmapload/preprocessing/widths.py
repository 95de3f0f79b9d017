"""How long text is: a field has room for the longest one of all samples, which are looked at before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.errors import SourceError
from mmapload.preprocessing.headers import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mmapload.sources import ArraySpec, IndexedSource

__all__ = ["widened"]


def widened(
    source: IndexedSource, first: int, schema: Mapping[str, ArraySpec], indices: Sequence[int], *, skip: bool
) -> dict[str, ArraySpec]:
    """Return the schema with room for the longest text that a sample has in each field of text.

    Without such a field nothing is read: of files all headers, of a Python sequence all samples.

    Parameters
    ----------
    first : int
        The number of the sample that the schema is from.
    indices : sequence of int
        The samples to look at.
    skip : bool
        Whether bad samples will be left out.

    Raises
    ------
    SourceError
        If a sample has text of another kind, or an array of another shape or no text; names both samples.
    """
    text = {name: spec for name, spec in schema.items() if spec.is_text}
    if not text:
        return dict(schema)
    for index, found in schemas(source, indices):
        if isinstance(found, SourceError):
            if not skip:
                raise found
            continue
        for name, spec in text.items():
            own = found.get(name)
            if own is None or spec.holds(own):
                continue
            if own.holds(spec):
                text[name] = own
            elif not skip:
                expected = f"{schema[name]}, or longer, as in {source.describe(first)}"
                cause = f"{own}, expected {expected}{_advice(own, spec)}"
                raise SourceError(source.describe(index), name, cause)
    return {name: text.get(name, spec) for name, spec in schema.items()}


def _advice(own: ArraySpec, spec: ArraySpec) -> str:
    if own.is_text and own.dtype.kind != spec.dtype.kind:
        return "; one is text (U), one bytes (S): write all of them in one way, or leave the field out"
    if own.is_text:
        return "; of text each sample has the same shape"
    return ""
