"""Make the golden stores of samples that differ in shape, once: python tests/golden/make_ragged.py [FOLDER].

As those of `make.py`, they are never made anew to let a test pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

RAGGED = Path(__file__).parent / "ragged"
CODECS = ("raw", "zstd", "blosc-lz4", "blosc-zstd")
LENGTHS = (3, 0, 1, 20, 6)


def samples() -> list[dict[str, Any]]:
    """Return samples of two ragged fields, one that some lack, and one of fixed shape."""
    found: list[dict[str, Any]] = [
        {
            "words": (np.arange(length) - number / 4).astype(np.float32),
            "boxes": (np.arange(length % 4 * (number % 2 + 1)) + 16 * number)
            .astype(np.uint8)
            .reshape(length % 4, number % 2 + 1),
            "label": np.int16(number - 2),
        }
        for number, length in enumerate(LENGTHS)
    ]
    del found[2]["words"]
    return found


def main(folder: Path) -> None:
    """Write a store of each codec into a folder."""
    from mmapload.preprocessing import preprocess

    for codec in CODECS:
        preprocess(
            samples(), folder / codec, 2, codec=codec, chunk_bytes=1, ragged="words,boxes", optional="words"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RAGGED)
