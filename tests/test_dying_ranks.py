"""A rank dies: the loaders of the others do not hang, whatever the others do about it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.numbered_samples import write_store
from tests.warm_python import run_warm_ranks

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)

ROOT = Path(__file__).parent.parent
STEPS = 15
"""120 samples on 2 ranks, 4 in a batch."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("dying") / "store", 120)


def survivor(store: str, when: str) -> tuple[int, list[str], str]:
    """How rank 0 ended, what it printed, and what it said of errors, once rank 1 had killed itself."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    first, last = run_warm_ranks(2, "-m", "tests.dying_ranks", store, when, cwd=ROOT, env=environment)
    assert last.returncode == -signal.SIGKILL
    assert "Timeout (" not in first.stderr, first.stderr  # faulthandler's: where it hangs
    return first.returncode, first.stdout.splitlines(), first.stderr


@pytest.mark.parametrize("workers", [0, 2])
def test_after_the_error_of_the_collective_a_loader_still_serves_what_is_left_and_the_next_epoch(
    store: str, workers: int
) -> None:
    status, lines, errors = survivor(store, str(workers))
    failed_at = int(lines[0].removeprefix("step ").split(":")[0])
    assert failed_at in {3, 4}  # rank 1 may be gone before rank 0 has all of step 3
    assert lines[1:] == [f"left: {STEPS - failed_at} state: 0", f"next epoch: {STEPS}"], errors
    assert status == 0, errors


def test_an_error_that_nobody_catches_ends_the_process_and_its_workers(store: str) -> None:
    status, lines, errors = survivor(store, "error")
    assert lines in ([f"step {step}" for step in range(1, last + 1)] for last in (3, 4))
    assert status != 0
    assert "RuntimeError" in errors


def test_ranks_that_were_to_agree_on_a_window_with_it_get_the_error_of_the_collective(store: str) -> None:
    status, lines, errors = survivor(store, "before")
    assert lines[0].startswith("not made: "), errors
    assert status == 0, errors
