"""Samples that differ in shape, as a batch has them: a list, padded to one shape, or a nested tensor."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import torch

from mmapload.scattered import copy_pieces

if TYPE_CHECKING:
    import numpy.typing as npt

    from mmapload.extents import RaggedArray
    from mmapload.layout import FieldLayout

__all__ = ["FORMS", "RaggedForm", "RaggedTensors", "added_names", "checked_form"]

RaggedForm: TypeAlias = Literal["list", "pad", "nested"]
FORMS: Final = ("list", "pad", "nested")

_ADDED: Final = ("_mask", "_lengths")


def added_names(field: str, form: RaggedForm) -> list[str]:
    """Return the names of the entries that a batch has beside that of a ragged field.

    Examples
    --------
    >>> added_names("words", "pad"), added_names("words", "list")
    (['words_mask', 'words_lengths'], [])
    """
    return [field + each for each in _ADDED] if form == "pad" else []


def checked_form(form: RaggedForm, fields: Sequence[FieldLayout]) -> RaggedForm:
    """Return what becomes of ragged fields in batches, if that can be.

    Raises
    ------
    ValueError
        If there is no such form, a field cannot take it, or an entry of a batch would have the name of one.
    """
    if form not in FORMS:
        raise ValueError(f"ragged is one of {', '.join(FORMS)}, not {form!r}")
    names = {field.name for field in fields}
    for field in fields:
        if not field.is_ragged:
            continue
        if form != "list" and field.meaning is not None and field.meaning.dtype != "bfloat16":
            raise ValueError(
                f"field {field.name!r} holds {field.values_name}, for which torch has no type, and "
                f"ragged={form!r} makes tensors: take ragged='list', which gives numpy arrays, or leave the "
                "field out by naming the others in fields"
            )
        taken = next((name for name in added_names(field.name, form) if name in names), None)
        if taken is not None:
            raise ValueError(
                f"ragged={form!r} adds an entry {taken!r}, and the store has a field of that name"
            )
    return form


class RaggedTensors(Sequence[torch.Tensor]):
    """The samples of a batch, each a tensor of its own shape over the batch's memory.

    Parameters
    ----------
    array : RaggedArray
        The batch.
    form : {"list", "pad", "nested"}
        What becomes of it in a batch.

    Examples
    --------
    >>> from mmapload.extents import Extents, RaggedArray
    >>> array = RaggedArray(np.arange(3), Extents.of(np.array([[1], [0], [2]])))
    >>> [each.tolist() for each in RaggedTensors(array, "list")]
    [[0], [], [1, 2]]
    >>> for name, value in RaggedTensors(array, "pad").collated("x").items():
    ...     print(name, value.tolist())
    x [[0, 0], [0, 0], [1, 2]]
    x_mask [[True, False], [False, False], [True, True]]
    x_lengths [1, 0, 2]
    """

    __slots__ = ("_array", "_flat", "_form")

    def __init__(self, array: RaggedArray, form: RaggedForm, dtype: torch.dtype | None = None) -> None:
        self._array = array
        self._form = form
        flat = torch.from_numpy(array.own_values)
        self._flat = flat if dtype is None else flat.view(dtype)

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = operator.index(index)
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        position %= len(self)
        offsets, shapes = self._array.extents.offsets, self._array.extents.shapes
        start, stop = (offsets[position : position + 2] - offsets[0]).tolist()
        return self._flat[start:stop].view(shapes[position].tolist())

    def collated(self, name: str) -> dict[str, Any]:
        """Return the entries of a batch: one of the field's name, and for "pad" a mask and the lengths."""
        if self._form == "pad":
            return dict(zip((name, *added_names(name, "pad")), self._padded(), strict=True))
        return {name: self._nested() if self._form == "nested" else self.tensors()}

    def tensors(self) -> list[torch.Tensor]:
        """Return all samples."""
        extents = self._array.extents
        # Each is a tensor of its own over the same memory, not one of several views that autograd knows of.
        parts = torch.unsafe_split_with_sizes(self._flat, np.diff(extents.offsets).tolist())
        if extents.shapes.shape[1] == 1:
            return list(parts)
        return [part.view(shape) for part, shape in zip(parts, extents.shapes.tolist(), strict=True)]

    def _padded(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return samples filled up with zeros behind their ends, where they have values, and their shapes."""
        shapes = self._array.extents.shapes
        largest = shapes.max(axis=0, initial=0).tolist()
        padded = np.zeros((len(shapes), *largest), self._array.values.dtype)
        if (shapes[:, 1:] == largest[1:]).all():  # each sample is one piece still
            size, offsets = padded.itemsize, self._array.extents.offsets
            rows = np.arange(len(shapes)) * math.prod(largest) * size
            target: int = padded.__array_interface__["data"][0]
            copy_pieces(target + rows, self._array.address + offsets[:-1] * size, np.diff(offsets) * size)
        else:
            for row, values, shape in zip(padded, self._array, shapes.tolist(), strict=True):
                row[tuple(map(slice, shape))] = values
        found = torch.from_numpy(padded)
        lengths = shapes[:, 0] if len(largest) == 1 else shapes
        return (
            found if found.dtype == self._flat.dtype else found.view(self._flat.dtype),
            torch.from_numpy(_mask(shapes, largest)),
            torch.from_numpy(lengths.copy()),
        )

    def _nested(self) -> torch.Tensor:
        """Return one nested tensor: of layout `jagged` if only the first axis differs, else `strided`."""
        shapes = self._array.extents.shapes
        rest = shapes[:, 1:]
        if len(shapes) and (rest == rest[:1]).all() and rest[:1].all():
            values = self._flat.view(-1, *rest[0].tolist())
            offsets = np.zeros(len(shapes) + 1, np.int64)
            np.cumsum(shapes[:, 0], out=offsets[1:])
            lengths = shapes[:, 0]
            jagged: torch.Tensor = torch.nested.nested_tensor_from_jagged(
                values,
                torch.from_numpy(offsets),
                min_seqlen=int(lengths.min()),
                max_seqlen=int(lengths.max()),
            )
            return jagged
        return torch.nested.as_nested_tensor(self.tensors(), layout=torch.strided)


def _mask(shapes: npt.NDArray[np.int64], largest: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Return where samples of these shapes have values, of shape (samples, *largest)."""
    mask = np.empty((len(shapes), *largest), np.bool_)
    for axis, length in enumerate(largest):
        steps = np.arange(length, dtype=np.uint32).reshape(-1, *[1] * (len(largest) - axis - 1))
        ends = shapes[:, axis].astype(np.uint32).reshape(-1, *[1] * len(largest))
        np.less(steps, ends, out=mask, where=mask if axis else True)
    return mask
