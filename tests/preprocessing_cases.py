"""What the tests of preprocessing share: folders of samples, and the bytes of a store."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.errors import SourceError
from mmapload.sources import ArraySpec

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path


def samples(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Small samples of two fields, different from each other."""
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.integers(0, 256, (3, 5), dtype=np.uint8), "y": rng.standard_normal(4).astype("f4")}
        for _ in range(count)
    ]


def write_npz(folder: Path, values: list[dict[str, Any]]) -> Path:
    """One stored .npz file a sample: s0.npz, s1.npz, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, sample in enumerate(values):
        np.savez(folder / f"s{number}.npz", **sample)
    return folder


def damage(path: Path) -> None:
    """Change a byte of an array without changing size or directory, so that only the checksum tells."""
    data = bytearray(path.read_bytes())
    data[data.index(b"\n") + 5] ^= 0xFF
    path.write_bytes(data)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by relative path."""
    return {
        os.path.relpath(os.path.join(where, name), folder): (open(os.path.join(where, name), "rb").read())
        for where, _, names in os.walk(folder)
        for name in names
    }


def stored(store: Any, field: str) -> np.ndarray:
    """All samples of a field."""
    return np.concatenate([store.read_chunk(field, chunk) for chunk in range(store.layout.chunks)])


class CountedSource:
    """An indexed source of numbers, some of them bad, that counts what is asked of it."""

    kind = "counted"

    def __init__(
        self, count: int, bad: Collection[int] = (), *, parallel: bool = True, width: int = 2
    ) -> None:
        self.count = count
        self.width = width
        self.bad = frozenset(bad)
        self.parallel = parallel
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"n{index}"

    def describe(self, index: int) -> str:
        return f"/numbers/n{index}"

    def schema(self, index: int) -> dict[str, ArraySpec]:
        return {"x": ArraySpec(np.dtype("i4"), (self.width,))}

    def read(self, index: int, into: Mapping[str, np.ndarray]) -> None:
        self.reads.append(index)
        if index in self.bad:
            raise SourceError(self.describe(index), "x", "a bad number")
        into["x"][0], into["x"][1:] = index, -index

    def fingerprint(self, index: int) -> bytes:
        return str(index).encode()
