"""Hugging Face Accelerate: its example, and that samples are divided among ranks once, whoever does it."""

from __future__ import annotations

import importlib.util
import json
import os
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from mmapload import ChunkBatchSampler, ChunkDataset
from tests.launched import Ended, Run, launch, of_epoch, steps
from tests.numbered_samples import flat, write_store

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed: mmapload[loops]"
    ),
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
    ),
]


class Found(NamedTuple):
    """What came of all runs: of the example, and what each of two ranks has found."""

    store: str
    whole: Ended
    killed: Ended
    resumed: Ended
    ranks: list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("accelerate")

    def run(name: str, ranks: int, **others: Any) -> Run:
        os.makedirs(folder / name, exist_ok=True)
        command = ["examples/accelerate_loop.py", str(folder / name), "--cpu", "--verbose"]
        return Run(ranks, [*command, "--batch-size", str(12 // ranks)], **others)

    store = write_store(folder / "store", 120)
    runs = [run("whole", 2), run("stopped", 2, dies=26), run("stopped", 1)]
    runs.append(Run(2, ["tests/divided_ranks.py", store, str(folder)]))
    ended = launch(runs, "accelerate")
    assert [each.failed for each in ended] == [False, True, False, False], [each.errors for each in ended]
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return Found(store, *ended[:3], ranks)


def test_the_example_serves_every_sample_once_an_epoch_to_one_process_or_the_other(found: Found) -> None:
    orders = [of_epoch(found.whole, epoch) for epoch in range(2)]
    assert all(sorted(flat(order)) == list(range(240)) for order in orders)
    assert orders[0] != orders[1]
    assert "epoch 1, step 20 of 20" in found.whole.out[0]


def test_the_example_goes_on_from_its_checkpoint_in_mid_epoch_with_another_number_of_processes(
    found: Found,
) -> None:
    whole = steps(found.whole)
    assert steps(found.killed) == whole[:25]
    assert steps(found.resumed) == whole[24:]


def test_what_was_divided_among_ranks_is_not_divided_by_accelerate_again(found: Found) -> None:
    for rank, of_rank in enumerate(found.ranks):
        for message in of_rank["twice"]:
            assert message.startswith("Accelerate would divide these batches among its processes again")
            assert f"those of rank {rank} of 2 already" in message
            assert "leave it out of accelerator.prepare(), and give it device=accelerator.device" in message
        assert sorted(flat(map(flat, (each["left out"][0] for each in found.ranks)))) == list(range(120))
    assert found.ranks[0]["sent"] == found.ranks[0]["twice"][0]


def test_a_sampler_for_one_rank_may_be_divided_by_accelerate_into_the_same_global_batches(
    found: Found,
) -> None:
    whole = list(ChunkBatchSampler(ChunkDataset(found.store), 8))
    for each in range(2):
        parts = [rank["by Accelerate"][each] for rank in found.ranks]
        assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_a_loader_that_was_made_before_there_were_ranks_is_not_served_to_each_of_them(found: Found) -> None:
    for rank in found.ranks:
        assert rank["alone"] == 30
        for message in rank["early"]:
            assert "was made for rank 0 of 1, and torch.distributed has 2 ranks now" in message
            assert "Make it after init_process_group" in message
