"""Torch datasets of every shape: dicts, tuples, named tuples and tensors, by number or one by one."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.samples import IterableSource, SequenceSource
from tests.preprocessing_cases import stored
from tests.reading_cases import read_sample

IMAGES = torch.arange(5 * 6, dtype=torch.uint8).view(5, 2, 3)
LABELS = torch.arange(5) - 2


class Pair(NamedTuple):
    image: Any
    label: Any


def sample(shape: str, index: int) -> Any:
    """Sample `index` as datasets return it."""
    image, label = IMAGES[index], LABELS[index]
    return {
        "dict": {"image": image, "label": label},
        "tuple": (image, label),
        "named tuple": Pair(image, label),
        "tensor": image,
        "array": image.numpy(),
        "scalar": label.numpy()[()],
    }[shape]


NAMES = {
    "dict": ("image", "label"),
    "tuple": ("0", "1"),
    "named tuple": ("image", "label"),
    "tensor": ("data",),
    "array": ("data",),
    "scalar": ("data",),
}


class ByNumber(Dataset):
    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> Any:
        return sample(self.shape, index)


class OneAfterTheOther(IterableDataset):
    def __init__(self, shape: str) -> None:
        self.shape = shape

    def __iter__(self) -> Any:
        return (sample(self.shape, index) for index in range(5))


@pytest.mark.parametrize("shape", NAMES)
@pytest.mark.parametrize("kind", [ByNumber, OneAfterTheOther])
def test_samples_of_every_shape_are_stored(tmp_path, shape, kind):
    store = preprocess(kind(shape), tmp_path / "out", 2)
    assert store.fields == NAMES[shape]
    expected = LABELS if shape == "scalar" else IMAGES
    assert (stored(store, store.fields[0]) == expected.numpy()).all()
    if len(store.fields) > 1:
        assert stored(store, store.fields[1]).tolist() == LABELS.tolist()


@pytest.mark.parametrize("kind", [ByNumber, OneAfterTheOther])
def test_elements_of_a_tuple_are_given_names_or_left_out(tmp_path, kind):
    store = preprocess(kind("tuple"), tmp_path / "out", 2, fields="0=image,1=label")
    assert store.fields == ("image", "label")
    assert stored(store, "label").tolist() == LABELS.tolist()
    assert preprocess(kind("tuple"), tmp_path / "b", 2, fields=["1"]).fields == ("1",)


def test_datasets_of_torch_itself_work():
    dataset = ConcatDataset([Subset(TensorDataset(IMAGES, LABELS), [3, 1]), TensorDataset(IMAGES, LABELS)])
    source = SequenceSource(dataset, {"0": "image", "1": "label"})
    assert [int(read_sample(source, i)["label"]) for i in range(len(source))] == [1, -1, -2, -1, 0, 1, 2]


def test_a_change_of_a_sample_in_a_tuple_is_seen_when_a_run_goes_on():
    before, after = (SequenceSource([(np.arange(3) + change, 1)]).fingerprint(0) for change in (0, 1))
    assert before != after


def test_a_sample_that_turns_into_another_shape_is_refused_with_both_sides():
    source = SequenceSource([(1, 2), {"x": 1}, (1,), (1, 2, 3), [1, 2]])
    into = {"0": np.empty((), "i8"), "1": np.empty((), "i8")}
    for index, words in (
        (1, "its fields are 'x', expected '0', '1'"),
        (2, "its fields are '0', expected '0', '1'"),
        (3, "its fields are '0', '1', '2', expected '0', '1'"),
        (4, "expected a mapping of names to arrays, found list; .*or a tuple"),
    ):
        with pytest.raises(SourceError, match=rf"sample {index}: {words}"):
            source.read(index, into)


@pytest.mark.parametrize("first", [[1, 2], 5, "text", None])
def test_a_sample_that_is_nothing_named_is_refused(first):
    with pytest.raises(SourceError, match="sample 0: expected a mapping"):
        SequenceSource([first]).schema(0)
    with pytest.raises(SourceError, match="sample 0: expected a mapping"):
        IterableSource(iter([first])).schema()
