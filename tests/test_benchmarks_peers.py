"""The comparison with other projects: run small, as a process, with those that are importable here."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.test_benchmarks import rows_of
from tests.warm_python import run_warm

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "benchmarks" / "compare_peers.py"
HERE = ["npz", "npy", "zarr", "mmapload"]
ROWS = [
    ".npz, DataLoader, 0 workers",
    ".npz, DataLoader, 2 workers",
    ".npy memmap, DataLoader, 0 workers",
    ".npy memmap, DataLoader, 2 workers",
    ".npy memmap, bare loop over views of batches",
    "zarr-python, whole chunks",
    "DataLoader + ChunkBatchSampler, 0 workers",
    "ChunkDataLoader, window, 2 workers",
    "ChunkDataLoader, window",
    "ChunkDataLoader, batch",
    "ChunkDataLoader, full",
]

WITH_FAULTY_PEERS = """
import sys, time
from torch.utils.data import ConcatDataset, DataLoader, Subset
import compare_peers
from contenders import NpzFolder
from peers.describing import Peer, Way

def samples(case):
    return NpzFolder(case.files, case.store.layout.fields)

def dropping(case, folder):
    load = lambda: DataLoader(samples(case), case.batch, shuffle=True, drop_last=True)
    return [Way("dropping", 0, load, case.files)]

def repeating(case, folder):
    more = lambda: ConcatDataset([samples(case), Subset(samples(case), [0, 1, 2])])
    return [Way("repeating", 0, lambda: DataLoader(more(), case.batch), case.files)]

def failing(case, folder):
    return [Way("failing", 0, lambda: DataLoader(samples(case), case.batch, timeout=-1), case.files)]

def slow(case, folder):
    class Slow:
        def __iter__(self):
            for batch in DataLoader(samples(case), case.batch):
                time.sleep(0.4)
                yield batch
    return [Way("slow", 0, Slow, case.files)]

def altered(case, folder):
    class Altered:
        def __iter__(self):
            for batch in DataLoader(samples(case), case.batch):
                yield {name: tensor + 1 for name, tensor in batch.items()}
    return [Way("altered", 0, Altered, case.files)]

peers = [Peer(way.__name__, "numpy", (), way) for way in (dropping, repeating, failing, slow, altered)]
peers.append(Peer("absent", "numpy", ("there_is_no_such_module",), dropping))
compare_peers.main(sys.argv[1:], peers)
"""


def run(*arguments: object, code: str | None = None) -> subprocess.CompletedProcess[str]:
    started = [str(SCRIPT)] if code is None else ["-c", code]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SCRIPT.parent), *sys.path])}
    return run_warm(*started, *arguments, env=environment)


def ran(*arguments: object, code: str | None = None) -> str:
    done = run(*arguments, code=code)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_small_run_fills_table_json_and_chart_and_keeps_the_copies(tmp_path: Path) -> None:
    has_matplotlib = importlib.util.find_spec("matplotlib") is not None
    options = (
        *("--shape", "small", "--samples", 64, "--batch-size", 8, "--rounds", 2, "--settings", "warm"),
        *("--data", tmp_path, "--peers", ",".join(HERE), "--json", tmp_path / "found.json"),
        *(("--chart", tmp_path / "chart.png") if has_matplotlib else ()),
    )
    out = ran(*options)
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["data"]["samples"] == 64
    assert told["data"]["fields"] == {"x": "float32 (256,)"}
    assert {"torch", "numpy", "zarr", "mmapload"} <= set(told["machine"])
    found = told["settings"]["warm"]
    assert list(found["loaders"]) == ROWS
    assert [*rows_of(out)] == ["loader", *ROWS]
    best = max(found["loaders"][name]["samples_per_second"] for name in ROWS[:2])
    for name, cells in rows_of(out).items():
        if name == "loader":
            assert cells[-1] == "samples"
            continue
        loader = found["loaders"][name]
        assert cells[-1] == "each once"
        assert loader["ratio"] == pytest.approx(loader["samples_per_second"] / best)
        assert [(each["round"], each["epoch"]) for each in loader["epochs"]] == [
            (number, epoch) for number in range(2) for epoch in range(2)
        ]
        assert {"anonymous", "shared", "cached", "bytes_read"} <= set(loader)
    if has_matplotlib:
        assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    copies = {path: path.stat().st_mtime_ns for path in (tmp_path / "npy-64x256").iterdir()}
    assert [path.name for path in copies] == ["x.npy"]
    again = ("--peers", "npy", "--rounds", 1, "--settings", "warm", "--data", tmp_path)
    ran(*options[: options.index("--rounds")], *again)
    assert copies == {path: path.stat().st_mtime_ns for path in (tmp_path / "npy-64x256").iterdir()}


def test_what_a_peer_drops_repeats_alters_or_fails_at_is_told_and_the_others_are_measured(
    tmp_path: Path,
) -> None:
    out = ran(
        *("--shape", "small", "--samples", 30, "--batch-size", 8, "--rounds", 1, "--settings", "warm"),
        *("--data", tmp_path, "--json", tmp_path / "found.json", "--patience", 1),
        code=WITH_FAULTY_PEERS,
    )
    rows = rows_of(out)
    assert rows["dropping"][-1] == "6 dropped"
    assert rows["repeating"][-1] == "3 repeated"
    assert rows["failing"][-1] == "failed"
    assert rows["altered"][-1] == "failed"
    assert rows["slow"][-1] == "cut short after 24"
    assert rows["ChunkDataLoader, window"][-1] == "each once"
    assert "failing failed: ValueError: " in out
    assert "altered failed: WrongSamplesError: 30 that are no samples of the source came" in out
    assert "Left out: absent, since ModuleNotFoundError: No module named 'there_is_no_such_module'." in out
    told = json.loads((tmp_path / "found.json").read_text())
    assert list(told["left_out"]) == ["absent"]
    loaders = told["settings"]["warm"]["loaders"]
    assert loaders["dropping"]["lacking"] == 6
    assert loaders["repeating"]["repeated"] == 3
    assert "samples_per_second" not in loaders["failing"]


def test_a_peer_that_is_not_known_is_refused_with_the_names_of_those_that_are(tmp_path: Path) -> None:
    done = run("--peers", "npz,zip", "--data", tmp_path)
    assert done.returncode == 2
    assert "--peers: no zip; there are npz, npy, tensordict, ffcv" in done.stderr
