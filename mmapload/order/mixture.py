"""The order of a mix of several stores: whose turn it is, and which of its samples each store has then."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.order.build import epoch_order

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.chosen import Chosen
    from mmapload.order.epoch import EpochOrder
    from mmapload.order.geometry import Geometry, Mode, Use
    from mmapload.order.turns import Turns

__all__ = ["MixedOrder", "MixedPart", "Mixture"]

_BLOCK: Final = 16384  # samples computed at once: numpy's calls are shared, the first batch stays quick


@dataclass(frozen=True, slots=True)
class MixedPart:
    """A store of a mix, or a part of one.

    Attributes
    ----------
    geometry : Geometry
        Of its samples.
    chosen : Chosen or None
        Which samples; None: all.
    """

    geometry: Geometry
    chosen: Chosen | None = None


@dataclass(frozen=True, slots=True)
class Mixture:
    """Samples of several stores one after another, as int64 arrays of one shape.

    Attributes
    ----------
    stores : int64 ndarray
        Which store each is of.
    samples : int64 ndarray
        Its number there.
    visits : int64 ndarray
        Which epoch of that store it comes in.
    """

    stores: NDArray[np.int64]
    samples: NDArray[np.int64]
    visits: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MixedOrder:
    """An endless order over several stores; position k costs none of its predecessors.

    Each store runs through epochs of its own, one after another, in an order of its own seed. Steps are
    counted from the very first one.

    Attributes
    ----------
    parts : tuple of MixedPart
        The stores.
    turns : Turns
        Whose sample comes when.
    mode : {"window", "full", "sequential"}
        How the samples of each store are shuffled.
    seed : int
        In [0, 2**64). Store s has seed + s, modulo 2**64.
    windows : tuple of int, or None
        Of every store, for mode "window" only.
    global_batch : int
        Samples of all ranks together in a step.

    Examples
    --------
    >>> from mmapload.order import Geometry
    >>> from mmapload.order.turns import Turns
    >>> parts = MixedPart(Geometry(10, 4, 2)), MixedPart(Geometry(3, 4, 2))
    >>> order = MixedOrder(parts, Turns([1, 1]), "sequential", 0, None, global_batch=4)
    >>> for each in order.batches(start=1, stop=3):
    ...     print(each.stores, each.samples, each.visits)
    [0 1 0 1] [2 2 3 0] [0 0 0 1]
    [0 1 0 1] [4 1 5 2] [0 1 0 1]
    """

    parts: tuple[MixedPart, ...]
    turns: Turns
    mode: Mode
    seed: int
    windows: tuple[int, ...] | None
    global_batch: int

    def own_seed(self, store: int) -> int:
        """Return the seed of a store's own order."""
        return (self.seed + store) % 2**64

    def of_store(self, store: int, visit: int) -> EpochOrder:
        """Return the order of an epoch of a store's own, by single samples."""
        part = self.parts[store]
        return epoch_order(
            part.geometry,
            global_batch=1,
            mode=self.mode,
            seed=self.own_seed(store),
            epoch=visit,
            window=None if self.windows is None else self.windows[store],
            chosen=part.chosen,
        )

    def batches(self, start: int, stop: int) -> Iterator[Mixture]:
        """Yield the global batches of steps `start` up to `stop`, in the order of turns."""
        size = self.global_batch
        block = max(1, _BLOCK // size)
        latest: dict[int, EpochOrder] = {}  # of each store: blocks follow on
        for low in range(start, stop, block):
            high = min(low + block, stop)
            whose = self.turns.whose(low * size, high * size)
            samples, visits = np.empty_like(whose), np.empty_like(whose)
            begins, ends = self.turns.counts(low * size), self.turns.counts(high * size)
            for store, (begin, end) in enumerate(zip(begins, ends, strict=True)):
                mine = np.flatnonzero(whose == store)
                self._draw(store, begin, end, latest, mine, samples, visits)
            columns = (each.reshape(-1, size) for each in (whose, samples, visits))
            yield from map(Mixture, *columns)

    def _draw(
        self,
        store: int,
        begin: int,
        end: int,
        latest: dict[int, EpochOrder],
        places: NDArray[np.int64],
        samples: NDArray[np.int64],
        visits: NDArray[np.int64],
    ) -> None:
        """Put the samples of a store's turns, and the epochs of its own they come in, at their places."""
        length = self.parts[store].geometry.samples
        low = begin
        while low < end:
            visit, position = divmod(low, length)
            if store not in latest or latest[store].epoch != visit:
                latest[store] = self.of_store(store, visit)
            count = min(end - low, length - position)
            at = places[low - begin : low - begin + count]
            samples[at] = latest[store].at(np.arange(position, position + count))
            visits[at] = visit
            low += count

    def uses(self, store: int, start: int, stop: int) -> Iterator[Use]:
        """Yield what is read of a store at steps `start` up to `stop`, by rising first step.

        As `EpochOrder.uses` does for all ranks together. The last step of a use may lie beyond `stop`.
        """
        size, length = self.global_batch, self.parts[store].geometry.samples
        visit, position = divmod(self.turns.counts(start * size)[store], length)
        while self.mode != "full" and self._step(store, visit * length + position) < stop:
            for use in self.of_store(store, visit).uses(0, 1, position):
                first = self._step(store, visit * length + use.first_step)
                if first >= stop:
                    return
                yield replace(
                    use, first_step=first, last_step=self._step(store, visit * length + use.last_step)
                )
            visit, position = visit + 1, 0

    def _step(self, store: int, number: int) -> int:
        return self.turns.turn(store, number) // self.global_batch
