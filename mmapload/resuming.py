"""Where the order of a sampler is, saved and restored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler

from mmapload.selection import checked_integer
from mmapload.state import SavedState
from mmapload.windows import warn_of_room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.dataset import ChunkDataset
    from mmapload.epochs import Epochs
    from mmapload.order import EpochOrder, Mode, Remainder
    from mmapload.passes import EpochPass

__all__ = ["ResumableSampler", "position_of"]


def position_of(
    begun: EpochPass | None, waiting: tuple[int, int], received: int | None = None
) -> tuple[int, int]:
    """Return epoch and step of the batch that comes after those received.

    Parameters
    ----------
    begun : EpochPass or None
        The iteration begun last.
    waiting : (int, int)
        Where the next one begins, if none has begun.
    received : int, optional
        Batches of that iteration; by default all that were handed out.

    Raises
    ------
    ValueError
        If not so many were handed out.

    Examples
    --------
    >>> from mmapload.passes import EpochPass
    >>> position_of(EpochPass(epoch=3, start=5, handed_out=4), (3, 5), received=1), position_of(None, (3, 5))
    ((3, 6), (3, 5))
    """
    if received is not None:
        handed_out = 0 if begun is None else begun.handed_out
        if checked_integer("received", received, 0) > handed_out:
            raise ValueError(f"received={received}, and the sampler has handed out {handed_out} batches")
    if begun is None:
        return waiting
    return begun.of_sampler if received is None else (begun.epoch, begun.start + int(received))


class ResumableSampler(DistributedSampler[int]):
    """A sampler whose position in an epoch has a state; what it samples is up to its subclass.

    Attributes
    ----------
    batch_size : int
        Per rank.
    mode, seed, window, lanes, remainder
        Of the order.
    epoch : int
        Of the iteration begun last, or of the next one.
    begun : EpochPass or None
        That iteration. None: the next one is that of `epoch`.
    steps : int
        Batches in an epoch.
    """

    batch_size: int
    mode: Mode
    window: int | None
    lanes: int
    remainder: Remainder
    begun: EpochPass | None
    steps: int
    _chunk_dataset: ChunkDataset
    _epochs: Epochs
    _remainder_given: bool
    _start: int

    def _measure(self, order: EpochOrder) -> None:
        self.drop_last = self.remainder == "drop"
        self.num_samples = order.rank_length(self.rank, self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.steps = order.steps

    def state_dict(self, received: int | None = None) -> dict[str, Any]:
        """Return where the order is, as a small dict that JSON can hold; the same on every rank.

        Parameters
        ----------
        received : int, optional
            Batches that the loop over a DataLoader has received since it began. A sampler does not see that,
            and a DataLoader with workers asks it for batches ahead of time. By default all that the sampler
            has handed out count as received.

        Raises
        ------
        ValueError
            If the sampler has not handed out so many.
        """
        return self.state_at(*position_of(self.begun, (self.epoch, self._start), received))

    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at a step of an epoch."""
        return SavedState(
            fingerprint=self._epochs.fingerprint,
            seed=self.seed,
            mode=self.mode,
            window=self.window,
            lanes=self.lanes,
            global_batch=self.batch_size * self.num_replicas,
            remainder=self.remainder,
            epoch=epoch,
            step=step,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was saved; window and lanes are the state's from now on.

        So is the remainder, unless it was given.

        Raises
        ------
        StateMismatchError
            If the state is of another store, other samples, seed, shuffling or version; if no batch of this
            run begins where it was saved; or if it is no state.

        Warns
        -----
        UserWarning
            If two of its windows do not fit in the memory budget.
        """
        dataset, geometry = self._chunk_dataset, self._epochs.geometry
        saved = SavedState.from_dict(state)
        saved.check_store(self._epochs.fingerprint, dataset.store.path)
        order, step = saved.resumed(
            geometry,
            batch_size=self.batch_size,
            world_size=self.num_replicas,
            mode=self.mode,
            seed=self.seed,
            remainder=self.remainder if self._remainder_given else None,
        )
        self.window, self.lanes, self.remainder = order.window, order.lanes, order.remainder
        self._measure(order)
        self.epoch, self._start, self.begun = order.epoch, step, None
        if self.window is not None:
            warn_of_room(
                self.window,
                geometry,
                lanes=self.lanes,
                capacity=dataset.chunks_held,
                chunk_nbytes=dataset.chunk_nbytes,
                chosen=self._epochs.chosen(self.epoch),
            )
