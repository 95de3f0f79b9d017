"""ChunkDataset: indexing, values, errors, other processes, and that the store stays as it is."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, RandomSampler, SequentialSampler, Subset

import mmapload
from mmapload import (
    ChunkDataLoader,
    ChunkDataset,
    ChunkError,
    ChunkSampler,
    StateMismatchError,
    StoreNotFoundError,
)
from tests.loading_cases import unseal
from tests.numbered_samples import (
    SAMPLE_BYTES,
    Negated,
    collate_numbers,
    damage,
    digest,
    double_in_place,
    flat,
    keep_samples,
    numbers,
    numbers_of,
    sample,
    write_store,
)

DTYPES = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """29 samples (a prime) in 4 chunks of 8, the last one short."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 29)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """22 samples of 300 KB, so that a batch of 4 in one piece is served as a view."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 22, image=(3, 100_000))


@pytest.fixture
def ds(path: str) -> ChunkDataset:
    return ChunkDataset(path)


def assert_is(found: dict[str, torch.Tensor], number: int) -> None:
    """Check a sample against the array that was written, values, dtypes and shapes."""
    expected = sample(number)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert isinstance(found[name], torch.Tensor)
        assert found[name].shape == array.shape
        assert found[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(found[name].numpy(), array)


# ---- indexing


def test_every_sample_is_what_was_written(ds: ChunkDataset) -> None:
    assert len(ds) == 29
    for number in range(29):
        assert_is(ds[number], number)


@pytest.mark.parametrize(
    ("index", "number"),
    [
        (-1, 28),
        (-29, 0),
        (np.int64(3), 3),
        (np.int32(-2), 27),
        (np.uint8(28), 28),
        (np.array(5), 5),
        (torch.tensor(3), 3),
        (torch.tensor(-3), 26),
        (True, 1),
        (False, 0),
    ],
)
def test_whatever_is_an_integer_is_an_index(ds: ChunkDataset, index: Any, number: int) -> None:
    assert_is(ds[index], number)
    assert_is(ds.__getitems__([index])[0], number)


@pytest.mark.parametrize("index", [29, -30, 10**6, 2**63, 2**70, -(2**70), np.int64(29), torch.tensor(29)])
def test_an_index_beyond_either_end_is_an_index_error_that_names_it(ds: ChunkDataset, index: Any) -> None:
    for ask in (lambda: ds[index], lambda: ds.__getitems__([0, index])):
        with pytest.raises(IndexError, match=rf"sample {int(index)} of a store of 29"):
            ask()


@pytest.mark.parametrize(
    "index",
    [2.0, np.float64(2), "3", b"3", None, slice(0, 2), [1, 2], (1,), np.array([1, 2]), torch.tensor(2.0)],
)
def test_what_is_no_integer_is_a_type_error(ds: ChunkDataset, index: Any) -> None:
    with pytest.raises(TypeError):
        ds[index]
    with pytest.raises(TypeError):
        ds.__getitems__([0, index])


@pytest.mark.parametrize(
    "indices",
    [np.array([1.0, 2.0]), np.array([True, False]), np.array([[1], [2]]), np.array(["1"]), np.array(3)],
    ids=["floats", "mask", "two dimensions", "text", "no dimension"],
)
def test_an_array_of_indices_is_a_row_of_integers(ds: ChunkDataset, indices: np.ndarray) -> None:
    with pytest.raises(TypeError, match="indices"):
        ds.read(indices)


@pytest.mark.parametrize(
    "indices",
    [
        [3, -1, 3, 0],
        (3, -1, 3, 0),
        np.array([3, -1, 3, 0]),
        np.array([3, -1, 3, 0], np.int16),
        torch.tensor([3, -1, 3, 0]),
    ],
    ids=["list", "tuple", "int64", "int16", "tensor"],
)
def test_a_batch_is_any_sequence_of_integers_and_stays_unchanged(ds: ChunkDataset, indices: Any) -> None:
    before = copy.deepcopy(indices)
    batch = ds.__getitems__(indices)
    assert [int(each["number"]) for each in batch] == [3, 28, 3, 0]
    assert np.array_equal(before, indices)


def test_unsigned_indices_beyond_int64_are_index_errors(ds: ChunkDataset) -> None:
    with pytest.raises(IndexError):
        ds.read(np.array([2**64 - 1], np.uint64))


def test_an_empty_batch_has_no_samples(ds: ChunkDataset) -> None:
    assert len(ds.__getitems__([])) == 0
    assert ds.read([]).tensors["image"].shape == (0, 3, 5)


@settings(max_examples=40)
@given(st.lists(st.integers(-29, 28), min_size=1, max_size=40))
def test_a_batch_equals_its_samples_taken_one_by_one(path: str, indices: list[int]) -> None:
    ds = ChunkDataset(path, with_index=True)
    batch = ds.__getitems__(indices)
    tensors = ds.read(indices).tensors
    for place, (index, each) in enumerate(zip(indices, batch, strict=True)):
        alone = ds[index]
        assert list(alone) == list(each) == [*ds.field_names, "index"]
        for name, tensor in alone.items():
            assert torch.equal(tensor, each[name])
            assert torch.equal(tensor, tensors[name][place])


def test_iteration_ends_after_the_last_sample(ds: ChunkDataset) -> None:
    assert [int(each["number"]) for each in ds] == list(range(29))
    assert [int(each["number"]) for each in reversed(ds)] == list(range(28, -1, -1))


def test_an_index_error_in_a_users_transform_does_not_end_a_loop_early(path: str) -> None:
    def broken(each: dict[str, torch.Tensor]) -> Any:
        return [1, 2][int(each["number"])]

    ds = ChunkDataset(path, transform=broken)
    for samples in (ds, Subset(ds, range(9)), ConcatDataset([ds, ds]), DataLoader(ds, batch_size=4)):
        with pytest.raises(RuntimeError, match="raised IndexError: list index out of range"):
            list(samples)


def test_the_end_of_an_iterator_in_a_users_transform_does_not_end_a_loop_early(path: str) -> None:
    others = iter([1, 2, 3])
    ds = ChunkDataset(path, transform=lambda each: each | {"other": next(others)})
    for samples in (ds, Subset(ds, range(9)), DataLoader(ds, batch_size=4), ChunkDataLoader(ds, 4)):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            list(samples)


# ---- values


@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3)], ids=["scalar", "vector", "empty"])
def test_every_core_dtype_comes_back_bit_by_bit(tmp_path: Path, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(7)
    written = [{name: _bits(rng, name, shape) for name in DTYPES} for _ in range(7)]
    mmapload.preprocess(written, tmp_path / "store", 2)
    ds = ChunkDataset(tmp_path / "store")
    batch = ds.__getitems__(range(7))
    for number, expected in enumerate(written):
        for name, array in expected.items():
            for found in (ds[number][name], batch[number][name]):
                assert found.shape == shape
                assert found.numpy().dtype == array.dtype
                assert found.numpy().tobytes() == array.tobytes()


def _bits(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Any bits at all, NaN payloads and negative zeros among them; for bool 0 and 1."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer(rng.bytes(count), dtype).reshape(shape).copy()


@pytest.mark.parametrize("count", [1, 7, 8, 9])
def test_stores_of_one_chunk_more_or_less_are_read_whole(tmp_path: Path, codec_name: str, count: int) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", count, codec=codec_name))
    assert flat(numbers(DataLoader(ds, 3))) == list(range(count))


def test_fields_choose_and_order_what_is_loaded(path: str) -> None:
    ds = ChunkDataset(path, fields=["flow", "number"])
    assert ds.field_names == ("flow", "number")
    assert list(ds[3]) == ["flow", "number"]
    assert list(ds.read([3, 4]).tensors) == ["flow", "number"]
    assert ds.chunk_nbytes == 8 * 24


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("flow", "list of field names, not 'flow'"),
        ([], "list of field names"),
        (["flow", "depth"], "no field 'depth'; it has number, image, flow"),
        (["flow", "flow"], "'flow' twice"),
    ],
)
def test_a_wrong_choice_of_fields_is_refused_by_name(path: str, fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChunkDataset(path, fields=fields)


def test_a_transform_gets_each_sample_and_its_result_takes_the_place(path: str) -> None:
    ds = ChunkDataset(path, transform=lambda each: (int(each["number"]), each["flow"].sum()))
    assert ds[5][0] == 5
    assert [number for number, _ in ds.__getitems__([2, 9, 2])] == [2, 9, 2]
    found, _ = next(iter(DataLoader(ds, 4)))
    assert found.tolist() == [0, 1, 2, 3]


def test_a_transform_may_add_and_remove_entries(path: str) -> None:
    def changed(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        each["extra"] = each.pop("number") + 1
        return each

    batch = next(iter(DataLoader(ChunkDataset(path, transform=changed), 4)))
    assert sorted(batch) == ["extra", "flow", "image"]
    assert batch["extra"].tolist() == [1, 2, 3, 4]


def test_with_index_adds_the_number_of_each_sample(path: str) -> None:
    ds = ChunkDataset(path, with_index=True)
    assert ds[-1]["index"].shape == ()
    assert ds[-1]["index"].dtype == torch.int64
    assert int(ds[-1]["index"]) == 28
    batch = next(iter(DataLoader(ds, 4, sampler=[5, -2, 5])))
    assert batch["index"].tolist() == batch["number"].tolist() == [5, 27, 5]


def test_with_index_is_refused_where_a_field_has_that_name(tmp_path: Path) -> None:
    mmapload.preprocess([{"index": np.zeros(2), "x": np.zeros(2)}], tmp_path / "store", 1)
    with pytest.raises(ValueError, match="named 'index'"):
        ChunkDataset(tmp_path / "store", with_index=True)
    assert list(ChunkDataset(tmp_path / "store", ["x"], with_index=True)[0]) == ["x", "index"]


# ---- refusals at construction


@pytest.mark.parametrize("memory", [7 * SAMPLE_BYTES, "311B", "0.3KiB"])
def test_a_budget_below_one_chunk_is_refused_with_both_numbers(path: str, memory: Any) -> None:
    with pytest.raises(ValueError, match=r"memory=.* one chunk takes 312 B"):
        ChunkDataset(path, memory=memory)
    assert len(ChunkDataset(path, memory=8 * SAMPLE_BYTES)) == 29


def test_a_store_that_claims_larger_chunks_than_its_files_hold_is_blamed_before_the_memory(
    tmp_path: Path, codec_name: str
) -> None:
    store = mmapload.preprocess([{"x": np.arange(3)}] * 4, tmp_path / "store", 4, codec=codec_name)
    unseal(store.path)
    document = json.loads(Path(store.path, "x", "zarr.json").read_text())
    document["shape"][1] = document["chunk_grid"]["configuration"]["chunk_shape"][1] = 2**25
    Path(store.path, "x", "zarr.json").write_text(json.dumps(document))
    with pytest.raises(ChunkError, match="chunk 0 of field 'x'"):
        ChunkDataset(store.path, memory="1MiB")


@pytest.mark.parametrize("memory", ["lots", 0, -1, 1.5, 0.0, float("nan"), None, True])
def test_a_budget_that_is_no_size_is_refused(path: str, memory: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"memory|size|fraction|bytes"):
        ChunkDataset(path, memory=memory)


def test_a_fraction_is_a_share_of_the_available_memory(path: str) -> None:
    assert 0 < ChunkDataset(path, memory=0.25).memory < ChunkDataset(path, memory=0.5).memory


@pytest.mark.parametrize("verify", ["sometimes", "", None, True])
def test_an_unknown_verify_is_refused_with_what_there_is(path: str, verify: Any) -> None:
    with pytest.raises(ValueError, match="first, never, always"):
        ChunkDataset(path, verify=verify)


def test_a_missing_chunk_is_found_when_the_dataset_is_made(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    lost = f"{path}/flow/c.2.0"
    os.unlink(lost)
    with pytest.raises(ChunkError, match="no such file") as caught:
        ChunkDataset(path)
    assert (caught.value.field, caught.value.chunk, caught.value.path) == ("flow", 2, lost)


def test_a_store_that_is_not_there_is_an_error_and_nothing_is_created(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="no store at"):
        ChunkDataset(tmp_path / "nowhere" / "store")
    assert os.listdir(tmp_path) == []


# ---- damage


def test_a_damaged_chunk_is_named_in_the_process_that_trains(tmp_path: Path, codec_name: str) -> None:
    path = write_store(tmp_path / "store", 29, codec=codec_name)
    file = damage(path, "flow", 2)
    seen: list[list[int]] = []
    with pytest.raises(ChunkError, match=r"samples 16 to 23: .* damaged .* again") as caught:
        seen.extend(map(numbers_of, DataLoader(ChunkDataset(path), batch_size=4)))
    assert flat(seen) == list(range(16))
    assert (caught.value.field, caught.value.chunk, caught.value.path) == ("flow", 2, file)


def test_a_damaged_chunk_is_named_from_a_worker(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    file = damage(path, "flow", 3)
    seen: list[list[int]] = []
    # torch makes an exception of the same class, where that can be made of a message alone.
    with pytest.raises(ChunkError, match=r"chunk 3 of field .flow., samples 24 to 28: .* damaged") as caught:
        seen.extend(map(numbers_of, DataLoader(ChunkDataset(path), batch_size=4, num_workers=1)))
    assert flat(seen) == list(range(24))
    for part in (file, "preprocess again"):
        assert part in str(caught.value)


def test_samples_of_whole_chunks_are_served_beside_a_damaged_one(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    damage(path, "flow", 2)
    ds = ChunkDataset(path)
    assert int(ds[15]["number"]) == 15
    for _ in range(2):  # the second time as well: an error is not remembered as a check that was passed
        with pytest.raises(ChunkError, match="chunk 2 of field 'flow'"):
            ds[16]
    assert int(ds[24]["number"]) == 24


def test_verify_never_serves_what_is_there(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    damage(path, "flow", 2)
    assert int(ChunkDataset(path, verify="never")[16]["number"]) == 16


def test_damage_after_the_first_load_is_found_by_verify_always_only(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    chunk = 8 * SAMPLE_BYTES  # one chunk at a time, so that it is loaded again
    once, always = ChunkDataset(path, memory=chunk), ChunkDataset(path, memory=chunk, verify="always")
    for ds in (once, always):
        assert len([ds[number] for number in range(29)]) == 29
    damage(path, "flow", 2)
    assert int(once[16]["number"]) == 16
    with pytest.raises(ChunkError, match="chunk 2 of field 'flow'"):
        always[16]


# ---- nothing reaches the store or a later read


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("size", ["small", "large"])
def test_a_transform_in_place_sees_the_same_values_every_epoch(
    path: str, large_path: str, workers: int, size: str
) -> None:
    store = path if size == "small" else large_path
    before = digest(store)
    ds = ChunkDataset(store, transform=double_in_place)
    loader = DataLoader(ds, 4, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(3):
        found = [number for batch in loader for number in batch["number"].tolist()]
        assert found == list(range(0, 2 * len(ds), 2))
    assert digest(store) == before


@pytest.mark.parametrize("size", ["small", "large"])
def test_writing_into_a_sample_or_batch_reaches_no_later_read(path: str, large_path: str, size: str) -> None:
    ds = ChunkDataset(path if size == "small" else large_path)
    kept = ds[3]
    for _ in range(2):
        for batch in (ds[3], ds.read([0, 1, 2, 3]).tensors, ds.read([3, 11]).tensors):
            for tensor in batch.values():
                tensor.fill_(77)
    assert int(kept["number"]) == 3
    for found in (ds[3], {name: tensor[3] for name, tensor in ds.read([0, 1, 2, 3]).tensors.items()}):
        assert int(found["number"]) == 3
        assert found["image"].unique().tolist() == [3]
        assert found["flow"].tolist() == [3, 4, 5, 6]


def test_loading_works_where_every_warning_is_an_error(path: str, large_path: str) -> None:
    script = """
import sys, mmapload
from torch.utils.data import DataLoader
from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset
for path in sys.argv[1:]:
    ds = ChunkDataset(path)
    ds[0]["image"] += 1
    for workers in (0, 1):
        for loader in (
            DataLoader(ds, 4, num_workers=workers),
            DataLoader(ds, batch_sampler=ChunkBatchSampler(ds, 4), num_workers=workers),
            ChunkDataLoader(path, 4, shuffle=True, num_workers=workers),
        ):
            assert sum(len(batch["number"]) for batch in loader) == len(ds)
still_open = iter(ChunkDataLoader(path, 4, shuffle=True))
next(still_open)
print("done")
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, path, large_path],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("done\n", "")


# ---- other processes


def test_a_pickle_is_small_whatever_has_been_read(path: str, large_path: str) -> None:
    for each in (path, large_path):
        ds = ChunkDataset(each)
        assert len(numbers(DataLoader(ds, 4))) > 0
        assert len(pickle.dumps(ds)) < 3000


def test_a_pickle_is_as_small_for_more_chunks(tmp_path: Path) -> None:
    for count in (2, 300):
        written = [{"x": np.int64(i)} for i in range(count)]
        mmapload.preprocess(written, tmp_path / str(count), 1, chunk_bytes=8)
    few, many = ChunkDataset(tmp_path / "2"), ChunkDataset(tmp_path / "300")
    assert [int(many[i]["x"]) for i in range(300)] == list(range(300))
    assert len(pickle.dumps(many)) < len(pickle.dumps(few)) + 20


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda ds: pickle.loads(pickle.dumps(ds))])
def test_a_copy_reads_the_same_by_itself(path: str, duplicate: Any) -> None:
    ds = ChunkDataset(path, ["number", "flow"], with_index=True, memory="1MiB", verify="always")
    ds[3]
    made = duplicate(ds)
    assert made.residency is not ds.residency
    assert made[-1]["index"] == 28
    for name in ("fields", "memory", "with_index", "store"):
        assert getattr(made, name) == getattr(ds, name)


def test_a_relative_path_still_leads_there_from_another_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(os.path.dirname(path))
    ds = ChunkDataset("store")
    monkeypatch.chdir(tmp_path)
    assert int(pickle.loads(pickle.dumps(ds))[7]["number"]) == 7


def test_a_dataset_used_before_a_fork_works_in_the_children(tmp_path: Path, codec_name: str) -> None:
    path = write_store(tmp_path / "store", 29, codec=codec_name)
    ds = ChunkDataset(path, memory=3 * 8 * SAMPLE_BYTES)
    sampler = ChunkSampler(ds, 4, window=8)
    for _ in range(20):
        assert int(ds[9]["number"]) == 9
        ahead = iter(sampler)  # threads are loading ahead while the worker is forked
        next(ahead)
        loader = DataLoader(ds, 4, num_workers=1, timeout=30)
        assert flat(numbers(loader)) == list(range(29))
        del ahead  # ends them


def test_children_of_children_read_too(path: str) -> None:
    ds = ChunkDataset(path)
    ds[0]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork() if int(ds[1]["number"]) == 1 else -1
        if grandchild == 0:
            os.write(write, b"%d" % int(ds[28]["number"]))
            os._exit(0)
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert os.read(read, 10) == b"28"
    os.close(read)
    os.close(write)


# ---- user's classes


def test_a_subclass_that_overrides_getitem_is_respected_in_batches(path: str) -> None:
    ds = Negated(path)
    assert [int(each["negative"]) for each in ds.__getitems__([3, 4])] == [-3, -4]
    assert [int(each["negative"]) for each in Subset(ds, [8, 9]).__getitems__([0, 1])] == [-8, -9]
    loader = DataLoader(ds, batch_sampler=mmapload.ChunkBatchSampler(ds, 4))
    assert sorted(-number for batch in loader for number in batch["negative"].tolist()) == list(range(29))


def test_a_users_collate_function_sees_samples(path: str) -> None:
    loader = DataLoader(ChunkDataset(path), 4, collate_fn=collate_numbers)
    assert list(loader)[-2:] == [[24, 25, 26, 27], [28]]


@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_are_not_collated_survive_the_way_from_a_worker(path: str, workers: int) -> None:
    for batch in DataLoader(ChunkDataset(path), 4, collate_fn=keep_samples, num_workers=workers):
        assert all(each["flow"][0] == each["number"] for each in batch)
        assert numbers_of(torch.utils.data.default_collate(list(batch))) == [int(s["number"]) for s in batch]


def test_without_batches_a_loader_gives_samples(path: str) -> None:
    found = list(DataLoader(ChunkDataset(path), batch_size=None))
    assert [int(each["number"]) for each in found] == list(range(29))


def test_samples_collate_together_with_plain_dicts(path: str) -> None:
    plain = [
        {name: torch.from_numpy(array) for name, array in sample(number).items()} for number in (100, 101)
    ]
    for parts in ([ChunkDataset(path), plain], [plain, ChunkDataset(path)]):
        assert sorted(flat(numbers(DataLoader(ConcatDataset(parts), 5)))) == [*range(29), 100, 101]


# ---- random reads of what does not fit


def random_reads(path: str, workers: int, epochs: int = 2) -> list[str]:
    """Warnings on standard error of a process that reads at random with a budget of two chunks."""
    script = f"""
import sys
from torch.utils.data import DataLoader
from mmapload import ChunkDataset
ds = ChunkDataset({path!r}, memory={16 * SAMPLE_BYTES})
loader = DataLoader(ds, 4, shuffle=True, num_workers={workers})
for _ in range({epochs}):
    assert sorted(n for batch in loader for n in batch["number"].tolist()) == list(range(len(ds)))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "always", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return [line for line in ran.stderr.splitlines() if "Warning" in line]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_reads_of_more_than_the_budget_work_and_warn_once(tmp_path: Path, workers: int) -> None:
    (warning,) = random_reads(write_store(tmp_path / "store", 203), workers)
    assert "sampler=mmapload.ChunkSampler(dataset, batch_size)" in warning
    assert "shuffle=True" in warning


def test_a_full_permutation_of_more_than_the_budget_warns_too(tmp_path: Path) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 203), memory=16 * SAMPLE_BYTES)
    with pytest.warns(UserWarning, match="shuffle='window' reads whole chunks ahead") as caught:
        sampler = ChunkSampler(ds, 4, shuffle="full")
    assert [warning.filename for warning in caught] == [__file__]
    assert reads(ds, sampler) == []


def reads(ds: ChunkDataset, sampler: Any, epochs: int = 2) -> list[Any]:
    """Warnings from reading a dataset in a sampler's order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            assert sorted(flat(numbers(DataLoader(ds, 4, sampler=sampler)))) == list(range(len(ds)))
    return caught


def test_reads_in_order_or_by_a_chunk_sampler_do_not_warn(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 203)
    small = ChunkDataset(path, memory=10 * 8 * SAMPLE_BYTES)
    assert reads(small, SequentialSampler(small)) == []
    assert reads(small, list(range(202, -1, -1))) == []
    assert reads(small, ChunkSampler(small, 4, window=16)) == []


def test_random_reads_of_what_fits_do_not_warn(tmp_path: Path) -> None:
    ds = ChunkDataset(write_store(tmp_path / "store", 203))
    assert reads(ds, RandomSampler(ds)) == []


def test_a_missing_chunk_of_a_field_that_is_not_loaded_does_not_matter(tmp_path: Path) -> None:
    path = write_store(tmp_path / "store", 29)
    store = mmapload.open_store(path)
    os.remove(store.chunk_path(store.field("flow"), 1))
    assert int(ChunkDataset(path, fields=["number"])[9]["number"]) == 9
    with pytest.raises(ChunkError, match="chunk 1 of field 'flow'"):
        ChunkDataset(path)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_store_that_is_replaced_while_in_use_is_an_error_and_never_a_mixture(
    tmp_path: Path, codec: str
) -> None:
    out = tmp_path / "store"
    old, new = ([{"x": np.full(9, base + i)} for i in range(24)] for base in (0, 1000))
    mmapload.preprocess(old, out, 4, chunk_bytes=1, codec=codec)
    ds = ChunkDataset(out)
    assert int(ds[0]["x"][0]) == 0
    mmapload.preprocess(new, out, 4, chunk_bytes=1, codec=codec, overwrite=True)
    with pytest.raises(
        StateMismatchError, match="replaced by another store while it was in use; open it again, also"
    ):
        ds[20]
    assert int(ds[1]["x"][0]) == 1, "what is in memory is still the old store's"
    assert int(ChunkDataset(out)[20]["x"][0]) == 1020


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_store_that_is_moved_while_in_use_is_said_to_be_gone_and_serves_again_where_it_is_put_back(
    tmp_path: Path, codec: str
) -> None:
    out = tmp_path / "store"
    mmapload.preprocess([{"x": np.full(9, i)} for i in range(24)], out, 4, chunk_bytes=1, codec=codec)
    ds = ChunkDataset(out)
    assert int(ds[0]["x"][0]) == 0
    os.rename(out, tmp_path / "elsewhere")
    with pytest.raises(
        StoreNotFoundError, match=r"store is not there any more: .* moved .*; put it back, or open it where"
    ):
        ds[20]
    assert int(ChunkDataset(tmp_path / "elsewhere")[20]["x"][0]) == 20
    os.rename(tmp_path / "elsewhere", out)
    assert int(ds[20]["x"][0]) == 20
