"""Time preprocessing against what it has to beat, and the opening of a store of a million samples.

Stored .npz against `cp -r` and `sync`; deflated .npz against a loop of `numpy.load` and `numpy.save` on
one core; a generator of 1 KiB samples by itself. Rounds are interleaved; medians are reported.

Examples
--------
python benchmarks/preprocess_speed.py --samples 512
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from samples import make_folder

import mmapload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 32


def seconds(work: Callable[[], object], *, remove: Path) -> float:
    """Run once, with what it writes brought to the disk, and clear up."""
    shutil.rmtree(remove, ignore_errors=True)
    os.sync()
    start = time.perf_counter()
    work()
    found = time.perf_counter() - start
    shutil.rmtree(remove)
    return found


def copy(source: Path, target: Path) -> None:
    """Copy as a shell would, until it is on the disk."""
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    os.sync()


def numpy_loop(source: Path, target: Path) -> None:
    """Rewrite every sample by numpy alone, on one core."""
    code = (
        "import os, sys, numpy as np, pathlib\n"
        "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "target = pathlib.Path(sys.argv[2]); target.mkdir()\n"
        "for path in sorted(pathlib.Path(sys.argv[1]).glob('*.npz')):\n"
        "    with np.load(path) as arrays:\n"
        "        for name in arrays.files:\n"
        "            np.save(target / f'{path.stem}-{name}.npy', arrays[name])\n"
    )
    subprocess.run([sys.executable, "-c", code, str(source), str(target)], check=True)
    os.sync()


def generator_rate(target: Path, samples: int) -> float:
    """Preprocess 1 KiB samples from a generator: samples a second."""
    sample = np.arange(256, dtype=np.float32)

    def generate() -> Iterator[dict[str, np.ndarray]]:
        for _ in range(samples):
            yield {"x": sample}

    return samples / seconds(lambda: mmapload.preprocess(generate(), target, 256), remove=target)


def main() -> None:
    """Make what is missing, time, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("bench-data"))
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    stored = make_folder(arguments.work / f"npz-{arguments.samples}x256x448", arguments.samples)
    count = arguments.samples // 4
    deflated = make_folder(arguments.work / f"npz-deflated-{count}x256x448", count, deflated=True)
    target = arguments.work / "target"
    works: dict[str, Callable[[], object]] = {
        "stored: cp -r and sync": lambda: copy(stored, target),
        "stored: mmapload preprocess": lambda: mmapload.preprocess(stored, target, BATCH),
        "deflated: numpy loop on one core": lambda: numpy_loop(deflated, target),
        "deflated: mmapload preprocess": lambda: mmapload.preprocess(deflated, target, BATCH),
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(arguments.rounds):
        for name, work in works.items():
            times[name].append(seconds(work, remove=target))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for name, found in times.items():
        print(f"{name}: {medians[name]:.2f} s ({min(found):.2f} to {max(found):.2f})")
    copied, loaded, unpacked, inflated = medians.values()
    print(
        f"stored: {loaded / copied:.2f} x the time of cp; "
        f"deflated: {unpacked / inflated:.2f} x as fast as numpy"
    )
    rates = [generator_rate(target, 300_000) for _ in range(arguments.rounds)]
    print(f"generator of 1 KiB samples: {statistics.median(rates):,.0f} samples/s")
    million = arguments.work / "million"
    if not million.exists():
        mmapload.preprocess(({"x": np.int64(i)} for i in range(1_000_000)), million, 256)
    opened = []
    for _ in range(20):
        start = time.perf_counter()
        mmapload.open_store(million)
        opened.append(time.perf_counter() - start)
    print(f"opening a store of 1,000,000 samples: {statistics.median(opened) * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
