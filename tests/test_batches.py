"""A ready batch passes torch's default collation untouched, and is a list of samples to everybody else."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, default_collate, default_convert
from torch.utils.data._utils.collate import collate

from mmapload.batches import ReadyBatch

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = 5


class Ready(Dataset[Any]):
    """Forty samples, given out in ready batches; keeps the last one."""

    def __init__(self) -> None:
        self.x = torch.arange(80.0).reshape(40, 2)
        self.label = torch.arange(40)
        self.last: ReadyBatch | None = None

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> ReadyBatch:
        self.last = ReadyBatch({"x": self.x[indices], "label": self.label[indices]}, len(indices))
        return self.last


@pytest.fixture
def batch() -> ReadyBatch:
    tensors = {"x": torch.arange(10.0).reshape(LENGTH, 2), "label": torch.arange(LENGTH)}
    return ReadyBatch(tensors, LENGTH)


def expect(found: Any, tensors: dict[str, torch.Tensor]) -> None:
    """Compare a collated batch with stacked tensors."""
    assert type(found) is dict
    assert list(found) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert found[name].dtype == tensor.dtype


def test_default_collation_passes_a_batch_through_without_a_copy(batch: ReadyBatch) -> None:
    collated = default_collate(batch)
    assert type(collated) is dict
    assert all(collated[name] is tensor for name, tensor in batch.tensors.items())
    assert list(collated) == ["x", "label"]
    assert collated is not batch.tensors


@pytest.mark.parametrize(
    "wrap",
    [
        lambda ds: ds,
        lambda ds: Subset(ds, range(3, 33)),
        lambda ds: Subset(Subset(ds, range(3, 33)), range(20)),
    ],
    ids=["plain", "subset", "subset of a subset"],
)
def test_torch_s_dataloader_gives_out_the_batch_s_own_tensors(wrap: Callable[[Any], Any]) -> None:
    ready = Ready()
    for collated in DataLoader(wrap(ready), batch_size=4):
        assert ready.last is not None
        assert all(collated[name] is tensor for name, tensor in ready.last.tensors.items())


@pytest.mark.parametrize("workers", [0, 1])
def test_the_dataloader_gives_equal_batches_through_every_wrapper(workers: int) -> None:
    ready = Ready()
    for dataset, indices in (
        (ready, range(40)),
        (Subset(ready, [7, 3, 3, 39]), [7, 3, 3, 39]),
        (ConcatDataset([ready, Subset(ready, [5])]), [*range(40), 5]),
    ):
        taken = list(indices)
        loader = DataLoader(dataset, batch_size=3, num_workers=workers)  # type: ignore[arg-type] # several kinds
        for number, found in enumerate(loader):
            some = taken[3 * number : 3 * number + 3]
            expect(found, {"x": ready.x[some], "label": ready.label[some]})


def test_a_collate_function_of_the_user_s_sees_samples(batch: ReadyBatch) -> None:
    seen: list[Any] = []

    def collated(samples: list[dict[str, torch.Tensor]]) -> int:
        seen.extend(samples)
        assert isinstance(samples, Sequence)
        return len(samples)

    assert list(DataLoader(Ready(), batch_size=8, collate_fn=collated)) == [8] * 5
    assert all(isinstance(sample, dict) for sample in seen)
    assert [int(sample["label"]) for sample in seen] == list(range(40))
    assert seen[3]["x"].tolist() == [6.0, 7.0]
    for sample in seen:
        sample["index"] = sample.pop("label")  # as much a dict as any
    expect(default_collate(seen[:2]), {"x": Ready().x[:2], "index": torch.arange(2)})


def test_a_collate_function_that_ends_in_default_collation_of_a_list_gets_the_same_values(
    batch: ReadyBatch,
) -> None:
    expect(default_collate(list(batch)), batch.tensors)
    expect(default_collate(tuple(batch)), batch.tensors)
    expect(default_collate(batch[:]), batch.tensors)
    expect(default_collate(list(batch.samples())), batch.tensors)
    expect(default_collate([batch[3], batch[1]]), {n: t[[3, 1]] for n, t in batch.tensors.items()})
    expect(
        default_collate(sorted(batch, key=lambda sample: -int(sample["label"]))),
        {name: tensor.flip(0) for name, tensor in batch.tensors.items()},
    )


def test_samples_nested_in_what_a_wrapper_returns_are_collated(batch: ReadyBatch) -> None:
    pairs, labels = default_collate([(sample, i) for i, sample in enumerate(batch)])
    expect(pairs, batch.tensors)
    assert labels.tolist() == list(range(LENGTH))
    expect(default_collate([{"inner": sample} for sample in batch])["inner"], batch.tensors)
    mixed = [batch[0], dict(batch[1])]
    expect(default_collate(mixed), {name: tensor[:2] for name, tensor in batch.tensors.items()})
    expect(default_collate(mixed[::-1]), {name: tensor[[1, 0]] for name, tensor in batch.tensors.items()})


def test_a_collation_with_functions_of_the_user_s_own_still_works(batch: ReadyBatch) -> None:
    def total(tensors: Any, *, collate_fn_map: Any = None) -> Any:
        return sum(tensor.sum() for tensor in tensors)

    collated = collate(batch, collate_fn_map={torch.Tensor: total})
    assert {name: int(value) for name, value in collated.items()} == {"x": 45, "label": 10}


def test_conversion_without_batches_gives_plain_samples(batch: ReadyBatch) -> None:
    expect(dict(default_convert(batch[2])), {name: tensor[2] for name, tensor in batch.tensors.items()})
    (first, *_rest) = DataLoader(Ready(), batch_size=None)
    assert first["label"] == 0


def test_a_batch_is_a_sequence_of_views_of_its_tensors(batch: ReadyBatch) -> None:
    assert len(batch) == LENGTH
    assert [int(sample["label"]) for sample in batch] == [0, 1, 2, 3, 4]
    assert [int(sample["label"]) for sample in reversed(batch)] == [4, 3, 2, 1, 0]
    batch[1]["x"][0] = 99
    assert batch.tensors["x"][1, 0] == 99
    assert next(iter(batch.samples()))["x"].data_ptr() == batch.tensors["x"].data_ptr()
    assert all(type(sample) is dict for sample in batch.samples())
    assert repr(batch[0]) == repr(dict(batch[0]))


@pytest.mark.parametrize("index", [-5, -1, 0, 4, np.int64(3), np.int32(-2), True])
def test_an_index_counts_from_either_end_and_may_be_a_numpy_integer(batch: ReadyBatch, index: int) -> None:
    assert batch[index]["label"] == range(LENGTH)[index]


@pytest.mark.parametrize("index", [5, -6, np.int64(10**9)])
def test_an_index_outside_the_batch_is_an_index_error(batch: ReadyBatch, index: int) -> None:
    with pytest.raises(IndexError, match=f"sample {index} of a batch of 5"):
        batch[index]


@pytest.mark.parametrize("index", [1.0, "x", None, [0, 1]])
def test_an_index_that_is_none_is_a_type_error(batch: ReadyBatch, index: Any) -> None:
    with pytest.raises(TypeError):
        batch[index]


@pytest.mark.parametrize(
    "cut", [slice(None), slice(1, 3), slice(None, None, -2), slice(-2, None), slice(9, 20)]
)
def test_a_slice_is_a_list_of_samples(batch: ReadyBatch, cut: slice) -> None:
    assert [int(sample["label"]) for sample in batch[cut]] == list(range(LENGTH))[cut]


def test_an_empty_batch_has_no_samples() -> None:
    empty = ReadyBatch({"x": torch.empty(0, 2)}, 0)
    assert (len(empty), list(empty), list(empty.samples()), empty[:]) == (0, [], [], [])
    with pytest.raises(IndexError):
        empty[0]


def test_a_batch_without_fields_still_counts_its_samples() -> None:
    assert list(ReadyBatch({}, 2)) == [{}, {}]


@pytest.mark.parametrize("duplicate", [lambda b: pickle.loads(pickle.dumps(b)), copy.deepcopy, copy.copy])
def test_a_batch_survives_pickling_and_copying(batch: ReadyBatch, duplicate: Callable[[Any], Any]) -> None:
    expect(default_collate(duplicate(batch)), batch.tensors)
    sample = duplicate(batch[2])
    assert type(sample) is dict
    assert sample["label"] == 2


def test_a_pickled_sample_needs_no_mmapload_to_be_read(batch: ReadyBatch) -> None:
    assert b"mmapload" not in pickle.dumps(batch[0])
