"""Where an epoch was left, it goes on: the rest of a resumed run is the rest of the uninterrupted one."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from torch.utils.data import DataLoader, RandomSampler

from mmapload import ChunkBatchSampler, ChunkDataLoader, ChunkDataset, ChunkSampler
from tests.numbered_samples import flat, numbers, numbers_of, write_store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def raw_path(folder: Path) -> str:
    """45 samples in 6 chunks of 8, the last one short; aligned to batches of 4."""
    return write_store(folder / "raw", 45)


@pytest.fixture(scope="module", params=["raw", "zstd"])
def path(folder: Path, raw_path: str, request: pytest.FixtureRequest) -> str:
    """The same in two codecs: workers read the one, and are given what is read of the other."""
    return raw_path if request.param == "raw" else write_store(folder / "zstd", 45, codec="zstd")


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
    for samples, chunk, batch, ranks, arguments in orders(200):
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


def test_at_random_steps_of_a_larger_epoch_too(folder: Path) -> None:
    ds = ChunkDataset(write_store(folder / "larger", 2003, chunk_length=64))
    rng = random.Random(7)
    for arguments in (
        {"window": 200},
        {"window": 300, "lanes": 3},
        {"shuffle": "batch"},
        {"shuffle": "full"},
    ):
        whole = ChunkBatchSampler(ds, 12, **arguments)
        whole.set_epoch(3)
        batches = list(whole)
        for step in rng.sample(range(len(batches)), 5):
            sampler = ChunkSampler(ds, 4, rank=2, world_size=3, **arguments)
            sampler.load_state_dict(whole.sampler.state_at(3, step))
            assert list(sampler) == flat(batch[2 * len(batch) // 3 :] for batch in batches[step:])


def test_another_number_of_ranks_goes_on_with_the_same_global_batches(raw_path: str) -> None:
    ds = ChunkDataset(raw_path)
    for arguments in (
        {"window": 16, "lanes": 2},
        {"shuffle": "batch"},
        {"shuffle": "full"},
        {"shuffle": False},
    ):
        whole = ChunkBatchSampler(ds, 8, remainder="keep", **arguments)
        batches = list(whole)
        for step in range(len(batches) + 1):
            state = whole.sampler.state_at(0, step)
            rest = []
            for rank in range(2):
                sampler = ChunkBatchSampler(ds, 4, rank=rank, world_size=2, **arguments)
                sampler.load_state_dict(state)
                rest.append(list(sampler))
            assert [first + second for first, second in zip(*rest, strict=True)] == batches[step:]


def test_another_global_batch_serves_the_samples_that_are_left(raw_path: str) -> None:
    ds = ChunkDataset(raw_path)
    whole = ChunkSampler(ds, 8, window=16)
    samples = list(whole)
    sampler = ChunkSampler(ds, 6, window=16)
    sampler.load_state_dict(whole.state_at(0, 3))
    assert list(sampler) == samples[24:]


# ---- loaders


def loader_of(path: str, **arguments: Any) -> ChunkDataLoader:
    """Epochs of 12 batches, the last one of a single sample."""
    return ChunkDataLoader(path, 4, True, **({"window": 16, "seed": 3} | arguments))


def resumed(path: str, state: Any, **arguments: Any) -> ChunkDataLoader:
    """A new loader that goes on from a state."""
    loader = loader_of(path, **arguments)
    loader.load_state_dict(state)
    return loader


def test_threads_go_on_at_every_step(path: str) -> None:
    whole = loader_of(path)
    first, second = numbers(whole), numbers(whole)
    stopped = loader_of(path, prefetch_factor=5)
    states = [saved(stopped)]
    for batch in stopped:
        assert numbers_of(batch) == first[len(states) - 1]
        states.append(saved(stopped))
    assert [(state["epoch"], state["step"]) for state in states] == [(0, step) for step in range(13)]
    states.append(saved(stopped))
    assert (states[-1]["epoch"], states[-1]["step"]) == (1, 0)
    for step, state in enumerate(states[:-1]):
        loader = resumed(path, state)
        assert (numbers(loader), len(loader)) == (first[step:], 12)
        assert numbers(loader) == second
    assert numbers(resumed(path, states[-1])) == second


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_go_on_with_what_training_has_received_and_not_with_what_they_prepared(
    path: str, persistent: bool
) -> None:
    whole = loader_of(path)
    first, second, third = numbers(whole), numbers(whole), numbers(whole)
    stopped = loader_of(path, num_workers=2, prefetch_factor=3, persistent_workers=persistent)
    for epoch in range(2):
        for step, _ in enumerate(stopped):
            assert stopped.state_dict() == whole.sampler.state_at(epoch, step + 1)
        assert stopped.state_dict() == whole.sampler.state_at(epoch + 1, 0)
    loader = resumed(path, whole.sampler.state_at(1, 7), num_workers=2, persistent_workers=persistent)
    assert (numbers(loader), numbers(loader)) == (second[7:], third)
    loader.load_state_dict(whole.sampler.state_at(0, 12))
    assert (numbers(loader), numbers(loader)) == ([], second)
    assert numbers(resumed(path, whole.sampler.state_at(0, 11), num_workers=1)) == first[11:]


@pytest.mark.parametrize("workers", [0, 2])
def test_after_a_break_the_state_is_that_of_the_batch_in_hand(path: str, workers: int) -> None:
    loader = loader_of(path, num_workers=workers)
    for step, _ in enumerate(loader):
        if step == 4:
            break
    state = saved(loader)
    assert (state["epoch"], state["step"]) == (0, 5)
    assert numbers(resumed(path, state)) == numbers(loader_of(path))[5:]
    assert next(iter(loader))["number"].tolist() == numbers(resumed(path, loader.sampler.state_at(1, 0)))[0]
    assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (1, 1)


def test_a_loader_of_another_order_has_no_state(raw_path: str) -> None:
    ds = ChunkDataset(raw_path)
    for loader in (
        ChunkDataLoader(ds, 4, sampler=RandomSampler(ds)),
        ChunkDataLoader(ds, None, sampler=ChunkSampler(ds, 4)),
        ChunkDataLoader(ds, 4, sampler=ChunkSampler(ChunkDataset(raw_path), 4)),
    ):
        with pytest.raises(TypeError, match="only mmapload's order"):
            loader.state_dict()
        with pytest.raises(TypeError, match="only mmapload's order"):
            loader.load_state_dict({})
    with pytest.raises(ValueError, match="in_order"):
        ChunkDataLoader(ds, 4, num_workers=2, in_order=False).state_dict()


def test_a_loader_with_a_sampler_of_mmapload_has_its_state(raw_path: str) -> None:
    ds = ChunkDataset(raw_path)
    whole = list(ChunkBatchSampler(ds, 4))
    for arguments in (
        {"batch_sampler": ChunkBatchSampler(ds, 4)},
        {"batch_size": 4, "sampler": ChunkSampler(ds, 4)},
    ):
        loader = ChunkDataLoader(ds, num_workers=1, **arguments)
        coming = iter(loader)
        for step in range(3):
            assert numbers_of(next(coming)) == whole[step]
            assert loader.state_dict()["step"] == step + 1
        loader.load_state_dict(loader.state_dict())
        assert numbers(loader) == whole[3:]


# ---- torch's own loader, and torchdata's


def samplers_of(path: str) -> Iterable[tuple[ChunkDataset, dict[str, Any], Any]]:
    """A dataset, what its loader is given, and the sampler in that."""
    for kind in (ChunkSampler, ChunkBatchSampler):
        ds = ChunkDataset(path)
        sampler: Any = kind(ds, 4, window=16, seed=3)
        by_sample = {"sampler": sampler, "batch_size": 4}
        yield ds, by_sample if kind is ChunkSampler else {"batch_sampler": sampler}, sampler


@pytest.mark.parametrize("workers", [0, 2])
def test_the_plain_dataloader_goes_on_by_batches_received(path: str, workers: int) -> None:
    whole = loader_of(path)
    first, second = numbers(whole), numbers(whole)
    for ds, arguments, sampler in samplers_of(path):
        loader = DataLoader(ds, num_workers=workers, **arguments)
        states = []
        for step, _ in enumerate(loader):
            states.append(sampler.state_dict(received=step + 1))
            assert workers or states[-1] == sampler.state_dict()
        assert states == [whole.sampler.state_at(0, step + 1) for step in range(12)]
        assert sampler.state_dict() == whole.sampler.state_at(1, 0)
        sampler.load_state_dict(states[6])
        rest = []
        for step, batch in enumerate(loader):
            rest.append(numbers_of(batch))
            assert sampler.state_dict(received=step + 1) == whole.sampler.state_at(0, 8 + step)
        assert (rest, numbers(loader)) == (first[7:], second)


@pytest.mark.parametrize(("workers", "count"), [(0, 20), (0, 21), (2, 21)])
def test_torchdatas_loader_goes_on_at_every_step(folder: Path, workers: int, count: int) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    path = folder / f"{count}"
    if not path.exists():
        write_store(path, count)
    whole = loader_of(str(path))
    first, second, third = numbers(whole), numbers(whole), numbers(whole)

    def loaders() -> list[Any]:
        return [
            torchdata.StatefulDataLoader(ds, num_workers=workers, **arguments)
            for ds, arguments, _ in samplers_of(str(path))
        ]

    for kind, stopped in enumerate(loaders()):
        states = [saved(stopped)]
        states += [saved(stopped) for _ in stopped]
        over = saved(stopped)
        assert len(states) == len(first) + 1
        for step in range(len(states)):
            loader = loaders()[kind]
            loader.load_state_dict(states[step])
            assert numbers(loader) == first[step:]
            if step % 3 == 2:
                assert numbers(loader) == second
        loader = loaders()[kind]
        loader.load_state_dict(over)
        assert numbers(loader) == second
        next(iter(loader))
        state = saved(loader)
        loader = loaders()[kind]
        loader.load_state_dict(state)
        assert numbers(loader) == third[1:]


# ---- another process


TRAINING = """
import json, os, sys
import mmapload

def train(path, state_file):
    loader = mmapload.ChunkDataLoader(path, 4, True, window=16, seed=3, num_workers=1)
    for batch in loader:
        print(*batch["number"].tolist(), flush=True)
        with open(state_file + ".new", "w") as file:
            json.dump(loader.state_dict(), file)
        os.replace(state_file + ".new", state_file)
        print("saved", flush=True)
        sys.stdin.readline()

train(*sys.argv[1:])
"""


def test_a_run_that_was_killed_goes_on_in_a_new_process_with_the_next_batch(
    raw_path: str, tmp_path: Path
) -> None:
    file = tmp_path / "state.json"
    with subprocess.Popen(
        [sys.executable, "-c", TRAINING, raw_path, file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        received = []
        for step in range(6):
            received.append([int(number) for number in process.stdout.readline().split()])
            assert process.stdout.readline() == "saved\n"
            if step < 5:
                process.stdin.write("\n")
                process.stdin.flush()
        process.send_signal(signal.SIGKILL)
        process.communicate()
    whole = loader_of(raw_path)
    first, second = numbers(whole), numbers(whole)
    loader = resumed(raw_path, json.loads(file.read_text()))
    assert received + numbers(loader) == first
    assert numbers(loader) == second
