"""A batch that is ready when torch's default collation meets it.

torch's `default_collate` looks up the class of a batch's first element in `default_collate_fn_map`. The
elements of a `ReadyBatch` have a class of their own, registered there with a function that returns the
tensors as they are, instead of stacking them once more.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from torch.utils.data._utils.collate import default_collate, default_collate_fn_map

from mmapload.forms import RaggedTensors
from mmapload.served import sample_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    import numpy.typing as npt

    from mmapload.streams import Stream

__all__ = ["ReadyBatch", "Sample"]

Sample: TypeAlias = dict[str, Any]
"""Field name -> tensor of the field's shape and dtype, or what else `served` gives."""


class _BatchSample(dict[str, Any]):
    """A sample of a `ReadyBatch`: a dict, in a class that default collation can be told about."""

    __slots__ = ()

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class ReadyBatch(Sequence[Sample]):
    """Samples whose tensors are already stacked.

    Attributes
    ----------
    tensors : dict of str to Tensor
        Shape (len(batch), *field shape); or what else `served` gives for a field.
    numbers : ndarray of int64, or None
        Of the samples, where a transform may have to know them.
    streams : list of Stream, or None
        Of random numbers, of each sample, where whoever asked for them said so.

    Examples
    --------
    >>> import torch
    >>> batch = ReadyBatch({"x": torch.arange(6).reshape(3, 2)}, 3)
    >>> batch[1]
    {'x': tensor([2, 3])}
    >>> default_collate(batch)["x"] is batch.tensors["x"]
    True
    """

    __slots__ = ("_length", "numbers", "streams", "tensors")

    def __init__(self, tensors: Sample, length: int, numbers: npt.NDArray[np.int64] | None = None) -> None:
        self.tensors = tensors
        self.numbers = numbers
        self.streams: list[Stream] | None = None
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._length))]
        position = operator.index(index)  # a tensor would take a boolean for a mask
        if not -self._length <= position < self._length:
            raise IndexError(f"sample {position} of a batch of {self._length}")
        return _BatchSample({name: sample_of(values, position) for name, values in self.tensors.items()})

    def collated(self) -> Sample:
        """Return the batch as it is delivered: fields whose samples differ in shape in their form."""
        found: Sample = {}
        for name, values in self.tensors.items():
            if isinstance(values, RaggedTensors):
                found.update(values.collated(name))
            else:
                found[name] = values
        return found

    def samples(self) -> Iterator[Sample]:
        """Yield the samples as plain dicts of views into the batch."""
        for i in range(self._length):
            yield {name: sample_of(values, i) for name, values in self.tensors.items()}


def _collate(batch: Sequence[_BatchSample], *, collate_fn_map: Any = None) -> Any:  # noqa: ARG001 - torch passes it
    if isinstance(batch, ReadyBatch):
        return batch.collated()
    return default_collate([dict(sample) for sample in batch])  # type: ignore[no-untyped-call] # torch's has no types


default_collate_fn_map[_BatchSample] = _collate
