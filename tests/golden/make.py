"""Make the golden stores, once for each form that they have had: python tests/golden/make.py [FOLDER].

They stand for every store that people have on their disks. A change that no longer reads them breaks these
stores, so they are never made anew to let a test pass; a new form adds new ones.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).parent
"""Stores as they were first written, without a list of checksums."""
LISTED = GOLDEN / "listed"
"""Stores with one, and without a checksum of the metadata."""
SEALED = GOLDEN / "sealed"
"""Stores as they are written now."""
SAMPLES = 5
BATCH_SIZE = 2
CODECS = ("raw", "zstd", "blosc-lz4", "blosc-zstd")


def expected() -> dict[str, np.ndarray]:
    """Return all samples of every field, along axis 0: whole numbers, and special values as bit patterns."""
    number = np.arange(SAMPLES)
    image = (number[:, None, None] * 50 + np.arange(3)[:, None] * 16 + np.arange(4)).astype(np.uint8)
    # -0.0; a quiet and a signalling NaN with payloads; a negative NaN; infinities; the least subnormal.
    bits = [0x80000000, 0x7FC00123, 0x7F800456, 0xFFC00789, 0x7F800000, 0xFF800000, 0x00000001, 0x3F800000]
    flow = np.stack([np.roll(np.array(bits, np.uint32), sample) for sample in range(SAMPLES)])
    return {
        "image": image,
        "flow": flow.view(np.float32).reshape(SAMPLES, 2, 4),
        "label": number.astype(np.int64) - 2,
        "mask": (number[:, None] >> np.arange(3) & 1).astype(np.bool_),
        "phase": (number[:, None] - 1j * np.arange(2)).astype(np.complex64),
        "depth": (number[:, None] / 4 - np.arange(2)).astype(np.float16),
        "none": np.zeros((SAMPLES, 0, 2), np.float64),
        "zeros": np.zeros((SAMPLES, 64), np.uint16),
    }


def main(folder: Path) -> None:
    """Write a store of each codec into a folder."""
    from mmapload.preprocessing import preprocess

    fields = expected()
    samples = [{name: array[sample] for name, array in fields.items()} for sample in range(SAMPLES)]
    for codec in CODECS:
        preprocess(samples, folder / codec, BATCH_SIZE, codec=codec, chunk_bytes=1)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SEALED)
