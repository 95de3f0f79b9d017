"""What the README, the examples and the benchmarks say is run."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.warm_python import run_warm, run_warm_ranks

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).parent.parent


TORCH_TEARDOWN = "terminate called without an active exception"
"""What gloo's threads say now and then when they let go of a collective while Python is already ending."""


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a process has printed that did not fail."""
    assert done.returncode == 0 or TORCH_TEARDOWN in done.stderr, done.stdout + done.stderr
    return done.stdout


def run(*command: str) -> str:
    return said(run_warm(*command, cwd=ROOT))


def test_the_python_code_in_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        run(str(script))


def test_every_page_that_is_linked_is_there() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_training_example_learns_in_one_process() -> None:
    assert "epoch 2" in run("examples/train.py")


def test_the_training_example_runs_on_two_ranks_with_equal_steps() -> None:
    out = "".join(map(said, run_warm_ranks(2, "examples/train.py", cwd=ROOT)))
    assert sorted(re.findall(r"rank (\d), epoch (\d)", out)) == [(r, e) for r in "01" for e in "012"]
    assert out.count("over 8 steps") == 6


def test_the_benchmark_runs_small_and_prints_a_table(tmp_path: Path) -> None:
    out = run(
        "benchmarks/compare_npz.py", "--work", str(tmp_path), "--samples", "40", "--height", "16",
        "--width", "24", "--batch-size", "8", "--rounds", "1", "--settings", "warm",
    )  # fmt: skip
    assert "| ChunkDataLoader, window |" in out


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="a checkout without its CI script")
def test_ci_runs_the_command_that_the_readme_names() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    assert "make test" in script
    assert "make test" in (ROOT / "README.md").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
