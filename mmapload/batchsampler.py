"""The order of a `ChunkSampler` by batches."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from torch.utils.data import BatchSampler

from mmapload.samplers import ChunkSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["ChunkBatchSampler"]

P = ParamSpec("P")


def _taking_what(
    made: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Say of a constructor, to people and type checkers, that it takes what makes another object."""

    def told(constructor: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        signature = inspect.signature(made)
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        constructor.__signature__ = signature.replace(  # type: ignore[attr-defined] # inspect looks there
            parameters=[own, *signature.parameters.values()], return_annotation=None
        )
        return constructor

    return told


class ChunkBatchSampler(BatchSampler):
    """The same order by batches, for `DataLoader(batch_sampler=...)`; arguments as for `ChunkSampler`.

    Attributes
    ----------
    sampler : ChunkSampler
        Holds the epoch.
    batch_size : int
        Per rank.
    drop_last : bool
        Whether the last samples are left out where they do not fill a batch on every rank.

    Examples
    --------
    >>> import mmapload, numpy as np, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = mmapload.preprocess([{"x": np.full(3, i)} for i in range(10)], folder.name + "/store", 4)
    >>> ds = mmapload.ChunkDataset(folder.name + "/store")
    >>> list(ChunkBatchSampler(ds, 4, shuffle=False))
    [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    >>> list(ChunkBatchSampler(ds, 4, shuffle=False, groups=[0, 0, 7, 0, 7, 7, 0, 0, 0, 7]))
    [[0, 1, 3, 6], [7, 8], [2, 4, 5, 9]]
    """

    @_taking_what(ChunkSampler)
    def __init__(self, *arguments: Any, **named: Any) -> None:
        sampler = ChunkSampler(*arguments, **named)
        super().__init__(sampler, sampler.batch_size, drop_last=sampler.drop_last)
        self.sampler: ChunkSampler = sampler

    def __len__(self) -> int:
        return self.sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        # The epoch is taken with the first batch: torch's DataLoader makes iterators that it never uses.
        begun = self.sampler.begin()
        for batch in self.sampler.lists(begun):
            begun.handed_out += 1
            yield batch
        begun.exhausted = True

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration; as for `ChunkSampler`."""
        self.sampler.set_epoch(epoch)

    def state_dict(self, received: int | None = None) -> dict[str, Any]:
        """Return where the order is; as for `ChunkSampler`."""
        return self.sampler.state_dict(received)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved; as for `ChunkSampler`."""
        self.sampler.load_state_dict(state)
        self.drop_last = self.sampler.drop_last
