"""Makers of files whose rows are samples, and what their rows are."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

ROWS = 230


def arrays(seed: int, rows: int = ROWS) -> dict[str, np.ndarray]:
    """Arrays in which rows can lie: C and Fortran order, both byte orders, empty rows, one axis."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.integers(0, 256, (rows, 4, 6), dtype=np.uint8),
        "f": np.asfortranarray(rng.standard_normal((rows, 5, 3)).astype("f4")),
        "b": np.asfortranarray(rng.standard_normal((rows, 2)).astype(">f8")),
        "e": np.zeros((rows, 0, 3), "f4"),
        "y": (np.arange(rows) + seed * 1000).astype(">i4"),
    }


def write_rows(folder: Path, counts: Mapping[str, int], *, deflate: bool) -> dict[str, np.ndarray]:
    """Write a file of rows for each name; returns all rows, in the order of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for seed, (name, rows) in enumerate(counts.items()):
        made = arrays(seed, rows)
        (np.savez_compressed if deflate else np.savez)(folder / f"{name}.npz", **made)
        found.append(made)
    return {key: np.concatenate([each[key] for each in found]) for key in found[0]}


def damage_payload(path: str | os.PathLike[str], key: str, at: int = 40) -> None:
    """Change a byte of an array in a stored archive, which only its CRC-32 tells."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    start = data.index(b"\n", data.index(f"{key}.npy".encode())) + 1
    data[start + at] ^= 0xFF
    with open(path, "wb") as file:
        file.write(data)


def npy(array: Any, version: tuple[int, int] | None = None) -> bytes:
    """The bytes of an `.npy` file."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.asanyarray(array), version=version)
    return buffer.getvalue()


def python2_npy() -> bytes:
    """An `.npy` file as numpy for Python 2 wrote it, with long numbers in its shape."""
    text = b"{'descr': '<i4', 'fortran_order': False, 'shape': (3L,), }".ljust(69) + b"\n"
    return b"\x93NUMPY\1\0" + struct.pack("<H", 70) + text + np.arange(3, dtype="<i4").tobytes()
