"""Stores of rows: equal whatever the way there, resumed, proved, and written in little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import mmapload
from mmapload.cli import main
from mmapload.errors import SourceError, StateMismatchError
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.writer.workfolder import partial_path
from tests.preprocessing_cases import stored, tree
from tests.row_files import ROWS, arrays, damage_payload, npy, write_rows

COUNTS = {"a": ROWS, "b": 1, "c": 77}
MIB = 2**20


def rows_of(store) -> list[tuple[str, int]]:
    """File and row of every sample of a store."""
    names = [store.sample_name(index) for index in range(len(store))]
    return [(name.partition("[")[0], int(name.rstrip("]").partition("[")[2])) for name in names]


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"shuffle": 5}, {"take": [300, 5, 231, 4]}, {"take": np.arange(0, 308, 3), "shuffle": 1}],
    ids=["all", "shuffled", "taken", "taken and shuffled"],
)
def test_a_store_has_the_rows_that_it_names_and_does_not_depend_on_jobs(tmp_path, deflate, options):
    write_rows(tmp_path / "in", COUNTS, deflate=deflate)
    made = {f"{name}.npz": arrays(seed, rows) for seed, (name, rows) in enumerate(COUNTS.items())}
    several, one = (
        preprocess(
            tmp_path / "in", tmp_path / f"out{jobs}", 8, samples="rows", jobs=jobs, chunk_bytes=800, **options
        )
        for jobs in (3, 1)
    )
    assert tree(several.path) == tree(one.path)
    for field in several.fields:
        expected = [made[file][field][row] for file, row in rows_of(several)]
        np.testing.assert_array_equal(
            stored(several, field), np.array(expected).reshape(stored(several, field).shape)
        )
    assert len(several) == len(set(rows_of(several))) == len(options.get("take", range(308)))
    if "take" in options and "shuffle" not in options:
        assert rows_of(several)[:2] == [("c.npz", 69), ("a.npz", 5)]


def test_a_split_in_one_archive_goes_by_fields_or_by_a_list_of_rows(tmp_path, capsys):
    values = {
        "x_train": np.arange(40.0),
        "y_train": np.arange(40),
        "x_test": -np.arange(9.0),
        "y_test": np.arange(9),
    }
    np.savez(tmp_path / "all.npz", **values)
    source = str(tmp_path / "all.npz")
    for part, count in (("train", 40), ("test", 9)):
        fields = f"x_{part}=x,y_{part}=y"
        assert (
            main(
                [
                    "preprocess",
                    source,
                    f"{tmp_path}/{part}",
                    "--batch-size",
                    "4",
                    "--samples",
                    "rows",
                    "--fields",
                    fields,
                ]
            )
            == 0
        )
        store = mmapload.open_store(tmp_path / part)
        assert stored(store, "x").tolist() == values[f"x_{part}"].tolist()
        assert (store.fields, len(store)) == (("x", "y"), count)
    (tmp_path / "list.txt").write_text("7\n\n3\n")
    np.savez(tmp_path / "split.npz", mask=np.arange(40) % 2 == 1)
    fields = ["--samples", "rows", "--fields", "x_train=x"]
    for name, take, expected in (
        ("listed", f"{tmp_path}/list.txt", [7, 3]),
        ("masked", f"{tmp_path}/split.npz:mask", list(range(1, 40, 2))),
    ):
        assert (
            main(["preprocess", source, f"{tmp_path}/{name}", "--batch-size", "4", *fields, "--take", take])
            == 0
        )
        assert stored(mmapload.open_store(tmp_path / name), "x").tolist() == expected
    capsys.readouterr()
    assert main(["info", f"{tmp_path}/masked", "--sample", "2"]) == 0
    assert "all.npz[5]" in capsys.readouterr().out


@pytest.mark.parametrize("mode", ["stored", "deflated", "npy", "shuffled"])
def test_a_run_that_is_killed_is_continued_to_the_same_bytes(tmp_path, mode):
    if mode == "npy":
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.npy").write_bytes(npy(np.arange(24_000, dtype=">i4").reshape(8_000, 3)))
    else:
        write_rows(tmp_path / "in", {"a": 700, "b": 900}, deflate=mode == "deflated")
    options = ["--batch-size", "8", "--chunk-bytes", "480", "--jobs", "2", "--samples", "rows"]
    options += ["--shuffle", "4"] if mode == "shuffled" else []
    command = [sys.executable, "-m", "mmapload", "preprocess", str(tmp_path / "in")]
    journal = Path(partial_path(str(tmp_path / "out"))) / "journal"
    process = subprocess.Popen([*command, str(tmp_path / "out"), *options, "--quiet"])
    while process.poll() is None and not (journal.exists() and journal.stat().st_size > 1_500):
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -9, "it was through too soon"
    lines = [json.loads(line) for line in journal.read_bytes().split(b"\n")[1:-1]]
    assert any("chunk" in line for line in lines)
    done = subprocess.run(
        [*command, str(tmp_path / "out"), *options], capture_output=True, text=True, check=True
    )
    assert "resuming" in done.stderr
    assert main([*command[3:], str(tmp_path / "whole"), *options, "--quiet"]) == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


class _Stopped(Exception):
    pass


def interrupted(plan, monkeypatch, after):
    """Execute a plan until so many chunks are written."""
    from mmapload.preprocessing import parallel, sequential

    real, count = parallel.write_chunk, 0

    def write_chunk(*args):
        nonlocal count
        count += 1
        if count > after:
            raise _Stopped
        return real(*args)

    with monkeypatch.context() as patch:
        for module in (parallel, sequential):
            patch.setattr(module, "write_chunk", write_chunk)
        with pytest.raises(_Stopped):
            execute(plan)


def test_a_changed_npy_file_of_the_same_size_and_time_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "a.npy"
    path.write_bytes(npy(np.arange(300)))
    plan = plan_preprocess(path, tmp_path / "out", 4, samples="rows", chunk_bytes=64, jobs=1)
    interrupted(plan, monkeypatch, after=5)
    status = path.stat()
    path.write_bytes(npy(np.arange(300) + 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StateMismatchError, match=r"a.npy\[0\] on that have changed"):
        preprocess(path, tmp_path / "out", 4, samples="rows", chunk_bytes=64, jobs=1)


@pytest.mark.parametrize(
    "before", [{}, {"take": [5, 6, 7, 8, 9]}, {"samples": "files"}], ids=["all", "taken", "files"]
)
def test_a_run_is_not_continued_with_other_samples(tmp_path, monkeypatch, before):
    np.savez(tmp_path / "a.npz", x=np.arange(40.0))
    options = {"samples": "rows", "chunk_bytes": 8, **before}
    if options["samples"] == "files":
        np.savez(tmp_path / "b.npz", x=np.arange(40.0))
    source = [tmp_path / "a.npz", *([tmp_path / "b.npz"] if options["samples"] == "files" else [])]
    interrupted(plan_preprocess(source, tmp_path / "out", 1, jobs=1, **options), monkeypatch, after=1)
    with pytest.raises(StateMismatchError, match=r"another (take|samples|schema)"):
        preprocess(source, tmp_path / "out", 1, samples="rows", take=[5, 6, 7, 8, 10], chunk_bytes=8, jobs=1)


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 1}, {"take": np.arange(2, 308, 3)}], ids=["all", "shuffled", "taken"]
)
def test_no_row_of_a_damaged_file_is_stored(tmp_path, deflate, options):
    write_rows(tmp_path / "in", COUNTS, deflate=deflate)
    sound = write_rows(tmp_path / "sound", COUNTS, deflate=deflate)
    if deflate:
        path = tmp_path / "in" / "c.npz"
        data = bytearray(path.read_bytes())
        data[data.index(b"b.npy") + 200] ^= 0x10
        path.write_bytes(data)
    else:
        damage_payload(tmp_path / "in" / "c.npz", "b")
    wanted = {"samples": "rows", "chunk_bytes": 200, "jobs": 2, **options}
    with pytest.raises(SourceError, match=r"c\.npz, member 'b.npy'.*--on-error skip") as caught:
        preprocess(tmp_path / "in", tmp_path / "out", 4, **wanted)
    assert caught.type is SourceError
    result = execute(plan_preprocess(tmp_path / "in", tmp_path / "rest", 4, on_error="skip", **wanted))
    assert {file for file, _ in rows_of(result.store)} == {"a.npz", "b.npz"}
    assert len(result.store) + len(result.skipped) == len(options.get("take", range(308)))
    assert {Path(each.file).name for each in result.skipped} == {"c.npz"}
    # Once the file is mended, what was written of it before is written anew.
    os.replace(tmp_path / "sound" / "c.npz", tmp_path / "in" / "c.npz")
    store = preprocess(tmp_path / "in", tmp_path / "out", 4, **wanted)
    starts = {"a.npz": 0, "b.npz": ROWS, "c.npz": ROWS + 1}
    order = [starts[file] + row for file, row in rows_of(store)]
    for field in store.fields:
        np.testing.assert_array_equal(stored(store, field), sound[field][order])


def test_rows_that_are_appended_come_from_proved_files(tmp_path):
    sound = write_rows(tmp_path / "in", {"a": 50, "b": 30}, deflate=False)
    preprocess(tmp_path / "in" / "a.npz", tmp_path / "out", 8, samples="rows")
    damage_payload(tmp_path / "in" / "b.npz", "x")
    with pytest.raises(SourceError, match="damaged"):
        preprocess(tmp_path / "in" / "b.npz", tmp_path / "out", 8, samples="rows", append=True)
    write_rows(tmp_path / "in", {"a": 50, "b": 30}, deflate=False)
    store = preprocess(
        tmp_path / "in" / "b.npz", tmp_path / "out", 8, samples="rows", append=True, overwrite=False
    )
    np.testing.assert_array_equal(stored(store, "x"), sound["x"])


def test_the_plan_and_the_error_say_that_one_file_looks_like_rows(tmp_path, capsys):
    np.savez(tmp_path / "mnist.npz", x=np.zeros((600, 28, 28), "u1"), y=np.zeros(600, "u1"))
    assert (
        main(["preprocess", f"{tmp_path}/mnist.npz", f"{tmp_path}/out", "--batch-size", "8", "--dry-run"])
        == 0
    )
    assert (
        "all arrays of the first file have 600 rows: if each is a sample, give --samples rows"
        in capsys.readouterr().out
    )
    both = {"x": np.zeros((600, 9)), "y": np.zeros(600), "u": np.zeros((90, 9)), "v": np.zeros(90)}
    np.savez(tmp_path / "both", **both)
    command = ["preprocess", f"{tmp_path}/both.npz", f"{tmp_path}/out", "--batch-size", "8", "--dry-run"]
    assert main(command) == 0
    assert "have 600 and 90 rows" in (told := capsys.readouterr().out)
    assert "--samples rows and the arrays of one part, --fields x,y" in told
    (tmp_path / "both.npz").unlink()
    np.savez(tmp_path / "test.npz", x=np.zeros((100, 28, 28), "u1"), y=np.zeros(100, "u1"))
    with pytest.raises(SourceError, match="give --samples rows"):
        preprocess(tmp_path, tmp_path / "out", 8)
    assert len(preprocess(tmp_path, tmp_path / "out", 8, samples="rows")) == 700


def test_the_plan_and_the_error_say_that_one_archive_looks_like_keys(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", *[np.full((k % 3, 2), k) for k in range(9)])
    assert main(["preprocess", f"{tmp_path}/a.npz", f"{tmp_path}/out", "--batch-size", "8", "--dry-run"]) == 0
    assert "9 arrays alike: if each is a sample, give --samples keys" in capsys.readouterr().out
    np.savez(tmp_path / "b.npz", *[np.full((k % 3, 2), k) for k in range(7)])
    with pytest.raises(SourceError, match="give --samples keys"):
        preprocess(tmp_path, tmp_path / "out", 8)


MEMORY_SCRIPT = """
import re, sys, threading, zarr
from mmapload.preprocessing import plan_preprocess, execute
from mmapload.writer import documents

def anonymous():
    with open("/proc/self/status") as file:
        return int(re.search(r"RssAnon:\\s+(\\d+) kB", file.read())[1]) * 1024

shuffle = None if sys.argv[3] == "in order" else 3
options = {"samples": "rows", "jobs": 2, "chunk_bytes": "4MiB", "shuffle": shuffle}
plan = plan_preprocess(sys.argv[1], sys.argv[2], 16, **options)
before, peak, ended = anonymous(), 0, threading.Event()

def watch():
    global peak
    while not ended.wait(0.002):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
try:
    execute(plan)
finally:
    ended.set()
    watcher.join()
print(peak - before, plan.memory_bytes)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Files of rows that are much larger than what a run may take; element 0 of a row is its number."""
    folder = tmp_path_factory.mktemp("large")
    rows = np.tile(np.random.default_rng(0).integers(0, 4, (1, 4096), np.uint32), (10_000, 1))  # 156 MiB
    rows[:, 0] = np.arange(10_000)
    np.savez(folder / "stored.npz", x=rows, y=np.arange(10_000))
    with zipfile.ZipFile(folder / "deflated.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in (("x", rows[:8_000]), ("y", np.arange(8_000))):  # as numpy, but in less time
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array)
    np.save(folder / "fortran.npy", np.asfortranarray(rows[:, :1024]))
    yield folder
    for name in os.listdir(folder):
        os.remove(folder / name)


@pytest.mark.parametrize("order", ["in order", "shuffled"])
@pytest.mark.parametrize("name", ["stored.npz", "deflated.npz", "fortran.npy"])
def test_memory_does_not_grow_with_the_archive(tmp_path, large, name, order):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, large / name, tmp_path / "out", order],
        capture_output=True,
        text=True,
        check=True,
    )
    grown, stated = map(int, done.stdout.split())
    strands = 2 * 32 * MIB if name == "fortran.npy" else 0  # turned from strands into rows, for each job
    assert grown < stated + strands + 24 * MIB
    store = mmapload.open_store(tmp_path / "out")
    assert store.read_chunk(store.fields[0], 0)[:, 0].tolist() == [
        row for _, row in rows_of(store)[: store.layout.chunk_samples(0)]
    ]
