"""Tensors in whatever a batch is, on their way to a device: copied beside the computation on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

__all__ = ["DeviceCopy", "checked_device", "map_tensors"]


def checked_device(device: str | torch.device | None) -> torch.device | None:
    """Return the device of this name.

    Raises
    ------
    ValueError
        If it is none, or a GPU that is not there.
    """
    if device is None:
        return None
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"device is a name such as 'cuda' or 'cuda:1', or a torch.device, not {device!r}"
        ) from error
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (found.index or 0) >= count:
            raise ValueError(
                f"device={str(found)!r}: torch sees {count or 'no'} GPU{'s' * (count > 1)} here. Leave it "
                "out or say 'cpu'; torch.cuda.is_available() and device_count() tell more"
            )
    return found


def map_tensors(batch: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return the batch with `change` applied to its tensors, in dicts, lists and tuples of any depth.

    Anything else is kept as it is. A dict of another class is copied with that class if it can be.

    Examples
    --------
    >>> map_tensors({"x": torch.ones(2), "name": ["a", (torch.zeros(1),)]}, torch.numel)
    {'x': 2, 'name': ['a', (1,)]}
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        changed = {key: map_tensors(value, change) for key, value in batch.items()}
        if type(batch) is dict or not hasattr(batch, "copy") or not hasattr(batch, "update"):
            return changed
        copied = batch.copy()  # a defaultdict cannot be made from a dict alone
        copied.update(changed)
        return copied
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(value, change) for value in batch))
    if type(batch) in {list, tuple}:
        return type(batch)(map_tensors(value, change) for value in batch)
    return batch


class DeviceCopy:
    """Copies batches to one device.

    On a GPU the copy runs on a stream of its own, so that computation goes on meanwhile, if it is from pinned
    memory; the stream that trains waits for it, not the processor. Elsewhere it is `Tensor.to`, which copies
    nothing that is there already.

    Parameters
    ----------
    device : torch.device
        As `checked_device` returns it; a GPU without a number is the current one.

    Examples
    --------
    >>> batch = {"x": torch.ones(2)}
    >>> copying = DeviceCopy(torch.device("cpu"))
    >>> copying.arrive(copying.start(batch))["x"] is batch["x"]
    True
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            self._device = torch.device("cuda", index)
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call] # torch's has no types

    def start(self, batch: Any) -> Any:
        """Begin to copy, in any thread; the result is for `arrive`."""
        if self._stream is None:
            return map_tensors(batch, lambda tensor: tensor.to(self._device))
        with torch.cuda.stream(self._stream):
            moved = map_tensors(batch, lambda tensor: tensor.to(self._device, non_blocking=True))
            return moved, self._stream.record_event()

    def arrive(self, started: Any) -> Any:
        """Return the batch: what is computed with it from now on in this thread waits for the copy."""
        if self._stream is None:
            return started
        batch, copied = started
        current = torch.cuda.current_stream(self._device)
        current.wait_event(copied)
        # Its memory belongs to the other stream, which must not have it back before this one is done with it.
        map_tensors(batch, lambda tensor: tensor.record_stream(current) if tensor.is_cuda else None)
        return batch
