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
        if self.grain > 1:
            table = self._table(lane, first, last)
            if self._copies is not None:
                table = self._kept_apart(lane, first * self._window, table, self._copies)
            return table[positions - first * self._window]
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
        if self._window > SORT_LIMIT:  # only where copies are kept apart
            starts = range(
                first * self._window, min((last + 1) * self._window, self.length(lane)), self._window
            )
            sizes = [min(self._window, self.length(lane) - start) for start in starts]
            return np.concatenate(
                [
                    bijection(size, key, start // self._window).forward(np.arange(size)) + start
                    for start, size in zip(starts, sizes, strict=True)
                ]
            )
        whole = min(last + 1, self.length(lane) // self._window)
        windows = np.arange(first, whole, dtype=np.uint64)
        table = sorted_permutations(self._window, key, windows)
        table += windows.astype(np.int64)[:, np.newaxis] * self._window
        if whole > last:
            return table.ravel()
        start = last * self._window
        short = sorted_permutations(self.length(lane) - start, key, np.array([last], np.uint64))
        return np.concatenate([table.ravel(), short[0] + start])

    def _kept_apart(
        self, lane: int, start: int, table: NDArray[np.int64], chosen: Chosen
    ) -> NDArray[np.int64]:
        """Order windows whose samples come several times: the copies of one are evenly far apart.

        The samples are permuted with their copies side by side, and then dealt in turn to equal stretches of
        the window, one more than there are copies of any.
        """
        places = np.arange(start, start + len(table))
        numbers = chosen.numbers(self._sequence.stored(self._start(lane) + places))
        new = np.empty(len(table), bool)
        np.not_equal(numbers[1:], numbers[:-1], out=new[1:])
        new[:: self._window] = True
        begins = np.flatnonzero(new)
        copies = np.zeros(len(table), np.int64)  # at the first place of every sample in its window
        copies[begins] = np.diff(begins, append=len(table))
        # In the order of the permuted first places, each followed by its copies.
        times = copies[table - start]
        listed = np.repeat(table - (np.cumsum(times) - times), times) + (places - start)
        found = np.empty_like(listed)
        whole = len(table) // self._window * self._window
        for low, high in ((0, whole), (whole, len(table))):
            if low < high:
                size = min(self._window, high - low)
                _deal(*(each[low:high].reshape(-1, size) for each in (listed, copies, found)))
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


def _deal(listed: NDArray[np.int64], copies: NDArray[np.int64], found: NDArray[np.int64]) -> None:
    """Deal the places of windows, each a row, to stretches: one more than any sample has copies."""
    windows, size = listed.shape
    stretches = np.minimum(size, copies.max(axis=1, keepdims=True) + 1)
    height, more = np.divmod(size, stretches)
    row, column = np.divmod(np.arange(size), stretches)
    row += column * height + np.minimum(column, more)
    found[np.arange(windows)[:, np.newaxis], row] = listed
