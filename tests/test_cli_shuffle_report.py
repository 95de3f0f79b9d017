"""`mmapload shuffle-report`: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import mmapload
from mmapload.cli import main


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """400 samples in 25 chunks of 16, sorted by their 4 classes."""
    samples = [
        {"x": np.full(16, number % 251, np.uint8), "y": np.int64(number // 100)} for number in range(400)
    ]
    return mmapload.preprocess(samples, tmp_path_factory.mktemp("cli") / "store", 8, chunk_bytes=256).path


def test_a_table_has_each_figure_beside_a_full_shuffle_and_the_last_line_is_one_sentence(store, capsys):
    assert main(["shuffle-report", store, "--label", "y", "--window", "48", "--ranks", "2"]) == 0
    printed, told = capsys.readouterr()
    assert told == ""
    heads, figures, sentence = printed.rstrip("\n").split("\n\n")
    assert heads.splitlines() == [
        f"store     {store}",
        "samples   400 in chunks of 16, written in its source's order",
        "order     window 48, batches of 16 (2 ranks), seed 0",
        "measured  all 100 batches of 4 epochs",
        "labels    field y, 4 values seen in 100 batches of either order",
    ]
    lines = figures.splitlines()
    assert lines[0].split("  ")[-1].strip() == "closed form"
    assert [line.partition("  ")[0] for line in lines[1:]] == [
        "a sample moves by",
        "samples of a chunk are apart",
        "pairs in a batch from one chunk",
        "label entropy of a batch, bits",
        "the window that halves these pairs",
    ]
    assert sentence.startswith(
        "window 48 over a store written in order mixes samples within 12 % of the stored"
    )
    assert "preprocess with --shuffle, or widen the window to " in sentence
    assert "\n" not in sentence


def test_json_is_one_object_with_the_numbers_of_the_python_function(store, capsys):
    assert (
        main(["shuffle-report", store, "--json", "--shuffle", "batch", "--seed", "3", "--epochs", "2"]) == 0
    )
    printed, told = capsys.readouterr()
    assert told == ""
    found = json.loads(printed, parse_constant=pytest.fail)
    quality = mmapload.shuffle_quality(store, shuffle="batch", seed=3, epochs=2)
    assert found["same_chunk"] == {
        "found": quality.same_chunk.found,
        "uniform": quality.same_chunk.uniform,
        "ratio": quality.same_chunk.ratio,
        "closed_form": 1.0,
    }
    assert (found["batches"], found["batches_looked_at"], found["sampled"]) == (100, 100, False)
    assert (found["shuffle"], found["window"], found["global_batch"]) == ("batch", None, 8)
    assert found["label_entropy"] is None
    assert found["advice"] == quality.advice


def test_what_was_sampled_is_said_to_be(store, capsys, monkeypatch):
    monkeypatch.setattr("mmapload.quality.report._WHOLE", 800)
    assert main(["shuffle-report", store]) == 0
    printed = capsys.readouterr().out
    assert "mixes all of the stored data: samples of one chunk meet no more often" in printed
    assert "measured  100 of 200 batches of 4 epochs: a sample, spread evenly" in printed
    assert "samples of a chunk are apart" not in printed


@pytest.mark.parametrize("options", [[], ["--shuffle", "batch"], ["--batch-size", "1"]])
def test_the_plot_is_a_small_png(store, tmp_path, capsys, options):
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib, which the bench extra brings")
    target = tmp_path / "order.png"
    assert main(["shuffle-report", store, "--plot", str(target), *options]) == 0
    content = target.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert len(content) < 100_000
    assert os.listdir(tmp_path) == ["order.png"]


def test_without_matplotlib_the_plot_names_the_extra_and_the_report_works(store, tmp_path):
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from mmapload.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )

    def run(*options):
        command = [sys.executable, "-c", script, "shuffle-report", store, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    refused = run("--plot", str(tmp_path / "order.png"))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        'mmapload: error: --plot needs matplotlib, which is not installed: pip install "mmapload[bench]"\n'
    )
    assert run().returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        ["--label", "z"],
        ["--label", "x"],
        ["--shuffle", "none"],
        ["--shuffle", "batch", "--window", "64"],
        ["--shuffle", "batch", "--batch-size", "12"],
        ["--window", "0"],
        ["--window", "auto"],
        ["--epochs", "0"],
        ["--ranks", "0"],
        ["--ranks", "401"],
        ["--seed", str(2**64)],
        ["second"],
    ],
)
def test_wrong_usage_exits_with_2(store, options, capsys):
    assert main(["shuffle-report", store, *options]) == 2
    printed, told = capsys.readouterr()
    assert printed == ""
    assert "error: " in told


def test_what_is_no_store_and_a_chunk_of_labels_that_is_missing_are_errors(tmp_path, capsys):
    assert main(["shuffle-report", str(tmp_path / "none")]) == 1
    assert "there is no store at" in capsys.readouterr().err
    samples = [{"x": np.zeros(4), "y": np.int64(number)} for number in range(12)]
    path = mmapload.preprocess(samples, tmp_path / "store", 4, chunk_bytes=128).path
    os.remove(f"{path}/y/c.1")
    assert main(["shuffle-report", path, "--label", "y"]) == 1
    told = capsys.readouterr().err
    assert "chunk 1 of field 'y', samples 4 to 7" in told
    assert main(["shuffle-report", path]) == 0


def test_help_has_examples_and_imports_nothing_that_takes_time():
    script = (
        "import sys; from mmapload.cli import main; main(['shuffle-report', '--help'])\n"
        "heavy = {'numpy', 'torch', 'zarr', 'numcodecs', 'tqdm', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    printed = subprocess.check_output([sys.executable, "-c", script], timeout=240, text=True)
    assert "examples:\n  mmapload shuffle-report train.mml" in printed
    assert max(len(line) for line in printed.splitlines()) <= 110


def test_the_report_needs_neither_torch_nor_zarr_nor_matplotlib(store):
    script = (
        "import sys; from mmapload.cli import main; main(sys.argv[1:])\n"
        "heavy = {'torch', 'zarr', 'numcodecs', 'matplotlib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.check_output(
        [sys.executable, "-c", script, "shuffle-report", store, "--label", "y"], timeout=60
    )
