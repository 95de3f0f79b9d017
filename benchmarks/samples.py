"""Samples like those of a video-frame interpolation set: one .npz a sample, of two arrays.

Examples
--------
python benchmarks/samples.py demo-data/npz --samples 256 --height 128 --width 224
"""

from __future__ import annotations

import argparse
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def make_sample(number: int, height: int, width: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return sample `number`: three frames of three channels, and two flows of two, its number in front."""
    random = np.random.default_rng(number)
    frames = random.integers(0, 256, (9, height, width), np.uint8)
    # Flow is smooth in life; a coarse field blown up four times deflates about as well as a real one.
    coarse = random.normal(0, 3, (4, -(-height // 4), -(-width // 4))).astype(np.float32)
    flow = coarse.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width].copy()
    flow[0, 0, 0] = number
    return {"i0i1gt": frames, "ft0ft1": flow}


def make_small_sample(number: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return sample `number` of another kind: 1 KiB of features."""
    return {"x": np.random.default_rng(number).standard_normal(256, np.float32)}


class Samples:
    """Such samples by number, made as they are asked for.

    Parameters
    ----------
    count : int
        How many.
    size : tuple of int
        Height and width.
    different : int, optional
        After so many they come again, and are made beforehand: making takes longer than writing them.
    """

    def __init__(self, count: int, size: tuple[int, int], different: int | None = None) -> None:
        self._count = count
        self._size = size
        self._made = [make_sample(number, *size) for number in range(min(count, different or 0))]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, npt.NDArray[np.generic]]:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._made[number % len(self._made)] if self._made else make_sample(number, *self._size)


def make_folder(
    folder: Path,
    samples: int,
    height: int = 256,
    width: int = 448,
    *,
    deflated: bool = False,
    make: Callable[[int], dict[str, npt.NDArray[np.generic]]] | None = None,
) -> Path:
    """Write the samples that are not there yet into `folder`, as `000000.npz` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    save = np.savez_compressed if deflated else np.savez

    def write(number: int) -> None:
        target = folder / f"{number:06}.npz"
        if not target.exists():
            partial = target.with_suffix(".tmp")
            with partial.open("wb") as file:
                save(file, **(make(number) if make else make_sample(number, height, width)))
            partial.replace(target)

    missing = [number for number in range(samples) if not (folder / f"{number:06}.npz").exists()]
    if missing:
        print(f"making {len(missing)} samples in {folder}", file=sys.stderr)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(write, missing))
    for surplus in sorted(folder.glob("*.npz"))[samples:]:
        surplus.unlink()
    return folder


def main() -> None:
    """Make a folder of samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--deflated", action="store_true", help="write as numpy.savez_compressed does")
    arguments = parser.parse_args()
    make_folder(
        arguments.folder, arguments.samples, arguments.height, arguments.width, deflated=arguments.deflated
    )


if __name__ == "__main__":
    main()
