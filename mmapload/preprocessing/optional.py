"""Fields that samples may lack, each with a mask: a field that says of every sample whether it has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.sources import ArraySpec

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["MASK_SUFFIX", "check_optional", "with_masks", "with_optional"]

MASK_SUFFIX: Final = "_present"
"""Of the field that says which samples have another one."""


def check_optional(optional: str | Collection[str] | None) -> tuple[str, ...]:
    """Return the names of optional fields, as they were given: "a,b", or a list.

    Raises
    ------
    ValueError, TypeError
        If they are none.

    Examples
    --------
    >>> check_optional("flow, label"), check_optional(None)
    (('flow', 'label'), ())
    """
    parts = optional.split(",") if isinstance(optional, str) else list(optional or ())
    if not all(isinstance(part, str) for part in parts):
        raise TypeError(f"optional: expected names of fields, found {optional!r}")
    names = [part.strip() for part in parts]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"optional: expected names of fields, each once, found {optional!r}")
    return tuple(names)


def with_optional(fill: Mapping[str, Any] | None, optional: tuple[str, ...]) -> Mapping[str, Any] | None:
    """Return what stands in for fields: zeros for optional ones for which nothing else is said."""
    if not optional or not (fill is None or isinstance(fill, Mapping)):
        return fill
    return {**dict.fromkeys(optional, 0), **(fill or {})}


def with_masks(
    schema: Mapping[str, ArraySpec], optional: tuple[str, ...]
) -> tuple[dict[str, ArraySpec], dict[str, str]]:
    """Return the schema with the masks of optional fields behind all others, and the field of each mask.

    Raises
    ------
    ValueError
        If samples have a field of such a name.

    Examples
    --------
    >>> schema, masks = with_masks({"x": ArraySpec(np.dtype("f4"), (3,))}, ("x",))
    >>> list(schema), masks
    (['x', 'x_present'], {'x_present': 'x'})
    """
    masks = {f"{name}{MASK_SUFFIX}": name for name in optional}
    taken = next((mask for mask in masks if mask in schema), None)
    if taken is not None:
        raise ValueError(
            f"optional: {taken!r} will say which samples have {masks[taken]!r}, and there is a field of that "
            f"name: rename one by --fields, for instance {taken}={taken}_2"
        )
    return {**schema, **dict.fromkeys(masks, ArraySpec(np.dtype("bool"), ()))}, masks
