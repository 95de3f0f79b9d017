"""A transform's generator is keyed by seed, epoch and sample: nobody shares it, and a resumed run has it."""

from __future__ import annotations

import functools
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler
from mmapload.streams import DrawnNumber, Stream, rng_passing, streams_of
from tests.numbered_samples import write_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SEED = 3


def noisy(sample: dict[str, torch.Tensor], rng: np.random.Generator) -> dict[str, Any]:
    """Leave of a sample its number and what it draws."""
    return {"number": sample["number"], "noise": int(rng.integers(2**62))}


def by_place(sample: dict[str, torch.Tensor], generator: np.random.Generator) -> dict[str, Any]:
    """The same, by another name."""
    return noisy(sample, generator)


def expected(number: int, epoch: int = 0, seed: int = SEED) -> int:
    """What a sample draws first."""
    return int(Stream(seed, epoch).rng(number).integers(2**62))


@pytest.fixture(scope="module")
def raw_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """45 samples in 6 chunks of 8."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 45)


@pytest.fixture(scope="module", params=["raw", "zstd"])
def path(tmp_path_factory: pytest.TempPathFactory, raw_path: str, request: pytest.FixtureRequest) -> str:
    """The same in two codecs: workers read the one, and are given what is read of the other."""
    zstd = request.param == "zstd"
    return write_store(tmp_path_factory.mktemp("data") / "store", 45, codec="zstd") if zstd else raw_path


def drawn(loader: Iterable[Any]) -> dict[int, int]:
    """What each sample of an epoch drew."""
    found: dict[int, int] = {}
    for batch in loader:
        found |= dict(zip(batch["number"].tolist(), batch["noise"].tolist(), strict=True))
    return found


def all_expected(epoch: int) -> dict[int, int]:
    return {number: expected(number, epoch) for number in range(45)}


# ---- the generators


def test_the_stream_is_that_of_philox_as_documented() -> None:
    rng = Stream(seed=2**64 - 1, epoch=5).rng(7)
    twin = np.random.Generator(np.random.Philox(counter=7 << 192, key=(5 << 64) | (2**64 - 1)))
    assert (rng.integers(2**62, size=4) == twin.integers(2**62, size=4)).all()
    # Raw words, which numpy promises to keep.
    words = Stream(seed=1, epoch=2).rng(3).bit_generator.random_raw(3).tolist()
    assert words == [1170280437898119671, 13051159143091778299, 5120089422708784769]


def test_seed_epoch_and_sample_each_change_what_is_drawn() -> None:
    streams = [
        Stream(seed, epoch).rng(sample) for seed in range(4) for epoch in range(4) for sample in range(4)
    ]
    assert len({rng.bytes(8) for rng in streams}) == 64


def test_numbers_know_their_stream_in_another_process() -> None:
    numbers = Stream(1, 2).numbers([4, 5])
    sent = pickle.loads(pickle.dumps(numbers))
    assert sent == [4, 5]
    assert (streams_of(sent), streams_of([4, 5])) == ([Stream(1, 2)] * len(sent), None)
    assert type(sent[0]) is DrawnNumber


class Module(torch.nn.Module):
    def forward(self, sample: Any, rng: Any) -> Any:
        return noisy(sample, rng)


class Plain(torch.nn.Module):
    def forward(self, sample: Any) -> Any:
        return sample


class Augmentation:
    def __call__(self, sample: Any, rng: Any) -> Any:
        return noisy(sample, rng)

    def method(self, sample: Any, *, rng: Any = None) -> Any:
        return noisy(sample, rng)


@pytest.mark.parametrize(
    ("transform", "passing"),
    [
        (noisy, "by name"),
        (by_place, "by place"),
        (Augmentation(), "by name"),
        (Augmentation().method, "by name"),
        (Module(), "by name"),
        (functools.partial(by_place), "by place"),
        (functools.partial(noisy, rng=None), None),
        (Plain(), None),
        (dict, None),
        (lambda *samples: samples, None),
        (lambda sample, size=3: sample, None),
        (lambda a, b, c: a, None),
        (None, None),
    ],
)
def test_a_generator_goes_to_transforms_that_ask_for_one(transform: Any, passing: str | None) -> None:
    assert rng_passing(transform) == passing


# ---- datasets and loaders


def test_a_sample_asked_for_by_its_number_has_the_stream_of_seed_0_and_epoch_0(path: str) -> None:
    for transform in (noisy, by_place, Module(), Augmentation().method):
        ds = ChunkDataset(path, transform=transform)
        assert ds[-1]["noise"] == ds[44]["noise"] == expected(44, 0, seed=0)
    ds.transform = None
    assert ds[0]["flow"].shape == (4,)
    ds.transform = by_place
    assert ds[0]["noise"] == expected(0, 0, seed=0)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sample_of_every_epoch_draws_its_own_whoever_prepares_it(path: str, workers: int) -> None:
    for transform in (noisy, by_place):
        ds = ChunkDataset(path, transform=transform)
        loader = ChunkDataLoader(ds, 4, True, seed=SEED, num_workers=workers, persistent_workers=workers > 0)
        epochs = [drawn(loader) for _ in range(2)]
        assert epochs == [all_expected(0), all_expected(1)]
        assert len({noise for epoch in epochs for noise in epoch.values()}) == 90


def test_so_do_samples_prepared_in_threads_for_a_transform_of_batches(path: str) -> None:
    ds = ChunkDataset(path, transform=noisy)
    loader = ChunkDataLoader(ds, 4, "full", seed=SEED, batch_transform=dict)
    assert [drawn(loader), drawn(loader)] == [all_expected(0), all_expected(1)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ChunkSampler, ChunkBatchSampler])
def test_so_do_those_of_the_plain_dataloader(path: str, workers: int, kind: Callable[..., Any]) -> None:
    ds = ChunkDataset(path, transform=noisy)
    sampler = kind(ds, 4, seed=SEED)
    where = {"sampler": sampler, "batch_size": 4} if kind is ChunkSampler else {"batch_sampler": sampler}
    loader: Any = DataLoader(ds, num_workers=workers, **where)
    assert [drawn(loader), drawn(loader)] == [all_expected(0), all_expected(1)]


def test_so_do_those_of_workers_that_are_spawned(raw_path: str) -> None:
    loader = ChunkDataLoader(
        ChunkDataset(raw_path, transform=noisy),
        4,
        True,
        seed=SEED,
        num_workers=1,
        multiprocessing_context="spawn",
    )
    loader.set_epoch(5)
    assert drawn(loader) == all_expected(5)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_run_augments_alike(path: str, workers: int) -> None:
    loaders = [
        ChunkDataLoader(ChunkDataset(path, transform=noisy), 4, True, seed=SEED, num_workers=workers)
        for _ in range(2)
    ]
    loaders[0].set_epoch(2)
    for step, _ in enumerate(loaders[0]):
        if step == 4:
            break
    loaders[1].load_state_dict(loaders[0].state_dict())
    rest = drawn(loaders[1])
    assert len(rest) == 25
    assert rest.items() <= all_expected(2).items()


def test_single_samples_know_their_epoch_too(path: str) -> None:
    ds = ChunkDataset(path, transform=noisy)
    sampler = ChunkSampler(ds, 4, seed=SEED)
    sampler.set_epoch(1)
    loader: Any = DataLoader(ds, batch_size=None, sampler=sampler)
    assert {int(each["number"]): each["noise"] for each in loader} == all_expected(1)


def test_where_the_sampler_does_not_say_the_epoch_a_warning_does_once(path: str) -> None:
    ds = ChunkDataset(path, transform=noisy)
    with pytest.warns(UserWarning, match="the same random numbers in every epoch") as caught:
        first, second = drawn(DataLoader(ds, 4, shuffle=True)), drawn(DataLoader(ds, 4))
    assert len(caught) == 1
    assert first == second == {number: expected(number, 0, seed=0) for number in range(45)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(
            DataLoader(
                ChunkDataset(path, transform=lambda sample: noisy(sample, np.random.default_rng(0))), 4
            )
        )
