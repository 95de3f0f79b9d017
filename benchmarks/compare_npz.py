"""Compare loading raw .npz files with loading the store made from them.

Every loader delivers the same samples in batches to a process that copies each batch once into a fixed
buffer, and what came is checked, in every epoch: each sample of the source once, told by 32 bytes of each of
its fields. Each loader runs in a process of its own in each round; rounds are interleaved, and medians
reported, since machines are shared and noisy.

Settings: warm (all files in the page cache), cold (none; checked by what is cached and by what is read from
the disk), limited (a memory cgroup of half the data; where one may be made, as root does). One that is not
possible says so and is skipped.

Examples
--------
python benchmarks/compare_npz.py --chart bench.png --json bench.json
python benchmarks/compare_npz.py --source my_samples --settings warm cold
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fingerprints import BYTES_PER_FIELD, WrongSamplesError, of_source
from launching import STOPS, LaunchError
from report import as_json, draw, machine, table
from samples import make_folder
from settings import Case, Section, cold, limited, measure, warm
from waiting import sleep_while_waiting

import mmapload
from mmapload.sizes import format_size
from mmapload.sources.listing import list_files

if TYPE_CHECKING:
    from collections.abc import Sequence

SETTINGS = ("warm", "cold", "limited")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, help="a folder of .npz samples with equal names of arrays")
    parser.add_argument("--store", type=Path, help="the store made from them; made if it is not there")
    parser.add_argument("--work", type=Path, default=Path("bench-data"), help="where to make what is missing")
    parser.add_argument("--samples", type=int, default=1024, help="how many to make, if there is no --source")
    parser.add_argument("--height", type=int, default=256, help="of a sample that is made")
    parser.add_argument("--width", type=int, default=448, help="of a sample that is made")
    parser.add_argument("--batch-size", type=int, help="32 by default, or the store's")
    parser.add_argument("--chunk-bytes", default="64MiB", help="as for mmapload preprocess")
    parser.add_argument("--rounds", type=int, default=5, help="processes for each loader in each setting")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument(
        "--epochs-limited",
        type=int,
        default=10,
        help="epochs that ChunkDataLoader has to come through in one process under the limit",
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--chart", type=Path, help="draw the medians there, as .png or .svg")
    found = parser.parse_args(arguments)
    if found.chart and not importlib.util.find_spec("matplotlib"):
        parser.error("--chart needs matplotlib: pip install 'mmapload[bench]'")
    if found.rounds < 1:
        parser.error("--rounds is 1 at least")
    return found


def prepare(arguments: argparse.Namespace) -> tuple[Path, Case]:
    """Make what is missing, and learn what every loader has to deliver."""
    shape = f"{arguments.samples}x{arguments.height}x{arguments.width}"
    source = arguments.source or make_folder(
        arguments.work / f"npz-{shape}", arguments.samples, arguments.height, arguments.width
    )
    batch = arguments.batch_size or 32
    origin = f"{source.name}-{zlib.crc32(os.fsencode(source.resolve())):08x}" if arguments.source else shape
    store = arguments.store or arguments.work / f"store-{origin}-b{batch}-c{arguments.chunk_bytes}"
    if not store.exists():
        # By a process of its own: threads that ran here would not survive the forks that follow.
        command = [sys.executable, "-m", "mmapload", "preprocess", str(source), str(store)]
        options = ["--batch-size", str(batch), "--chunk-bytes", arguments.chunk_bytes]
        if subprocess.run([*command, *options], check=False, stdout=sys.stderr).returncode:
            raise SystemExit(f"preprocessing {source} failed")
    os.sync()  # pages that are not on the disk yet cannot be dropped
    opened = mmapload.open_store(store)
    listing = list_files([source])
    files = tuple(listing.path(number) for number in range(len(listing)))
    print(f"reading {len(files):,} files, to know what they hold", file=sys.stderr)
    expected = of_source(files, opened.layout.fields)
    return source, Case(files, opened, arguments.batch_size or opened.layout.batch_size, expected)


def run(arguments: argparse.Namespace, case: Case) -> list[Section]:
    """Go through the settings."""
    made = {"warm": warm, "cold": cold, "limited": lambda case: limited(case, arguments.epochs_limited)}
    sections = []
    for name in arguments.settings:
        setting = made[name](case)
        if isinstance(setting, str):
            sections.append(Section(name, skipped=setting))
            print(f"{name}: skipped", file=sys.stderr)
        else:
            sections.append(measure(setting, case, arguments.rounds))
    return sections


def about(source: Path, case: Case) -> dict[str, Any]:
    """Describe the data."""
    layout = case.store.layout
    return {
        "source": str(source),
        "samples": len(case.files),
        "npz_bytes": sum(map(os.path.getsize, case.files)),
        "array_bytes": case.nbytes,
        "fields": {field.name: f"{field.dtype} {field.shape}" for field in layout.fields},
        "batch": case.batch,
        "chunk_length": layout.chunk_length,
        "chunk_bytes": case.chunk_nbytes,
        "chunks": layout.chunks,
        "raw": all(field.codec.is_raw for field in layout.fields),
    }


def main() -> None:
    """Make what is missing, compare, print, draw."""
    arguments = parse()
    for number in STOPS:  # what was started is ended, and cgroups are removed, on the way out
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        source, case = prepare(arguments)
        sections = run(arguments, case)
    except (WrongSamplesError, LaunchError, mmapload.MmaploadError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    data, where = about(source, case), machine()
    title = (
        f"{data['samples']:,} samples, {data['npz_bytes'] / 1e9:.2f} GB of .npz, batches of {case.batch}; "
        f"medians of {arguments.rounds} interleaved rounds"
    )
    check = (
        f"In every epoch of every loader each sample came once: {len(case.expected):,} different "
        f"fingerprints of up to {BYTES_PER_FIELD} bytes a field for {len(case.files):,} samples"
    )
    print(f"\n{title}.")
    print(f"The store has chunks of {data['chunk_length']} samples, {format_size(data['chunk_bytes'])}.")
    print(f"{check}.")
    print(
        "Read: from the disk, in one epoch. Memory: the most during an epoch, of all processes of a loader, "
        "beyond what there was before; cached are the pages of files that they have mapped, or under a limit "
        "all that count against it."
    )
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    for section in sections:
        print(f"\n{table(section)}")
    if arguments.chart:
        draw(sections, title, arguments.chart)
    if arguments.json:
        told = {
            "machine": where,
            "data": data,
            "check": check,
            "rounds": arguments.rounds,
            "settings": {section.name: as_json(section) for section in sections},
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(told, indent=2))


if __name__ == "__main__":
    sleep_while_waiting()
    main()
