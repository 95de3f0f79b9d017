"""The arrangement of mode "window": chunks permuted, then samples inside windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmapload.order.arrangements import Spans, blocks
from mmapload.order.bijection import SORT_LIMIT, bijection, sorted_permutations
from mmapload.order.philox import Purpose, stream_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from mmapload.order.bijection import Bijection
    from mmapload.order.geometry import Geometry
    from mmapload.order.philox import Key

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
    """

    __slots__ = (
        "_chunks",
        "_epoch",
        "_geometry",
        "_keys",
        "_latest",
        "_seed",
        "_short_end",
        "_window",
        "grain",
        "lanes",
    )

    in_place = False

    def __init__(self, geometry: Geometry, seed: int, epoch: int, window: int, lanes: int) -> None:
        self._geometry = geometry
        self._seed = seed
        self._epoch = epoch
        self.lanes = lanes
        # A window beyond the lane is the lane: nothing needs the numbers in between.
        self._window = min(window // lanes, -(-geometry.samples // lanes))
        self.grain = self._window if self._window <= SORT_LIMIT else 1
        self._chunks = bijection(geometry.chunks, stream_key(seed, epoch, Purpose.CHUNKS))
        slot = int(self._chunks.inverse(np.array([geometry.chunks - 1]))[0])
        self._short_end = slot * geometry.chunk_length + self._last_length
        self._keys: dict[int, Key] = {}
        self._latest: dict[int, tuple[int, Bijection]] = {}  # lane -> window and its permutation

    @property
    def _last_length(self) -> int:
        return self._geometry.samples - (self._geometry.chunks - 1) * self._geometry.chunk_length

    def length(self, lane: int) -> int:
        """Return the number of samples in a lane."""
        return self._start(lane + 1) - self._start(lane)

    def samples(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples at positions of a lane; costs the windows between the outermost ones."""
        if not positions.size:
            return positions
        return self._stored(self._start(lane) + self._shuffled(lane, positions))

    def spans(self, lane: int, start: int) -> Iterator[Spans]:
        """Yield chunk by chunk, each stretch reaching over all the windows that it lies in."""
        begin, end = self._start(lane), self._start(lane + 1)
        if start >= end - begin:
            return
        first = int(self._slots(np.array([begin + start // self._window * self._window]))[0])
        last = int(self._slots(np.array([end - 1]))[0])
        for slots in blocks(first, last + 1):
            opening = self._opening(slots)
            low = np.maximum(opening, begin)
            high = np.minimum(self._opening(slots + 1), end) - begin
            row, low = low - opening, low - begin
            reach_low = low // self._window * self._window
            reach_high = np.minimum(-(-high // self._window) * self._window, end - begin)
            yield Spans(self._chunks.forward(slots), row, low, high, reach_low, reach_high)

    def _start(self, lane: int) -> int:
        return lane * self._geometry.samples // self.lanes

    def _shuffled(self, lane: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where in its lane, before windows are permuted, the sample at every position stands."""
        first = int(positions.min()) // self._window
        last = int(positions.max()) // self._window
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

    def _opening(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the first place of every slot in the sequence of permuted chunks."""
        places = slots * self._geometry.chunk_length
        return places - (self._geometry.chunk_length - self._last_length) * (places >= self._short_end)

    def _slots(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        gap = self._geometry.chunk_length - self._last_length
        return (places + gap * (places >= self._short_end)) // self._geometry.chunk_length

    def _stored(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample at every place in the sequence of permuted chunks."""
        slots = self._slots(places)
        rows = places - self._opening(slots)
        first = int(slots.min())
        count = int(slots.max()) - first + 1
        if count <= slots.size:  # ask for every chunk once
            chunks = self._chunks.forward(np.arange(first, first + count))[slots - first]
        else:
            chunks = self._chunks.forward(slots)
        return chunks * self._geometry.chunk_length + rows
