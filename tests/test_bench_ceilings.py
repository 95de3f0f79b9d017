"""Stores that claim more samples than anybody has: a benchmark ends soon, and lists no file by a claim."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.loading_cases import random_arrays, unseal, write_store
from tests.warm_python import run_warm

if TYPE_CHECKING:
    import subprocess

    from mmapload.store import Store


def claim(store: Store, samples: int) -> None:
    """Let metadata promise so many samples in all fields."""
    unseal(store.path)
    root = Path(store.path, "zarr.json")
    told = json.loads(root.read_text())
    told["attributes"]["mmapload"]["samples"] = samples
    root.write_text(json.dumps(told))
    for name in store.fields:
        path = Path(store.path, name, "zarr.json")
        told = json.loads(path.read_text())
        told["shape"][0] = samples
        path.write_text(json.dumps(told))


def bench(store: Store) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, which has not ended after two minutes where it hangs."""
    return run_warm("-m", "mmapload", "bench", store.path, "--seconds", "0.1", "--quiet", timeout=120)


@pytest.mark.parametrize("samples", [10**8, 2**52])
def test_chunks_that_are_claimed_and_not_there_are_counted_in_an_error(tmp_path, samples):
    store = write_store(tmp_path / "store", random_arrays(8, x=("u1", (9,)), y=("f4", (0,))), 4)
    claim(store, samples)
    done = bench(store)
    assert (done.returncode, done.stdout) == (1, "")
    assert "chunk 2 of field 'x', samples 8 to 11: expected a chunk file" in done.stderr
    assert f"found no such file (and {samples // 4 - 3:,} more)" in done.stderr
    assert done.stderr.count("\n") == 1


def test_empty_samples_have_no_files_however_many_are_claimed(tmp_path):
    store = write_store(tmp_path / "store", random_arrays(8, x=("u1", (0,))), 4)
    claim(store, 2**53)
    done = bench(store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "of 9,007,199,254,740,992 samples, 0 B each" in done.stdout
    assert "chunk files, pread" not in done.stdout
