"""`mmapload bench`: a store's loading rates on this machine, beside what the machine can do at best."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from mmapload.cli.parsing import counting_number
from mmapload.cli.tables import table
from mmapload.errors import MmaploadError
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from mmapload.bench import Bench
    from mmapload.bench.rounds import Standing
    from mmapload.store import Store

__all__ = ["DESCRIPTION", "EXAMPLES", "HELP", "USAGE", "add_arguments", "run"]

HELP: Final = "measure how fast a store loads here, and what bounds it"
USAGE: Final = "mmapload bench STORE [--source DIR] [options]"
DESCRIPTION: Final = """\
Load a store in several ways, beside what this machine can do at best: copy memory, and read the same chunk
files in random order (by pread, and into the page cache by MADV_POPULATE_READ; the best of 1, 2 and 4
threads). Every loader delivers the same samples, and each batch is copied once to a fixed buffer; rounds are
interleaved, and medians shown. The last line says what bounds loading.

The page cache is taken as it is, unless --cold drops the files from it before each run, or the store exceeds
the memory budget, so that training would find them dropped. Caches below, of a disk array or a host, stay.
Of a large store, the first samples are measured, as many as fit in the time: 64 MiB or 1,024 samples at
least, whichever is less, and one round."""
EXAMPLES: Final = """\
examples:
  mmapload bench train.mml
  mmapload bench train.mml --source train/
  mmapload bench train.mml --cold --seconds 120
  mmapload bench train.mml --json > bench.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what this command takes."""
    parser.add_argument("store", metavar="STORE", help="the store's folder")
    parser.add_argument(
        "--source",
        metavar="DIR",
        help="also load the .npz files that STORE was made from, by numpy and torch's DataLoader; DIR is "
        "what `mmapload preprocess` was given",
    )
    parser.add_argument(
        "--batch-size",
        type=counting_number,
        metavar="B",
        help="samples in a batch (by default the batch size that STORE was made with)",
    )
    parser.add_argument(
        "--rounds", type=counting_number, default=3, metavar="R", help="measurements of each (default 3)"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=30.0,
        metavar="S",
        help="about how long to take in all; decides how many samples are loaded (default 30)",
    )
    parser.add_argument(
        "--samples",
        type=counting_number,
        metavar="N",
        help="load the first N samples, whatever time it takes",
    )
    parser.add_argument(
        "--cold", action="store_true", help="drop the files from the page cache before each run"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object; sizes are in bytes")
    parser.add_argument("--quiet", action="store_true", help="tell no progress")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    start = time.monotonic()  # before what takes time to import
    from mmapload.store import open_store

    store = open_store(arguments.store)
    if find_spec("torch") is None:
        raise MmaploadError("bench measures torch's loaders, and torch is not installed: pip install torch")

    from mmapload.bench import Settings, run_bench
    from mmapload.progress import progress_to

    settings = Settings(
        batch_size=arguments.batch_size or store.layout.batch_size,
        rounds=arguments.rounds,
        seconds=arguments.seconds,
        samples=arguments.samples,
        cold=arguments.cold,
        source=None if arguments.source is None else os.path.abspath(arguments.source),
    )
    bench = run_bench(store, settings, progress_to(quiet=arguments.quiet), start=start)
    if arguments.json:
        print(json.dumps(_told(store, bench), indent=2))
    else:
        print(_text(store, bench))
    return 0


def _told(store: Store, bench: Bench) -> dict[str, Any]:
    return {
        "store": store.path,
        "fingerprint": store.fingerprint,
        "machine": _machine(),
        "samples": len(store),
        "samples_measured": bench.samples,
        "batch_size": bench.batch_size,
        "window": bench.window,
        "rounds": bench.rounds,
        "cold": bench.cold,
        "exceeds_memory": bench.exceeds,
        "disk_bytes": bench.file_nbytes,
        "cached_bytes_before": bench.cached_before,
        "rates": [
            {
                "name": each.name,
                "kind": each.kind,
                "samples_per_second": each.rate,
                "least": each.least,
                "most": each.most,
                "bytes_per_second": each.bytes_per_second,
                "seconds": list(each.seconds),
                "bytes_read_from_disk": each.disk,
                "bytes_left_in_page_cache": each.stayed,
            }
            for each in bench.standings
        ],
        "window_loader": asdict(bench.stats),
        "bound_by": bench.verdict.bound,
        "sentence": bench.verdict.sentence,
        "notes": list(bench.notes),
    }


def _machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "numpy", "mmapload")},
    }


def _text(store: Store, bench: Bench) -> str:
    machine = _machine()
    memory = format_size(machine.pop("memory_bytes"))
    cores = machine.pop("cores")
    versions = ", ".join(f"{name} {machine[name]}" for name in ("python", "torch", "numpy", "mmapload"))
    whole = "all" if bench.samples == len(store) else f"the first {bench.samples:,}"
    measured = (
        f"{whole} of {len(store):,} samples, {format_size(store.layout.sample_nbytes)} each, in batches of "
        f"{bench.batch_size:,}, windows of {bench.window:,}; {_rounds(bench.rounds)}"
    )
    heads = [
        ("store", store.path),
        ("machine", f"{cores} core{'s' * (cores > 1)}, {memory}, {machine['system']}, {versions}"),
        ("measured", measured),
        ("page cache", _page_cache(bench)),
        *(("note", note) for note in bench.notes),
    ]
    rows: list[tuple[str, ...]] = [("", "samples/s", "MB/s", "from disk", "least to most")]
    rows += [_row(each) for each in bench.standings if each.kind in {"loader", "source"}]
    rows += [("this machine at best:", "", "", "", "")]
    rows += [_row(each) for each in bench.standings if each.kind in {"copy", "decode"}]
    for kind, name in (("pread", "chunk files, pread"), ("populate", "chunk files, populate")):
        tried = [each for each in bench.standings if each.kind == kind]
        if tried:
            best = max(tried, key=lambda each: each.rate)
            rows.append(_row(best, f"{name}, {best.name.rpartition(', ')[2]}"))
    stats = f"The window loader in its last run:\n{bench.stats}"
    return f"{table(heads, left=2)}\n\n{table(rows, left=1)}\n\n{stats}\n\n{bench.verdict.sentence}"


def _rounds(count: int) -> str:
    return "one round" if count == 1 else f"medians of {count:,} rounds"


def _page_cache(bench: Bench) -> str:
    state = "files are dropped before each run" if bench.cold else "as it is, after one round to warm up"
    if bench.cached_before is None:
        return f"{state}; what was in it at the start, the system does not tell this user"
    percent = f"{100 * bench.cached_before / max(1, bench.file_nbytes):.0f} %"
    return f"{state}; at the start it held {percent} of the chunk files' {format_size(bench.file_nbytes)}"


def _row(standing: Standing, name: str = "") -> tuple[str, ...]:
    disk = "unknown" if standing.disk is None else format_size(standing.disk)
    return (
        name or standing.name,
        f"{standing.rate:,.0f}",
        f"{standing.bytes_per_second / 1e6:,.0f}",
        disk if standing.file_nbytes else "",
        f"{standing.least:,.0f} to {standing.most:,.0f}",
    )
