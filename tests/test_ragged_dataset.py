"""Batches of samples that differ in shape: lists, padded, nested; from threads, workers, torch's loader."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import mmapload
from tests.ragged_cases import LENGTHS, same, samples, write


@pytest.fixture(params=["raw", "zstd"])
def path(request, tmp_path):
    return write(tmp_path / "store", codec=request.param).path


def in_numpy(each):
    return {name: value.numpy() for name, value in each.items()}


def check(batch, form):
    """Compare a batch with the samples of its numbers; returns these."""
    numbers = batch["number"].tolist()
    for place, number in enumerate(numbers):
        wanted = samples()[number]
        for name in ("words", "boxes"):
            found = batch[name][place]
            if form == "pad":
                shape = batch[f"{name}_lengths"][place].reshape(-1).tolist()
                assert shape == list(wanted[name].shape)
                mask = batch[f"{name}_mask"][place]
                assert int(mask.sum()) == wanted[name].size
                assert not found[~mask].any()
                found = found[mask].reshape(shape)
            assert found.dtype == torch.from_numpy(wanted[name]).dtype
            assert found.tolist() == wanted[name].tolist()
            assert list(found.shape) == list(wanted[name].shape)
        assert batch["image"][place].tolist() == wanted["image"].tolist()
    return numbers


def test_a_sample_has_its_own_shape(path):
    for form in ("list", "pad", "nested"):
        dataset = mmapload.ChunkDataset(path, ragged=form)
        for number, wanted in enumerate(samples()):
            assert same(in_numpy(dataset[number]), wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("form", ["list", "pad", "nested"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_every_sample_comes_once_in_an_epoch(path, form, workers, shuffle):
    dataset = mmapload.ChunkDataset(path, ragged=form)
    loader = mmapload.ChunkDataLoader(dataset, 4, shuffle=shuffle, num_workers=workers)
    for _ in range(2):
        numbers = [number for batch in loader for number in check(batch, form)]
        assert sorted(numbers) == list(range(len(LENGTHS)))
        assert shuffle or numbers == sorted(numbers)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_torchs_own_loader_gets_lists(path, context):
    dataset = mmapload.ChunkDataset(path)
    sampler = mmapload.ChunkSampler(dataset, 4)
    loader = DataLoader(dataset, 4, sampler=sampler, num_workers=2, multiprocessing_context=context)
    numbers = []
    for batch in loader:
        assert type(batch["words"]) is list
        numbers += check(batch, "list")
    assert sorted(numbers) == list(range(len(LENGTHS)))


def test_a_collate_fn_sees_samples_of_their_own_shapes(path):
    def joined(batch):
        return torch.cat([each["words"] for each in batch]), [len(each["words"]) for each in batch]

    dataset = mmapload.ChunkDataset(path)
    for loader in (
        DataLoader(dataset, 5, collate_fn=joined),
        mmapload.ChunkDataLoader(dataset, 5, collate_fn=joined),
    ):
        flat, lengths = [], []
        for values, counts in loader:
            flat += values.tolist()
            lengths += counts
        assert lengths == list(LENGTHS)
        assert flat == [value for each in samples() for value in each["words"].tolist()]


def test_a_transform_gets_a_sample_and_may_write_into_it(path):
    def doubled(each):
        each["words"] *= 2
        return {"total": each["words"].sum()}

    dataset = mmapload.ChunkDataset(path, transform=doubled)
    for _ in range(2):
        found = torch.cat([batch["total"] for batch in mmapload.ChunkDataLoader(dataset, 4)])
        assert found.tolist() == [2 * each["words"].sum() for each in samples()]


def test_writing_into_a_batch_reaches_no_later_read(path):
    dataset = mmapload.ChunkDataset(path)
    for _ in range(2):
        for batch in mmapload.ChunkDataLoader(dataset, 6, shuffle=True):
            check(batch, "list")
            for each in batch["words"]:
                each.fill_(-1)


def test_samples_read_at_random_beyond_the_budget_are_read_alone(tmp_path):
    store = write(tmp_path / "store", ragged="words,boxes")
    memory = int(store.chunk_nbytes(store.layout.fields).max())
    dataset = mmapload.ChunkDataset(store.path, memory=memory, verify="never")
    generator = np.random.default_rng(0)

    def read():
        for _ in range(30):
            numbers = generator.permutation(len(LENGTHS))[:8].tolist()
            batch = torch.utils.data.default_collate(dataset.__getitems__(numbers))
            assert check(batch, "list") == numbers

    with pytest.warns(UserWarning, match="samples are read at random"):
        read()
    counts = dataset.residency.counts
    assert counts.peak_bytes <= memory
    assert dataset.residency.reader.row_bytes_loaded > 0


def test_subsets_splits_and_pickles_of_the_dataset_serve_the_same(path):
    dataset = mmapload.ChunkDataset(path, ragged="pad")
    part = pickle.loads(pickle.dumps(dataset.subset(slice(1, None, 2))))
    batch = next(iter(mmapload.ChunkDataLoader(part, len(part))))
    assert check(batch, "pad") == list(range(1, len(LENGTHS), 2))
    assert len(pickle.dumps(dataset)) < 100_000


@pytest.mark.parametrize("shuffle", [True, "batch", "full"])
def test_an_epoch_goes_on_at_every_step(path, shuffle):
    def loader():
        return mmapload.ChunkDataLoader(mmapload.ChunkDataset(path), 4, shuffle=shuffle)

    whole = [check(batch, "list") for batch in loader()]
    for step in range(1, len(whole)):
        first, second = loader(), loader()
        begun = iter(first)
        found = [check(next(begun), "list") for _ in range(step)]
        second.load_state_dict(first.state_dict())
        assert found + [check(batch, "list") for batch in second] == whole


def test_stores_of_ragged_fields_are_not_mixed(path):
    parts = [mmapload.ChunkDataset(path), mmapload.ChunkDataset(path)]
    with pytest.raises(ValueError, match="words"):
        mmapload.MixedDataset(parts)


def test_what_cannot_be_served_is_refused(tmp_path):
    with pytest.raises(ValueError, match="ragged is one of list, pad, nested"):
        mmapload.ChunkDataset(write(tmp_path / "store").path, ragged="rows")
    given = [{"x": np.zeros(length), "x_mask": 1} for length in (1, 2, 3)]
    store = mmapload.preprocess(given, tmp_path / "other", 1, ragged="x")
    assert len(mmapload.ChunkDataset(store.path)) == 3
    with pytest.raises(ValueError, match="'x_mask'"):
        mmapload.ChunkDataset(store.path, ragged="pad")


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_times_come_as_lists_of_numpy_arrays(tmp_path, codec):
    given = [
        {
            "day": np.arange(length).astype("M8[s]"),
            "spans": np.full((length % 3, 2), "NaT", "m8[ms]"),
            "number": np.int64(number),
        }
        for number, length in enumerate(LENGTHS)
    ]
    store = mmapload.preprocess(given, tmp_path / "store", 2, ragged="auto", codec=codec, chunk_bytes=400)
    dataset = mmapload.ChunkDataset(store.path)
    assert all(same(dataset[number], wanted) for number, wanted in enumerate(given))
    for workers in (0, 1):
        batches = list(mmapload.ChunkDataLoader(dataset, 4, shuffle=True, num_workers=workers))
        assert sorted(number for batch in batches for number in batch["number"].tolist()) == list(
            range(len(given))
        )
        for batch in batches:
            assert type(batch["day"][0]) is np.ndarray
            parts = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
            assert all(same(part, given[part["number"]]) for part in parts)
    first = mmapload.ChunkDataset(store.path, transform=lambda each: {"day": each["day"][:0]})
    assert next(iter(DataLoader(first, 3)))["day"].shape == (3, 0)
    for form in ("pad", "nested"):
        with pytest.raises(ValueError, match=r"'day' holds datetime64.s., .*take ragged='list'"):
            mmapload.ChunkDataset(store.path, ragged=form)
        assert len(mmapload.ChunkDataset(store.path, ["number"], ragged=form)) == len(given)


def test_batches_are_of_one_bucket_of_lengths_by_the_recipe_of_the_page(tmp_path):
    page = Path(__file__).parents[1] / "docs" / "ragged.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = {"np": np, "mmapload": mmapload}
    exec(code, lines)
    lengths = np.random.default_rng(0).integers(0, 50, 200).tolist()
    dataset = mmapload.ChunkDataset(write(tmp_path / "store", lengths, ragged="words,boxes").path)
    edges = [10, 20, 30]
    assert dataset.shapes("words")[:, 0].tolist() == lengths
    assert dataset.subset([3, 7]).shapes("words")[:, 0].tolist() == [lengths[3], lengths[7]]
    loader = lines["bucketed"](dataset, 4, edges)
    found = []
    for batch in loader:
        buckets = {int(np.searchsorted(edges, len(words))) for words in batch["words"]}
        assert len(buckets) == 1
        found.append(batch["number"].tolist())
    assert sorted(number for each in found for number in each) == list(range(200))
    again = lines["bucketed"](dataset, 4, edges)
    assert [batch["number"].tolist() for batch in again] == found


@pytest.mark.parametrize(
    ("codec", "fields", "at_once"),
    [("raw", None, True), ("zstd", ["words", "boxes"], True), ("zstd", ["words", "number"], False)],
)
def test_of_small_samples_whose_chunks_are_in_memory_each_field_is_copied_at_once(
    tmp_path, codec, fields, at_once
):
    dataset = mmapload.ChunkDataset(write(tmp_path / "store", codec=codec).path, fields=fields)
    residency = dataset.reading.residency
    for chunk in range(residency.capacity):
        residency.get(chunk)
    numbers = [22, 0, 9, 9, 3, 14]
    found = dataset.__getitems__(numbers)
    for number, each in zip(numbers, found, strict=True):
        wanted = samples()[number]
        assert all((value.numpy() == wanted[name]).all() for name, value in each.items())
    assert dataset.reading.at_once == int(at_once)


@pytest.mark.parametrize("dtype", ["f4", "?", "c16"])
def test_samples_that_differ_along_the_first_axis_alone_are_padded_behind_their_ends(tmp_path, dtype):
    points = [np.arange(3 * n).reshape(n, 3).astype(dtype) for n in (4, 0, 1, 30_000, 2)]
    store = mmapload.preprocess([{"p": each} for each in points], tmp_path / "store", 5, ragged="auto")
    dataset = mmapload.ChunkDataset(store.path, ragged="pad")
    for chosen in ([0, 1, 2, 3, 4], [4, 1], [1], [2, 0]):
        batch = next(iter(DataLoader(dataset, batch_sampler=[chosen])))
        longest = max(len(points[i]) for i in chosen)
        assert batch["p"].shape == batch["p_mask"].shape == (len(chosen), longest, 3)
        for row, mask, number in zip(batch["p"].numpy(), batch["p_mask"].numpy(), chosen, strict=True):
            count = len(points[number])
            assert (row[:count] == points[number]).all()
            assert not row[count:].any()
            assert mask[:count].all()
            assert not mask[count:].any()
