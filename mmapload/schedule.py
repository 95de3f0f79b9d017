"""Where training is in a plan: which uses are due, and which chunks it needs no more."""

from __future__ import annotations

import math
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mmapload.order import Use

__all__ = ["Schedule"]


class Schedule:
    """A plan, read as far ahead as it is needed. Not thread-safe.

    A step at which nothing begins or ends costs as little as can be: with small batches there are many.

    Parameters
    ----------
    plan : iterable of Use
        Ordered by first step; read lazily.
    rows_only : bool
        Whether a use concerns its rows alone, so that no chunk is needed whole.

    Attributes
    ----------
    step, horizon : int
        Where training is, and up to where uses are due.

    Examples
    --------
    >>> from mmapload.order import Use
    >>> schedule = Schedule([Use(7, 0, 4, 0, 1), Use(3, 0, 4, 5, 8)])
    >>> schedule.move(0, 4)
    []
    >>> schedule.count_due(9), schedule.first_due().chunk, schedule.needs(7)
    (1, 7, True)
    >>> schedule.move(2, 6), schedule.needs(7)
    ([7], False)
    """

    def __init__(self, plan: Iterable[Use], *, rows_only: bool = False) -> None:
        self.rows_only = rows_only
        self.step = 0
        self.horizon = -1
        self._source = plan
        self._plan: Iterator[Use] = iter(plan)
        self._pending: deque[Use] = deque()
        self._later: deque[Use] = deque()
        self._last_step: dict[int, int] = {}
        self._ends_next = math.inf  # no last step lies before it

    def is_of(self, plan: Iterable[Use]) -> bool:
        """Say whether this is the schedule of that plan."""
        return self._source is plan

    def move(self, step: int, horizon: int) -> list[int]:
        """Note that training has come to `step`, and that what is used up to `horizon` is due.

        Returns
        -------
        list of int
            Chunks whose last use has been passed since the call before.
        """
        passed = self._passed(step) if self._ends_next < step else []
        while self._later and self._later[0].last_step < step:
            self._later.popleft()
        self.step, self.horizon = step, horizon
        while not self._pending or self._pending[-1].first_step <= horizon:
            use = next(self._plan, None)
            if use is None:
                break
            if use.last_step >= step:
                self._add(use)
        return passed

    def _passed(self, step: int) -> list[int]:
        passed = [chunk for chunk, last in self._last_step.items() if last < step]
        for chunk in passed:
            del self._last_step[chunk]
        self._ends_next = min(self._last_step.values(), default=math.inf)
        return passed

    def _add(self, use: Use) -> None:
        self._pending.append(use)
        if not self.rows_only:
            self._last_step[use.chunk] = max(use.last_step, self._last_step.get(use.chunk, 0))
            self._ends_next = min(self._ends_next, use.last_step)

    def needs(self, chunk: int) -> bool:
        """Say whether a use of this chunk was read that is not passed yet."""
        return chunk in self._last_step

    def count_due(self, most: int) -> int:
        """Count the uses that are due, up to `most`."""
        return sum(use.first_step <= self.horizon for use in islice(self._pending, most))

    def first_due(self) -> Use | None:
        """Return the first use that is due, if there is one; `done` takes it off."""
        use = self._pending[0] if self._pending else None
        return use if use is not None and use.first_step <= self.horizon else None

    def done(self) -> None:
        """Take the first use off."""
        self._pending.popleft()

    def put_off(self) -> None:
        """Take the first use off, until `resume` or until training has passed it."""
        self._later.append(self._pending.popleft())

    def resume(self) -> None:
        """Put what was put off first in line."""
        while self._later:
            self._pending.appendleft(self._later.pop())
