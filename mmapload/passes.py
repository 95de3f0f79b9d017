"""How far an iteration over an epoch has come: what was handed out, and what training has received."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["EpochPass", "SampleNumbers"]


@dataclass(slots=True)
class EpochPass:
    """One iteration over an epoch, or over the rest of it.

    Attributes
    ----------
    epoch, start : int
        Which epoch, and the first step.
    handed_out : int
        Batches that the sampler has given out.
    exhausted : bool
        Whether it has said that there are no more.
    received : int
        Batches that training has received, where a loader counts them.
    finished : bool
        Whether the training loop has come to its end.

    Examples
    --------
    >>> begun = EpochPass(epoch=3, start=5, handed_out=4, received=1)
    >>> begun.of_sampler, begun.of_training
    ((3, 9), (3, 6))
    """

    epoch: int
    start: int = 0
    handed_out: int = 0
    exhausted: bool = False
    received: int = 0
    finished: bool = False

    @property
    def of_sampler(self) -> tuple[int, int]:
        """Epoch and step of the batch that comes after those handed out."""
        return (self.epoch + 1, 0) if self.exhausted else (self.epoch, self.start + self.handed_out)

    @property
    def of_training(self) -> tuple[int, int]:
        """Epoch and step of the batch that comes after those received."""
        return (self.epoch + 1, 0) if self.finished else (self.epoch, self.start + self.received)


class SampleNumbers(Iterator[int]):
    """The samples of an epoch one by one, from its batches.

    A batch counts as handed out with its last sample. Whoever makes batches of these numbers learns by a
    first StopIteration that the last batch is a short one, and only by a second that none follows: the first
    exhausts nothing.

    Parameters
    ----------
    begin : callable
        Begins a pass; called with the first sample.
    batches : callable
        Returns its batches.
    size : int
        Samples in a batch that is not short.

    Examples
    --------
    >>> begun = EpochPass(epoch=0)
    >>> numbers = SampleNumbers(lambda: begun, lambda _: iter([[5, 3], [4]]), 2)
    >>> next(numbers), begun.handed_out, next(numbers), begun.handed_out
    (5, 0, 3, 1)
    >>> list(numbers), begun.exhausted, list(numbers), begun.exhausted
    ([4], False, [], True)
    """

    def __init__(
        self,
        begin: Callable[[], EpochPass],
        batches: Callable[[EpochPass], Iterator[list[int]]],
        size: int,
    ) -> None:
        self._begin = begin
        self._batches = batches
        self._size = size
        self._pass: EpochPass | None = None
        self._coming: Iterator[list[int]] = iter(())
        self._left: list[int] = []  # the last one is the next
        self._short = False

    def __next__(self) -> int:
        if self._pass is None:
            self._pass = self._begin()
            self._coming = self._batches(self._pass)
        if not self._left:
            self._left = next(self._coming, [])[::-1]
            if not self._left:
                self._pass.exhausted = not self._short
                self._short = False
                raise StopIteration
            self._short = len(self._left) < self._size
        number = self._left.pop()
        if not self._left:
            self._pass.handed_out += 1
        return number
