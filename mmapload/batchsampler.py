"""The order of a `ChunkSampler` by batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler

from mmapload.samplers import ChunkSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.dataset import ChunkDataset
    from mmapload.order import Remainder

__all__ = ["ChunkBatchSampler"]


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
    """

    def __init__(
        self,
        dataset: ChunkDataset,
        batch_size: int,
        *,
        shuffle: bool | str | None = True,
        window: int | str = "auto",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        remainder: Remainder | None = None,
        weights: Sequence[float] | npt.NDArray[Any] | None = None,
        epoch_length: int | None = None,
    ) -> None:
        sampler = ChunkSampler(
            dataset,
            batch_size,
            shuffle=shuffle,
            window=window,
            seed=seed,
            rank=rank,
            world_size=world_size,
            lanes=lanes,
            remainder=remainder,
            weights=weights,
            epoch_length=epoch_length,
        )
        super().__init__(sampler, batch_size, drop_last=sampler.drop_last)
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
