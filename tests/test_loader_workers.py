"""Batches from worker processes: what torch would have delivered, in memory that is used again."""

from __future__ import annotations

import collections
import contextlib
import copy
import gc
import inspect
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, SequentialSampler, TensorDataset, get_worker_info

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, WorkerError
from mmapload.workers import handover
from mmapload.workers.slots import Counts
from tests.numbered_samples import flat, numbers, numbers_of, write_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs memory that has no name"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:.*pin_memory"),
]

COUNT = 45


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """45 samples, the last batch of 4 a short one."""
    return write_store(tmp_path_factory.mktemp("data") / "store", COUNT)


@pytest.fixture(scope="module")
def large_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """22 samples of 300 KB: large enough to be served as views, and to be gathered one by one."""
    return write_store(tmp_path_factory.mktemp("data") / "store", 22, image=(3, 100_000))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a process."""
    yield
    gc.collect()
    assert not multiprocessing.active_children()


def in_fresh_memory(loader: Any) -> int:
    """Count tensors that came in shared memory of torch's."""
    return sum(tensor.is_shared() for batch in loader for tensor in batch.values())


def free_slots(loader: ChunkDataLoader) -> tuple[int, int]:
    """Free slots and all slots of a loader without an iteration under way."""
    slots = loader._handover._idle
    return slots.free, slots.file.count


# ---- the same as torch, for whatever a collate function returns


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Boxed:
    content: Any
    name: str = "box"


class Table(dict[str, Any]):
    pass


class Marked(torch.Tensor):
    pass


def bits(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Every bit pattern may come: NaN payloads and negative zeros too."""
    width = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape)) * width
    raw = torch.arange(count, dtype=torch.int64).mul(37).add(251).to(torch.uint8)
    return (raw % 2).to(torch.bool).reshape(shape) if dtype is torch.bool else raw.view(dtype).reshape(shape)


def shared() -> Any:
    whole = torch.arange(24.0).reshape(4, 6)
    return {"whole": whole, "row": whole[1], "column": whole[:, 2], "again": whole}


def big_array(dtype: str, order: Any = "C") -> np.ndarray[Any, Any]:
    return np.asarray(np.arange(6000).reshape(60, 100).astype(dtype), order=order)


IN_SLOT: dict[str, Callable[[], Any]] = {
    **{
        str(dtype): partial(bits, (3, 5), dtype)
        for dtype in (
            torch.bool,
            torch.uint8,
            torch.int8,
            torch.int16,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.bfloat16,
            torch.float32,
            torch.float64,
            torch.complex64,
            torch.complex128,
            torch.uint16,
            torch.float8_e5m2,
        )
    },
    "one number": lambda: torch.tensor(3.5),
    "nothing along one axis": lambda: torch.empty(0, 3),
    "nothing, with strides": lambda: torch.empty(3, 0, 5).permute(2, 1, 0),
    "one long row": lambda: torch.arange(100_003),
    "strided": lambda: torch.arange(60.0).reshape(4, 15)[:, ::3],
    "transposed": lambda: torch.arange(60).reshape(4, 15).T,
    "channels last": lambda: torch.arange(120.0).reshape(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.arange(3).expand(5, 3),
    "beginning inside of its memory": lambda: torch.arange(60, dtype=torch.uint8)[7:],
    "tensors that share memory": shared,
    "one list twice": lambda: [[torch.ones(2)] * 2] * 2,
    "deep": lambda: {"a": [({"b": torch.ones(2)}, "x", 1, 2.5, None, True, b"y")], 3: (torch.zeros(1),)},
    "named tuple": lambda: Pair(torch.ones(3), Pair("text", torch.zeros(2))),
    "dataclass": lambda: Boxed([torch.ones(3)]),
    "subclass of dict": lambda: Table(x=torch.ones(2)),
    "ordered": lambda: collections.OrderedDict(b=torch.ones(2), a=torch.zeros(1)),
    "default": lambda: collections.defaultdict(list, a=[torch.ones(2)]),
    "lists of different lengths": lambda: [torch.arange(n) for n in (3, 0, 7)],
    "no tensors": lambda: {"name": ["a", "b"], "n": 3},
    "only none": lambda: None,
    "a size and a device": lambda: (torch.Size([2, 3]), torch.device("cpu"), torch.float16, torch.ones(1)),
    "small arrays": lambda: [np.arange(3), np.float32(2.5), np.array("text"), np.array([None, "x"], object)],
    "large arrays": lambda: {d: big_array(d) for d in (">i2", "<f8", "?", "c16", "M8[ms]", "S7", "U3")},
    "arrays in Fortran's order": lambda: big_array("f4", "F"),
    "strided arrays": lambda: [big_array("f4")[::2, ::-3], big_array("f4").T[3:]],
    "records": lambda: np.zeros(900, [("a", "<i4"), ("b", ">f8", 3)]),
    "read-only array": lambda: np.frombuffer(bytes(9000), np.uint8),
    "an array with no elements": lambda: np.empty((0, 4), ">f4"),
    "one array twice": lambda: [big_array("f4")] * 2,
    "array and tensor over the same memory": lambda: [a := big_array("f4"), torch.from_numpy(a)],
    "an array of a subclass": lambda: np.ma.masked_array(np.arange(3000.0), np.arange(3000) % 3 == 0),
}
OUT_OF_SLOT: dict[str, Callable[[], Any]] = {
    "gradient": lambda: torch.ones(3, requires_grad=True),
    "parameter": lambda: torch.nn.Parameter(torch.arange(3.0)),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "conjugate": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "negative": lambda: torch.tensor([1 + 2j, 3 - 1j]).conj().imag,
    "subclass of tensor": lambda: torch.ones(3).as_subclass(Marked),
    "beside others": lambda: {"a": torch.ones(3), "b": torch.ones(2, requires_grad=True)},
}
CASES = [*IN_SLOT.values(), *OUT_OF_SLOT.values()]
NAMES = [*IN_SLOT, *OUT_OF_SLOT]


def collate_case(samples: Any) -> Any:
    number = int(samples[0]["number"])
    return number, CASES[number]() if number < len(CASES) else None


def described(found: Any) -> Any:
    """What is to be equal, as plain values: kinds, shapes, strides, bits."""
    if isinstance(found, torch.Tensor):
        if found.layout is not torch.strided:
            return type(found), found.layout, found.dtype, repr(found)
        plain = found.detach().resolve_conj().resolve_neg().as_subclass(torch.Tensor)
        raw = plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind = type(found), found.dtype, tuple(found.shape), found.stride(), found.storage_offset()
        state = found.requires_grad, found.is_leaf, found.is_conj(), found.is_neg(), found.is_pinned()
        return kind, state, found._base is None, raw
    if isinstance(found, np.ma.MaskedArray):
        return type(found), described(found.data), described(found.mask)
    if isinstance(found, np.ndarray):
        flags = found.flags.writeable, found.flags.c_contiguous, found.flags.f_contiguous
        values = found.tolist() if found.dtype.hasobject else found.tobytes("A")
        return type(found), found.dtype, found.shape, found.strides, flags, values
    if isinstance(found, dict):
        return type(found), [(key, described(value)) for key, value in found.items()]
    if isinstance(found, (list, tuple)):
        return type(found), [described(each) for each in found]
    if isinstance(found, Boxed):
        return Boxed, found.name, described(found.content)
    return type(found), found


def cases_by(loader: Any) -> dict[str, Any]:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: sparse tensors are new
        for number, batch in loader:
            if number < len(CASES):
                found[NAMES[number]] = described(batch)
    return found


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("cases") / "store", len(CASES) + 1)


@pytest.fixture(scope="module")
def torchs_cases(numbered: str) -> dict[str, Any]:
    return cases_by(DataLoader(ChunkDataset(numbered), 1, num_workers=1, collate_fn=collate_case))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_whatever_a_collate_function_returns_arrives_as_torch_delivers_it(
    numbered: str, torchs_cases: dict[str, Any], method: str
) -> None:
    loader = ChunkDataLoader(
        numbered, 1, num_workers=1, collate_fn=collate_case, multiprocessing_context=method
    )
    found = cases_by(loader)
    assert list(found) == NAMES
    for name in NAMES:
        assert found[name] == torchs_cases[name], name
    assert loader.worker_batches == Counts(in_slots=len(IN_SLOT) + 1, in_part=len(OUT_OF_SLOT))


def test_tensors_that_share_memory_share_it_on_arrival_and_may_be_written(numbered: str) -> None:
    loader = ChunkDataLoader(numbered, 1, num_workers=1, collate_fn=collate_case)
    batches = dict(zip(NAMES, (batch for _, batch in loader), strict=False))
    batch = batches["tensors that share memory"]
    batch["whole"].fill_(5)
    assert batch["row"].tolist() == [5] * 6
    assert batch["column"].tolist() == [5] * 4
    twice = batches["one list twice"]
    assert twice[0] is twice[1]
    assert twice[0][0] is twice[0][1]
    for name in IN_SLOT:
        if isinstance(batches[name], torch.Tensor) and name != "expanded":
            batches[name].zero_()
            batches[name].detach_()


# ---- the same as torch, by torch's own collation


def number_and_more(each: dict[str, torch.Tensor]) -> dict[str, Any]:
    number = int(each["number"])
    info = get_worker_info()
    assert info is not None
    assert isinstance(info.dataset, ChunkDataset)
    return {
        **each,
        "turned": each["image"].flip(-1),
        "strided": each["image"].T,
        "array": each["flow"].numpy()[::2],
        "python": (number, number / 3, f"sample {number}"),
        "nested": {"flag": number % 2 == 0, "pair": Pair(each["flow"] * 2, number)},
        "nothing": torch.empty(0, 2),
        "workers": info.num_workers,
    }


@pytest.mark.parametrize(("transform", "with_index"), [(None, True), (number_and_more, False)])
@pytest.mark.parametrize("shuffle", [False, True, "batch"])
def test_default_collation_gives_what_torchs_gives(
    large_path: str, transform: Any, with_index: bool, shuffle: Any
) -> None:
    ds = ChunkDataset(large_path, transform=transform, with_index=with_index)
    ours = ChunkDataLoader(ds, 4, shuffle=shuffle, num_workers=2)
    torchs = DataLoader(ds, batch_sampler=ChunkBatchSampler(ds, 4, shuffle=shuffle), num_workers=2)
    for _ in range(2):
        assert [described(batch) for batch in ours] == [described(batch) for batch in torchs]
    assert ours.worker_batches == Counts(in_slots=12)


@pytest.mark.parametrize(
    "arguments",
    [
        {"pin_memory": True},
        {"persistent_workers": True},
        {"prefetch_factor": 1},
        {"prefetch_factor": 5, "timeout": 60},
        pytest.param(
            {"in_order": False, "num_workers": 1},
            marks=pytest.mark.skipif(
                "in_order" not in inspect.signature(DataLoader).parameters, reason="torch before 2.6"
            ),
        ),
        {"multiprocessing_context": "spawn", "num_workers": 1, "persistent_workers": True},
        {"multiprocessing_context": "forkserver", "num_workers": 1},
    ],
    ids=str,
)
def test_torchs_arguments_mean_what_they_mean_to_torch(path: str, arguments: dict[str, Any]) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, **{"num_workers": 2, **arguments})
    expected = ChunkDataLoader(path, 4, shuffle=True)
    for _ in range(2):
        assert numbers(loader) == numbers(expected)
    assert loader.worker_batches == Counts(in_slots=24)


def test_a_timeout_is_torchs_error_and_the_loader_goes_on(path: str) -> None:
    loader = ChunkDataLoader(ChunkDataset(path, transform=stall), 4, num_workers=1, timeout=0.3)
    with pytest.raises(RuntimeError, match=r"timed out after 0\.3 seconds"):
        numbers(loader)
    loader.timeout = 60
    assert flat(numbers(loader)) == list(range(COUNT))


def stall(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if int(each["number"]) == 13:
        time.sleep(1)
    return each


def test_workers_draw_the_random_numbers_that_torchs_draw(path: str) -> None:
    ds = ChunkDataset(path, transform=draw)
    found = []
    for kind in (ChunkDataLoader, DataLoader):
        loader = kind(ds, 4, num_workers=2, generator=torch.Generator().manual_seed(3))
        found.append([batch.tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1]


def draw(each: Any) -> torch.Tensor:
    return torch.rand(2)


def test_a_worker_init_function_reaches_the_dataset(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=2, worker_init_fn=give_transform)
    assert flat(batch.tolist() for batch in loader) == [-number for number in range(COUNT)]
    assert loader.worker_batches == Counts(in_slots=12)


def give_transform(worker: int) -> None:
    get_worker_info().dataset.transform = negative


def negative(each: dict[str, torch.Tensor]) -> torch.Tensor:
    return -each["number"]


def test_a_transform_that_keeps_what_it_is_given_keeps_its_values(large_path: str) -> None:
    ds = ChunkDataset(large_path, transform=remember)
    loader = ChunkDataLoader(ds, 4, num_workers=1, persistent_workers=True, shuffle=True)
    for _ in range(4):
        assert sorted(flat(numbers(loader))) == list(range(22))


_REMEMBERED: dict[int, Any] = {}


def remember(each: dict[str, torch.Tensor]) -> Any:
    return _REMEMBERED.setdefault(int(each["number"]), each)


def test_other_datasets_and_other_indices_are_left_to_torch(path: str) -> None:
    plain = TensorDataset(torch.arange(10))
    loader = ChunkDataLoader(plain, 2, sampler=SequentialSampler(plain), num_workers=1)
    assert flat(batch[0].tolist() for batch in loader) == list(range(10))
    ds = ChunkDataset(path)
    loader = ChunkDataLoader(ds, batch_size=None, num_workers=1)
    assert [int(each["number"]) for each in loader] == list(range(COUNT))
    assert loader.worker_batches == Counts()
    loader = ChunkDataLoader(ds, batch_sampler=[(3, 1), (5,)], num_workers=1)
    assert numbers(loader) == [[3, 1], [5]]
    assert loader.worker_batches == Counts(no_slot=2)
    loader = ChunkDataLoader(ds, batch_sampler=[[3, 1], [5]], num_workers=1)
    assert numbers(loader) == [[3, 1], [5]]
    assert loader.worker_batches == Counts(in_slots=2)


def test_a_system_without_such_memory_leaves_all_to_torch(path: str, monkeypatch: Any) -> None:
    def refuse(*_: Any) -> int:
        raise OSError("no such memory")

    monkeypatch.setattr(os, "memfd_create", refuse)
    loader = ChunkDataLoader(path, 4, num_workers=1)
    assert flat(numbers(loader)) == list(range(COUNT))
    assert loader.worker_batches == Counts()


# ---- memory that is used again


def negate_all(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: -tensor for name, tensor in each.items()}


def shared_pages(loader: ChunkDataLoader) -> int:
    return os.fstat(loader._handover._idle.file._fd).st_blocks


def test_epoch_after_epoch_no_page_is_added(large_path: str) -> None:
    loader = ChunkDataLoader(large_path, 2, shuffle=True, num_workers=2)
    pages = []
    for _ in range(5):
        assert sorted(flat(numbers(loader))) == list(range(22))
        pages.append(shared_pages(loader))
    batch = 2 * 300_100 // 512
    # Four sent for and two read ahead of them, one arrived, two in the loop above.
    assert pages[-1] <= 9 * batch
    assert pages[-1] - pages[1] <= 2 * batch  # how many were needed at once depends on the workers' pace
    assert loader.worker_batches == Counts(in_slots=55)
    free, count = free_slots(loader)
    assert free == count


@pytest.mark.parametrize("transform", [None, negate_all])
def test_no_tensor_comes_in_fresh_memory(large_path: str, transform: Any) -> None:
    ds = ChunkDataset(large_path, transform=transform)
    assert in_fresh_memory(DataLoader(ds, 4, num_workers=1)) == 18
    assert in_fresh_memory(ChunkDataLoader(ds, 4, num_workers=1)) == 0


def test_a_user_may_keep_every_batch(path: str) -> None:
    loader = ChunkDataLoader(path, 1, num_workers=2, shuffle=True, persistent_workers=True)
    expected = ChunkDataLoader(path, 1, shuffle=True)
    kept = [batch for _ in range(2) for batch in loader]
    part = [batch["flow"][0] for batch in loader]
    slots = loader._iterator._index_sampler.slots
    assert loader.worker_batches == Counts(in_slots=slots.file.count, no_slot=3 * COUNT - slots.file.count)
    assert [numbers_of(batch) for batch in kept] == [each for _ in range(2) for each in numbers(expected)]
    assert [int(row[0]) for row in part] == flat(numbers(expected))
    kept.clear()
    assert slots.free == slots.file.count
    assert sorted(flat(numbers(loader))) == list(range(COUNT))


def test_batches_outlive_their_loader_and_its_memory_does_not_outlive_them(path: str) -> None:
    def named_maps() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:mmapload" in line for line in maps)

    gc.collect()
    before = named_maps()
    loader = ChunkDataLoader(path, 4, num_workers=2, persistent_workers=True)
    kept = list(islice(loader, 5))
    del loader
    gc.collect()
    assert flat(map(numbers_of, kept)) == list(range(20))
    assert named_maps() == before + 1
    copies = pickle.loads(pickle.dumps(kept))
    kept.clear()
    assert named_maps() == before
    assert flat(map(numbers_of, copies)) == list(range(20))


def test_two_iterations_at_once_share_no_slot(path: str) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, num_workers=1)
    threads = ChunkDataLoader(path, 4, shuffle=True)
    epochs = [numbers(threads), numbers(threads)]
    both = list(zip(loader, loader, strict=True))
    assert [numbers_of(first) for first, _ in both] == epochs[0]
    assert [numbers_of(second) for _, second in both] == epochs[1]
    del both
    assert numbers(loader) == numbers(threads)


def test_a_copied_or_pickled_loader_has_slots_of_its_own(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=1)
    numbers(loader)
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert other._handover._idle is None
        assert flat(numbers(other)) == list(range(COUNT))
        assert other.worker_batches == Counts(in_slots=12)


def test_batches_larger_than_foreseen_come_torchs_way_with_one_warning(path: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(handover, "LEAST_BYTES", 0)
    monkeypatch.setattr(handover, "GROWTH", 1)
    ds = ChunkDataset(path, transform=blow_up)
    loader = ChunkDataLoader(ds, 4, num_workers=2)
    with pytest.warns(UserWarning, match=r"more than 1 times the bytes .* on the device") as caught:
        found = [batch["number"].tolist() for _ in range(2) for batch in loader]
    assert flat(found) == [*range(COUNT), *range(COUNT)]
    assert [each.filename for each in caught if "fresh memory" in str(each.message)] == [__file__]
    assert loader.worker_batches == Counts(in_part=24, too_large=24)


def blow_up(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"number": each["number"], "large": each["flow"].repeat(500)}


def test_a_process_forked_with_a_batch_sees_it_as_it_was(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=1)
    context = multiprocessing.get_context("fork")
    batches = iter(loader)
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=check_later, args=(next(batches), receiving))
    process.start()
    assert flat(map(numbers_of, batches)) == list(range(4, COUNT))
    assert flat(numbers(loader)) == list(range(COUNT))
    sending.send("now")
    process.join(60)
    assert process.exitcode == 0
    numbers(loader)
    free, count = free_slots(loader)
    assert free == count


def check_later(batch: dict[str, torch.Tensor], receiving: Any) -> None:
    receiving.recv()
    sys.exit(numbers_of(batch) != [0, 1, 2, 3])


# ---- leaving early, errors, deaths


def counts() -> tuple[int, int]:
    with open("/proc/self/maps") as maps:
        return len(os.listdir("/proc/self/fd")), sum("memfd" in line or "torch_" in line for line in maps)


@pytest.mark.parametrize("persistent", [True, False])
def test_leaving_early_again_and_again_leaves_no_descriptor_map_or_process(
    path: str, persistent: bool
) -> None:
    loader = ChunkDataLoader(path, 4, shuffle=True, num_workers=1, persistent_workers=persistent)
    before = (0, 0)
    for turn in range(100 if persistent else 30):
        for batch in islice(loader, turn % 4):
            numbers_of(batch)
        batch = None
        with contextlib.suppress(ZeroDivisionError):
            list(map(divide_by_zero, loader))
        if turn == 2:
            gc.collect()
            before = counts()
    gc.collect()
    now = counts()
    assert now[1] == before[1]
    assert now[0] <= before[0] + 1  # of slots that wait for a forked process to end
    assert len(multiprocessing.active_children()) == persistent
    assert sorted(flat(numbers(loader))) == list(range(COUNT))
    assert loader.worker_batches.no_slot == 0


def divide_by_zero(batch: dict[str, torch.Tensor]) -> float:
    return numbers_of(batch)[0] / 0


@pytest.mark.parametrize("persistent", [True, False])
def test_after_an_error_in_a_worker_the_next_epoch_is_whole(path: str, persistent: bool) -> None:
    ds = ChunkDataset(path, transform=fail_at_13)
    loader = ChunkDataLoader(ds, 4, num_workers=2, persistent_workers=persistent, shuffle=True, window=8)
    for _ in range(12):  # more errors than there are slots
        with pytest.raises(LookupError, match="sample 13"):
            numbers(loader)
        gc.collect()
    assert loader.worker_batches.no_slot == 0


def fail_at_13(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if int(each["number"]) == 13:
        raise LookupError("sample 13")
    return each


def test_a_batch_that_cannot_be_sent_is_an_error_at_once(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=1, collate_fn=return_function, timeout=60)
    with pytest.raises(Exception, match=r"[Pp]ickle.*local|local.*[Pp]ickle"):
        list(loader)


def return_function(samples: Any) -> Any:
    return lambda: samples


@pytest.mark.parametrize("persistent", [True, False])
def test_a_killed_worker_is_an_error_in_seconds_and_the_loader_goes_on(
    path: str, tmp_path: Path, persistent: bool
) -> None:
    ds = ChunkDataset(path, transform=partial(die_if_there_is, tmp_path / "death"))
    loader = ChunkDataLoader(ds, 4, num_workers=2, persistent_workers=persistent)
    expected = list(range(COUNT))
    assert flat(numbers(loader)) == expected
    for _ in range(2):
        (tmp_path / "death").touch()
        started = time.monotonic()
        with pytest.raises(WorkerError, match="ended without its batch"):
            numbers(loader)
        assert time.monotonic() - started < 30
        (tmp_path / "death").unlink()
        assert flat(numbers(loader)) == expected
    assert loader.worker_batches.no_slot == 0


def die_if_there_is(file: Path, each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if int(each["number"]) == 13 and file.exists():
        os.kill(os.getpid(), signal.SIGKILL)
    return each


def test_persistent_workers_that_were_killed_between_epochs_are_replaced(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=2, persistent_workers=True)
    numbers(loader)
    with contextlib.suppress(RuntimeError):  # torch raises it wherever the main thread is
        os.kill(loader._iterator._workers[1].pid, signal.SIGKILL)
        time.sleep(0.5)
    assert flat(numbers(loader)) == list(range(COUNT))


KILLED = """
import os, signal, sys, time
from mmapload import ChunkDataLoader, ChunkDataset
loader = ChunkDataLoader(sys.argv[1], 4, num_workers=2, persistent_workers=True)
kept = []
for batch in loader:
    kept.append(batch)
    if len(kept) == 3:
        print(*[worker.pid for worker in loader._iterator._workers], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_training_process_leaves_no_process_and_no_memory(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    marks = tuple(f"torch_{pid}_" for pid in workers)
    ends = time.monotonic() + 30  # torch's workers look after their parent every 5 seconds
    while any(map(is_running, workers)) and time.monotonic() < ends:
        time.sleep(0.1)
    assert not any(map(is_running, workers))
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(marks)]


def is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as status:
            return status.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator to pin memory for")
def test_batches_are_pinned_and_their_slots_free_at_once(path: str) -> None:
    loader = ChunkDataLoader(path, 4, num_workers=2, pin_memory=True)
    kept = list(loader)
    assert all(tensor.is_pinned() for batch in kept for tensor in batch.values())
    assert loader.worker_batches == Counts(in_slots=12)
    assert flat(map(numbers_of, kept)) == list(range(COUNT))
