"""Batches of one group each: every sample once, alike on all ranks, in the order of the walk."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.grouping import checked_groups
from mmapload.order import Chosen, Geometry, GroupedOrder, Use, epoch_order
from tests.numbered_samples import flat
from tests.test_order_docs import PAGE

if TYPE_CHECKING:
    from mmapload.order import Remainder


def batches_as_written(
    walk: list[int], groups: list[int], size: int, remainder: Remainder
) -> list[tuple[int, list[int]]]:
    """What `docs/order.md` says, one sample after another."""
    of_group: dict[int, list[int]] = {group: [] for group in groups}
    for sample in walk:
        of_group[groups[sample]].append(sample)
    taken, batches = Counter[int](), []
    for sample in walk:
        group = groups[sample]
        own = of_group[group]
        taken[group] += 1
        at_end = taken[group] == len(own)
        if taken[group] % size == 0:
            batches.append((group, own[taken[group] - size : taken[group]]))
        elif at_end and remainder != "drop":
            begin = taken[group] // size * size
            stop = begin + size if remainder == "pad" else len(own)
            batches.append((group, [own[place % len(own)] for place in range(begin, stop)]))
    return batches


@st.composite
def orders(draw: st.DrawFn) -> GroupedOrder:
    """Any store, groups of any sizes, of a whole store or of chosen samples."""
    samples, chunk = draw(st.integers(1, 90)), draw(st.sampled_from([1, 4, 8, 12]))
    chosen = None
    if draw(st.booleans()):
        numbers = sorted(draw(st.sets(st.integers(0, 200), min_size=samples, max_size=samples)))
        chosen = Chosen.of(np.array(numbers), chunk)
    mode: Any = draw(st.sampled_from(["window", "window", "full", "sequential"]))
    walk = epoch_order(
        Geometry(samples, chunk, 1),
        global_batch=draw(st.sampled_from([1, 2, 6, 12, 60])),
        mode=mode,
        seed=draw(st.integers(0, 99)),
        epoch=draw(st.integers(0, 3)),
        window=draw(st.sampled_from([3, 8, 40])) if mode == "window" else None,
        remainder=draw(st.sampled_from(["keep", "pad", "drop"])),
        chosen=chosen,
    )
    kinds = draw(
        st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=draw(st.sampled_from([1, 3, 30])))
    )
    return GroupedOrder(walk, checked_groups([draw(st.sampled_from(kinds)) for _ in range(samples)], samples))


def group_numbers(order: GroupedOrder) -> list[int]:
    return [int(order.groups.numbers[code]) for code in order.groups.codes]


@settings(max_examples=400, deadline=None)
@given(order=orders())
def test_batches_are_those_that_the_page_describes(order: GroupedOrder) -> None:
    walk = order.walk.at(np.arange(order.geometry.samples)).tolist()
    expected = batches_as_written(walk, group_numbers(order), order.global_batch, order.remainder)
    found = [(order.group(step), order.step_batch(step).tolist()) for step in range(order.steps)]
    assert found == expected
    seen = Counter(flat(samples for _, samples in found))
    assert seen.total() == order.geometry.samples + order.padded - order.dropped
    if order.remainder == "keep":
        assert seen == Counter(range(order.geometry.samples))
    elif order.remainder == "drop":
        assert set(seen.values()) <= {1}
    else:
        assert set(seen) == set(range(order.geometry.samples))
    with pytest.raises(IndexError, match="expected a step"):
        order.step_batch(order.steps)


@settings(max_examples=200, deadline=None)
@given(order=orders(), ranks=st.integers(1, 6), data=st.data())
def test_ranks_share_each_batch_in_equal_numbers_of_steps(
    order: GroupedOrder, ranks: int, data: st.DataObject
) -> None:
    left = order.groups.left_over(order.global_batch)
    if order.global_batch % ranks:
        with pytest.raises(ValueError, match="cannot be shared evenly"):
            order.rank_length(0, ranks)
        return
    if order.remainder == "keep" and ((left > 0) & (left < ranks)).any():
        with pytest.raises(ValueError, match=r"last global batch of group .* use remainder='pad' or 'drop'"):
            order.rank_length(0, ranks)
        return
    parts = [[batch.tolist() for batch in order.rank_batches(rank, ranks)] for rank in range(ranks)]
    assert {len(part) for part in parts} == {order.steps}
    for rank, part in enumerate(parts):
        assert sum(map(len, part)) == order.rank_length(rank, ranks)
        assert all(part)
        assert [order.rank_batch(step, rank, ranks).tolist() for step in range(order.steps)] == part
    for step, batch in enumerate(zip(*parts, strict=True)):
        assert flat(batch) == order.step_batch(step).tolist()
        assert max(map(len, batch)) - min(map(len, batch)) <= (order.remainder == "keep")
    start = data.draw(st.integers(0, order.steps))
    rank = data.draw(st.integers(0, ranks - 1))
    assert [batch.tolist() for batch in order.rank_batches(rank, ranks, start)] == parts[rank][start:]


@settings(max_examples=300, deadline=None)
@given(order=orders(), rank=st.integers(0, 1), stay=st.integers(0, 9), few=st.integers(0, 3), data=st.data())
def test_visits_cover_every_row_for_no_longer_than_said(
    order: GroupedOrder, rank: int, stay: int, few: int, data: st.DataObject
) -> None:
    left = order.groups.left_over(order.global_batch)
    ranks = 2
    if order.global_batch % 2 or (order.remainder == "keep" and (left == 1).any()):
        rank, ranks = 0, 1
    start = data.draw(st.integers(0, order.steps))
    uses = list(order.uses(rank, ranks, start, stay=stay))
    if order.mode == "full":
        assert uses == []
        return
    assert all(a.first_step <= b.first_step for a, b in pairwise(uses))
    length = order.geometry.chunk_length
    by_chunk: dict[int, list[Use]] = {}
    for use in uses:
        by_chunk.setdefault(use.chunk, []).append(use)
    own = Counter[Use]()
    for step, batch in enumerate(order.rank_batches(rank, ranks, start), start):
        for sample in batch.tolist():
            number = sample if order.chosen is None else int(order.chosen.numbers(np.array([sample]))[0])
            chunk, row = divmod(number, length)
            (use,) = [each for each in by_chunk[chunk] if each.first_step <= step <= each.last_step]
            assert use.start <= row < use.stop
            own[use] += 1
    assert set(own) == set(uses)
    assert all(start <= use.first_step <= use.last_step <= use.first_step + stay for use in uses)
    for visits in by_chunk.values():
        assert all(b.first_step > a.first_step + stay for a, b in pairwise(visits))
    assert list(order.uses(rank, ranks, start, stay=stay, few=few)) == [use for use in uses if own[use] > few]


SMALL = Geometry(samples=21, chunk_length=4, unit=2)
THREE = [0, 0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 1, 0]
"""2 8 13 19 are group 1, 5 16 are group 2, and the other fifteen group 0."""

MIDDLE = [(0, [4, 11, 3, 1]), (0, [17, 18, 0, 14])]
LAST = (1, [8, 19, 2, 13])


@pytest.mark.parametrize(
    ("remainder", "expected"),
    [
        ("keep", [(0, [6, 7, 10, 9]), (2, [5, 16]), *MIDDLE, (0, [20, 12, 15]), LAST]),
        ("pad", [(0, [6, 7, 10, 9]), (2, [5, 16, 5, 16]), *MIDDLE, (0, [20, 12, 15, 6]), LAST]),
        ("drop", [(0, [6, 7, 10, 9]), *MIDDLE, LAST]),
    ],
)
def test_small_orders_stay_what_they_are_for_ever(remainder: Remainder, expected: Any) -> None:
    walk = epoch_order(SMALL, seed=9, epoch=0, window=8, global_batch=4, remainder=remainder)
    assert flat(
        batch.tolist() for batch in epoch_order(SMALL, seed=9, window=8, global_batch=4).rank_batches(0, 1)
    ) == [*(6, 7, 5, 8, 10, 9, 4, 11, 16, 3, 1, 19, 17, 18, 0, 2, 14, 20, 12, 15, 13)]
    assert f"| `{remainder}` | {', '.join(' '.join(map(str, batch)) for _, batch in expected)} |" in PAGE
    order = GroupedOrder(walk, checked_groups(THREE, 21))
    assert [(order.group(step), order.step_batch(step).tolist()) for step in range(order.steps)] == expected
