"""Ragged stores in processes that are spawned: every form, both loaders, and resumed in mid-epoch."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import DataLoader

import mmapload
from tests.ragged_cases import LENGTHS, samples, write

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

COUNT = len(LENGTHS)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("ragged") / "store", codec="zstd").path


def numbers(batches: Iterable[Any], form: str) -> list[list[int]]:
    """Return the numbers of each batch's samples, and see to it that their values are theirs."""
    found = []
    for batch in batches:
        found.append(batch["number"].tolist())
        for place, number in enumerate(found[-1]):
            for name in ("words", "boxes"):
                wanted = torch.from_numpy(samples()[number][name])
                held = batch[name][place]
                if form == "pad":
                    held = held[batch[f"{name}_mask"][place]].reshape(wanted.shape)
                assert torch.equal(held, wanted)
                assert held.dtype == wanted.dtype
    return found


@pytest.mark.parametrize("form", ["list", "pad", "nested"])
def test_a_spawned_worker_serves_each_form_and_goes_on_in_mid_epoch(path: str, form: str) -> None:
    def loader(**workers: Any) -> mmapload.ChunkDataLoader:
        dataset = mmapload.ChunkDataset(path, ragged=form)
        return mmapload.ChunkDataLoader(dataset, 4, shuffle=True, seed=3, **workers)

    whole = loader()
    begun = iter(whole)
    found = numbers([next(begun), next(begun)], form)
    state = whole.state_dict()
    rest = numbers(begun, form)
    assert sorted(chain(*found, *rest)) == list(range(COUNT))
    resumed = loader(num_workers=1, multiprocessing_context="spawn")
    resumed.load_state_dict(state)
    begun = iter(resumed)
    assert numbers([next(begun)], form) == rest[:1]
    again = resumed.state_dict()
    assert numbers(begun, form) == rest[1:]
    whole.load_state_dict(again)
    assert numbers(whole, form) == rest[1:]


@pytest.mark.parametrize("form", ["pad", "nested"])
def test_torchs_own_loader_serves_what_is_padded_or_nested_from_a_spawned_worker(
    path: str, form: str
) -> None:
    dataset = mmapload.ChunkDataset(path, ragged=form)
    sampler = mmapload.ChunkSampler(dataset, 4)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=1, multiprocessing_context="spawn")
    assert sorted(chain(*numbers(loader, form))) == list(range(COUNT))
