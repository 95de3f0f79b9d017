"""Kill a run at one system call after the other, and see whether the next run makes it good.

A process of its own: `crash_points.py SOURCE FOLDER MODE`, where MODE is new, overwrite, skip or append.
Prints before how many calls it was killed, of how many. Before calls that concern the disk a forked child
kills itself with SIGKILL; then another child runs the same again, undisturbed.

Calls are of one kind if the same functions of ours make them. Tried are the first and the last of each kind
that changes something on the disk. Of the others, fsync and open to read, the first that each function makes
is enough: the disk is then as it is before the next call that changes it. MMAPLOAD_KILLS, which `make fuzz`
sets, tries all calls.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TypeAlias

import zarr
import zarr.codecs  # noqa: F401 - imported once here, not in every child

from mmapload.preprocessing import preprocess
from mmapload.store import Store, open_store
from mmapload.writer import workfolder
from tests.preprocessing_cases import CountedSource, samples, tree

CALLS = ("open", "mkdir", "rename", "fsync", "unlink", "rmdir", "writev", "write", "ftruncate")
OURS = os.path.dirname(workfolder.__file__).removesuffix("writer")
EVERY = bool(os.environ.get("MMAPLOAD_KILLS"))

Kind: TypeAlias = tuple[str, ...]
"""What is called, and which functions call it, the innermost first."""


def kind_of(name: str, flags: int) -> Kind:
    """Return the kind of a call that is being made by the caller's caller."""
    if name == "open" and not flags & os.O_CREAT:
        name = "open to read"
    callers = []
    frame = sys._getframe(2)
    while frame is not None and len(callers) < 3:
        if frame.f_code.co_filename.startswith(OURS):
            callers.append(f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return (name, *callers)


def chosen(counts: dict[Kind, int]) -> list[tuple[Kind, int]]:
    """Return before which calls to die: their kinds, and which ones of the kind, from 1."""
    if EVERY:
        return [(kind, number) for kind, count in counts.items() for number in range(1, count + 1)]
    points = []
    seen = set()
    for kind, count in counts.items():
        if kind[0] not in {"fsync", "open to read"}:
            points += [(kind, number) for number in sorted({1, count})]
        elif kind[:2] not in seen:
            points.append((kind, 1))
        seen.add(kind[:2])
    return points


def run(source: str, out: Path, mode: str) -> None:
    """Do what is to be killed."""
    if mode == "skip":
        preprocess(CountedSource(5, bad={2}), out, 2, jobs=2, chunk_bytes=1, on_error="skip")
    elif mode == "append":
        preprocess(source, out, 2, jobs=2, append=True)
    else:
        preprocess(source, out, 2, jobs=2, chunk_bytes=1, overwrite=mode != "new")


def in_child(
    source: str, out: Path, mode: str, die_before: tuple[Kind, int] | None = None, told: Path | None = None
) -> int:
    """Run in a fork, which kills itself before a call or tells what it calls; returns the child's status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    counts: Counter[Kind] = Counter()

    def counted(name: str, call: object) -> object:
        def wrapper(*args: object, **kwargs: object) -> object:
            kind = kind_of(name, args[1] if name == "open" else 0)
            counts[kind] += 1
            if (kind, counts[kind]) == die_before:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return wrapper

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    workfolder._exchange = counted("exchange", workfolder._exchange)
    try:
        run(source, out, mode)
        if told is not None:
            told.write_text(json.dumps(list(counts.items())))
    except BaseException as error:
        print(f"before {die_before}: {error!r}", file=sys.stderr)
        os._exit(1)
    os._exit(0)


def check_appended(out: Path, expected: dict[str, bytes], old: Store, point: tuple[Kind, int]) -> None:
    """See to it that a store, of which an append was cut off, has all samples that it had, or all."""
    store = open_store(out)
    assert [fault for fault in store.verify() if fault] == [], f"faults after {point}"
    if len(store) > len(old):
        assert tree(out) == expected, f"unfinished after {point}"
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
    assert in_child(source, wanted, mode) == 0
    expected = tree(wanted)
    if mode == "overwrite":
        preprocess(samples(3), old, 3)

    def fresh(name: str) -> Path:
        out = base / name / "out"
        out.parent.mkdir()
        if mode in {"overwrite", "append"}:
            shutil.copytree(old, out)
        return out

    assert in_child(source, fresh("calls"), mode, told=base / "calls.json") == 0
    counts = {tuple(kind): count for kind, count in json.loads((base / "calls.json").read_text())}
    points = chosen(counts)
    reached = set()
    for point in points:
        out = fresh("try")
        died = in_child(source, out, mode, point) == signal.SIGKILL
        if died:  # some calls are made or not, as one thread or the other is faster
            reached.add(point)
        if mode == "overwrite":
            assert len(open_store(out)) in {3, len(open_store(wanted))}, f"no store after {point}"
        elif mode == "append":
            check_appended(out, expected, open_store(old), point)
        elif (out / "zarr.json").exists():
            assert tree(out) == expected, f"unfinished after {point}"
        # With its journal, the work folder loses what says that all is done: nobody can tell then.
        journal = out.parent / ".out.partial" / "journal"
        if (mode == "overwrite" or not (out / "zarr.json").exists()) or (
            mode == "append" and (len(open_store(out)) == 3 or journal.exists())
        ):
            assert in_child(source, out, mode) == 0, f"not resumed after {point}"
            left = {"out", "out.skipped.jsonl"} if mode == "skip" else {"out"}
            there = os.listdir(out.parent)
            assert set(there) == left, f"{there} left after {point}"
        assert tree(out) == expected, f"different after {point}"
        shutil.rmtree(out.parent)
    assert {kind[0] for kind, _ in reached} == {kind[0] for kind in counts}
    print(f"{len(reached)} of {sum(counts.values())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
