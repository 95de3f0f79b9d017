"""Compare loading the same samples by other projects' formats and loaders, and by mmapload.

Every loader delivers the same samples, shuffled, as batches of torch tensors to a process that copies each
batch once into a fixed buffer. Each runs in a process of its own in each round; rounds are interleaved, and
medians reported. What came is checked in every epoch; a peer that drops or repeats samples is told as such,
and so is one that the memory limit kills. Peers that cannot be imported are named with the reason.

Each peer has its own copy of the data, made once in --data and kept: about as many bytes as the samples.

Examples
--------
python benchmarks/compare_peers.py --rounds 2 --settings warm limited
python benchmarks/compare_peers.py --shape small --peers npz,npy,lance,mmapload
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import contenders
import settings
from epochs import cannot_drop
from fingerprints import BYTES_PER_FIELD, WrongSamplesError, of_source
from launching import STOPS, LaunchError, launch
from peers import PEERS
from report import as_json, draw, machine, table
from samples import make_folder, make_small_sample
from settings import Case, Section, Setting, measure
from waiting import sleep_while_waiting

import mmapload
from mmapload.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contenders import Contender
    from peers.describing import Peer

SETTINGS = ("warm", "cold", "limited")
NPZ, OURS = "npz", "mmapload"
"""Names for `--peers` of what needs no other project."""

SHAPES = {"large": (1024, 32, "64MiB"), "small": (200_000, 256, "4MiB")}
"""Samples, batch and chunk size: of 2.9 MB, and of 1 KiB, where the default would make chunks too large for a
limit of half of the data."""

OUR_WAYS = frozenset(
    {
        contenders.WINDOW,
        contenders.BATCH,
        contenders.FULL,
        f"{contenders.WINDOW}, 2 workers",
        "DataLoader + ChunkBatchSampler, 0 workers",
    }
)


def parse(arguments: Sequence[str] | None, peers: Sequence[Peer]) -> argparse.Namespace:
    """Read the command line."""
    names = [NPZ, *(peer.name for peer in peers), OURS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", default=",".join(names), help="some of the default, with commas")
    parser.add_argument("--shape", choices=SHAPES, default="large", help="samples of 2.9 MB or of 1 KiB")
    parser.add_argument("--samples", type=int, help="1,024 large ones or 200,000 small ones by default")
    parser.add_argument("--batch-size", type=int, help="32 large ones or 256 small ones by default")
    parser.add_argument("--rounds", type=int, default=3, help="processes for each loader in each setting")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=SETTINGS)
    parser.add_argument(
        "--data", type=Path, default=Path("bench-data"), help="where copies are made and kept"
    )
    parser.add_argument("--remove", action="store_true", help="remove the peers' copies in the end")
    parser.add_argument(
        "--patience", type=float, default=90, help="seconds after which an epoch is cut short, and said to be"
    )
    parser.add_argument("--json", type=Path, help="write all figures there")
    parser.add_argument("--chart", type=Path, help="draw the medians there, as .png or .svg")
    found = parser.parse_args(arguments)
    found.peers = found.peers.split(",")
    unknown = [name for name in found.peers if name not in names]
    if unknown:
        parser.error(f"--peers: no {', '.join(unknown)}; there are {', '.join(names)}")
    if found.chart and not importlib.util.find_spec("matplotlib"):
        parser.error("--chart needs matplotlib: pip install 'mmapload[bench]'")
    if found.rounds < 1:
        parser.error("--rounds is 1 at least")
    return found


def prepare(arguments: argparse.Namespace) -> tuple[Path, Case]:
    """Make the `.npz` files and the store that are missing, and learn what has to be delivered."""
    count, batch, chunk_bytes = SHAPES[arguments.shape]
    count, batch = arguments.samples or count, arguments.batch_size or batch
    shape = f"{count}x256x448" if arguments.shape == "large" else f"{count}x256"
    source = arguments.data / f"npz-{shape}"
    if arguments.shape == "large":
        make_folder(source, count)
    else:
        make_folder(source, count, make=make_small_sample)
    store = arguments.data / f"store-{shape}-b{batch}-c{chunk_bytes}"
    if not store.exists():
        # By a process of its own: threads that ran here would not survive the forks that follow.
        command = [sys.executable, "-m", "mmapload", "preprocess", str(source), str(store)]
        options = ["--batch-size", str(batch), "--chunk-bytes", chunk_bytes, "--quiet"]
        if subprocess.run([*command, *options], check=False, stdout=sys.stderr).returncode:
            raise SystemExit(f"preprocessing {source} failed")
    opened = mmapload.open_store(store)
    files = tuple(str(source / f"{number:06}.npz") for number in range(count))
    print(f"reading {count:,} files, to know what they hold", file=sys.stderr)
    return source, Case(files, opened, batch, of_source(files, opened.layout.fields))


def usable(peer: Peer) -> str | None:
    """Import a peer in a process of its own; say why that does not work, if so."""
    try:
        launch(
            lambda _, join: join() or [importlib.import_module(name) for name in peer.modules], seconds=120
        )
    except LaunchError as error:
        return str(error).splitlines()[0]
    return None


def converted(peer: Peer, case: Case, folder: Path) -> str | None:
    """Make a peer's copy of the data, if it is not there; say why that failed, if so."""
    if peer.convert is None or folder.exists():
        return None
    print(f"converting for {peer.name}", file=sys.stderr)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    convert = peer.convert
    try:
        launch(lambda report, join: convert(case, partial), seconds=1800)  # noqa: ARG005
    except LaunchError as error:
        return f"converting failed: {error}".splitlines()[0]
    partial.rename(folder)
    return None


def copy_of(peer: Peer, arguments: argparse.Namespace, case: Case) -> Path:
    """Name the folder of a peer's copy of the data."""
    return arguments.data / f"{peer.name}-{Path(case.files[0]).parent.name.removeprefix('npz-')}"


def contenders_of(peer: Peer, case: Case, folder: Path) -> list[Contender]:
    """List a peer's ways to load as contenders."""
    found = []
    for way in peer.ways(case, folder):
        files = way.files or tuple(str(path) for path in sorted(folder.rglob("*")) if path.is_file())
        make = way.make
        found.append(
            contenders.Contender(
                way.name,
                way.workers,
                files,
                lambda _, make=make: make(),
                modules=peer.modules,
                is_peer=True,
            )
        )
    return found


def gather(
    arguments: argparse.Namespace, case: Case, peers: Sequence[Peer]
) -> tuple[list[Contender], dict[str, str], dict[str, str]]:
    """List who takes part, who does not and why, and the versions of all that do."""
    ours = contenders.all_contenders(case.files, case.store, case.batch)
    found = [each for each in ours if each.is_baseline and NPZ in arguments.peers]
    left_out, versions = {}, {}
    for peer in peers:
        if peer.name not in arguments.peers:
            continue
        folder = copy_of(peer, arguments, case)
        reason = usable(peer) or converted(peer, case, folder)
        if reason:
            left_out[peer.name] = reason
            continue
        found += contenders_of(peer, case, folder)
        versions[peer.package] = version(peer.package)
    found += [each for each in ours if each.name in OUR_WAYS and OURS in arguments.peers]
    os.sync()  # pages that are not on the disk yet cannot be dropped
    return found, left_out, versions


def setting_for(name: str, case: Case, taking_part: list[Contender], patience: float) -> Setting | str:
    """Take a setting of compare_npz.py for other contenders; or say why it is not possible."""
    made = {"warm": settings.warm, "cold": settings.cold, "limited": lambda case: settings.limited(case, 0)}
    setting = made[name](case)
    if isinstance(setting, str):
        return setting
    few = [each for each in taking_part if each.name not in setting.left_out]
    refusals = [f"{each.name}: {why}" for each in few if setting.drops and (why := cannot_drop(each.files))]
    if refusals and name != "warm":
        return refusals[0]
    return dataclasses.replace(
        setting,
        drops=setting.drops and not refusals,
        contenders=few,
        patience=patience,
        seconds=120 + 2 * setting.epochs * patience,
    )


def run(arguments: argparse.Namespace, case: Case, taking_part: list[Contender]) -> list[Section]:
    """Go through the settings."""
    sections = []
    for name in arguments.settings:
        setting = setting_for(name, case, taking_part, arguments.patience)
        if isinstance(setting, str):
            sections.append(Section(name, skipped=setting))
            print(f"{name}: skipped", file=sys.stderr)
        else:
            sections.append(measure(setting, case, arguments.rounds))
    return sections


def main(arguments: Sequence[str] | None = None, peers: Sequence[Peer] = PEERS) -> None:
    """Make what is missing, compare, print, draw."""
    options = parse(arguments, peers)
    for number in STOPS:  # what was started is ended, and cgroups are removed, on the way out
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        source, case = prepare(options)
        taking_part, left_out, versions = gather(options, case, peers)
        sections = run(options, case, taking_part)
    except (WrongSamplesError, LaunchError, mmapload.MmaploadError) as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from error
    tell(options, source, case, sections, machine() | versions, left_out)
    if options.remove:
        for peer in peers:
            if peer.name in options.peers:
                shutil.rmtree(copy_of(peer, options, case), ignore_errors=True)


def tell(
    options: argparse.Namespace,
    source: Path,
    case: Case,
    sections: list[Section],
    where: dict[str, Any],
    left_out: dict[str, str],
) -> None:
    """Print the tables, and write what else was asked for."""
    layout = case.store.layout
    title = (
        f"{len(case.files):,} samples of {format_size(case.nbytes // len(case.files))}, batches of "
        f"{case.batch}; medians of {options.rounds} interleaved rounds"
    )
    told_apart = f"{len(case.expected):,} different fingerprints of up to {BYTES_PER_FIELD} bytes a field"
    check = f"Samples are told apart by {told_apart}"
    print(f"\n{title}.")
    print(f"The store has chunks of {layout.chunk_length} samples, {format_size(case.chunk_nbytes)}.")
    print(f"{check}; the last column has what came of the samples in an epoch.")
    print(
        "Read: from the disk, in one epoch. Memory: the most during an epoch, of all processes of a loader, "
        "beyond what there was before; cached are the pages of files that they have mapped, or under a limit "
        "all that count against it."
    )
    print(", ".join(f"{name} {value}" for name, value in where.items()))
    for name, reason in left_out.items():
        print(f"Left out: {name}, since {reason}.")
    for section in sections:
        print(f"\n{table(section, tells_samples=True)}")
    if options.chart:
        draw(sections, title, options.chart)
    if options.json:
        data = {
            "source": str(source),
            "samples": len(case.files),
            "array_bytes": case.nbytes,
            "fields": {field.name: f"{field.dtype} {field.shape}" for field in layout.fields},
            "batch": case.batch,
            "chunk_length": layout.chunk_length,
        }
        told = {
            "machine": where,
            "data": data,
            "check": check,
            "left_out": left_out,
            "rounds": options.rounds,
            "settings": {section.name: as_json(section) for section in sections},
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(told, indent=2))


if __name__ == "__main__":
    sleep_while_waiting()
    main()
