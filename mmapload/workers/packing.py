"""A batch in a slot: what a worker sends is the batch's pickle, in which tensors and arrays are places.

Pickling is what torch does with a batch too, so whatever is in it comes out as it would have: containers of
any class, strides, tensors that share memory. Only the memory that tensors lie in differs.
"""

from __future__ import annotations

import io
import math
import time
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from mmapload.workers.slots import Slots

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.workers.indices import SlotWriter

__all__ = ["PackedBatch", "pack"]

SMALL_BYTES: Final = 2**12
"""numpy arrays below this size are pickled whole, as torch does with arrays of any size."""


class PackedBatch:
    """A batch on its way from a worker: unpickling it gives the batch itself, its tensors over the slot."""

    __slots__ = ("key", "left_out", "payload", "slot", "times", "too_large")

    def __init__(
        self, key: int, slot: int, payload: bytes, left_out: int, too_large: int, times: tuple[float, float]
    ) -> None:
        self.key = key
        self.slot = slot
        self.payload = payload
        self.left_out = left_out
        self.too_large = too_large
        self.times = times

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _open, (self.key, self.slot, self.payload, self.left_out, self.too_large, self.times)


def pack(batch: Any, writer: SlotWriter) -> PackedBatch:
    """Put the tensors and arrays of a batch into a slot, those that do not lie there yet."""
    buffer = io.BytesIO()
    pickler = _SlotPickler(buffer, writer)
    pickler.dump(batch)
    left_out, too_large = pickler.left_out, pickler.too_large
    times = writer.began, time.monotonic()
    return PackedBatch(writer.file.key, writer.slot, buffer.getvalue(), left_out, too_large, times)


class _SlotPickler(ForkingPickler):
    """Pickles tensors and arrays as places in a slot, where that is all there is to them.

    Attributes
    ----------
    left_out : int
        Tensors and arrays that went torch's way.
    too_large : int
        Those of them that the slot had no room for.
    """

    def __init__(self, buffer: io.BytesIO, writer: SlotWriter) -> None:
        super().__init__(buffer)
        self.left_out = 0
        self.too_large = 0
        self._writer = writer
        self._memory = _MemoryOfSlot(writer.file.key, writer.slot)
        self._placed: dict[tuple[int, int], int] = {}

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            found = self._tensor(obj) if _is_plain(obj) else None
        elif type(obj) is np.ndarray and obj.nbytes >= SMALL_BYTES and _is_placeable(obj.dtype):
            found = self._array(obj)
        else:
            return NotImplemented
        if found is None:
            self.left_out += 1
            return NotImplemented
        return found

    def _tensor(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        # By its whole storage, as torch does: tensors that share one share it on the other side.
        start = self._place_storage(storage, nbytes) if tensor.numel() else 0
        if start is None:
            self.too_large += 1
            return None
        view = tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return _tensor_over, (self._memory, start, nbytes, *view)

    def _place_storage(self, storage: torch.UntypedStorage, nbytes: int) -> int | None:
        address = storage.data_ptr()
        place = self._placed.get((address, nbytes))
        if place is None:
            place = self._writer.offset(address, nbytes)
        if place is None:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage)
            place = self._copy(whole.numpy())
        if place is not None:
            self._placed[address, nbytes] = place
        return place

    def _array(self, array: npt.NDArray[Any]) -> tuple[Any, ...] | None:
        order: Literal["C", "F"] = "F" if array.flags.fnc else "C"
        place = self._copy(array.ravel(order).view(np.uint8))
        if place is None:
            self.too_large += 1
            return None
        return _array_over, (self._memory, place, array.dtype, array.shape, order)

    def _copy(self, source: Bytes) -> int | None:
        start = self._writer.used
        target = self._writer.take(source.nbytes)
        if target is None:
            return None
        np.copyto(target, source)
        return start


def _is_plain(tensor: torch.Tensor) -> bool:
    """Say whether dtype, place, shape and strides are all there is to a tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
        and not (tensor.is_conj() or tensor.is_neg() or tensor._is_zerotensor())  # noqa: SLF001 - has no public name
    )


def _is_placeable(dtype: np.dtype[Any]) -> bool:
    # Pickling turns arrays of the other byte order into this machine's.
    return dtype.isnative and not dtype.hasobject


class _MemoryOfSlot:
    """Stands for the memory of the slot: pickled once for a batch, however many tensors there are."""

    __slots__ = ("key", "slot")

    def __init__(self, key: int, slot: int) -> None:
        self.key = key
        self.slot = slot

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int, int]]:
        return _memory_of, (self.key, self.slot)


def _memory_of(key: int, slot: int) -> Bytes:
    return Slots.find(key).memory(slot)


def _open(
    key: int, slot: int, payload: bytes, left_out: int, too_large: int, times: tuple[float, float]
) -> Any:
    """Return the batch, in the process that trains."""
    slots = Slots.find(key)
    slots.timings.append(times)
    if left_out:
        slots.counts.in_part += 1
        slots.counts.too_large += too_large > 0
    else:
        slots.counts.in_slots += 1
    with slots.arriving(slot):
        return ForkingPickler.loads(payload)


def _tensor_over(
    memory: Bytes,
    start: int,
    nbytes: int,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    if not math.prod(shape):
        return torch.empty_strided(shape, stride, dtype=dtype)
    whole = torch.frombuffer(memory, dtype=dtype, count=nbytes // dtype.itemsize, offset=start)
    # Not `as_strided`: a view of a tensor knows its base, and some operations in place are denied to it.
    return torch.empty(0, dtype=dtype).set_(whole.untyped_storage(), offset, shape, stride)


def _array_over(
    memory: Bytes, start: int, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"]
) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, memory, start, order=order)
