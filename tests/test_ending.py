"""A program that ends in the middle of an epoch ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tests.numbered_samples import write_store

if TYPE_CHECKING:
    import pytest

ENDING = """
import sys, mmapload

stores = [mmapload.ChunkDataset(path) for path in sys.argv[1:]]
mixed = iter(mmapload.MixedBatchSampler(mmapload.MixedDataset(stores[:2]), 4, [1, 1]))
alone = iter(mmapload.ChunkBatchSampler(stores[2], 4))
print(len(next(mixed)), len(next(alone)), flush=True)
for each in stores:
    each.residency._lock.acquire()  # as a thread may have it, which goes on no more
"""


def test_a_program_ends_with_iterators_left_over_wherever_the_threads_that_load_are_stopped(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    paths = [write_store(folder / name, 40) for name in ("one", "other", "third")]
    root = Path(__file__).parent.parent
    ended = subprocess.run(
        [sys.executable, "-c", ENDING, *paths],
        cwd=root, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "4 4\n", "")
