"""Uses: whatever a batch holds lies in a live Use, and no Use is longer or wider than it says."""

from __future__ import annotations

import itertools
import random

import pytest

from mmapload.order import Geometry, Use, epoch_order
from tests.order_cases import make_case


def check_uses(order, rank, ranks, start):
    uses = list(order.uses(rank, ranks, start))
    length = order.geometry.chunk_length
    assert uses == sorted(uses, key=lambda use: use.first_step)
    for use in uses:
        assert 0 <= use.start < use.stop <= length
        assert use.chunk * length + use.stop <= order.geometry.samples
        assert start <= use.first_step <= use.last_step < order.steps
    steps = [
        {divmod(sample, length) for sample in order.rank_batch(step, rank, ranks).tolist()}
        for step in range(order.steps)
    ]
    for step in range(start, order.steps):
        live = [use for use in uses if use.first_step <= step <= use.last_step]
        for chunk, row in steps[step]:
            assert any(use.chunk == chunk and use.start <= row < use.stop for use in live)
    return uses, steps


def test_every_sample_lies_in_a_live_use_from_any_start():
    generator = random.Random(11)
    for _ in range(400):
        case = make_case(generator.choice)
        if case.order.mode == "full":
            continue
        rank = generator.randrange(case.ranks)
        for start in {0, generator.randint(0, case.order.steps)}:
            check_uses(case.order, rank, case.ranks, start)


def test_uses_in_place_are_exact():
    generator = random.Random(12)
    for _ in range(400):
        case = make_case(generator.choice)
        if case.order.mode not in ("batch", "sequential"):
            continue
        rank = generator.randrange(case.ranks)
        uses, steps = check_uses(case.order, rank, case.ranks, generator.randint(0, case.order.steps))
        for use in uses:
            for step in (use.first_step, use.last_step):
                assert any(chunk == use.chunk and use.start <= row < use.stop for chunk, row in steps[step])
            rows = {
                row
                for step in range(use.first_step, use.last_step + 1)
                for chunk, row in steps[step]
                if chunk == use.chunk and use.start <= row < use.stop
            }
            assert {use.start, use.stop - 1} <= rows


def test_a_windowed_use_is_no_longer_than_the_windows_of_its_chunk():
    generator = random.Random(13)
    for _ in range(400):
        case = make_case(generator.choice)
        order = case.order
        if order.mode != "window" or order.remainder == "pad":
            continue
        stride, window = order.global_batch // order.lanes, order.window // order.lanes
        for use in order.uses(generator.randrange(case.ranks), case.ranks):
            positions = (use.stop - use.start) + 2 * (window - 1)
            assert use.last_step - use.first_step <= -(-positions // stride)


def test_each_chunk_of_a_lane_has_one_use():
    generator = random.Random(14)
    for _ in range(300):
        case = make_case(generator.choice)
        if case.order.mode not in ("window", "sequential") or case.order.remainder == "pad":
            continue
        uses = list(case.order.uses(0, case.ranks))
        rows = [(use.chunk, row) for use in uses for row in range(use.start, use.stop)]
        assert len(rows) == len(set(rows))
        assert len(uses) <= case.order.geometry.chunks + case.order.lanes - 1


def test_starting_late_gives_the_uses_still_live_cut_to_the_start():
    for samples, window in itertools.product((500, 503), (None, 40, 60)):
        order = epoch_order(Geometry(samples, 16, 8), global_batch=20, window=window, seed=5)
        uses = list(order.uses(1, 2))
        for start in range(order.steps + 1):
            expected = [
                Use(use.chunk, use.start, use.stop, max(use.first_step, start), use.last_step)
                for use in uses
                if use.last_step >= start
            ]
            assert list(order.uses(1, 2, start)) == expected


def test_what_is_dropped_is_not_planned():
    order = epoch_order(Geometry(100, 10, 5), global_batch=30, window=10, remainder="drop")
    assert sum(use.stop - use.start for use in order.uses(0, 1)) == 90


@pytest.mark.parametrize("start", [0, 3])
def test_full_plans_nothing(start):
    order = epoch_order(Geometry(100, 10, 5), global_batch=10, mode="full")
    assert list(order.uses(0, 1, start)) == []


def test_literal_uses_of_windows():
    order = epoch_order(Geometry(21, 4, 2), global_batch=4, window=6, seed=9)
    assert list(order.uses(0, 1)) == [  # chunks 2 1 0 4 5 3; windows end at 6, 12, 18 and 21
        Use(chunk=2, start=0, stop=4, first_step=0, last_step=1),
        Use(chunk=1, start=0, stop=4, first_step=0, last_step=2),  # across windows 0 and 1
        Use(chunk=0, start=0, stop=4, first_step=1, last_step=2),
        Use(chunk=4, start=0, stop=4, first_step=3, last_step=4),
        Use(chunk=5, start=0, stop=1, first_step=3, last_step=4),
        Use(chunk=3, start=0, stop=4, first_step=3, last_step=5),  # across windows 2 and 3
    ]


def test_literal_uses_of_units_and_chunks_and_of_padding():
    geometry = Geometry(21, 4, 2)
    order = epoch_order(geometry, global_batch=8, mode="batch", seed=9, remainder="pad")
    # Units 12-13, 16-17 | 18-19, 4-5; then 0-1, 14-15 | 6-7, 2-3; then 10-11, 8-9 | 20, and 12, 13, 16 again.
    assert list(order.uses(1, 2)) == [
        Use(chunk=4, start=2, stop=4, first_step=0, last_step=0),
        Use(chunk=1, start=0, stop=2, first_step=0, last_step=0),
        Use(chunk=1, start=2, stop=4, first_step=1, last_step=1),
        Use(chunk=0, start=2, stop=4, first_step=1, last_step=1),
        Use(chunk=5, start=0, stop=1, first_step=2, last_step=2),
        Use(chunk=3, start=0, stop=2, first_step=2, last_step=2),
        Use(chunk=4, start=0, stop=1, first_step=2, last_step=2),
    ]
    sequential = epoch_order(geometry, global_batch=8, mode="sequential")
    assert list(sequential.uses(0, 2))[:2] == [
        Use(chunk=0, start=0, stop=4, first_step=0, last_step=0),
        Use(chunk=2, start=0, stop=4, first_step=1, last_step=1),
    ]
