"""The collate function that a worker calls: the user's, or torch's, with the batch in a slot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils.collate import (
    collate,
    collate_tensor_fn,
    default_collate,
    default_collate_fn_map,
)

from mmapload.workers.indices import claim_writer
from mmapload.workers.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mmapload.workers.indices import SlotWriter
    from mmapload.workers.memory import SlotFile

__all__ = ["SlotCollate"]


class SlotCollate:
    """Calls a collate function and packs what it returns, if the batch has been given a slot.

    torch's default collation stacks samples straight into the slot.

    Parameters
    ----------
    collate_fn : callable
        Of the loader.
    file : SlotFile
        Mapped in every worker as long as this is there.
    batch_transform : callable, optional
        Called with what was collated.
    """

    def __init__(
        self,
        collate_fn: Callable[[Any], Any],
        file: SlotFile,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self.collate_fn = collate_fn
        self.file = file
        self.batch_transform = batch_transform

    def __call__(self, samples: Any) -> Any:
        """Collate the samples of the batch in work."""
        writer = claim_writer()
        if writer is None and self.batch_transform is None:
            return self.collate_fn(samples)
        if self.collate_fn is default_collate and default_collate_fn_map[torch.Tensor] is collate_tensor_fn:
            # What a transform of batches gets lies in the worker's own memory, since it may be kept.
            place = None if self.batch_transform is not None else writer
            stacking: dict[Any, Any] = {**default_collate_fn_map, torch.Tensor: partial(_stack, place)}
            batch = collate(samples, collate_fn_map=stacking)
        else:
            batch = self.collate_fn(samples)
        if self.batch_transform is not None:
            batch = self.batch_transform(batch)
        return batch if writer is None else pack(batch, writer)


def _stack(
    writer: SlotWriter | None, samples: Sequence[torch.Tensor], *, collate_fn_map: Any = None
) -> torch.Tensor:
    """Do as torch's own function for tensors does, but not into fresh shared memory: into the slot if any."""
    first = samples[0]
    plain = type(first) is torch.Tensor and first.layout is torch.strided and first.device.type == "cpu"
    if plain and first.numel() and not first.is_nested and not first.is_quantized:
        if writer is None:
            return torch.stack(tuple(samples), 0)
        shape = (len(samples), *first.shape)
        memory = writer.take(len(samples) * first.nbytes)
        if memory is not None:
            flat = torch.frombuffer(memory, dtype=first.dtype)
            return torch.stack(tuple(samples), 0, out=flat.view(shape))
    return collate_tensor_fn(samples, collate_fn_map=collate_fn_map)  # type: ignore[no-any-return] # torch's has no types
