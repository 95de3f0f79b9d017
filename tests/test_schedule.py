"""A plan is read as far as is needed, and passed at little cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from mmapload.order import Use
from mmapload.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Iterator


def use(chunk: int, first_step: int, last_step: int) -> Use:
    return Use(chunk, 0, 4, first_step, last_step)


class Looked(dict[int, int]):
    """Last steps that count how often they are looked through."""

    looked = 0

    def items(self) -> Iterator[tuple[int, int]]:  # type: ignore[override] # counted
        self.looked += 1
        return iter(list(super().items()))


def test_last_steps_are_looked_through_only_when_one_has_been_passed() -> None:
    schedule = Schedule([use(chunk, 10 * chunk, 10 * chunk + 15) for chunk in range(10)])
    schedule._last_step = Looked()
    passed = [schedule.move(step, step + 5) for step in range(200)]
    assert {step: chunks for step, chunks in enumerate(passed) if chunks} == {
        10 * chunk + 16: [chunk] for chunk in range(10)
    }
    assert schedule._last_step.looked <= 10


@st.composite
def plans(draw: st.DrawFn) -> list[Use]:
    """Uses by rising first step, chunks used several times among them."""
    starts = sorted(draw(st.lists(st.integers(0, 30), max_size=12)))
    return [use(draw(st.integers(0, 4)), start, start + draw(st.integers(0, 9))) for start in starts]


@given(plans(), st.lists(st.integers(0, 4), max_size=30), st.integers(0, 9))
def test_a_chunk_is_passed_at_the_first_step_after_all_uses_that_were_read(
    plan: list[Use], moves: list[int], ahead: int
) -> None:
    schedule = Schedule(plan)
    step, needed = 0, dict[int, int]()
    read = iter(plan)
    last_read: Use | None = None
    for move in moves:
        step += move
        over = {chunk for chunk, last in needed.items() if last < step}
        assert set(schedule.move(step, step + ahead)) == over
        for chunk in over:
            del needed[chunk]
        while last_read is None or last_read.first_step <= step + ahead:
            last_read = next(read, None)
            if last_read is None:
                break
            if last_read.last_step >= step:
                needed[last_read.chunk] = max(needed.get(last_read.chunk, 0), last_read.last_step)
        assert {chunk for chunk in range(5) if schedule.needs(chunk)} == set(needed)
        if last_read is None:
            read, last_read = iter(()), use(0, 10**9, 10**9)


def test_what_is_put_off_comes_first_again_unless_it_has_been_passed() -> None:
    schedule = Schedule([use(0, 0, 1), use(1, 0, 5), use(2, 0, 5), use(3, 0, 5)])
    schedule.move(0, 0)
    for _ in range(3):
        schedule.put_off()
    schedule.move(2, 2)
    schedule.resume()
    found = []
    while (due := schedule.first_due()) is not None:
        found.append(due.chunk)
        schedule.done()
    assert found == [1, 2, 3]


def test_rows_alone_keep_no_chunk() -> None:
    schedule = Schedule([use(0, 0, 1)], rows_only=True)
    assert schedule.move(0, 0) == schedule.move(5, 5) == []
    assert not schedule.needs(0)


def test_uses_are_counted_up_to_the_horizon_and_to_the_most_that_is_asked_for() -> None:
    schedule = Schedule([use(chunk, chunk, 20) for chunk in range(10)])
    schedule.move(0, 4)
    assert [schedule.count_due(most) for most in (0, 3, 5, 9)] == [0, 3, 5, 5]
