"""Batches handed out while their stores load ahead what comes next, and drop what training has passed."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from mmapload.order import Chosen, Use
    from mmapload.residency import Residency
    from mmapload.windows import Lookahead

__all__ = ["Followed", "followed"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """What a store is told of an epoch.

    Attributes
    ----------
    residency : Residency
        Of its chunks.
    plan : iterator of Use
        What the epoch reads of it.
    ahead : Lookahead
        How far it is ahead of training, and which chunks stay.
    chosen : Chosen or None
        The samples, if they are not all of the store.
    rows_only : bool
        As for `Residency.follow`.
    """

    residency: Residency
    plan: Iterator[Use]
    ahead: Lookahead
    chosen: Chosen | None = None
    rows_only: bool = False

    def take_up(self) -> None:
        """Let the store follow the plan from now on."""
        kept = self.ahead.kept
        if self.chosen is not None and kept:
            # Chunks stay by their numbers: those below that of the first which may not.
            kept = int(self.chosen.chunks[kept - 1]) + 1
        self.residency.follow(self.plan, rows_only=self.rows_only, kept=kept)


def followed(batches: Iterable[T], start: int, stores: Sequence[Followed]) -> Generator[T]:
    """Yield batches, the first of which is that of step `start`, and tell their stores before each.

    Stores that have been told of another iteration meanwhile are left alone.
    """
    pid = os.getpid()
    for store in stores:
        store.take_up()
    try:
        for step, batch in enumerate(batches, start):
            for store in stores:
                if store.residency.follows(store.plan):
                    store.residency.advance(step - store.ahead.lag, step + store.ahead.steps)
            yield batch
    finally:
        # A forked child may be the one that clears this iterator away; what it finds is not its own. And at
        # the end of the process a thread that loads may have been stopped for ever with the lock in hand.
        if os.getpid() == pid and not sys.is_finalizing():
            for store in stores:
                if store.residency.follows(store.plan):
                    store.residency.follow(())
