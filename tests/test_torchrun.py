"""1 to 4 ranks by torchrun's command: every sample once, equal steps, one window, epochs as by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
import torch.distributed as dist

from mmapload import ChunkBatchSampler, ChunkDataset
from tests.numbered_samples import flat, write_store
from tests.warm_python import run_warm

if TYPE_CHECKING:
    from collections.abc import Iterator

Ranks: TypeAlias = "list[dict[str, Any]]"

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """240 samples, which 1 to 4 ranks share evenly in batches of 4; and 101, which none do."""
    folder = tmp_path_factory.mktemp("stores")
    return write_store(folder / "even", 240), write_store(folder / "odd", 101, codec="zstd")


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def ranks(
    request: pytest.FixtureRequest, stores: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Ranks:
    """What each rank found."""
    out = tmp_path_factory.mktemp("ranks")
    command = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command.append(f"--nproc-per-node={request.param}")
    training = ["tests.ranked_training", *stores, str(out)]
    options: dict[str, Any] = {
        "cwd": ROOT,
        "env": {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        "timeout": 240,
    }
    if request.param == 2:  # as users start it, once: torchrun and each of its ranks import torch
        ran = subprocess.run(
            [sys.executable, *command, "-m", *training],
            capture_output=True, text=True, check=False, **options,
        )  # fmt: skip
    else:  # torchrun's own options have it fork its ranks, so that none imports torch anew
        script = os.path.join(ROOT, "tests", "ranked_training.py")
        ran = run_warm(*command, "--run-path", "--start-method=fork", script, *training[1:], **options)
    assert ran.returncode == 0, ran.stderr
    found = []
    for rank in range(request.param):
        with open(out / f"{rank}.json") as file:
            found.append(json.load(file))
    return found


def epochs(ranks: Ranks, name: str) -> Iterator[list[list[list[int]]]]:
    """Yield epoch by epoch each rank's batches, once their number has been found to be the same."""
    for epoch in zip(*(rank[name] for rank in ranks), strict=True):
        assert len({len(batches) for batches in epoch}) == 1
        yield list(epoch)


@pytest.mark.parametrize("name", ["even", "even, workers", "shrunken"])
def test_ranks_that_share_evenly_get_every_sample_once_in_full_batches(ranks: Ranks, name: str) -> None:
    for epoch in epochs(ranks, name):
        assert sorted(flat(map(flat, epoch))) == list(range(240))
        assert {len(batch) for batches in epoch for batch in batches} == {4}


def test_what_is_kept_is_every_sample_once(ranks: Ranks) -> None:
    for epoch in epochs(ranks, "keep"):
        assert sorted(flat(map(flat, epoch))) == list(range(101))


def test_what_is_padded_is_every_sample_and_less_than_a_global_batch_more(ranks: Ranks) -> None:
    for epoch in epochs(ranks, "pad"):
        seen = flat(map(flat, epoch))
        assert set(seen) == set(range(101))
        assert len(seen) < 101 + 4 * len(ranks)
        assert {len(batch) for batches in epoch for batch in batches} == {4}


def test_what_is_dropped_is_less_than_a_global_batch(ranks: Ranks) -> None:
    for epoch in epochs(ranks, "drop"):
        seen = flat(map(flat, epoch))
        assert len(set(seen)) == len(seen) == 101 // (4 * len(ranks)) * 4 * len(ranks)


def test_the_default_is_keep_for_one_rank_and_pad_for_several(ranks: Ranks) -> None:
    for epoch in epochs(ranks, "default"):
        assert len(flat(map(flat, epoch))) == (
            101 if len(ranks) == 1 else -(-101 // (4 * len(ranks))) * 4 * len(ranks)
        )
    for epoch in epochs(ranks, "sequential"):
        assert sorted(set(flat(map(flat, epoch)))) == list(range(101))


def test_epochs_differ_and_are_those_of_one_rank_with_the_global_batch(
    ranks: Ranks, stores: tuple[str, str]
) -> None:
    whole = ChunkBatchSampler(ChunkDataset(stores[0]), 4 * len(ranks))
    orders = []
    for epoch in epochs(ranks, "even"):
        steps = [flat(batches) for batches in zip(*epoch, strict=True)]
        assert steps == list(whole)
        orders.append(flat(steps))
    assert orders[0] != orders[1]


def test_ranks_agree_on_the_window_that_fits_the_least_memory_and_one_of_them_says_so(
    ranks: Ranks, stores: tuple[str, str]
) -> None:
    window = {1: 48, 2: 40, 3: 24, 4: 24}[len(ranks)]  # rank 0's, rank 1's, rank 2's twice
    assert [rank["window"] for rank in ranks] == [window] * len(ranks)
    assert all(f"window={window} " in message for rank in ranks for message in rank["warnings"])
    whose = "the dataset's memory budget of" if len(ranks) == 1 else "the memory budget of another rank"
    assert all(whose in message for message in ranks[0]["warnings"])
    assert [len(rank["warnings"]) for rank in ranks] == [2, *[0] * (len(ranks) - 1)]  # of two samplers
    whole = ChunkBatchSampler(ChunkDataset(stores[0]), 4 * len(ranks), window=window)
    for epoch in epochs(ranks, "shrunken"):
        assert [flat(batches) for batches in zip(*epoch, strict=True)] == list(whole)


def test_with_lanes_of_their_own_ranks_decode_each_chunk_once_and_are_told_of_it(ranks: Ranks) -> None:
    for epoch in epochs(ranks, "apart"):
        assert sorted(flat(map(flat, epoch))) == list(range(101))
    # Both epochs, in memory for all: a chunk that the border of two lanes cuts is decoded on either side.
    assert 13 <= sum(rank["decoded"] for rank in ranks) <= 2 * (13 + len(ranks) - 1)
    told = [len(rank["advice"]) for rank in ranks]
    assert told == [0] if len(ranks) == 1 else told == [1] + [0] * (len(ranks) - 1)
    assert all(f"lanes={len(ranks)} " in message for message in ranks[0]["advice"])
