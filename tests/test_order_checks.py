"""Numbers that do not fit are refused, and the message names the nearest that do."""

from __future__ import annotations

import pytest

from mmapload.order import Geometry, epoch_order

GEOMETRY = Geometry(samples=1000, chunk_length=64, unit=32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"global_batch": 0}, "a global batch holds at least 1 sample, found 0"),
        ({"mode": "random"}, "unknown mode 'random': use one of window, batch, full, sequential"),
        ({"remainder": "wrap"}, "unknown remainder 'wrap': use one of drop, pad, keep"),
        ({"seed": -1}, r"seed must lie in \[0, 2\*\*64\), found -1"),
        ({"epoch": 2**64}, r"epoch must lie in \[0, 2\*\*64\), found 18446744073709551616"),
        ({"window": 0}, "a window holds at least 1 sample, found 0"),
        ({"lanes": 0}, "at least 1 lane, found 0"),
        (
            {"lanes": 3, "window": 99},
            "3 lanes do not divide .* 64: use a global batch of 63 or 66, or 2 or 4 lanes",
        ),
        (
            {"lanes": 4, "window": 99},
            "4 lanes do not divide a window of 99 .*: use .* of 96 or 100, or 3 or 9 lanes",
        ),
        ({"lanes": 128, "global_batch": 64}, "use a global batch of 128, or 64 lanes"),
        ({"lanes": 1024, "global_batch": 1024}, "1000 samples cannot fill 1024 lanes: use at most 1000"),
        ({"mode": "batch", "global_batch": 48}, "found 48: use 32 or 64, or mode 'window'"),
        ({"mode": "batch", "global_batch": 12}, "found 12: use 8 or 16, or mode 'window'"),
        ({"mode": "batch", "lanes": 2}, "window and lanes belong to mode 'window'"),
        ({"mode": "full", "window": 64}, "window and lanes belong to mode 'window'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        epoch_order(GEOMETRY, **{"global_batch": 64, **arguments})


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ((0, 4, 2), r"1 to 2\*\*48 samples, found 0"),
        ((2**48 + 1, 4, 2), "found 281474976710657"),
        ((10, 0, 1), "found chunk length 0"),
        ((10, 4, 3), "found 3 and 4"),
        ((10, 4, 0), "found 0 and 4"),
    ],
)
def test_impossible_geometries_are_refused(geometry, message):
    with pytest.raises(ValueError, match=message):
        Geometry(*geometry)


def every_call(order, rank, world_size):
    return [
        lambda: order.rank_batch(0, rank, world_size),
        lambda: order.rank_batches(rank, world_size),
        lambda: order.rank_length(rank, world_size),
        lambda: order.uses(rank, world_size),
    ]


@pytest.mark.parametrize(
    ("world_size", "message"),
    [
        (0, "at least 1 rank, found a world size of 0"),
        (3, "64 cannot be shared evenly by 3 ranks: use a global batch of 63 or 66, or 2 or 4 ranks"),
        (100, "use a global batch of 100, or 64 ranks"),
    ],
)
def test_ranks_that_do_not_divide_the_batch_are_refused_at_the_call(world_size, message):
    for call in every_call(epoch_order(GEOMETRY, global_batch=64), 0, world_size):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("rank", [-1, 2])
def test_ranks_outside_the_world_are_refused_at_the_call(rank):
    for call in every_call(epoch_order(GEOMETRY, global_batch=64), rank, 2):
        with pytest.raises(IndexError, match=rf"expected a rank in \[0, 2\), found {rank}"):
            call()


def test_steps_outside_the_epoch_are_refused():
    order = epoch_order(GEOMETRY, global_batch=64)
    for step in (-1, 16):
        with pytest.raises(IndexError, match=rf"expected a step in \[0, 16\), found {step}"):
            order.rank_batch(step, 0, 1)
    for call in (order.rank_batches, order.uses):
        for start in (-1, 17):
            with pytest.raises(IndexError, match=rf"expected a first step in \[0, 16\], found {start}"):
                call(0, 1, start=start)


@pytest.mark.parametrize(
    ("samples", "global_batch", "world_size", "advice"),
    [
        (21, 4, 2, "use a batch size of 3 per rank, or remainder='pad' or 'drop'"),
        (33, 16, 4, "use a batch size of 3 or 5 per rank"),
        (3, 8, 4, "fewer than the 4 ranks: use remainder='pad'"),
    ],
)
def test_a_last_batch_smaller_than_the_world_is_refused_unless_asked_for(
    samples, global_batch, world_size, advice
):
    geometry = Geometry(samples, 4, 2)
    order = epoch_order(geometry, global_batch=global_batch)
    for call in every_call(order, 0, world_size):
        with pytest.raises(ValueError, match=advice):
            call()
    for arguments in ({"remainder": "pad"}, {"remainder": "drop"}, {"allow_empty": True}):
        other = epoch_order(geometry, global_batch=global_batch, **arguments)
        for rank in range(world_size):
            assert len(list(other.rank_batches(rank, world_size))) == other.steps


@pytest.mark.parametrize("samples", range(1, 60))
def test_batch_sizes_named_for_a_kept_last_batch_work(samples):
    for world_size in range(2, 6):
        for batch in range(1, 9):
            order = epoch_order(Geometry(samples, 4, 2), global_batch=batch * world_size)
            try:
                order.check_world_size(world_size)
            except ValueError as error:
                named = str(error).partition("use a batch size of ")[2].partition(" per rank")[0]
                sizes = [int(size) for size in named.split(" or ")] if named else []
                assert sizes or samples < world_size
                for size in sizes:
                    fitting = epoch_order(Geometry(samples, 4, 2), global_batch=size * world_size)
                    fitting.check_world_size(world_size)
