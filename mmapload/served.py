"""What a field's values are in a batch for torch: tensors, and what it has no type for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from mmapload.extents import RaggedArray
from mmapload.forms import RaggedTensors

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.forms import RaggedForm
    from mmapload.layout import FieldLayout

__all__ = ["Served", "sample_of", "served", "served_batch"]

Served: TypeAlias = "torch.Tensor | npt.NDArray[Any] | list[str] | list[bytes] | list[npt.NDArray[Any]]"
"""A field of a batch."""


class SampleArray(np.ndarray[Any, np.dtype[Any]]):
    """A sample's array of times or text: default collation stacks those of a batch, as it does tensors."""

    __slots__ = ()


def _stack(batch: Sequence[npt.NDArray[Any]], *, collate_fn_map: Any = None) -> npt.NDArray[Any]:  # noqa: ARG001 - torch passes it
    return np.stack(batch).view(np.ndarray)


default_collate_fn_map[SampleArray] = _stack


def served(field: FieldLayout, stored: Any, form: RaggedForm = "list") -> Any:
    """Return the samples of a batch as they are served.

    Parameters
    ----------
    stored : ndarray or RaggedArray
        Shape (samples, *field shape).
    form : {"list", "pad", "nested"}
        What becomes of samples that differ in shape.

    Returns
    -------
    Tensor, ndarray, list of str, or list of bytes
        Over the memory of `stored`, but for the lists: tensors of numbers, bfloat16 included; numpy arrays of
        times, and of text where a sample has several; one text for each sample. Of a ragged field
        `RaggedTensors`, and of ragged times a list of numpy arrays.

    Examples
    --------
    >>> from mmapload.codecs import RawCodec
    >>> from mmapload.layout import FieldLayout
    >>> from mmapload.notes import DtypeNote
    >>> field = FieldLayout("x", np.dtype("u2"), (), 4, RawCodec(), meaning=DtypeNote("bfloat16"))
    >>> served(field, np.array([0x3F80, 0xC000], np.uint16))
    tensor([ 1., -2.], dtype=torch.bfloat16)
    """
    meaning = field.meaning
    if isinstance(stored, RaggedArray):
        if meaning is not None and meaning.dtype != "bfloat16":
            return [meaning.view(each) for each in stored]
        return RaggedTensors(stored, form, None if meaning is None else torch.bfloat16)
    if meaning is None:
        return torch.from_numpy(stored)
    if meaning.dtype == "bfloat16":
        return torch.from_numpy(stored).view(torch.bfloat16)
    values = meaning.view(stored)
    if not meaning.is_text or values.ndim > 1:
        return values
    texts: list[str] | list[bytes] = values.tolist()
    return texts


def served_batch(
    fields: Iterable[FieldLayout], arrays: Mapping[str, Any], form: RaggedForm = "list"
) -> dict[str, Any]:
    """Return a batch, as it is served, of the stored arrays of its fields."""
    return {field.name: served(field, arrays[field.name], form) for field in fields}


def sample_of(batch: Served, position: int) -> Any:
    """Return a field of one sample of a batch, over the batch's memory.

    Examples
    --------
    >>> sample_of(np.array(["2020-01-01", "NaT"], "M8[D]"), 0)
    SampleArray('2020-01-01', dtype='datetime64[D]')
    """
    found = batch[position, ...] if isinstance(batch, np.ndarray) else batch[position]
    return found.view(SampleArray) if isinstance(found, np.ndarray) else found
