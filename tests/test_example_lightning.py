"""PyTorch Lightning: its example, stopped and resumed, and what Lightning does to loaders of mmapload."""

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
        importlib.util.find_spec("lightning") is None, reason="lightning is not installed: mmapload[loops]"
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
    folder = tmp_path_factory.mktemp("lightning")

    def run(name: str, ranks: int, **others: Any) -> Run:
        os.makedirs(folder / name, exist_ok=True)
        command = ["examples/lightning_loop.py", str(folder / name), "--devices", str(ranks), "--verbose"]
        return Run(ranks, [*command, "--batch-size", str(12 // ranks)], **others)

    store = write_store(folder / "store", 120)
    runs = [run("whole", 2), run("stopped", 2, dies=27), run("stopped", 1)]
    runs.append(Run(2, ["tests/lightning_ranks.py", store, str(folder)]))
    ended = launch(runs, "lightning")
    assert [each.failed for each in ended] == [False, True, False, False], [each.errors for each in ended]
    ranks = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return Found(store, *ended[:3], ranks)


def test_every_sample_comes_once_an_epoch_and_each_epoch_in_another_order(found: Found) -> None:
    orders = [of_epoch(found.whole, epoch) for epoch in range(2)]
    assert all(sorted(flat(order)) == list(range(240)) for order in orders)
    assert orders[0] != orders[1]


def test_on_two_ranks_as_on_one_every_sample_is_validated_once(found: Found) -> None:
    for each in (found.whole, found.resumed):
        assert each.out[0].count("over 50 samples") == len({epoch for epoch, _, _ in steps(each)})


def test_killed_in_mid_epoch_and_resumed_on_one_rank_training_goes_on_from_the_checkpoint(
    found: Found,
) -> None:
    whole = steps(found.whole)
    assert whole[:26] == steps(found.killed)[:26]
    assert steps(found.resumed) == whole[24:]
    assert found.resumed.out[0].splitlines()[-1] == found.whole.out[0].splitlines()[-1]  # and learns the same


def test_a_loader_that_is_made_where_ranks_are_known_keeps_its_order(found: Found) -> None:
    parts = [rank["late"] for rank in found.ranks]
    whole = list(ChunkBatchSampler(ChunkDataset(found.store), 8))
    assert [first + second for first, second in zip(*parts, strict=True)] == whole


def test_a_loader_that_was_made_before_the_trainer_has_ranks_is_refused(found: Found) -> None:
    for rank in found.ranks:
        assert "was made for rank 0 of 1, and torch.distributed has 2 ranks now" in rank["early"]
        assert "in Lightning in train_dataloader()" in rank["early"]


def test_where_lightning_makes_samplers_anew_it_fails_and_torchs_loader_stands_in(found: Found) -> None:
    for rank in found.ranks:
        assert rank["predicting"].startswith("TypeError: ")
        assert rank["overfit"].startswith("TypeError: ")
    assert sorted(flat(flat(rank["predicted"] for rank in found.ranks))) == list(range(120))
