"""Plain data-parallel training by torchrun's agent: every sample once, and stopped anywhere, it goes on."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist

from mmapload import ChunkBatchSampler, ChunkDataset
from tests.launched import Run, launch, of_epoch, steps
from tests.numbered_samples import flat

if TYPE_CHECKING:
    from pathlib import Path

    from tests.launched import Ended

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo"
)

EPOCHS = 2
TOGETHER = 12
"""The global batch, on 1, 2, 3 and 4 ranks."""

SAMPLES = 12 * TOGETHER

EVERY = 4
"""Steps from one checkpoint to the next."""


def run(folder: Path, ranks: int, together: int = TOGETHER, samples: int = SAMPLES, **others: Any) -> Run:
    command = ["examples/ddp.py", str(folder), "--batch-size", str(together // ranks), "--verbose"]
    command += ["--epochs", str(EPOCHS), "--every", str(EVERY), "--samples", str(samples)]
    return Run(ranks, command, **others)


def position(checkpoint: Any) -> tuple[int, int]:
    return checkpoint["loader"]["epoch"], checkpoint["loader"]["step"]


class Chain:
    """A training in parts, each killed after so many steps, the last one not; what it has seen in all."""

    def __init__(self, folder: Path, parts: list[tuple[int, int, int | None]]) -> None:
        self.folder = folder
        self.is_of_one_global_batch = {together for _, together, _ in parts} == {TOGETHER}
        self.runs = [run(folder, ranks, together, dies=dies) for ranks, together, dies in parts]

    def samples(self, all_ended: list[Ended]) -> list[list[int]]:
        """Return what led to the model: of each part what came before the checkpoint that the next loads."""
        for each, planned in zip(all_ended, self.runs, strict=True):
            assert each.failed == (planned.dies is not None), each.errors
        seen: list[list[int]] = [[] for _ in range(EPOCHS)]
        for ended, planned in zip(all_ended, self.runs, strict=True):
            begun = steps(ended)
            if planned.dies is not None:
                assert planned.dies - 1 <= len(begun) <= planned.dies
            if not begun:
                continue
            epoch, step, samples = begun[0]
            resumed_at = (step - 1) * len(samples)
            assert resumed_at <= len(seen[epoch])
            again = seen[epoch][resumed_at:]
            del seen[epoch][resumed_at:]
            for each, _, numbers in begun:
                seen[each] += numbers
            # What had come after the checkpoint comes again, and it is the same.
            assert len(again) < EVERY * TOGETHER
            assert seen[epoch][resumed_at : resumed_at + len(again)] == again[: len(seen[epoch]) - resumed_at]
        return seen


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ddp")


@pytest.fixture(scope="module")
def chains(folder: Path) -> list[Chain]:
    """Each goes on with other ranks, and the last with another global batch where the position allows."""
    every = [
        [(2, 12, 7), (3, 12, 7), (4, 12, 9), (1, 12, None)],  # the third is killed in the second epoch
        [(4, 12, 1), (4, 12, 6), (2, 8, 7), (3, 12, None)],  # the first before its first checkpoint
    ]
    return [Chain(folder / f"chain{number}", parts) for number, parts in enumerate(every)]


@pytest.fixture(scope="module")
def ended(folder: Path, chains: list[Chain]) -> dict[str, list[Ended]]:
    """All runs, of one process: uninterrupted ones, some over a store that they do not share evenly."""
    runs = {"even": [run(folder / f"even{ranks}", ranks) for ranks in (1, 2, 3, 4)]}
    runs["odd"] = [run(folder / "odd", 3, samples=101)]
    runs |= {f"chain{number}": chain.runs for number, chain in enumerate(chains)}
    for each in itertools.chain.from_iterable(runs.values()):
        os.makedirs(each.command[1], exist_ok=True)
    done = iter(launch(list(itertools.chain.from_iterable(runs.values()))))
    return {name: list(itertools.islice(done, len(each))) for name, each in runs.items()}


def test_on_1_to_4_ranks_every_sample_comes_once_an_epoch_and_each_epoch_in_another_order(
    ended: dict[str, list[Ended]],
) -> None:
    for each in ended["even"]:
        assert not each.failed, each.errors
        orders = [of_epoch(each, epoch) for epoch in range(EPOCHS)]
        assert [len(order) for order in orders] == [12, 12]
        assert all(sorted(flat(order)) == list(range(SAMPLES)) for order in orders)
        assert orders[0] != orders[1]


def test_the_number_of_ranks_changes_no_global_batch_nor_what_is_learned_from_them(
    folder: Path, ended: dict[str, list[Ended]]
) -> None:
    whole = ChunkBatchSampler(ChunkDataset(folder / "even1" / "store"), TOGETHER, window=64)
    order = [(epoch, step, batch) for epoch in range(EPOCHS) for step, batch in enumerate(whole, 1)]
    assert all(steps(each) == order for each in ended["even"])
    trained = [torch.load(folder / f"even{ranks}" / "checkpoint.pt") for ranks in (1, 2, 3, 4)]
    for each in trained[1:]:
        torch.testing.assert_close(each["model"], trained[0]["model"])
        assert position(each) == position(trained[0]) == (EPOCHS - 1, 12)


def test_what_does_not_fill_the_last_global_batch_is_padded_on_every_rank(
    ended: dict[str, list[Ended]],
) -> None:
    for each in ended["odd"]:
        assert not each.failed, each.errors
        for epoch in range(EPOCHS):
            seen = of_epoch(each, epoch)
            assert set(flat(seen)) == set(range(101))
            assert [len(batch) for batch in seen] == [12] * 9


@pytest.mark.parametrize("number", range(2))
def test_killed_at_any_step_and_resumed_on_other_ranks_training_sees_what_it_would_have_seen(
    number: int, folder: Path, ended: dict[str, list[Ended]], chains: list[Chain]
) -> None:
    chain = chains[number]
    seen = chain.samples(ended[f"chain{number}"])
    assert seen == [flat(of_epoch(ended["even"][0], epoch)) for epoch in range(EPOCHS)]
    if chain.is_of_one_global_batch:
        resumed, whole = (torch.load(path / "checkpoint.pt") for path in (chain.folder, folder / "even1"))
        torch.testing.assert_close(resumed["model"], whole["model"])
        assert position(resumed) == position(whole)
