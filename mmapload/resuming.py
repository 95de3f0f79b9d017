"""Where the order of a sampler is, saved and restored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from torch.utils.data import DistributedSampler

from mmapload.passes import EpochPass
from mmapload.selection import checked_integer
from mmapload.state import SavedState
from mmapload.windows import warn_of_room

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mmapload.dataset import ChunkDataset
    from mmapload.epochs import Epochs
    from mmapload.order import EpochOrder, GroupedOrder, Mode, Remainder
    from mmapload.ranks import Ranks

__all__ = ["Resumable", "ResumableSampler"]


class Resumable(ABC):
    """Epochs one after another, and where in them a sampler is; what it samples is up to its subclass.

    Attributes
    ----------
    ranks : Ranks
        Who shares each epoch.
    epoch : int
        Of the iteration begun last, or of the next one.
    begun : EpochPass or None
        That iteration. None: the next one is that of `epoch`.
    lag : int or None
        Steps that training is behind, where a loader has said so.
    """

    ranks: Ranks
    epoch: int = 0
    begun: EpochPass | None = None
    lag: int | None = None
    _start: int = 0  # the first step of the next iteration, where none has begun

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the next iteration.

        If that is the epoch which has just been restored, it goes on where it was restored; else it begins at
        its first batch.

        Raises
        ------
        ValueError
            If it is no integer from 0 up, or larger than the order's last epoch.
        """
        epoch = checked_integer("epoch", epoch, 0)
        self._check_epoch(epoch)
        if self.begun is not None or epoch != self.epoch:
            self._start = 0
        self.epoch, self.begun = epoch, None

    def begin(self) -> EpochPass:
        """Begin the next iteration, for `batches`."""
        self.ranks.check_division()
        if self.begun is not None:
            self.epoch, self._start = self.epoch + 1, 0
        self.begun = EpochPass(self.epoch, self._start)
        return self.begun

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
        begun = self.begun
        handed_out = 0 if begun is None else begun.handed_out
        if received is not None and checked_integer("received", received, 0) > handed_out:
            raise ValueError(f"received={received}, and the sampler has handed out {handed_out} batches")
        if begun is None:
            return self.state_at(self.epoch, self._start)
        if received is None:
            return self.state_at(*begun.of_sampler)
        return self.state_at(begun.epoch, begun.start + int(received))

    @abstractmethod
    def state_at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state at a step of an epoch."""

    @abstractmethod
    def _check_epoch(self, epoch: int) -> None:
        """Refuse an epoch that the order does not have."""

    def _go_on_at(self, epoch: int, step: int) -> None:
        self.epoch, self._start, self.begun = epoch, step, None


class ResumableSampler(Resumable, DistributedSampler[int]):
    """A sampler of chunks, whose position in an epoch has a state.

    Attributes
    ----------
    batch_size : int
        Per rank.
    mode, seed, window, lanes, remainder
        Of the order.
    steps : int
        Batches in an epoch.
    """

    batch_size: int
    mode: Mode
    window: int | None
    lanes: int
    remainder: Remainder
    steps: int
    _chunk_dataset: ChunkDataset
    _epochs: Epochs
    _remainder_given: bool

    def _measure(self, order: EpochOrder | GroupedOrder) -> None:
        self.drop_last = self.remainder == "drop"
        self.num_samples = order.rank_length(self.rank, self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        self.steps = order.steps

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
            groups=self._epochs.groups,
        )
        self.window, self.lanes, self.remainder = order.window, order.lanes, order.remainder
        self._measure(order)
        self._go_on_at(order.epoch, step)
        if self.window is not None:
            warn_of_room(
                self.window,
                geometry,
                lanes=self.lanes,
                capacity=dataset.chunks_held,
                chunk_nbytes=dataset.chunk_nbytes,
                chosen=self._epochs.chosen(self.epoch),
            )
