"""Kill a run at one system call after the other, and see whether the next run makes it good.

A process of its own: `crash_points.py SOURCE FOLDER MODE`, where MODE is new, overwrite or skip. Prints how
many points there were. Before each of the calls that change something on the disk a forked child kills
itself with SIGKILL; then another child runs the same again, undisturbed.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from pathlib import Path

import zarr
import zarr.codecs  # noqa: F401 - imported once here, not in every child

from mmapload.preprocessing import preprocess
from mmapload.store import open_store
from mmapload.writer import workfolder
from tests.preprocessing_cases import CountedSource, samples, tree

CALLS = ("open", "mkdir", "rename", "fsync", "unlink", "rmdir", "writev", "write", "ftruncate")
FOREVER = 10**9


def run(source: str, out: Path, mode: str) -> None:
    """Do what is to be killed."""
    if mode == "skip":
        preprocess(CountedSource(5, bad={2}), out, 2, jobs=2, chunk_bytes=1, on_error="skip")
    else:
        preprocess(source, out, 2, jobs=2, chunk_bytes=1, overwrite=mode != "new")


def in_child(source: str, out: Path, mode: str, die_before: int) -> int:
    """Run in a fork that kills itself before call number `die_before`; returns the child's status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def counted(call: object) -> object:
        def wrapper(*args: object, **kwargs: object) -> object:
            nonlocal count
            count += 1
            if count == die_before:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
    workfolder._exchange = counted(workfolder._exchange)
    try:
        run(source, out, mode)
    except BaseException as error:
        print(f"before call {die_before}: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def main(source: str, folder: str, mode: str) -> None:
    """Go through all points."""
    gc.freeze()  # a collection in a child would copy all of the parent's pages
    base = Path(folder)
    old, wanted = base / "old", base / "wanted"
    assert in_child(source, wanted, mode, FOREVER) == 0
    expected = tree(wanted)
    if mode == "overwrite":
        preprocess(samples(3), old, 3)
    point, died = 0, True
    while died:
        point += 1
        place = base / str(point)
        out = place / "out"
        place.mkdir()
        if mode == "overwrite":
            shutil.copytree(old, out)
        died = in_child(source, out, mode, point) == signal.SIGKILL
        if mode == "overwrite":
            assert len(open_store(out)) in {3, len(open_store(wanted))}, f"no store after call {point}"
        elif (out / "zarr.json").exists():
            assert tree(out) == expected, f"unfinished after call {point}"
        if mode == "overwrite" or not (out / "zarr.json").exists():
            assert in_child(source, out, mode, FOREVER) == 0, f"not resumed after call {point}"
            left = {"out", "out.skipped.jsonl"} if mode == "skip" else {"out"}
            assert set(os.listdir(place)) == left, f"{os.listdir(place)} left after call {point}"
        assert tree(out) == expected, f"different after call {point}"
        shutil.rmtree(place)
    print(point - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
