"""Kill a run at one system call after the other, and see whether the next run makes it good.

A process of its own: `crash_points.py SOURCE FOLDER MODE`, where MODE is new, overwrite, skip or append.
Prints how many points there were. Before each of the calls that change something on the disk a forked child
kills itself with SIGKILL; then another child runs the same again, undisturbed.
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
from mmapload.store import Store, open_store
from mmapload.writer import workfolder
from tests.preprocessing_cases import CountedSource, samples, tree

CALLS = ("open", "mkdir", "rename", "fsync", "unlink", "rmdir", "writev", "write", "ftruncate")
FOREVER = 10**9


def run(source: str, out: Path, mode: str) -> None:
    """Do what is to be killed."""
    if mode == "skip":
        preprocess(CountedSource(5, bad={2}), out, 2, jobs=2, chunk_bytes=1, on_error="skip")
    elif mode == "append":
        preprocess(source, out, 2, jobs=2, append=True)
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


def check_appended(out: Path, expected: dict[str, bytes], old: Store, point: int) -> None:
    """See to it that a store, of which an append was cut off, has all samples that it had, or all."""
    store = open_store(out)
    assert [fault for fault in store.verify() if fault] == [], f"faults after call {point}"
    if len(store) > len(old):
        assert tree(out) == expected, f"unfinished after call {point}"
    for field in old.fields:
        for chunk in range(old.layout.chunks):
            there = old.read_chunk(field, chunk)
            assert store.read_chunk(field, chunk)[: len(there)].tobytes() == there.tobytes()
    names = [old.sample_name(sample) for sample in range(len(old))]
    assert [store.sample_name(sample) for sample in range(len(old))] == names


def main(source: str, folder: str, mode: str) -> None:
    """Go through all points."""
    gc.freeze()  # a collection in a child would copy all of the parent's pages
    base = Path(folder)
    old, wanted = base / "old", base / "wanted"
    if mode == "append":
        preprocess(Path(source).with_name("before"), old, 2, chunk_bytes=1)
        shutil.copytree(old, wanted)
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
        if mode in {"overwrite", "append"}:
            shutil.copytree(old, out)
        died = in_child(source, out, mode, point) == signal.SIGKILL
        if mode == "overwrite":
            assert len(open_store(out)) in {3, len(open_store(wanted))}, f"no store after call {point}"
        elif mode == "append":
            check_appended(out, expected, open_store(old), point)
        elif (out / "zarr.json").exists():
            assert tree(out) == expected, f"unfinished after call {point}"
        # With its journal, the work folder loses what says that all is done: nobody can tell then.
        if (mode == "overwrite" or not (out / "zarr.json").exists()) or (
            mode == "append" and (len(open_store(out)) == 3 or (place / ".out.partial" / "journal").exists())
        ):
            assert in_child(source, out, mode, FOREVER) == 0, f"not resumed after call {point}"
            left = {"out", "out.skipped.jsonl"} if mode == "skip" else {"out"}
            assert set(os.listdir(place)) == left, f"{os.listdir(place)} left after call {point}"
        assert tree(out) == expected, f"different after call {point}"
        shutil.rmtree(place)
    print(point - 1)


if __name__ == "__main__":
    main(*sys.argv[1:])
