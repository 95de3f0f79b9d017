"""The arrangement of mode "window": chunks permuted, then samples inside windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmapload.order.arrangements import Spans, blocks
from mmapload.order.bijection import SORT_LIMIT, bijection, sorted_permutations
from mmapload.order.philox import Purpose, stream_key
from mmapload.order.sequences import ChosenSequence, WholeSequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.bijection import Bijection
    from mmapload.order.chosen import Chosen
    from mmapload.order.geometry import Geometry
    from mmapload.order.philox import Key
    from mmapload.order.sequences import ChunkSequence

__all__ = ["WindowArrangement"]


class WindowArrangement:
    """Chunks permuted, their samples cut into lanes, each lane's windows permuted inside.

    Parameters
    ----------
    geometry : Geometry
        How the store is cut.
    seed, epoch : int
        What the order is drawn from.
    window, lanes : int
        Samples in the windows of all lanes together, and the number of lanes, which divides it.
    chosen : Chosen, optional
        The samples, `geometry.samples` of them; by default all of the store.
    """

    __slots__ = (
        "_copies",
        "_epoch",
        "_keys",
        "_latest",
        "_samples",
        "_seed",
        "_sequence",
        "_window",
        "grain",
        "lanes",
    )

    in_place = False

    def __init__(
        self,
        geometry: Geometry,
        seed: int,
        epoch: int,
        window: int,
        lanes: int,
        chosen: Chosen | None = None,
    ) -> None:
        self._samples = geometry.samples
        self._seed = seed
        self._epoch = epoch
        self.lanes = lanes
        # A window beyond the lane is the lane: nothing needs the numbers in between.
        self._window = min(window // lanes, -(-geometry.samples // lanes))
        self._copies = chosen if chosen is not None and chosen.repeats else None
        self.grain = self._window if self._window <= SORT_LIMIT or self._copies else 1
        key = stream_key(seed, epoch, Purpose.CHUNKS)
        self._sequence: ChunkSequence = (
            WholeSequence(geometry, key) if chosen is None else ChosenSequence(chosen, key)
        )
        self._keys: dict[int, Key] = {}
        self._latest: dict[int, tuple[int, Bijection]] = {}  # lane -> window and its permutation

    def length(self, lane: int) -> int:
        """Return the number of samples in a lane."""
        return self._start(lane + 1) - self._start(lane)

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at positions of a lane; costs the windows between the outermost ones."""
        if not positions.size:
            return positions
        return self._sequence.stored(self._start(lane) + self._shuffled(lane, positions))

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield chunk by chunk, each stretch reaching over all the windows that it lies in."""
        begin, end = self._start(lane), self._start(lane + 1)
        if start >= end - begin:
            return
        sequence = self._sequence
        first = int(sequence.slots(np.array([begin + start // self._window * self._window]))[0])
        last = int(sequence.slots(np.array([end - 1]))[0])
        for slots in blocks(first, last + 1):
            opening = sequence.opening(slots)
            low = np.maximum(opening, begin)
            high = np.minimum(sequence.opening(slots + 1), end) - begin
            at, low = sequence.first(slots) + low - opening, low - begin
            reach_low = low // self._window * self._window
            reach_high = np.minimum(-(-high // self._window) * self._window, end - begin)
            yield Spans(at, low, high, reach_low, reach_high)

    def _start(self, lane: int) -> int:
        return lane * self._samples // self.lanes

    def _shuffled(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in its lane, before windows are permuted, the sample at every position stands."""
        first = int(positions.min()) // self._window
        last = int(positions.max()) // self._window
        if self._copies is not None:
            apart = [self._kept_apart(lane, window, self._copies) for window in range(first, last + 1)]
            return np.concatenate(apart)[positions - first * self._window]
        if self.grain > 1:
            return self._table(lane, first, last)[positions - first * self._window]
        found = positions.copy()
        if self._window > 1:
            windows = positions // self._window
            for window in range(first, last + 1):
                inside = windows == window
                start = window * self._window
                found[inside] = start + self._permutation(lane, window).forward(positions[inside] - start)
        return found

    def _table(self, lane: int, first: int, last: int) -> NDArray[np.int64]:
        """Permute windows `first` to `last` whole."""
        key = self._key(lane)
        whole = min(last + 1, self.length(lane) // self._window)
        windows = np.arange(first, whole, dtype=np.uint64)
        table = sorted_permutations(self._window, key, windows)
        table += windows.astype(np.int64)[:, np.newaxis] * self._window
        if whole > last:
            return table.ravel()
        start = last * self._window
        short = sorted_permutations(self.length(lane) - start, key, np.array([last], np.uint64))
        return np.concatenate([table.ravel(), short[0] + start])

    def _kept_apart(self, lane: int, window: int, chosen: Chosen) -> NDArray[np.int64]:
        """Permute a window whose samples come several times: the copies of one are evenly far apart.

        The samples are permuted with their copies side by side, and then dealt in turn to equal stretches of
        the window, one more than there are copies of any.
        """
        start = window * self._window
        size = min(self._window, self.length(lane) - start)
        places = np.arange(size)
        numbers = chosen.numbers(self._sequence.stored(self._start(lane) + start + places))
        begins = np.flatnonzero(np.diff(numbers, prepend=-1) != 0)
        copies = np.diff(begins, append=size)
        rank = bijection(size, self._key(lane), window).inverse(np.repeat(begins, copies))
        listed = np.argsort(rank, kind="stable")
        stretches = min(size, int(copies.max()) + 1)
        height, more = divmod(size, stretches)
        row, column = np.divmod(places, stretches)
        found = np.empty_like(places)
        found[column * height + np.minimum(column, more) + row] = start + listed
        return found

    def _permutation(self, lane: int, window: int) -> Bijection:
        """Return the permutation of a large window; a lane's latest is kept, since batches follow on."""
        latest = self._latest.get(lane)
        if latest is None or latest[0] != window:
            size = min(self._window, self.length(lane) - window * self._window)
            latest = self._latest[lane] = (window, bijection(size, self._key(lane), window))
        return latest[1]

    def _key(self, lane: int) -> Key:
        if lane not in self._keys:
            self._keys[lane] = stream_key(self._seed, self._epoch, Purpose.WINDOW, lane)
        return self._keys[lane]
