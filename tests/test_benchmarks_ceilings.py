"""The comparisons with the disk's ceilings and with bare decoding: run small, as processes, on real files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.loading_cases import memory_cgroup
from tests.test_benchmarks import rows_of
from tests.warm_python import run_warm

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
SMALL = ("--samples", 160, "--size", 64, 96)
LOADERS = ["ChunkDataLoader, batch", "ChunkDataLoader, window=64"]


WITH_TWO_CEILINGS = """
import mmapload.bench.ceilings as ceilings
import compare_ceiling

ceilings.THREADS = (2,)
compare_ceiling.main()
"""
"""All six would take a process each."""


def ran(*command: object) -> str:
    """Run a script that starts processes of its own for what is measured under a limit."""
    done = run_warm(*command, env=os.environ | {"PYTHONPATH": str(BENCHMARKS)}, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loaders_are_held_against_reading_the_same_files_under_the_same_limit(tmp_path: Path) -> None:
    with memory_cgroup(2**30):  # skips where none can be made
        pass
    told = tmp_path / "found.json"
    options = ("--work", tmp_path, "--window", 64, "--epochs", 2, "--rounds", 1, "--memory", "30MiB")
    out = ran("-c", WITH_TWO_CEILINGS, *SMALL, *options, "--fractions", 64, "--json", told)
    rows = rows_of(out[out.index("| |") :])
    assert list(rows)[1:] == [
        "pread, 2 threads",
        "populate, 2 threads",
        *LOADERS,
    ]
    found = json.loads(told.read_text())["limits"]["64.0"]
    nbytes = 160 * (9 + 16) * 64 * 96
    for name, of in found.items():
        assert of["killed"] == 0
        assert [epoch["epoch"] for epoch in of["epochs"]] == ([0, 1] if name in LOADERS else [0])
        # Of the disk: the page cache was dropped, but for a page that the kernel moved just then.
        assert of["epochs"][0]["bytes_read"] >= 0.95 * nbytes
    for name in LOADERS:
        assert found[name]["epochs"][1]["budget"] == 30 * 2**20
        assert rows[name][-1] == "2, killed 0 times"
    assert found[LOADERS[1]]["epochs"][0]["window"] == 64


def test_a_loader_that_the_limit_kills_is_told_as_killed(tmp_path: Path) -> None:
    with memory_cgroup(2**30):
        pass
    options = ("--work", tmp_path, "--rounds", 1, "--loaders-only", "--fractions", 2)
    out = ran(BENCHMARKS / "compare_ceiling.py", *SMALL, *options)  # not even Python and torch fit
    assert rows_of(out[out.index("| |") :])[LOADERS[0]][-1] == "0, killed 1 times"


def test_compressed_stores_are_held_against_bare_decoding(tmp_path: Path) -> None:
    options = ("--work", tmp_path, "--rounds", 1, "--codecs", "zstd", "blosc-lz4")
    out = ran(BENCHMARKS / "compare_codecs.py", *SMALL, *options)
    tables = out.split("### ")[1:]
    assert [table.split(":")[0] for table in tables] == ["zstd", "blosc-lz4"]
    for table in tables:
        rows = rows_of(table[table.index("| |") :])
        assert [*rows][1:] == [
            "zarr-python, chunk by chunk",
            "numcodecs, 4 threads",
            "numcodecs, 4 threads, each chunk copied",
            "mmapload's reader, 4 threads",
            "ChunkDataLoader, batch",
            "ChunkDataLoader, window=96",
        ]
        assert rows["zarr-python, chunk by chunk"][1] == "1.0"
        assert rows["numcodecs, 4 threads"][2] == "1.00"
        assert rows["numcodecs, 4 threads, each chunk copied"][3] == "1.00"
