"""Fill one row of a chunk's buffers with a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.errors import SourceError
from mmapload.preprocessing.buffers import RaggedRows
from mmapload.preprocessing.fill import read_filled
from mmapload.preprocessing.ragged import ragged_advice
from mmapload.spent import now, spend

if TYPE_CHECKING:
    from collections.abc import Collection

    from mmapload.preprocessing.buffers import Rows
    from mmapload.preprocessing.plan import PreprocessPlan

__all__ = ["read_into"]


def read_into(plan: PreprocessPlan, rows: Rows, row: int, index: int) -> Collection[str]:
    """Read sample `index` of an indexed source into a row of all fields; returns the fields that it lacks.

    Raises
    ------
    SourceError
        If the sample cannot be read, or is not as the plan says.
    """
    masks = plan.masks
    into = {}
    for name, values in rows.items():
        if isinstance(values, RaggedRows):
            into[name] = values.place(row, plan.ragged[name].shapes[index].tolist())
        elif name not in masks:
            into[name] = values[row, ...]
    since = now()
    try:
        absent = read_filled(plan.indexed, index, into, plan.fill)
    except SourceError as error:
        raise _hinted(plan, index, _of_another_shape(plan, index, error) or error) from error.__cause__
    spend("reading", since)
    for mask, name in masks.items():
        values = rows[mask]
        if not isinstance(values, RaggedRows):
            values[row] = name not in absent
    return absent


def _hinted(plan: PreprocessPlan, index: int, error: SourceError) -> SourceError:
    """Add to the error of a sample that is not like the first what else a sample might be."""
    try:
        differs = plan.likeness and plan.indexed.schema(index) != plan.schema
    except SourceError:
        return error
    return SourceError(error.file, error.member, f"{error.cause}; {plan.likeness}") if differs else error


def _of_another_shape(plan: PreprocessPlan, index: int, error: SourceError) -> SourceError | None:
    """Return the error of a sample that differs in shape alone, with the first sample and what to do."""
    try:
        own = plan.indexed.schema(index)
    except SourceError:
        return None
    for name, spec in plan.schema.items():
        found = own.get(name)
        if (
            name not in plan.ragged
            and found is not None
            and found.dtype == spec.dtype
            and found.shape != spec.shape
            and 0 < len(found.shape) == len(spec.shape)
        ):
            first = plan.indexed.describe(plan.first)
            cause = f"{error.cause}, as in {first}; {ragged_advice(name)}"
            return SourceError(error.file, error.member, cause)
    return None
