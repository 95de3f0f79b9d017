"""Compare mmapload, on data larger than memory, with what the disk gives at best under the same limit.

The ceilings read the same chunk files in random order and do nothing with them: by `preadv` and by
`MADV_POPULATE_READ`, with 1, 2 and 4 threads. The loaders deliver every sample once, which is checked, and
each batch is copied once into a fixed buffer. Each runs in a process of its own, all of whose memory counts
against the limit, Python's and torch's too; processes take turns, and medians are reported, of all epochs but
a loader's first.

Examples
--------
python benchmarks/compare_ceiling.py --samples 7168 --fractions 0.5 0.25 0.1
python benchmarks/compare_ceiling.py --store STORE --fractions 0.25 --epochs 20 --rounds 1 --loaders-only
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cgroups import MemoryCgroup, NoCgroupError, memory_cgroup
from report import machine
from samples import Samples
from waiting import sleep_while_waiting

import mmapload
from mmapload.bench.ceilings import chunk_files, reading
from mmapload.measures import drop_pages_of
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mmapload import Store

RUN = Path(__file__).parent / "ceiling_run.py"


@dataclass(frozen=True, slots=True)
class Contender:
    """A loader in one mode, or, without a mode, a ceiling."""

    name: str
    mode: str | None = None
    window: int | None = None


@dataclass(slots=True)
class Found:
    """What the processes of one contender told under one limit."""

    epochs: list[dict[str, Any]] = field(default_factory=list)
    killed: int = 0

    def counted(self, samples: int) -> list[float]:
        """List the rates of all epochs but a loader's first of a process, which fills what it keeps."""
        later = [each for each in self.epochs if each["epoch"] or "budget" not in each]
        return [samples / each["seconds"] for each in later or self.epochs]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", type=Path, help="of raw chunks; by default one is made in --work")
    parser.add_argument("--samples", type=int, default=7168, help="in the store that is made")
    parser.add_argument("--size", type=int, nargs=2, default=(256, 448), help="height and width of samples")
    parser.add_argument("--work", type=Path, default=Path("bench-data"), help="where it is made and kept")
    parser.add_argument("--fractions", type=float, nargs="+", default=[0.5, 0.25, 0.1], help="of the data")
    parser.add_argument("--memory", default="auto", help="budget of the loaders, as ChunkDataset takes it")
    parser.add_argument("--window", type=int, default=128, help="samples")
    parser.add_argument("--epochs", type=int, default=3, help="of a loader, in each process")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each contender")
    parser.add_argument("--loaders-only", action="store_true", help="leave out the ceilings")
    parser.add_argument("--json", type=Path, help="write every epoch there")
    found = parser.parse_args(arguments)
    if found.epochs < 2 or found.rounds < 1:
        parser.error("--epochs is 2 at least, --rounds 1")
    return found


def open_or_make(arguments: argparse.Namespace) -> Store:
    """Open the store, made first if need be."""
    if arguments.store is not None:
        return mmapload.open_store(arguments.store)
    size = tuple(arguments.size)
    target = arguments.work / f"store-{arguments.samples}x{size[0]}x{size[1]}-repeated"
    if not target.exists():
        mmapload.preprocess(Samples(arguments.samples, size, different=64), target, 32)
        os.sync()
    return mmapload.open_store(target)


def run(arguments: argparse.Namespace, store: Store, contender: Contender, number: int, limit: int) -> Found:
    """Run one process of a contender under a limit.

    Raises
    ------
    SystemExit
        If it failed for another reason than a want of memory.
    """
    drop_pages_of(path for _, _, path in chunk_files(store, store.layout.chunks))
    told = {
        "store": store.path,
        "name": contender.name,
        "mode": contender.mode,
        "window": contender.window,
        "memory": arguments.memory,
        "epochs": arguments.epochs if contender.mode else 1,
        "first": number,
    }
    with memory_cgroup(limit) as cgroup:
        return _told_by(told | {"cgroup": str(cgroup.folder)}, cgroup)


def _told_by(told: dict[str, Any], cgroup: MemoryCgroup) -> Found:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", RUN, json.dumps(told)], check=False, capture_output=True, text=True
    )
    found = Found([json.loads(line) for line in process.stdout.splitlines()], int(cgroup.oom_kills > 0))
    if process.returncode and not found.killed:
        raise SystemExit(f"{told['name']}: {process.stderr.strip() or process.returncode}")
    return found


def measure(arguments: argparse.Namespace, store: Store, limit: int) -> dict[Contender, Found]:
    """Let all contenders take turns."""
    contenders = [
        Contender("ChunkDataLoader, batch", "batch"),
        Contender(f"ChunkDataLoader, window={arguments.window}", "window", arguments.window),
    ]
    if not arguments.loaders_only:
        files = chunk_files(store, store.layout.chunks)
        contenders = [Contender(each.name) for each in reading(files, 0, 0)] + contenders
    found: dict[Contender, Found] = defaultdict(Found)
    for number in range(arguments.rounds):
        for contender in contenders:
            once = run(arguments, store, contender, number, limit)
            found[contender].epochs += once.epochs
            found[contender].killed += once.killed
        print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    return found


def table(found: dict[Contender, Found], samples: int) -> str:
    """Render what was found as Markdown."""
    medians = {each: statistics.median(of.counted(samples)) for each, of in found.items() if of.epochs}
    best = max((medians[each] for each in medians if not each.mode), default=None)
    heads = ["samples/s", "x best ceiling", "least to most", "read in an epoch, MB", "anonymous + shared, MB"]
    lines = [f"| | {' | '.join(heads)} | epochs |", f"| --- |{' ---: |' * (len(heads) + 1)}"]
    for each, of in found.items():
        cells = [each.name, *_cells(each, of, samples)] if of.epochs else [each.name, *[""] * len(heads)]
        if best and of.epochs:
            cells[2] = f"{medians[each] / best:.2f}"
        killed = f", killed {of.killed} times" if each.mode or of.killed else ""
        lines.append(f"| {' | '.join(cells)} | {len(of.epochs)}{killed} |")
    return "\n".join(lines)


def _cells(each: Contender, of: Found, samples: int) -> list[str]:
    """Say how fast it was, what it read, and what it held."""
    rates = of.counted(samples)
    read = statistics.median(epoch["bytes_read"] for epoch in of.epochs[bool(each.mode) :] or of.epochs)
    held = max(epoch["anonymous"] + epoch["shared"] for epoch in of.epochs)
    first = of.epochs[0]
    cut = "" if first.get("window") == each.window else f" in windows of {first['window']}"
    return [
        f"{statistics.median(rates):,.0f}{cut}",
        "",
        f"{min(rates):,.0f} to {max(rates):,.0f}",
        f"{read / 1e6:,.0f}",
        f"{held / 1e6:,.0f}" + (f" of {first['budget'] / 1e6:,.0f}" if each.mode else ""),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the store if need be, compare under each limit, print."""
    options = parse(arguments)
    store = open_or_make(options)
    layout = store.layout
    nbytes = layout.samples * layout.sample_nbytes
    print(f"{layout.samples:,} samples, {nbytes / 1e9:.2f} GB, chunks of {layout.chunk_length} samples.")
    print(", ".join(f"{name} {value}" for name, value in machine().items()), flush=True)
    told = {}
    for fraction in options.fractions:
        limit = int(nbytes * fraction)
        try:
            found = measure(options, store, limit)
        except NoCgroupError as error:
            raise SystemExit(f"no memory cgroup can be made: {error}") from error
        print(f"\n### limit {fraction:g} of the data, {format_size(limit)}; memory={options.memory}\n")
        print(table(found, layout.samples), flush=True)
        told[fraction] = {each.name: {"epochs": of.epochs, "killed": of.killed} for each, of in found.items()}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"machine": machine(), "limits": told}, indent=2))


if __name__ == "__main__":
    sleep_while_waiting()
    main()
