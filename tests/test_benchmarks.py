"""The comparison with `.npz` files: run small, as a process, on real files, page caches and memory limits."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmapload.preprocessing import preprocess
from tests.loading_cases import memory_cgroup
from tests.warm_python import run_warm

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "compare_npz.py"
NPZ = [f".npz, DataLoader, {workers} workers" for workers in (0, 2)]
PLAIN = [
    "DataLoader + ChunkSampler, 0 workers",
    "DataLoader + ChunkBatchSampler, 0 workers",
    "DataLoader + ChunkBatchSampler, 2 workers",
]
CHUNKED = [f"ChunkDataLoader, {mode}" for mode in ("window, 2 workers", "window", "batch", "full")]
CHECKSUMS = [f"ChunkDataLoader, window, verify={verify}" for verify in ("never", "always")]

LIMITED = """
import dataclasses, json, sys
from pathlib import Path
import compare_npz, report, settings

arguments = compare_npz.parse(sys.argv[1:])
_, case = compare_npz.prepare(arguments)
setting = settings.limited(case, arguments.epochs_limited)
if isinstance(setting, str):
    sys.exit(setting)
names = sys.stdin.read().splitlines()
few = [each for each in setting.contenders if each.name in names]
section = settings.measure(dataclasses.replace(setting, contenders=few), case, arguments.rounds)
print(report.table(section))
arguments.json.write_text(json.dumps(report.as_json(section) | {"array_bytes": case.nbytes}))
"""
"""The limited setting for loaders named on standard input: all would take a minute on a busy disk."""

REPEATED = """
from collections import Counter
import numpy as np, torch
from fingerprints import FixedBuffer, WrongSamplesError, positions
from mmapload.codecs import RawCodec
from mmapload.layout import FieldLayout

field = FieldLayout("x", np.dtype("f4"), (3,), 2, RawCodec())
samples = torch.arange(12, dtype=torch.float32).reshape(4, 3)
expected = Counter(sample.numpy().tobytes() for sample in samples)
print(positions(field.sample_nbytes).tolist() == list(range(12)))
for rows in ([0, 1], [1, 3]), ([0, 1], [3]), ([0, 1], [2, 3], [1]), ([0, 1], None), ([2, 1], [0, 3]):
    buffer = FixedBuffer([field], 2, expected)
    try:
        for row in rows:
            buffer.take({"x": torch.zeros(2, 1) if row is None else samples[row]})
        print(buffer.check() is None)
    except WrongSamplesError as error:
        print(error)
"""

GREEDY = """
import mmap, sys
from cgroups import memory_cgroup
from launching import launch

def greedy(report, join):
    join()
    report({"before": 1})
    memory = bytearray(2**28)
    report({"after": len(memory)})

with memory_cgroup(2**25) as cgroup:
    done = launch(greedy, cgroup)
print(done.reports, done.killed, cgroup.folder.exists())
"""


ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}


def run(*arguments: object, code: str | None = None, told: str = "") -> subprocess.CompletedProcess[str]:
    started = [str(SCRIPT)] if code is None else ["-c", code]
    return run_warm(*started, *arguments, told=told, env=ENVIRONMENT)


def ran(*arguments: object, code: str | None = None, told: str = "") -> str:
    done = run(*arguments, code=code, told=told)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def ran_fresh(code: str, *arguments: object, told: str = "") -> tuple[int, str]:
    """Run code in a process that begins empty, as memory is measured in it; returns its number and output."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    with process:
        try:
            out, said = process.communicate(told, timeout=240)
        finally:
            process.kill()
    assert process.returncode == 0, out + said
    return process.pid, out


def rows_of(table: str) -> dict[str, list[str]]:
    """The cells of a Markdown table by its first column, which has to be unique."""
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0]: row[1:] for row in rows if not row[0].startswith("-")}


def cgroups(pid: int) -> set[Path]:
    """The cgroups of one benchmark that are there, while those of others, and of tests, come and go."""
    # Unlike rglob, walk passes by what vanishes meanwhile.
    folders = (Path(folder) for folder, _, _ in os.walk("/sys/fs/cgroup"))
    return {folder for folder in folders if folder.name.startswith(f"mmapload-bench-{pid}-")}


def write_npz(folder: Path, name: str, save: Any = np.savez_compressed, **arrays: Any) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    save(folder / name, **arrays)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """Options for 112 samples of 2 MiB, the least for a limit of half, and for the store made from them."""
    folder: Path = tmp_path_factory.mktemp("large")
    noise = np.random.default_rng(0).integers(0, 256, 2**21, np.uint8)
    for number in range(112):
        write_npz(folder / "npz", f"{number}.npz", np.savez, x=np.roll(noise, number))
    preprocess(folder / "npz", folder / "store", 2, chunk_bytes="4MiB")
    return "--source", folder / "npz", "--store", folder / "store"


def test_a_small_run_fills_tables_json_and_chart_for_every_setting(tmp_path: Path) -> None:
    chart = tmp_path / "made" / "chart.png"
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    out = ran(
        *("--work", tmp_path, "--samples", 40, "--height", 8, "--width", 8, "--batch-size", 8),
        *("--rounds", 2, "--json", tmp_path / "made" / "found.json"),
        *(("--chart", chart) if has_matplotlib else ()),
    )
    told = json.loads((tmp_path / "made" / "found.json").read_text())
    assert list(told["settings"]) == ["warm", "cold", "limited"]
    assert {"processor", "cores", "memory_gib", "system", "python", "torch", "numpy"} <= set(told["machine"])
    assert told["data"]["samples"] == 40
    assert told["data"]["array_bytes"] == 40 * 13 * 64 + 40 * 3 * 4 * 64
    assert "40 different fingerprints" in told["check"]
    tables = dict(zip(told["settings"], out.split("### ")[1:], strict=True))
    for name, expected, epochs in (
        ("warm", NPZ + PLAIN + CHUNKED + CHECKSUMS, 2),
        ("cold", NPZ + PLAIN + CHUNKED, 1),
    ):
        found = told["settings"][name]
        if "skipped" in found:
            assert f"Skipped: {found['skipped']}" in tables[name]
            continue
        assert list(found["loaders"]) == expected
        rows = rows_of(tables[name])
        assert [*rows] == ["loader", *expected]
        assert found["baseline"] in NPZ
        assert found["loaders"][found["baseline"]]["ratio"] == 1
        best = max(found["loaders"][each]["samples_per_second"] for each in NPZ)
        for loader, told_of in found["loaders"].items():
            assert told_of["ratio"] == pytest.approx(told_of["samples_per_second"] / best)
            assert rows[loader][0] == f"{told_of['samples_per_second']:,.0f}"
            assert [(each["round"], each["epoch"]) for each in told_of["epochs"]] == [
                (number, epoch) for number in range(2) for epoch in range(epochs)
            ]
            assert told_of["anonymous"] > 0
    if "skipped" not in told["settings"]["cold"]:
        drops = told["settings"]["cold"]["drops"]
        assert len(drops) == 2 * len(NPZ + PLAIN + CHUNKED)
        dropped = {drop["name"] for drop in drops if drop["left"] == 0 and drop["read"] >= 0.95}
        # A page that the kernel moves just then stays, but not in both rounds.
        assert dropped == set(NPZ + PLAIN + CHUNKED)
        verified = all(drop["left"] <= 0.01 and drop["read"] >= 0.95 for drop in drops)
        assert ("Drop verified" if verified else "Drop NOT verified") in tables["cold"]
    assert "has to hold" in told["settings"]["limited"]["skipped"]
    assert "has to hold" in tables["limited"]
    if has_matplotlib:
        assert chart.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_folder_of_anybodys_samples_is_compared_and_its_store_is_made(tmp_path: Path) -> None:
    for number in range(20):
        write_npz(
            tmp_path / "mine",
            f"part{number % 3}/{number}.npz",
            image=np.full((3, 5), number, ">f4"),
            mask=np.arange(7) == number % 7,
            label=np.int64(number),
        )
    options = "--source", tmp_path / "mine", "--work", tmp_path, "--rounds", 1, "--settings", "warm"
    out = ran(*options, "--batch-size", 4)
    assert "20 different fingerprints of up to 32 bytes a field for 20 samples" in out
    assert [*rows_of(out)] == ["loader", *NPZ, *PLAIN, *CHUNKED, *CHECKSUMS]


def test_a_store_of_other_samples_is_refused(tmp_path: Path) -> None:
    for name, offset in (("right", 0), ("wrong", 1)):
        for number in range(8):
            write_npz(tmp_path / name, f"{number}.npz", x=np.full(9, number + offset))
    preprocess(tmp_path / "right", tmp_path / "store", 4)
    done = run("--source", tmp_path / "wrong", "--store", tmp_path / "store", "--settings", "warm")
    assert done.returncode == 1
    assert "of 8 samples 1 did not come, and 1 came that should not" in done.stderr
    assert "| loader |" not in done.stdout


def test_a_sample_that_lacks_a_field_of_the_store_is_named(tmp_path: Path) -> None:
    for number in range(4):
        write_npz(tmp_path / "right", f"{number}.npz", x=np.arange(3), y=np.arange(3))
        write_npz(tmp_path / "wrong", f"{number}.npz", x=np.arange(3))
    preprocess(tmp_path / "right", tmp_path / "store", 4)
    done = run("--source", tmp_path / "wrong", "--store", tmp_path / "store", "--settings", "warm")
    assert done.returncode == 1
    assert f"{tmp_path / 'wrong' / '0.npz'} has no array 'y'" in done.stderr


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="there is no tmpfs at /dev/shm")
def test_cold_and_limited_are_skipped_with_the_reason_where_pages_cannot_be_dropped(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    folder = Path("/dev/shm", f"{tmp_path_factory.getbasetemp().name}-{tmp_path.name}")
    options = "--samples", 4, "--height", 8, "--width", 8, "--batch-size", 2, "--settings", "cold"
    try:
        out = ran(*options, "--work", folder, "--rounds", 1)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
    assert "stayed in the page cache" in out
    assert "| loader |" not in out


def test_a_batch_that_repeats_a_sample_does_not_pass_the_check() -> None:
    assert ran(code=REPEATED).splitlines() == [
        "True",
        "of 4 samples 1 did not come, and 1 came that should not",
        "of 4 samples 1 did not come, and 0 came that should not",
        "more than 4 samples came",
        "'x' came as torch.float32 (2, 1), not as torch.float32 (2, 3)",
        "True",
    ]


def test_half_of_the_data_is_enough_for_window_and_batch_shuffle_and_leaves_no_cgroup(
    large: tuple[object, ...], tmp_path: Path
) -> None:
    with memory_cgroup(2**30):  # skips where none can be made
        pass
    pid, out = ran_fresh(
        LIMITED,
        *(*large, "--rounds", 1, "--epochs-limited", 4, "--json", tmp_path / "found.json"),
        told="\n".join([NPZ[0], *CHUNKED[1:3]]),
    )
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["limit"] == told["array_bytes"] // 2
    assert told["memory"] < told["limit"]
    assert told["window"] == 2 * ((told["memory"] // 2**22 - 1) // 2)
    assert list(told["loaders"]) == [NPZ[0], *CHUNKED[1:3]]
    assert [len(each["epochs"]) for each in told["loaders"].values()] == [2, 4, 4]
    for loader in told["loaders"].values():
        assert loader["killed"] == []
        assert loader["anonymous"] + loader["shared"] < told["limit"]
        assert 0 < loader["cached"] <= told["limit"]
        assert loader["bytes_read"] > told["limit"] // 4  # what is limited is the page cache too
    assert "ChunkDataLoader, batch: 4 epochs in one process, killed 0 times." in out
    assert "Drop verified" in out
    assert not cgroups(pid)


def test_a_loader_that_takes_more_than_the_limit_is_reported_as_killed() -> None:
    with memory_cgroup(2**30):
        pass
    pid, out = ran_fresh(GREEDY)
    assert out == "[{'before': 1}] True False\n"
    assert not cgroups(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_neither_processes_nor_a_cgroup(
    large: tuple[object, ...], number: signal.Signals
) -> None:
    with memory_cgroup(2**30):
        pass
    script = subprocess.Popen(
        [sys.executable, SCRIPT, *map(str, large), "--settings", "limited"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 200
        inside: list[int] = []
        while len(inside) < 1 and time.monotonic() < deadline:
            for folder in cgroups(script.pid):
                if not folder.name.endswith("-0"):  # that one is a trial
                    try:
                        inside = [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
                    except OSError:  # gone since
                        inside = []
            assert script.poll() is None
            time.sleep(0.01)
        assert inside, "no process has come into a cgroup"
        script.send_signal(number)
        _, said = script.communicate(timeout=90)
    finally:
        script.kill()
        script.wait()
    assert "Traceback" not in said
    assert script.returncode == 128 + number
    assert not cgroups(script.pid)
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
