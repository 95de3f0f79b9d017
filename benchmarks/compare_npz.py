"""Compare loading raw .npz files with loading the store made from them.

Every contender delivers the same samples in batches to this process, which copies each batch once into a
fixed buffer; which samples came is checked by their numbers. Rounds are interleaved, and medians
reported, since machines are shared and noisy. The page cache is warm: one epoch of each runs before.

Examples
--------
python benchmarks/compare_npz.py --samples 1024
python benchmarks/compare_npz.py --samples 256 --height 128 --width 224 --rounds 3
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from samples import make_folder
from torch.utils.data import DataLoader, Dataset

import mmapload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class NpzFolder(Dataset[dict[str, torch.Tensor]]):
    """What a user has before: one zip opened for every sample."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(str(path) for path in folder.glob("*.npz"))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        with np.load(self.files[index]) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def contenders(source: Path, store: Path, batch: int) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return each contender's name and how to make its loader."""
    npz = NpzFolder(source)
    dataset = mmapload.ChunkDataset(store)
    unchecked = mmapload.ChunkDataset(store, verify="never")
    always = mmapload.ChunkDataset(store, verify="always")
    chunked, plain = mmapload.ChunkDataLoader, DataLoader
    sampled = functools.partial(mmapload.ChunkBatchSampler, dataset, batch)
    return {
        ".npz, DataLoader, 0 workers": lambda: plain(npz, batch, shuffle=True),
        ".npz, DataLoader, 2 workers": lambda: plain(npz, batch, shuffle=True, num_workers=2),
        "ChunkDataLoader, window": lambda: chunked(dataset, batch, "window"),
        "ChunkDataLoader, batch": lambda: chunked(dataset, batch, "batch"),
        "ChunkDataLoader, full": lambda: chunked(dataset, batch, "full"),
        "DataLoader + ChunkBatchSampler, 0 workers": lambda: plain(dataset, batch_sampler=sampled()),
        "DataLoader + ChunkBatchSampler, 2 workers": lambda: plain(
            dataset, batch_sampler=sampled(), num_workers=2
        ),
        "ChunkDataLoader, window, verify=never": lambda: chunked(unchecked, batch, "window"),
        "ChunkDataLoader, window, verify=always": lambda: chunked(always, batch, "window"),
    }


BASELINE = ".npz, DataLoader, 2 workers"


def epoch(loader: Iterable[dict[str, torch.Tensor]], samples: int, buffers: dict[str, torch.Tensor]) -> float:
    """Run one epoch: copy every batch once; return samples a second. Refuses to count wrong samples."""
    seen = []
    start = time.perf_counter()
    for batch in loader:
        for name, tensor in batch.items():
            buffers[name][: len(tensor)].copy_(tensor)
        seen.append(batch["ft0ft1"][:, 0, 0, 0].clone())
    seconds = time.perf_counter() - start
    numbers = torch.cat(seen).to(torch.int64)
    if sorted(numbers.tolist()) != list(range(samples)):
        raise SystemExit("a loader delivered other samples than every sample once")
    return samples / seconds


def run(source: Path, store: Path, batch: int, rounds: int) -> dict[str, list[float]]:
    """Time every contender `rounds` times, in turn, after one epoch each to warm up."""
    made = contenders(source, store, batch)
    samples = len(NpzFolder(source))
    first = mmapload.ChunkDataset(store)[0]
    buffers = {name: torch.empty((batch, *value.shape), dtype=value.dtype) for name, value in first.items()}
    rates: dict[str, list[float]] = {name: [] for name in made}
    for number in range(rounds + 1):
        for name, make in made.items():
            rate = epoch(make(), samples, buffers)
            if number:
                rates[name].append(rate)
        print(f"round {number} of {rounds} done" if number else "warmed up", file=sys.stderr)
    return rates


def table(rates: dict[str, list[float]]) -> str:
    """Render medians and their ratios to the baseline as a Markdown table."""
    base = statistics.median(rates[BASELINE])
    lines = ["| loader | samples/s | x .npz, 2 workers | least to most |", "| --- | ---: | ---: | --- |"]
    for name, found in rates.items():
        median = statistics.median(found)
        lines.append(
            f"| {name} | {median:,.0f} | {median / base:.1f} | {min(found):,.0f} to {max(found):,.0f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, Any]:
    """Say where this ran."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "mmapload": mmapload.__version__,
    }


def chart(rates: dict[str, list[float]], target: Path) -> None:
    """Draw the medians as bars, with least and most; needs the `bench` extra."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 0.4 * len(rates) + 1.2), layout="constrained")
    axes = figure.subplots()
    names = list(reversed(rates))
    medians = [statistics.median(rates[name]) for name in names]
    below = [median - min(rates[name]) for name, median in zip(names, medians, strict=True)]
    above = [max(rates[name]) - median for name, median in zip(names, medians, strict=True)]
    colours = ["tab:gray" if name.startswith(".npz") else "tab:blue" for name in names]
    axes.barh(names, medians, xerr=(below, above), color=colours, capsize=3)
    axes.set_xlabel("samples a second: median, least and most")
    figure.savefig(target, dpi=120)


def main() -> None:
    """Make what is missing, compare, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="a folder of .npz samples made by this script before")
    parser.add_argument("--store", type=Path, help="the store made from them; made here by default")
    parser.add_argument("--work", type=Path, default=Path("bench-data"), help="where to make data")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=448)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--chart", type=Path, help="draw the medians there, as .png or .svg")
    parser.add_argument("--json", type=Path, help="write all figures there")
    arguments = parser.parse_args()
    shape = f"{arguments.samples}x{arguments.height}x{arguments.width}"
    source = arguments.source or make_folder(
        arguments.work / f"npz-{shape}", arguments.samples, arguments.height, arguments.width
    )
    store = arguments.store or arguments.work / f"store-{shape}-b{arguments.batch_size}"
    if not store.exists():
        mmapload.preprocess(source, store, arguments.batch_size, quiet=False)
    print(f"each loader once to warm up, then {arguments.rounds} rounds", file=sys.stderr)
    rates = run(source, store, arguments.batch_size, arguments.rounds)
    nbytes = sum(path.stat().st_size for path in source.glob("*.npz"))
    print(
        f"\n{len(NpzFolder(source)):,} samples, {nbytes / 1e9:.2f} GB, batch {arguments.batch_size}, ", end=""
    )
    print(f"page cache warm, medians of {arguments.rounds} interleaved rounds")
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    print(f"\n{table(rates)}")
    if arguments.chart:
        chart(rates, arguments.chart)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "samples_per_second": rates}, indent=2))


if __name__ == "__main__":
    main()
