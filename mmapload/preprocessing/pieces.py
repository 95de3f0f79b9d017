"""How long the pieces of ragged fields are, once it is known which samples a chunk holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mmapload.preprocessing.build import writing_order
from mmapload.preprocessing.ragged import planned

if TYPE_CHECKING:
    from mmapload.preprocessing.plan import PreprocessPlan

__all__ = ["with_pieces"]


def with_pieces(plan: PreprocessPlan) -> PreprocessPlan:
    """Return the plan with the lengths of all pieces.

    They follow from the shapes of all samples in the order of writing. A sample that turns out to be bad when
    it is read, and is left out, does not change them: chunks that are written already stay as they are.
    """
    if not plan.ragged or plan.samples is None:
        return plan
    order = writing_order(plan.samples, plan.options.shuffle)
    length, codec = plan.chunk_length, plan.options.codec
    return replace(
        plan, ragged={name: planned(each, order, length, codec) for name, each in plan.ragged.items()}
    )
