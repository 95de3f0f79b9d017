"""A run that is killed at any point leaves what the next run makes good.

Tried is a kill before each kind of system call; MMAPLOAD_KILLS, which `make fuzz` sets, tries all calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.preprocessing_cases import samples, write_npz

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("mode", ["new", "overwrite", "skip"])
def test_killed_before_any_system_call_it_ends_as_if_undisturbed(tmp_path: Path, mode: str) -> None:
    source = write_npz(tmp_path / "in", samples(3))
    # A killed process loses nothing that it gave to the system, flushed or not: memory serves, and is faster.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash_points", str(source), folder, mode],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    killed, _, calls = done.stdout.split()
    assert int(killed) > (90 if os.environ.get("MMAPLOAD_KILLS") else 35)
    assert int(calls) > 90
