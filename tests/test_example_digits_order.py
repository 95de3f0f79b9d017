"""The example that shows what order costs: its training on made-up digits, and the whole where it can run."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

SCRIPT = Path(__file__).parent.parent / "examples" / "digits_order.py"


def load_example() -> Any:
    spec = importlib.util.spec_from_file_location("digits_order", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


example = load_example()


def test_on_made_up_digits_sorted_by_class_a_full_shuffle_learns_and_the_order_they_are_in_does_not(capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    labels = np.arange(400) % 10
    images = random.random((10, 64))[labels] + 0.1 * random.normal(size=(400, 64))
    orders = [order for order in example.ORDERS if order.name in {"full shuffle", "in order"}]
    found = example.compare(example.Digits(images.astype(np.float32), labels), orders, seeds=1, epochs=2)
    torch.set_num_threads(threads)
    assert found["full shuffle"][0] > 0.9
    assert found["in order"][0] < 0.5
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "320 digits in batches of 16, 80 for the test; epochs: 2, seeds: 1"
    assert [line.split("|")[1].strip() for line in lines[3:]] == ["full shuffle", "in order"]


@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("sklearn", "matplotlib"))),
    reason="the digits come with scikit-learn and the figure with matplotlib: mmapload[examples]",
)
def test_the_example_runs_small_on_the_real_digits(tmp_path):
    figure = tmp_path / "digits.png"
    command = [
        sys.executable,
        SCRIPT,
        "--seeds",
        "1",
        "--epochs",
        "2",
        "--only",
        "window 1,024",
        "--figure",
        figure,
    ]
    out = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ).stdout
    (accuracy,) = re.findall(r"^\| window 1,024 \|.*\| ([\d.]+)% \| [^|]* \|$", out, re.MULTILINE)
    assert float(accuracy) > 30
    assert figure.read_bytes().startswith(b"\x89PNG\r\n")
    assert figure.stat().st_size < 60_000


def test_without_scikit_learn_it_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SystemExit, match=r'pip install "mmapload\[examples\]"'):
        example.load_digits()
