"""Time window shuffle of samples that differ in length against the same bytes in samples of one length.

Lengths are drawn from a log-normal distribution with a median of 500, cut to 1 to 10,000; values are
float32. The other store has as many samples, each of the mean length. All files are in the page cache. An
epoch of each loader is timed, from the first batch asked for to the end of the last, in rounds that are
interleaved; the first round does not count. Values of a batch are copied once to a fixed buffer, or the
batch is only taken (--only-take). A ratio is that of the medians.

Examples
--------
chrt -r 1 python benchmarks/ragged_speed.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from waiting import sleep_while_waiting

import mmapload
from mmapload.sizes import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST = 10_000
MEDIAN = 500
FORMS = ("list", "pad", "nested")


class Samples:
    """Samples of given lengths, made when they are asked for.

    Parameters
    ----------
    lengths : ndarray of int64
        Of each sample, in values.
    """

    def __init__(self, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        self._lengths = lengths
        self._noise = np.random.default_rng(1).random(2 * LONGEST, np.float32)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index % LONGEST
        return {"values": self._noise[start : start + int(self._lengths[index])]}


def drawn_lengths(samples: int, sigma: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return lengths from 1 to 10,000 with a median of 500."""
    normal = np.random.default_rng(0).normal(size=samples)
    return np.clip(np.rint(MEDIAN * np.exp(sigma * normal)), 1, LONGEST).astype(np.int64)


def make_stores(
    folder: Path, lengths: np.ndarray[Any, np.dtype[np.int64]], batch_size: int, codec: str
) -> None:
    """Preprocess both; what is there stays."""
    fixed = np.full_like(lengths, round(float(lengths.mean())))
    for name, chosen in (("ragged", lengths), ("fixed", fixed)):
        if not (folder / name).exists():
            ragged = "values" if name == "ragged" else None
            mmapload.preprocess(Samples(chosen), folder / name, batch_size, codec=codec, ragged=ragged)


def disk_bytes(folder: Path) -> int:
    """Count what a folder takes on the disk, with all that is in it."""
    return sum(os.lstat(path).st_blocks * 512 for path in [folder, *folder.rglob("*")])


def copied(batch: dict[str, Any], buffer: torch.Tensor) -> None:
    """Copy the values of a batch once."""
    values = batch["values"]
    if isinstance(values, list):
        torch.cat(values, out=buffer.resize_(0))  # which keeps the memory
        return
    if values.is_nested:
        values = values.values()
    buffer.resize_(values.numel()).copy_(values.reshape(-1))


def epochs(folder: Path, args: argparse.Namespace) -> Iterator[tuple[str, Callable[[int], float]]]:
    """Yield each loader with what runs an epoch and returns its seconds."""
    buffer = torch.ones(args.batch_size * LONGEST)

    def made(store: str, **options: Any) -> Callable[[int], float]:
        dataset = mmapload.ChunkDataset(folder / store, memory=args.memory, **options)
        loader = mmapload.ChunkDataLoader(
            dataset, args.batch_size, "window", num_workers=args.workers, window=args.window
        )

        def run(epoch: int) -> float:
            loader.set_epoch(epoch)
            count = 0
            start = time.perf_counter()
            for batch in loader:
                count += (
                    len(batch["values"]) if isinstance(batch["values"], list) else batch["values"].size(0)
                )
                if not args.only_take:
                    copied(batch, buffer)
            seconds = time.perf_counter() - start
            if count != len(dataset):
                raise SystemExit(f"{store}: {count} samples of {len(dataset)}")
            return seconds

        return run

    yield "fixed", made("fixed")
    for form in FORMS:
        yield f"ragged, {form}", made("ragged", ragged=form)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--folder", type=Path, default=Path("bench-data/ragged"))
    parser.add_argument("--samples", type=int, default=2**17)
    parser.add_argument("--sigma", type=float, default=1.0, help="of the logarithm of lengths")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--codec", default="raw")
    parser.add_argument("--window", type=lambda text: text if text == "auto" else int(text), default="auto")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument(
        "--memory", type=lambda text: text if text == "auto" else parse_size(text), default="auto"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only-take", action="store_true", help="do not copy batches")
    return parser.parse_args()


def main() -> None:
    """Make the stores, if they are not there, and measure."""
    args = parsed()
    lengths = drawn_lengths(args.samples, args.sigma)
    folder = args.folder / f"{args.samples}-{args.sigma}-{args.batch_size}-{args.codec}"
    folder.mkdir(parents=True, exist_ok=True)
    for unfinished in folder.glob(".*.partial"):
        shutil.rmtree(unfinished)
    make_stores(folder, lengths, args.batch_size, args.codec)
    payload = int(lengths.sum()) * 4
    print(
        f"{args.samples:,} samples of {lengths.min():,} to {lengths.max():,} float32, median "
        f"{np.median(lengths):,.0f}, mean {lengths.mean():,.0f}: {format_size(payload)}"
    )
    used = disk_bytes(folder / "ragged")
    print(f"on the disk: {used:,} bytes, {100 * (used / payload - 1):+.2f} % of the payload")
    contenders = list(epochs(folder, args))
    seconds: dict[str, list[float]] = {name: [] for name, _ in contenders}
    for number in range(args.rounds + 1):
        for name, run in contenders:
            found = run(number)
            if number:
                seconds[name].append(found)
    base = statistics.median(seconds["fixed"])
    print(
        f"batch {args.batch_size}, window {args.window}, {args.workers} workers, memory {args.memory}, warm"
    )
    for name, found in seconds.items():
        middle = statistics.median(found)
        print(
            f"{name:16} {args.samples / middle:12,.0f} samples/s {payload / middle / 1e6:8,.0f} MB/s  "
            f"{base / middle:5.2f} x fixed  ({min(found):.3f} to {max(found):.3f} s)"
        )


if __name__ == "__main__":
    sleep_while_waiting()
    main()
