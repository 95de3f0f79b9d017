"""Philox4x32-10 against its published vectors, and what is built on it."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mmapload.order.philox import Purpose, philox4x32, scale, stream_key

# Known-answer vectors of Random123 1.14 (tests/kat_vectors): counter, key, result.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


def counter(*values: int) -> tuple[np.ndarray, ...]:
    return tuple(np.array([value], np.uint64) for value in values)


@pytest.mark.parametrize(("start", "key", "result"), KNOWN)
def test_known_answers_are_met(start, key, result):
    found = philox4x32(counter(*words(start)), tuple(words(key)))
    assert [int(word[0]) for word in found] == words(result)


def test_broadcast_counters_equal_single_ones():
    columns, rows = np.arange(5, dtype=np.uint64)[np.newaxis], np.arange(3, dtype=np.uint64)[:, np.newaxis]
    together = np.stack(philox4x32((columns, rows, *counter(7, 8)), (1, 2)))
    assert together.shape == (4, 3, 5)
    for row, column in product(range(3), range(5)):
        single = philox4x32(counter(column, row, 7, 8), (1, 2))
        assert together[:, row, column].tolist() == [int(word[0]) for word in single]


def test_scale_equals_the_upper_half_of_the_product_of_python_integers():
    generator = np.random.Generator(np.random.PCG64(1))
    low, high = generator.integers(0, 2**32, (2, 200), dtype=np.uint64)
    for size in (1, 2, 3, 4097, 2**24, 2**32 - 1):
        expected = [((int(h) << 32) + int(l)) * size >> 64 for l, h in zip(low, high, strict=True)]
        assert scale(low, high, size).tolist() == expected


def test_stream_keys_differ_in_every_argument():
    keys = {
        stream_key(seed, epoch, purpose, lane)
        for seed, epoch, purpose, lane in product(
            (0, 1, 2**32, 2**64 - 1), (0, 1, 2**32, 2**64 - 1), Purpose, (0, 1)
        )
    }
    assert len(keys) == 4 * 4 * len(Purpose) * 2
