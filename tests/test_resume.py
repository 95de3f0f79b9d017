"""Where an epoch was left, it goes on: the rest of a resumed run is the rest of the uninterrupted one."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from mmapload import (
    ChunkBatchSampler,
    ChunkDataset,
    ChunkSampler,
)
from tests.numbered_samples import flat, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

KINDS = ("raw", "zstd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def path(folder: Path) -> str:
    """45 samples in 6 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(folder / "store", 45)


def saved(source: Any, *received: int) -> Any:
    """A state as it comes back from a file."""
    return json.loads(json.dumps(source.state_dict(*received)))


# ---- every step of many orders, of samplers alone


def orders(count: int) -> Iterable[tuple[int, int, int, int, dict[str, Any]]]:
    """Samples, chunk length, batch size, world size, and arguments that fit each other."""
    rng = random.Random(20)
    while count:
        chunk = rng.choice((4, 8, 12))
        samples = rng.choice((1, 7, 8, 13, 24, 31))
        ranks, lanes = rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (4, 2)))
        batch = rng.choice((1, 2, 3, 4, 8, 50))
        shuffle = rng.choice((False, "window", "window", "window", "batch", "full"))
        arguments = {
            "shuffle": shuffle,
            "remainder": rng.choice(("keep", "pad", "drop")),
            "seed": rng.randrange(9),
        }
        if shuffle == "window":
            arguments |= {"window": lanes * rng.choice((1, 5, 8, 100)), "lanes": lanes}
        total = batch * ranks
        fits = (
            total % lanes == 0 and lanes <= samples and not (total % 4 and 4 % total and shuffle == "batch")
        )
        kept = arguments["remainder"] != "keep" or not 0 < samples % total < ranks
        if fits and kept:
            count -= 1
            yield samples, chunk, batch, ranks, arguments


@pytest.mark.filterwarnings("ignore:.*do not fill one batch")
def test_at_every_step_of_any_order_the_rest_is_that_of_the_uninterrupted_run(folder: Path) -> None:
    datasets: dict[tuple[int, int], ChunkDataset] = {}
    for samples, chunk, batch, ranks, arguments in orders(240):
        if (samples, chunk) not in datasets:
            name = folder / f"{samples}-{chunk}"
            datasets[samples, chunk] = ChunkDataset(write_store(name, samples, chunk_length=chunk))
        ds = datasets[samples, chunk]
        placed = arguments | {"rank": ranks - 1, "world_size": ranks}
        whole, stopped = (ChunkBatchSampler(ds, batch, **placed) for _ in range(2))
        resumed, by_sample = ChunkBatchSampler(ds, batch, **placed), ChunkSampler(ds, batch, **placed)
        first, second = list(whole), list(whole)
        states = [saved(stopped), *(saved(stopped) for _ in stopped)]
        assert len(states) == len(first) + 1 == len(whole) + 1
        for step, state in enumerate(states):
            resumed.load_state_dict(state)
            assert saved(resumed) == state
            assert (list(resumed), len(resumed)) == (first[step:], len(first)), (step, state)
        middle = len(first) // 2
        by_sample.load_state_dict(states[middle])
        assert list(by_sample) == flat(first[middle:])
        assert list(by_sample) == flat(second)
        resumed.load_state_dict(states[-1])
        assert (list(resumed), list(resumed)) == ([], second)
