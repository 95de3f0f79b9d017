"""Orders frozen for ever: runs that were started under version 1 resume by them.

Nothing in this file may change. An order that differs is a new order version, with goldens of its own.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mmapload.order import ORDER_VERSION, Geometry, epoch_order

SMALL = Geometry(samples=21, chunk_length=4, unit=2)
VIDEOS = Geometry(samples=51312, chunk_length=160, unit=32)


def test_these_goldens_belong_to_order_version_1():
    assert ORDER_VERSION == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            {"window": 8, "global_batch": 4},
            [[6, 7, 5, 8], [10, 9, 4, 11], [16, 3, 1, 19], [17, 18, 0, 2], [14, 20, 12, 15], [13]],
        ),
        (
            {"window": 8, "global_batch": 4, "remainder": "pad"},
            [[6, 7, 5, 8], [10, 9, 4, 11], [16, 3, 1, 19], [17, 18, 0, 2], [14, 20, 12, 15], [13, 6, 7, 5]],
        ),
        (
            {"window": 8, "global_batch": 4, "remainder": "drop"},
            [[6, 7, 5, 8], [10, 9, 4, 11], [16, 3, 1, 19], [17, 18, 0, 2], [14, 20, 12, 15]],
        ),
        (
            {"window": 12, "lanes": 2, "global_batch": 8},
            [[5, 4, 8, 10, 19, 17, 3, 18], [9, 11, 0, 7, 2, 16, 12, 15], [1, 6, 13, 14, 20]],
        ),
        (
            {"window": 12, "lanes": 2, "global_batch": 8, "remainder": "pad"},
            [[5, 4, 8, 10, 19, 17, 3, 18], [9, 11, 0, 7, 2, 16, 12, 15], [1, 6, 5, 4, 13, 14, 20, 19]],
        ),
        (
            {"mode": "batch", "global_batch": 4},
            [[12, 13, 16, 17], [18, 19, 4, 5], [0, 1, 14, 15], [6, 7, 2, 3], [10, 11, 8, 9], [20]],
        ),
        (
            {"mode": "full", "global_batch": 8},
            [[0, 16, 6, 14, 9, 18, 11, 10], [2, 4, 17, 19, 5, 20, 1, 15], [7, 8, 3, 13, 12]],
        ),
        (
            {"mode": "sequential", "global_batch": 8, "remainder": "pad"},
            [[0, 1, 2, 3, 4, 5, 6, 7], [8, 9, 10, 11, 12, 13, 14, 15], [16, 17, 18, 19, 20, 0, 1, 2]],
        ),
    ],
)
def test_small_orders(arguments, expected):
    order = epoch_order(SMALL, seed=9, epoch=0, **arguments)
    assert [order.step_batch(step).tolist() for step in range(order.steps)] == expected


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (0, [[5, 4, 8, 10], [9, 11, 0, 7], [1, 6]]),
        (1, [[19, 17, 3, 18], [2, 16, 12, 15], [13, 14, 20]]),
    ],
)
def test_small_orders_of_ranks(rank, expected):
    order = epoch_order(SMALL, seed=9, epoch=0, window=12, lanes=2, global_batch=8)
    assert [batch.tolist() for batch in order.rank_batches(rank, 2)] == expected


@pytest.mark.parametrize(
    ("arguments", "digest"),
    [
        (
            {"global_batch": 128, "epoch": 0},
            "58d4bba0ac09d571111268cbe973f0af97735814dfdcb9a1f4dbdfdeff270874",
        ),
        (
            {"global_batch": 128, "epoch": 1},
            "eacdf5a0b2713a612b698bc70c96d9f592449eae85d62988d50066af72746896",
        ),
        (
            {"global_batch": 96, "window": 1536, "lanes": 3, "epoch": 1},
            "8e56a92f22669fb4b0c9a08bdfb783ea142d45dfffaff245acddd0db9676979e",
        ),
        (
            {"global_batch": 128, "window": 16384, "lanes": 2, "epoch": 1, "remainder": "pad"},
            "c2bb1c8883e4e66ebe5fc9652430d9f8afedb384cb8d08383c85fbb7ef7a9951",
        ),
        (
            {"global_batch": 128, "mode": "batch", "epoch": 0},
            "cace07a9d45200f704e85667c314a512fd47b61fda2594679b8320a9276a01c5",
        ),
        (
            {"global_batch": 128, "mode": "full", "epoch": 2**40},
            "2563ecbbc28baa02470414116b97de6ceda8a83209d4715b2ba985056e894e74",
        ),
    ],
)
def test_whole_epochs(arguments, digest):
    order = epoch_order(VIDEOS, seed=2026, **arguments)
    hashed = hashlib.sha256()
    for batch in order.rank_batches(0, 1):
        hashed.update(np.ascontiguousarray(batch, "<i8").tobytes())
    assert hashed.hexdigest() == digest


def test_steps_of_large_stores():
    order = epoch_order(Geometry(10**8, 256, 32), global_batch=4, seed=1, epoch=1)
    assert order.step_batch(0).tolist() == [58765548, 12463620, 27351781, 27168961]
    assert order.step_batch(10**7).tolist() == [48399441, 13406664, 94006811, 48399394]
    largest = epoch_order(
        Geometry(2**48, 2**20, 2**10), global_batch=4, mode="full", seed=2**64 - 1, epoch=2**64 - 1
    )
    assert largest.step_batch(2**45).tolist() == [
        *(57757657661522, 77918923430567, 231326093665645, 268147436657735),
    ]
