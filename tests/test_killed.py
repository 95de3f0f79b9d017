"""Runs that are killed at random moments: the same command makes each good, byte for byte.

MMAPLOAD_KILLS sets how often each kind of run is killed; `make fuzz` sets 100.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.warm_python import run_warm

KILLS = int(os.environ.get("MMAPLOAD_KILLS", "6"))

pytestmark = pytest.mark.timeout(300 + 60 * KILLS)


@pytest.mark.parametrize("kind", ["files", "rows", "ragged", "append", "export"])
def test_killed_at_any_moment_with_two_jobs_it_ends_as_if_undisturbed(kind: str) -> None:
    # A killed process loses nothing that it gave to the system, flushed or not: memory serves, and is faster.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        root = Path(__file__).parents[1]
        done = run_warm("-m", "tests.killing", kind, folder, KILLS, cwd=root, timeout=250 + 50 * KILLS)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    assert f"{kind}: {KILLS} killed" in done.stdout
