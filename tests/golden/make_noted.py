"""Make the golden stores with a note of each kind, once: python tests/golden/make_noted.py [FOLDER]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from mmapload.notes import BFLOAT16

NOTED = Path(__file__).parent / "noted"
CODECS = ("raw", "zstd", "blosc-lz4", "blosc-zstd")
SAMPLES = 5


def expected() -> dict[str, np.ndarray]:
    """Return all samples of every field, along axis 0."""
    number = np.arange(SAMPLES)
    texts = ["", "ab", "\u00fc\U0001f600", "a\x00b", "end\x00"]
    halves = np.array([0x3F80, 0x8000, 0x7F80, 0x7FC1, 0xFF81], np.uint16)  # 1, -0.0, inf, two NaNs
    return {
        "half": np.stack([halves, halves[::-1]], axis=1).view(BFLOAT16),
        "when": np.append(number[1:] * 1000 - 1, np.iinfo("i8").min).view("M8[ms]"),
        "day": number.astype("M8[D]"),
        "span": (number - 2).astype("m8[25s]"),
        "bare": number.astype("m8"),
        "name": np.array(texts, "<U4"),
        "pair": np.stack([np.array(texts, "<U4"), np.array(texts[::-1], "<U4")], axis=1),
        "code": np.array([b"", b"a", b"\xff\x00\xfe", b"abc", b"b\x00"], "|S3"),
        "none": np.zeros((SAMPLES, 0), "<U2"),
    }


def main(folder: Path) -> None:
    """Write a store of each codec into a folder."""
    from mmapload.preprocessing import preprocess

    fields = expected()
    samples: list[Any] = [{name: array[i, ...] for name, array in fields.items()} for i in range(SAMPLES)]
    for codec in CODECS:
        preprocess(samples, folder / codec, 2, codec=codec, chunk_bytes=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else NOTED)
