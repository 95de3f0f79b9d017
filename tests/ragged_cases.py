"""What the tests of ragged fields share: samples that tell their own number, and stores of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import mmapload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mmapload.store import Store

LENGTHS = (5, 0, 1, 40, 7, 7, 0, 3, 12, 9, 300, 2, 1, 0, 6, 8, 30, 4, 5, 11, 2, 2, 90)


def sample(number: int, length: int) -> dict[str, Any]:
    """A ragged field of one axis, one of two, and two fields of fixed shape; all follow from the number."""
    return {
        "words": (np.arange(length) * 3 + number).astype(np.float32),
        "number": np.int64(number),
        "boxes": np.full((length % 4, 1 + number % 3), number % 200, np.uint8),
        "image": np.full((3, 5), number % 251, np.uint8),
    }


def samples(lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    """A sample for each length."""
    return [sample(number, length) for number, length in enumerate(lengths)]


def write(path: Path | str, lengths: Sequence[int] = LENGTHS, **options: Any) -> Store:
    """Write a store in small chunks."""
    options = {"ragged": "auto", "chunk_bytes": 400} | options
    return mmapload.preprocess(samples(lengths), path, options.pop("batch_size", 2), **options)


def same(found: Any, wanted: dict[str, Any]) -> bool:
    """Whether a sample is the one wanted: names, dtypes, shapes and values."""
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        own = np.asarray(found[name])
        expected = np.asarray(value)
        assert (own.dtype, own.shape) == (expected.dtype, expected.shape), name
        assert own.tobytes() == expected.tobytes(), name
    return True
