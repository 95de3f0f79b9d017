"""Training in a container whose memory limit is half of the data."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mmapload.preprocessing import preprocess
from tests.loading_cases import evictable_folder, memory_cgroup, run_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mmapload.store import Store

COUNT, BATCH = 800, 8
SAMPLE = 2**17
LIMIT = COUNT * SAMPLE // 2

THREE_EPOCHS = """
import json, os, pathlib, sys, warnings
import mmapload
from mmapload.mappings import drop_pages

folder, path = pathlib.Path(sys.argv[1]), sys.argv[2]
warnings.simplefilter("ignore", UserWarning)  # the window is cut to what fits
next(iter(mmapload.ChunkDataLoader(path, 2)))  # whatever is imported late is, outside of the limit
for file in pathlib.Path(path).rglob("c.*"):
    drop_pages(str(file), 0, file.stat().st_size)
(folder / "cgroup.procs").write_text(str(os.getpid()))
anonymous = lambda: int((folder / "memory.stat").read_text().split("total_rss ")[1].split()[0])

dataset = mmapload.ChunkDataset(path)
loader = mmapload.ChunkDataLoader(dataset, 16, shuffle="window")
most = 0
for _ in range(3):
    labels = []
    for batch in loader:
        labels += batch["label"].tolist()
        assert batch["x"][:, 0].tolist() == [label % 251 for label in batch["label"].tolist()]
        most = max(most, anonymous())
    assert sorted(labels) == list(range(len(dataset))) != labels
residency = dataset.residency
print(json.dumps({
    "memory": dataset.memory,
    "anonymous": most,
    "usage": int((folder / "memory.max_usage_in_bytes").read_text()),
    "peak": residency.counts.peak_bytes,
    "read": residency.reader.bytes_loaded,
}))
"""


class Samples:
    """Samples made as they are asked for: random bytes after their number."""

    def __init__(self) -> None:
        self._noise = np.random.default_rng(0).integers(0, 256, SAMPLE, np.uint8)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> dict[str, object]:
        x = self._noise.copy()
        x[0] = index % 251
        return {"x": x, "label": index}


KEPT = """
import json, os, pathlib, sys
import mmapload
from mmapload.measures import bytes_read
from mmapload.mappings import drop_pages

folder, path, shuffle = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
more = {"window": 32} if shuffle == "window" else {}
dataset = mmapload.ChunkDataset(path, memory=int(sys.argv[4]))
loader = mmapload.ChunkDataLoader(dataset, 8, shuffle=shuffle or None, **more)
next(iter(mmapload.ChunkDataLoader(path, 2)))
for file in pathlib.Path(path).rglob("c.*"):
    drop_pages(str(file), 0, file.stat().st_size)
(folder / "cgroup.procs").write_text(str(os.getpid()))
told = []
for _ in range(6):
    before = bytes_read()
    assert sorted(label for batch in loader for label in batch["label"].tolist()) == list(range(len(dataset)))
    told.append(bytes_read() - before)
print(json.dumps({
    "read": told,
    "capacity": dataset.chunks_held,
    "peak": dataset.residency.counts.peak_bytes,
    "usage": int((folder / "memory.max_usage_in_bytes").read_text()),
}))
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Store]]:
    """Return a function that gives the store of a codec, made once: 100 MB."""
    with memory_cgroup(LIMIT):  # skips where none can be made
        pass
    with evictable_folder(tmp_path_factory.mktemp("stores")) as folder:
        yield cache(
            lambda codec: preprocess(Samples(), folder / codec, BATCH, codec=codec, chunk_bytes="1MiB")
        )
    for path in folder.iterdir():
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("shuffle", ["window", "batch", ""])
def test_the_disk_is_spared_what_the_budget_keeps_from_epoch_to_epoch(
    stores: Callable[[str], Store], shuffle: str
) -> None:
    data, memory, store = COUNT * SAMPLE, int(0.6 * LIMIT), stores("raw")
    with memory_cgroup(LIMIT) as cgroup:
        told = json.loads(run_python(KEPT, cgroup, store.path, shuffle, memory, timeout=120))
    chunks = store.layout.chunks
    # Two windows of 32 samples are 8 chunks, in order it is a quarter of the budget: the rest stays.
    least = {"window": told["capacity"] - 16, "batch": told["capacity"] // 2, "": told["capacity"] // 2}[
        shuffle
    ]
    assert least >= 12
    assert told["peak"] <= memory
    assert told["usage"] < LIMIT, (
        "or the kernel takes back what is to stay: batches have their room beside it"
    )
    assert told["read"][0] >= 0.8 * data, "some may be in the page cache still"
    # In the first two, loading for the first checksums may have taken the room of what is to stay.
    # In any later one the kernel may have taken back a few pages, and in one of them many.
    assert statistics.median_low(told["read"][2:]) <= data * (1 - least / chunks) * 1.02, told
    assert sorted(told["read"][2:])[-2] < 0.95 * data, told


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_three_shuffled_epochs_of_twice_the_limit_stay_inside_it_and_read_every_byte_at_most_once_each(
    stores: Callable[[str], Store], codec: str
) -> None:
    store = stores(codec)
    with memory_cgroup(LIMIT) as cgroup:
        told = json.loads(run_python(THREE_EPOCHS, cgroup, store.path, timeout=120))
    assert told["peak"] <= told["memory"] < LIMIT
    assert told["usage"] < LIMIT
    # Batches live in memory of their own, and where chunks are decoded, so do they.
    batches = 12 * 16 * SAMPLE
    assert told["anonymous"] < batches + (0 if codec == "raw" else told["memory"])
    assert told["read"] <= 3 * (COUNT * SAMPLE + 10**5)


FIFTY = """
import gc, json, os, pathlib, sys, threading, warnings
import mmapload
from mmapload.mappings import drop_pages
from mmapload.measures import bytes_read, memory_in_use

warnings.simplefilter("ignore", UserWarning)  # of "full" on data larger than the budget
import torch
gc.freeze()  # or each collection goes through all of torch
told = {}
for path, memory, mode in json.loads(sys.argv[1]):
    for file in pathlib.Path(path).rglob("c.*"):
        drop_pages(str(file), 0, file.stat().st_size)
    dataset = mmapload.ChunkDataset(path, memory=memory)
    more = {"window": 32} if mode == "window" else {}
    loader = mmapload.ChunkDataLoader(dataset, 16, False if mode == "sequential" else mode, **more)
    told[" ".join((path, memory, mode))] = found = []
    for epochs in (1, 9, 10, 10, 20):
        before = bytes_read()
        for _ in range(epochs):
            assert sum(len(batch["x"]) for batch in loader) == len(dataset)
        gc.collect()
        found.append({
            "read": bytes_read() - before,
            "anonymous": memory_in_use().anonymous,
            "maps": len(pathlib.Path("/proc/self/maps").read_text().splitlines()),
            "files": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
        })
    del loader, dataset
    gc.collect()
print(json.dumps(told))
"""


def test_over_fifty_epochs_memory_stays_flat_and_what_fits_is_read_from_the_disk_once(tmp_path: Path) -> None:
    count, sample = 64, 2**15
    noise = np.random.default_rng(0).integers(0, 256, (count, sample), np.uint8)
    samples = [{"x": x} for x in noise]
    fits, less = "64MiB", "1500KiB"
    with evictable_folder(tmp_path) as folder:
        stores = [
            preprocess(samples, folder / codec, BATCH, codec=codec, chunk_bytes="256KiB").path
            for codec in ("raw", "blosc-lz4")
        ]
        cases = list(product(stores, (fits, less), ("window", "batch", "full", "sequential")))
        if not os.environ.get(
            "MMAPLOAD_EPOCHS"
        ):  # which `make fuzz` sets; else any two of the three meet once
            cases = [case for number, case in enumerate(cases) if number in {0, 2, 5, 7, 9, 11, 12, 14}]
        told = json.loads(run_python(FIFTY, json.dumps(cases), timeout=300))
    assert len(told) == len(cases)
    for case, (first, settled, *later) in told.items():
        last = later[-1]
        assert first["read"] >= 0.9 * noise.nbytes, case
        if fits in case:  # not a chunk; Python may have to load code of its own again
            read = [each["read"] for each in (settled, *later)]
            # The kernel may take pages back, but does not in most stretches of ten epochs.
            assert statistics.median_low(read) < 4 * sample, (case, read)
            assert sum(read) < 5 * noise.nbytes, (case, read)
        assert (last["files"], last["threads"]) == (settled["files"], settled["threads"]), case
        assert last["maps"] <= settled["maps"] + 4, case
        # Less than a tenth of a batch an epoch: neither batches nor chunks gather.
        assert last["anonymous"] - settled["anonymous"] < 40 * 16 * sample // 10, case
