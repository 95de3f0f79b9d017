"""`mmapload bench`: what it prints where, and its exit status. Counts and names only, no rates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import mmapload
from mmapload.cli import main

MMAPLOAD = [sys.executable, "-m", "mmapload"]
QUICK = ["--rounds", "1", "--samples", "12"]


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "npz"
    folder.mkdir()
    for number in range(12):
        np.savez(folder / f"s_{number}.npz", image=np.full((3, 4), number, np.uint8), label=np.int64(number))
    return str(folder)


@pytest.fixture
def store(source, tmp_path):
    return mmapload.preprocess(source, tmp_path / "store", 2, chunk_bytes=48).path


def test_a_table_on_standard_output_has_loaders_source_ceilings_and_one_sentence(store, source, capsys):
    assert main(["bench", store, "--source", source, *QUICK]) == 0
    printed, told = capsys.readouterr()
    heads, rates, stats, sentence = printed.rstrip("\n").split("\n\n")
    assert heads.splitlines()[0].split() == ["store", store]
    for part in ("all of 12 samples", "batches of 2", "one round", "page cache", "torch"):
        assert part in heads
    lines = rates.splitlines()
    assert [line.partition("  ")[0] for line in lines[1:]] == [
        "ChunkDataLoader, window",
        "ChunkDataLoader, batch",
        "ChunkDataLoader, full",
        "DataLoader + ChunkBatchSampler",
        ".npz, DataLoader, 0 workers",
        ".npz, DataLoader, 2 workers",
        "this machine at best:",
        "memory copy",
        "memory copy, twice at once",
        *(line.partition("  ")[0] for line in lines[-2:]),
    ]
    assert lines[-2].startswith("chunk files, pread, ")
    assert lines[-1].startswith("chunk files, populate, ")
    told_of = stats.splitlines()
    assert told_of[0] == "The window loader in its last run:"
    assert told_of[1].split() == ["delivered", "6", "batches,", "12", "samples"]
    assert "wait" in told_of[-1]
    assert sentence.count("\n") == 0
    assert "window loader" in sentence
    assert "measuring 12 of 12 samples" in told


def test_json_is_one_object_with_all_rates_and_quiet_tells_no_progress(store, capsys):
    assert main(["bench", store, "--json", "--quiet", "--cold", "--batch-size", "4", *QUICK]) == 0
    printed, told = capsys.readouterr()
    assert told == ""
    found = json.loads(printed, parse_constant=pytest.fail)
    assert found["store"] == store
    assert found["fingerprint"] == mmapload.open_store(store).fingerprint
    assert (found["samples"], found["samples_measured"], found["batch_size"], found["rounds"]) == (
        12,
        12,
        4,
        1,
    )
    assert found["cold"] is True
    kinds = [rate["kind"] for rate in found["rates"]]
    assert kinds == ["loader"] * 4 + ["copy"] * 2 + ["pread"] * 3 + ["populate"] * 3
    for rate in found["rates"]:
        assert 0 < rate["least"] <= rate["samples_per_second"] <= rate["most"]
        assert len(rate["seconds"]) == 1
    of_loader = found["window_loader"]
    assert (of_loader["batches"], of_loader["samples"]) == (3, 12)
    assert of_loader["views"] + of_loader["copies"] == 3
    assert of_loader["training_waited"] >= 0
    assert of_loader["worker_batches"] is None
    assert found["bound_by"] in {"copying memory", "the disk", "the page cache", "neither", "unknown"}
    assert found["sentence"]
    assert found["machine"]["torch"]


def test_quiet_without_json_still_prints_the_table(store, capsys):
    assert main(["bench", store, "--quiet", *QUICK]) == 0
    printed, told = capsys.readouterr()
    assert "ChunkDataLoader, window" in printed
    assert told == ""


def test_the_store_s_own_batch_size_is_the_default(store, capsys):
    assert main(["bench", store, "--json", "--quiet", *QUICK]) == 0
    assert json.loads(capsys.readouterr().out)["batch_size"] == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--batch-size", "0"],
        ["--rounds", "0"],
        ["--samples", "-1"],
        ["--seconds", "0"],
        ["--seconds", "nan"],
        ["--seconds", "inf"],
        ["--seconds", "soon"],
        ["--warm"],
        ["second"],
    ],
)
def test_wrong_usage_exits_with_2(store, options, capsys):
    assert main(["bench", store, *options]) == 2
    printed, told = capsys.readouterr()
    assert printed == ""
    assert "error: " in told


def one_error(capsys) -> str:
    printed, told = capsys.readouterr()
    assert printed == ""
    assert told.startswith("mmapload: error: ")
    assert told.count("\n") == 1
    return told


def test_a_folder_that_the_store_was_not_made_from_is_refused(store, source, tmp_path, capsys):
    assert main(["bench", store, "--source", str(tmp_path), "--quiet", *QUICK]) == 1
    assert "is not what" in one_error(capsys)
    with open(f"{source}/s_0.npz", "wb") as file:
        np.savez(file, image=np.ones((3, 4), np.uint8), label=np.int64(0))
    assert main(["bench", store, "--source", source, "--quiet", *QUICK]) == 1
    assert "bit by bit" in one_error(capsys)


def test_what_is_no_store_and_a_chunk_that_is_missing_are_errors(store, tmp_path, capsys):
    assert main(["bench", str(tmp_path / "none"), "--quiet"]) == 1
    assert "there is no store at" in one_error(capsys)
    os.remove(f"{store}/image/c.1.0.0")
    assert main(["bench", store, "--quiet"]) == 1
    told = one_error(capsys)
    for part in ("chunk 1 of field 'image', samples 4 to 7 ('s_4.npz'", "no such file", "restore the file"):
        assert part in told


def test_without_torch_it_says_that_it_needs_torch(store):
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from mmapload.cli import main\n"
        "sys.exit(main(['bench', sys.argv[1]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, store], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "mmapload: error: bench measures torch's loaders, and torch is not installed" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_has_examples_and_imports_nothing_that_takes_time():
    script = (
        "import sys; from mmapload.cli import main; main(['bench', '--help'])\n"
        "heavy = {'numpy', 'torch', 'zarr', 'numcodecs', 'tqdm', 'concurrent.futures', 'asyncio'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    printed = subprocess.check_output([sys.executable, "-c", script], timeout=240, text=True)
    assert "examples:\n  mmapload bench train.mml" in printed
    assert max(len(line) for line in printed.splitlines()) <= 110


@pytest.mark.parametrize("with_source", [False, True])
def test_an_interrupt_ends_it_in_one_line_and_leaves_no_process_behind(store, source, with_source):
    """Ctrl-C goes to every process of the terminal's group, workers too."""
    command = [sys.executable, "-X", "faulthandler", *MMAPLOAD[1:]]
    command += ["bench", store, "--rounds", "100000", "--samples", "12"]
    command += ["--source", source] * with_source
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        try:
            assert "measuring" in process.stderr.readline()
            time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)
            printed, told = process.communicate(timeout=90)  # both ends are closed once no process has them
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGABRT)  # it says where each thread is
            pytest.fail(process.communicate()[1])
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)  # it would go on for hours
            raise
    assert (process.returncode, printed) == (130, ""), told
    assert told.splitlines()[-1] == "mmapload: interrupted"
    assert "Traceback" not in told
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
