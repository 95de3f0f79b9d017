"""Compare how fast compressed stores are loaded with what zarr-python and bare numcodecs take to decode them.

All take every chunk once, in random order, from files that are in the page cache. zarr-python reads chunk by
chunk, as its own pages advise. numcodecs reads each file into a buffer and decodes it into another, both used
again, in as many threads as a loader of mmapload has to load ahead: once bare, and once with a copy. That
copy, into a fixed buffer, is made of what zarr-python reads and of the loaders' batches as well. mmapload's
reader decodes with what it checks, and delivers nothing. Contenders take turns; medians of all rounds but a
first one are reported.

Examples
--------
python benchmarks/compare_codecs.py --rounds 5
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numcodecs.blosc
import numcodecs.zstd
import numpy as np
import torch
import zarr
from report import machine
from samples import Samples
from waiting import sleep_while_waiting

import mmapload
from mmapload.bench.ceilings import chunk_files, side_by_side
from mmapload.codecs import CHECKSUM_BYTES
from mmapload.residency import THREADS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmapload import Store

WINDOW = 96
"""Samples; both loaders get memory for two windows, so that no decoded chunk is there to be used again."""

Epoch = Callable[[int], None]


def by_zarr(store: Store) -> Epoch:
    """Read chunk by chunk through zarr-python, and copy what comes."""
    group: Any = zarr.open_group(store.path, mode="r")
    length = store.layout.chunk_length
    arrays = [
        (group[field.name], np.ones((length, *field.shape), field.dtype)) for field in store.layout.fields
    ]

    def epoch(seed: int) -> None:
        for chunk in np.random.default_rng(seed).permutation(store.layout.chunks).tolist():
            for array, fixed in arrays:
                found = array[chunk * length : (chunk + 1) * length]
                np.copyto(fixed[: len(found)], found)

    return epoch


def by_numcodecs(store: Store, *, copied: bool) -> Epoch:
    """Decode every chunk file in threads, into buffers that are used again, and copy what comes out."""
    files = chunk_files(store, store.layout.chunks)
    largest = max(os.stat(path).st_size for _, _, path in files)
    decoded = max(field.chunk_nbytes for field in store.layout.fields)
    buffers = [[np.ones(size, np.uint8) for size in (largest, decoded, decoded)] for _ in range(THREADS)]

    def run(encoded: Any, out: Any, fixed: Any, file: Any) -> None:
        field, _, path = file
        with open(path, "rb", buffering=0) as opened:
            size = opened.readinto(encoded)
        decode = numcodecs.zstd if field.codec.name == "zstd" else numcodecs.blosc
        decode.decompress(encoded[: size - CHECKSUM_BYTES], out[: field.chunk_nbytes])
        if copied:
            np.copyto(fixed[: field.chunk_nbytes], out[: field.chunk_nbytes])

    runs = [partial(run, *each) for each in buffers]
    return lambda seed: side_by_side(
        [files[i] for i in np.random.default_rng(seed).permutation(len(files)).tolist()], runs
    )


def by_reader(store: Store) -> Epoch:
    """Decode every chunk with what a dataset reads with."""
    reader = mmapload.ChunkDataset(store.path, memory=store.layout.chunk_nbytes).reading.residency.reader
    return lambda seed: side_by_side(
        np.random.default_rng(seed).permutation(store.layout.chunks).tolist(), [reader.load] * THREADS
    )


def by_loader(store: Store, mode: str) -> Epoch:
    """Deliver batches, after a first epoch in which buffers are made and checksums compared."""
    layout = store.layout
    held = 2 * WINDOW // layout.chunk_length + 1
    dataset = mmapload.ChunkDataset(store.path, memory=held * layout.chunk_nbytes)
    options = {"window": WINDOW} if mode == "window" else {}
    loader = mmapload.ChunkDataLoader(dataset, layout.batch_size, mode, **options)
    buffers = {
        field.name: torch.ones(
            (layout.batch_size, *field.shape), dtype=torch.from_numpy(np.empty(0, field.dtype)).dtype
        )
        for field in layout.fields
    }

    def epoch(seed: int) -> None:
        loader.set_epoch(seed)
        count = 0
        for batch in loader:
            for name, tensor in batch.items():
                buffers[name][: len(tensor)].copy_(tensor)
            count += len(tensor)
        assert count == layout.samples

    return epoch


def into_cache(store: Store) -> None:
    """Bring the files into the page cache: a loader whose data exceed its budget drops what it has read."""
    for _, _, path in chunk_files(store, store.layout.chunks):
        Path(path).read_bytes()


def compare(store: Store, rounds: int) -> dict[str, list[float]]:
    """Let all take turns, after an epoch each that is not counted; returns samples a second."""
    contenders = {
        "zarr-python, chunk by chunk": by_zarr(store),
        f"numcodecs, {THREADS} threads": by_numcodecs(store, copied=False),
        f"numcodecs, {THREADS} threads, each chunk copied": by_numcodecs(store, copied=True),
        f"mmapload's reader, {THREADS} threads": by_reader(store),
        "ChunkDataLoader, batch": by_loader(store, "batch"),
        f"ChunkDataLoader, window={WINDOW}": by_loader(store, "window"),
    }
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, epoch in contenders.items():
            into_cache(store)
            start = time.perf_counter()
            epoch(number)
            if number:
                found[name].append(store.layout.samples / (time.perf_counter() - start))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Make stores that are not there, compare, print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--size", type=int, nargs=2, default=(256, 448), help="height and width of samples")
    parser.add_argument("--codecs", nargs="+", default=["blosc-lz4", "blosc-zstd"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--work", type=Path, default=Path("bench-data"), help="where stores are made and kept"
    )
    options = parser.parse_args(arguments)
    print(", ".join(f"{name} {value}" for name, value in machine().items()))
    for codec in options.codecs:
        size = tuple(options.size)
        target = options.work / f"store-{options.samples}x{size[0]}x{size[1]}-{codec}"
        if not target.exists():
            mmapload.preprocess(Samples(options.samples, size), target, 32, codec=codec)
        store = mmapload.open_store(target)
        found = compare(store, options.rounds)
        medians = {name: statistics.median(rates) for name, rates in found.items()}
        zarr_rate, bare, copied = list(medians.values())[:3]
        nbytes = sum(os.stat(path).st_size for _, _, path in chunk_files(store, store.layout.chunks))
        ratio = store.layout.samples * store.layout.sample_nbytes / nbytes
        print(f"\n### {codec}: {store.layout.samples:,} samples, {nbytes / 1e9:.2f} GB, {ratio:.2f} to 1\n")
        heads = "samples/s", "x zarr-python", "x numcodecs", "x numcodecs, copied", "least to most"
        print(f"| | {' | '.join(heads)} |\n| --- |" + " ---: |" * len(heads))
        for name, rates in found.items():
            rate = medians[name]
            times = f"{rate / zarr_rate:.1f} | {rate / bare:.2f} | {rate / copied:.2f}"
            print(
                f"| {name} | {medians[name]:,.0f} | {times} | {min(rates):,.0f} to {max(rates):,.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    sleep_while_waiting()
    main()
