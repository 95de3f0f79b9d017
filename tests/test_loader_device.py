"""Batches delivered to a device: moved whole, copied only where they are not there yet."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch

from mmapload import ChunkDataLoader, ChunkDataset
from mmapload.devices import DeviceCopy, checked_device, map_tensors
from tests.numbered_samples import flat, numbers, numbers_of, write_store

if TYPE_CHECKING:
    from pathlib import Path

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
COUNT = 101


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("data") / "store", COUNT)


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("device", ["meta", torch.device("meta")])
def test_every_tensor_arrives_on_the_device(path: str, device: Any, workers: int) -> None:
    loader = ChunkDataLoader(path, 4, device=device, num_workers=workers)
    shapes = [(len(batch["number"]), batch["image"].shape[1:]) for batch in loader]
    assert shapes == [(4, (3, 5))] * 25 + [(1, (3, 5))]
    assert {tensor.device.type for batch in loader for tensor in batch.values()} == {"meta"}


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_on_the_processor_nothing_is_copied(path: str, device: Any) -> None:
    addresses: dict[int, int] = {}

    def note(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        addresses[int(batch["number"][0])] = batch["image"].data_ptr()
        return batch

    kept = list(ChunkDataLoader(path, 4, device=device, batch_transform=note))
    assert flat(map(numbers_of, kept)) == list(range(COUNT))
    assert [batch["image"].data_ptr() for batch in kept] == [
        addresses[number] for number in range(0, COUNT, 4)
    ]


def test_a_device_works_with_transforms_collate_functions_and_others_samplers(path: str) -> None:
    ds = ChunkDataset(path, transform=lambda sample: sample["number"])
    for loader in (
        ChunkDataLoader(ds, 4, device="meta"),
        ChunkDataLoader(ds, 4, device="meta", sampler=range(10)),
        ChunkDataLoader(ds, 4, device="meta", collate_fn=torch.stack),
        ChunkDataLoader(ds, 4, device="meta", batch_transform=torch.neg),
    ):
        assert {batch.device.type for batch in loader} == {"meta"}


def test_a_device_that_is_none_or_is_not_there_is_refused_when_the_loader_is_made(path: str) -> None:
    for wrong in ("gpu", "cuda:x", 3.5):
        with pytest.raises(ValueError, match="device is a name such as"):
            ChunkDataLoader(path, 4, device=wrong)
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    with pytest.raises(ValueError, match=f"device='cuda:{there}': torch sees {there or 'no'} GPU"):
        ChunkDataLoader(path, 4, device=f"cuda:{there}")
    if not there:
        with pytest.raises(ValueError, match="device='cuda': torch sees no GPU here"):
            checked_device("cuda")


def test_tensors_are_found_in_dicts_lists_and_tuples_and_the_rest_is_kept() -> None:
    one, other = torch.ones(1), object()
    batch = {
        "plain": [one, (one, "text"), None, 3],
        "named": Pair(one, other),
        "ordered": collections.OrderedDict(b=one, a=2),
        "default": collections.defaultdict(list, a=one),
        3: other,
    }
    found = map_tensors(batch, lambda _: "moved")
    assert found == {
        "plain": ["moved", ("moved", "text"), None, 3],
        "named": Pair("moved", other),
        "ordered": collections.OrderedDict(b="moved", a=2),
        "default": {"a": "moved"},
        3: other,
    }
    assert [type(value) for value in found.values()] == [type(value) for value in batch.values()]
    assert found["default"]["new"] == []
    assert batch["named"] == Pair(one, other)


def test_what_is_there_already_is_the_same_tensor() -> None:
    copying = DeviceCopy(torch.device("cpu"))
    batch = [torch.ones(1), {"x": torch.zeros(2)}]
    moved = copying.arrive(copying.start(batch))
    assert moved[0] is batch[0]
    assert moved[1]["x"] is batch[1]["x"]


@needs_gpu
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("image", [(3, 5), (3, 100_000)])
def test_batches_on_a_gpu_are_right_however_long_they_are_kept(
    tmp_path: Path, workers: int, image: tuple[int, ...]
) -> None:
    store = write_store(tmp_path / "store", COUNT, image=image)
    loader = ChunkDataLoader(store, 4, shuffle=True, device="cuda", num_workers=workers)
    for _ in range(3):
        kept = []
        for batch in loader:
            assert {tensor.device.type for tensor in batch.values()} == {"cuda"}
            kept.append({name: tensor * 1 for name, tensor in batch.items()})
            torch.cuda._sleep(100_000)  # so that training lags behind what is copied for it
        found = [numbers_of({name: tensor.cpu() for name, tensor in batch.items()}) for batch in kept]
        assert sorted(flat(found)) == list(range(COUNT))
    assert numbers(ChunkDataLoader(store, 4)) == [
        list(range(i, min(i + 4, COUNT))) for i in range(0, COUNT, 4)
    ]
