"""Kill a command at random moments, and see whether the same command makes it good.

A process of its own: `killing.py KIND FOLDER MOMENTS`. Every command runs in a fork, which the clock kills
with SIGKILL somewhere between its beginning and its end; then another fork runs the same, undisturbed. Prints
how many were killed, and how often a store was read while samples were appended to it.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
import zarr.codecs  # noqa: F401 - imported once here, not in every child

from mmapload import ChunkDataset
from mmapload.cli import main as command
from mmapload.preprocessing import preprocess
from mmapload.store import Store, open_store
from tests.preprocessing_cases import stored, tree

COUNT, OLD = 60, 21
OPTIONS = ["--batch-size", "2", "--chunk-bytes", "70", "--jobs", "2", "--quiet"]


def sample(number: int, kind: str) -> dict[str, Any]:
    """A sample of any kind, which follows from its number."""
    made = {"x": np.full((3, 5), number, np.uint8), "y": np.arange(4, dtype=np.float32) - number}
    if kind == "ragged":
        made |= {
            "words": np.arange(number * 7 % 23, dtype=np.int16),
            "name": np.str_(f"n{number}" * (number % 3)),
        }
    return made


def write_source(kind: str, folder: Path) -> Path:
    """Write what the command reads; of appended samples only those."""
    source = folder / "in"
    source.mkdir()
    if kind == "rows":
        for part in (range(25), range(25, COUNT)):
            rows = [sample(number, kind) for number in part]
            arrays: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
            np.savez(source / f"s{part.start:02}.npz", **arrays)
        return source
    for number in range(COUNT):
        place = source if kind != "append" or number >= OLD else folder / "first"
        place.mkdir(exist_ok=True)
        np.savez(place / f"s{number:02}.npz", **sample(number, kind))
    return source


def arguments(kind: str, folder: Path, out: Path) -> list[str]:
    """What is run, and killed."""
    if kind == "export":
        return ["export", str(folder / "store"), str(out), "--quiet"]
    more = {"rows": ["--samples", "rows"], "ragged": ["--ragged", "words"], "append": ["--append"]}
    return ["preprocess", str(folder / "in"), str(out), *OPTIONS, *more.get(kind, [])]


def begin(told: list[str]) -> int:
    """Run a command in a fork; returns its process id."""
    child = os.fork()
    if child:
        return child
    try:
        os._exit(command(told))
    except BaseException as error:
        print(repr(error), file=sys.stderr)
        os._exit(99)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Reader:
    """Reads a store as long as a command appends to it: one that was opened before, and one opened anew."""

    def __init__(self, old: Store) -> None:
        self.rounds = 0
        self.values = {name: stored(old, name) for name in old.fields}
        self.whole: dict[str, np.ndarray] = {}

    def opened(self, out: Path) -> ChunkDataset:
        return ChunkDataset(out, memory="1GiB", verify="always")

    def read(self, out: Path, before: ChunkDataset) -> None:
        """See to it that there are the samples of before, or all; right, and all checksums with them."""
        now = open_store(out)
        assert len(now) in {OLD, COUNT}
        wanted = self.values if len(now) == OLD else self.whole
        for name, array in wanted.items():
            assert stored(now, name).tobytes() == array.tobytes(), name
        assert now.sample_name(OLD - 1) == f"s{OLD - 1:02}.npz"
        numbers = range(OLD)
        for name, tensor in before.read(numbers).tensors.items():
            assert tensor.numpy().tobytes() == self.values[name].tobytes(), name
        self.rounds += 1


def undisturbed(kind: str, folder: Path, out: Path) -> tuple[dict[str, bytes], float]:
    """Run the command to its end: returns what it makes, and how long it takes."""
    started = time.monotonic()
    assert ended(begin(arguments(kind, folder, out))) == 0
    return tree(out), time.monotonic() - started


def is_to_go_on(kind: str, out: Path) -> bool:
    """Whether a run that was killed has something left to do."""
    if kind == "append":
        return len(open_store(out)) == OLD or (out.parent / f".{out.name}.partial" / "journal").exists()
    return not out.exists()


def main(kind: str, folder: Path, moments: int) -> None:
    """Kill at so many moments."""
    write_source(kind, folder)
    old = folder / "old"
    if kind == "append":
        preprocess(folder / "first", old, 2, chunk_bytes=70)
    elif kind == "export":
        preprocess(folder / "in", folder / "store", 2, chunk_bytes=70)
    gc.freeze()  # a collection in a child would copy all of the parent's pages
    reader = Reader(open_store(old)) if kind == "append" else None

    def fresh(name: str) -> Path:
        place = folder / name
        place.mkdir()
        if reader:
            shutil.copytree(old, place / "out")
        return place / "out"

    expected, seconds = undisturbed(kind, folder, fresh("wanted"))
    if reader:
        whole = open_store(folder / "wanted" / "out")
        reader.whole = {name: stored(whole, name) for name in whole.fields}
    chance = random.Random(f"{kind} {moments}")
    kills = tries = resumed = 0
    while kills < moments:
        tries += 1
        assert tries < 5 * moments + 20, f"{kills} of {tries} were killed: too few"
        out = fresh(str(tries))
        before = reader.opened(out) if reader else None
        moment = chance.uniform(0, seconds)
        child = begin(arguments(kind, folder, out))
        timer = threading.Timer(moment, os.kill, (child, signal.SIGKILL))
        timer.start()
        if reader and before:
            while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                reader.read(out, before)
        timer.join()  # the child is a zombie at most until it is waited for: no other process has its number
        status = ended(child)
        assert status in {0, -signal.SIGKILL}, f"{status} where it was to be killed after {moment} s"
        kills += status != 0
        if reader and before:
            reader.read(out, before)
            assert [fault for fault in open_store(out).verify() if fault] == []
        told = f"killed after {moment:.4f} s"
        if status and is_to_go_on(kind, out):
            assert ended(begin(arguments(kind, folder, out))) == 0, f"not resumed: {told}"
            assert os.listdir(out.parent) == ["out"], f"{os.listdir(out.parent)} left: {told}"
            resumed += 1
        assert tree(out) == expected, f"different: {told}"
        shutil.rmtree(out.parent)
    print(f"{kind}: {kills} killed within {seconds:.2f} s, {resumed} resumed", end="")
    print(f", the store read {reader.rounds} times meanwhile" if reader else "")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
