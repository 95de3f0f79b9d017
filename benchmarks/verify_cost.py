"""What checking checksums costs: epochs with verify never, first and always, one after the other.

    python benchmarks/verify_cost.py [--samples 512] [--rounds 7]

Every epoch has a dataset of its own, so "first" checks every chunk. The store is in the page cache: what
comes from a disk hides the cost of checking it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from samples import Samples

import mmapload
from mmapload import ChunkDataLoader, ChunkDataset

BATCH = 32
MODES = ("never", "first", "always")


def epoch(path: Path, shuffle: str, verify: str) -> tuple[float, float]:
    """Load all batches once, and copy each to a fixed buffer; returns seconds, and those of processors."""
    loader = ChunkDataLoader(ChunkDataset(path, verify=verify), BATCH, shuffle)
    fixed: dict[str, np.ndarray] = {}
    started, used = time.perf_counter(), time.process_time()
    for batch in loader:
        for name, tensor in batch.items():
            array = tensor.numpy()
            if name not in fixed:
                fixed[name] = np.empty_like(array)
            np.copyto(fixed[name][: len(array)], array)
    return time.perf_counter() - started, time.process_time() - used


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    columns = "codec", "shuffle", "never, samples/s", "first / never", "always / never"
    columns += "first, more ms of CPU a sample", "always, more ms of CPU a sample"
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        for codec in ("raw", "blosc-lz4"):
            path = Path(folder, codec)
            mmapload.preprocess(
                Samples(arguments.samples, (256, 448), different=64), path, BATCH, codec=codec
            )
            for shuffle in ("window", "batch"):
                epoch(path, shuffle, "never")
                taken: dict[str, list[tuple[float, float]]] = {mode: [] for mode in MODES}
                for number in range(arguments.rounds):
                    for mode in MODES[number % 3 :] + MODES[: number % 3]:
                        taken[mode].append(epoch(path, shuffle, mode))
                wall, used = (
                    {mode: statistics.median(each[kind] for each in times) for mode, times in taken.items()}
                    for kind in (0, 1)
                )
                ratios = " | ".join(f"{wall['never'] / wall[mode]:.2f}" for mode in MODES[1:])
                more = " | ".join(
                    f"{1e3 * (used[mode] - used['never']) / arguments.samples:.3f}" for mode in MODES[1:]
                )
                rate = arguments.samples / wall["never"]
                print(f"| {codec} | {shuffle} | {rate:,.0f} | {ratios} | {more} |", flush=True)


if __name__ == "__main__":
    main()
