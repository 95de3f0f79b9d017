"""What the tests of sources share: read samples through the protocol, as preprocessing does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mmapload.sources import IndexedSource


def read_sample(source: IndexedSource, index: int) -> dict[str, np.ndarray]:
    """One sample, read into arrays of its own schema."""
    into = {name: np.zeros(spec.shape, spec.dtype) for name, spec in source.schema(index).items()}
    source.read(index, into)
    return into


def same(found: np.ndarray, expected: Any) -> bool:
    """Whether two arrays are one, bit by bit."""
    expected = np.asarray(expected)
    expected = expected.astype(expected.dtype.newbyteorder("="))
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and found.tobytes() == expected.tobytes()
    )


def awkward(rows: int) -> dict[str, np.ndarray]:
    """Arrays of many dtypes, with values that are lost where anything is cast or taken for zero."""
    rng = np.random.default_rng(0)
    payloads = np.array([0x7FC00001, 0xFF800001, 0x80000000, 1], "u4").view("f4")
    return {
        "u1": rng.integers(0, 256, (rows, 3, 5), dtype=np.uint8),
        "f4": np.resize(payloads, (rows, 4)),
        "f2": rng.standard_normal((rows, 2)).astype("f2"),
        "i8": rng.integers(-(2**62), 2**62, rows),
        "bool": rng.integers(0, 2, (rows, 2)).astype(bool),
        "big": rng.standard_normal((rows, 2)).astype(">f8"),
        "c16": rng.standard_normal((rows, 2)).astype("c16"),
        "empty": np.empty((rows, 0, 2), "i2"),
    }
