"""Every fault of a chunk file, through every way that reads it: an error that says which samples it hits."""

from __future__ import annotations

import functools
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import mmapload
from mmapload import ChunkDataLoader, ChunkDataset, ChunkError, ChunkSampler
from mmapload.checks import Checks
from mmapload.layout import RESERVED_GROUP
from mmapload.readers import BufferedReader, MappedReader
from mmapload.store import open_store
from tests.loading_cases import flip_byte, open_reader, run_python, swap, unseal

if TYPE_CHECKING:
    from collections.abc import Callable

    from mmapload.store import Store

COUNT, LENGTH, CHUNK = 14, 4, 1
SAMPLES = range(4, 8)


def fields(number: int) -> dict[str, np.ndarray]:
    return {"image": np.full((3, 5), number, np.uint8), "number": np.array(number)}


@functools.cache
def written(base: Path, codec: str, shuffle: int | None) -> Path:
    """Write a store of `.npz` files once; its samples have the numbers that their files' names have."""
    source = base / "npz"
    if not source.exists():
        source.mkdir()
        for number in range(COUNT):
            np.savez(source / f"{number:06}.npz", **fields(number))
    out = base / f"{codec}-{shuffle}"
    mmapload.preprocess(source, out, LENGTH, codec=codec, chunk_bytes=1, shuffle=shuffle)
    return out


@pytest.fixture(params=["raw", "zstd"])
def store(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: Any) -> Store:
    """A store in an order of its own, and so that its chunks hold samples from anywhere in the source."""
    base = tmp_path_factory.getbasetemp() / "faults"
    base.mkdir(exist_ok=True)
    shutil.copytree(written(base, request.param, 5), tmp_path / "store")
    return open_store(tmp_path / "store")


def chunk_file(store: Store, chunk: int = CHUNK) -> Path:
    return Path(store.chunk_path(store.field("image"), chunk))


def in_place(path: Path, make: Callable[[Path], object]) -> None:
    path.rename(path.parent.parent / "aside")
    make(path)


def cut(path: Path, change: int) -> None:
    os.truncate(path, path.stat().st_size + change)


def hole(path: Path) -> None:
    size = path.stat().st_size
    os.truncate(path, 0)
    os.truncate(path, size)


HARMS: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
    "short": lambda path: cut(path, -1),
    "long": lambda path: cut(path, 1),
    "zeros": hole,
    "damaged": lambda path: flip_byte(path, 7),
    "swapped": lambda path: swap(path, path.with_name("c.2.0.0")),
    "link": lambda path: in_place(path, lambda place: place.symlink_to("../aside")),
    "folder": lambda path: in_place(path, Path.mkdir),
    "pipe": lambda path: in_place(path, os.mkfifo),
}


def reader(store: Store, kind: type[MappedReader | BufferedReader]) -> Any:
    checks = Checks("first", len(store.fields), store.layout.chunks)
    return kind(store, store.layout.fields, checks, drop_behind=False)


def verified(store: Store) -> None:
    """Raise what `verify` finds in this chunk, once it has found no other but the one it was swapped with."""
    found = [fault for fault in store.verify(2) if fault is not None]
    assert [fault.chunk for fault in found] in ([CHUNK], [CHUNK, 2])
    raise found[0]


def ways(store: Store) -> dict[str, Callable[[], object]]:
    """Every way to read sample 5 in this process."""
    one = [5]
    made = {
        "read_chunk": lambda: store.read_chunk("image", CHUNK),
        "verify": lambda: verified(store),
        "buffered": lambda: reader(store, BufferedReader).load(CHUNK),
        "buffered rows": lambda: reader(store, BufferedReader).load(CHUNK, 1, 2),
    }
    if store.field("image").codec.is_raw:
        made["mapped"] = lambda: reader(store, MappedReader).load(CHUNK)
        made["mapped rows"] = lambda: reader(store, MappedReader).load(CHUNK, 1, 2)
        made["warm"] = lambda: reader(store, MappedReader).warm(CHUNK)
    ds = ChunkDataset(store.path)
    scarce = ChunkDataset(store.path, memory=4 * store.layout.chunk_nbytes // 3)
    made |= {
        "sample": lambda: ds[5],
        "batch": lambda: ds.__getitems__([13, 5, 0]),
        "stray sample": lambda: scarce[5],
        "DataLoader": lambda: list(DataLoader(ds, 2, sampler=one)),
        "DataLoader, ChunkSampler": lambda: list(DataLoader(ds, 2, sampler=ChunkSampler(ds, 2))),
    }
    for order in (None, "window", "batch", "full"):
        made[f"ChunkDataLoader, {order}"] = lambda order=order: list(ChunkDataLoader(ds, LENGTH, order))
    return made


@pytest.mark.parametrize("harm", HARMS)
def test_each_fault_is_an_error_that_names_the_samples_whatever_reads_the_file(
    store: Store, harm: str
) -> None:
    reading = ways(store)
    names = tuple(store.sample_name(number) for number in SAMPLES)
    HARMS[harm](chunk_file(store))
    for way, read in reading.items():
        with pytest.raises(ChunkError) as caught:
            read()
        error = caught.value
        if harm == "swapped" and error.chunk == 2:  # in orders in which that one comes first
            continue
        assert (error.field, error.chunk, error.path) == ("image", CHUNK, str(chunk_file(store))), way
        assert (error.samples, error.names) == (SAMPLES, names[:3]), way
        listed = ", ".join(map(repr, names[:3]))
        assert str(error).startswith(
            f"chunk 1 of field 'image', samples 4 to 7 ({listed} and 1 more): expected "
        ), way
        assert str(chunk_file(store)) in str(error)


@pytest.mark.parametrize("loader", [DataLoader, ChunkDataLoader])
@pytest.mark.parametrize("harm", ["missing", "swapped"])
def test_an_error_of_a_worker_process_tells_the_same(store: Store, harm: str, loader: Any) -> None:
    loading = loader(
        ChunkDataset(store.path), 2, sampler=range(COUNT), num_workers=2, persistent_workers=True
    )
    HARMS[harm](chunk_file(store))
    with pytest.raises(ChunkError) as direct:
        store.read_chunk("image", CHUNK)
    assert str(direct.value) in told_by(loading)


def told_by(loading: Any) -> str:
    """Say what error ends an epoch, and see torch's workers off, which its traceback would keep for long."""
    try:
        list(loading)
    except ChunkError as error:
        return str(error)
    finally:
        loading._iterator._shutdown_workers()
    return "no error"


def test_a_dataset_of_a_store_that_lacks_files_names_the_first_and_counts_the_others(store: Store) -> None:
    for chunk in (1, 3):
        chunk_file(store, chunk).unlink()
    with pytest.raises(ChunkError, match=r"no such file \(and 1 more\)") as caught:
        ChunkDataset(store.path)
    assert caught.value.samples == SAMPLES
    assert caught.value.names


@pytest.mark.parametrize("array", ["names", "ends"])
def test_names_that_cannot_be_read_hide_no_error(store: Store, array: str) -> None:
    for path in (chunk_file(store), Path(store.path, RESERVED_GROUP, array, "c.0")):
        flip_byte(path, 7)
    for read in (lambda: store.read_chunk("image", CHUNK), lambda: open_reader(store).load(CHUNK)):
        with pytest.raises(
            ChunkError, match=r"chunk 1 of field 'image', samples 4 to 7: .*damaged"
        ) as caught:
            read()
        assert (caught.value.samples, caught.value.names) == (SAMPLES, ())


def test_the_names_of_all_samples_of_a_chunk_follow_from_the_error(store: Store) -> None:
    flip_byte(chunk_file(store, 3), 7)
    with pytest.raises(ChunkError, match="samples 12 to 13") as caught:
        store.read_chunk("image", 3)
    numbers = store.read_chunk("number", 3).tolist()
    assert [store.sample_name(sample) for sample in caught.value.samples] == [
        f"{number:06}.npz" for number in numbers
    ]


def keep_index(each: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    return each["index"], each["number"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, keep_index])
def test_the_index_leads_from_any_batch_to_the_file_of_each_sample(
    store: Store, workers: int, transform: Any
) -> None:
    names = [store.sample_name(sample) for sample in range(COUNT)]
    ds = ChunkDataset(store.path, transform=transform, with_index=True)
    loaders: list[Any] = [
        DataLoader(ds, 3, sampler=ChunkSampler(ds, 3), num_workers=workers),
        ChunkDataLoader(ds, 3, shuffle=True, num_workers=workers),
    ]
    for loader in loaders:
        seen = []
        for batch in loader:
            index, number = batch if transform else (batch["index"], batch["number"])
            assert index.dtype == torch.int64
            assert [names[each] for each in index.tolist()] == [f"{each:06}.npz" for each in number.tolist()]
            seen += index.tolist()
        assert sorted(seen) == list(range(COUNT))


def claim(store: Store, **lengths: int) -> None:
    """Let metadata promise more than there is: samples in the root, or elements of a sample of `image`."""
    unseal(store.path)
    for document in ("zarr.json", "image/zarr.json", "number/zarr.json"):
        path = Path(store.path, document)
        told = json.loads(path.read_text())
        if document == "zarr.json":
            told["attributes"]["mmapload"]["samples"] = lengths.get("samples", COUNT)
        else:
            told["shape"][0] = lengths.get("samples", COUNT)
        if document == "image/zarr.json" and "elements" in lengths:
            told["shape"][1:] = told["chunk_grid"]["configuration"]["chunk_shape"][1:] = [
                lengths["elements"], 1
            ]  # fmt: skip
        path.write_text(json.dumps(told))


PEAK = """
import sys
import mmapload
from mmapload.readers import BufferedReader, MappedReader
from mmapload.checks import Checks

def peak():
    with open("/proc/self/status") as status:
        return int([line.split()[1] for line in status if line.startswith("VmPeak")][0])

import concurrent.futures, numcodecs.zstd  # what the reads below import
store = mmapload.open_store(sys.argv[1])
list(mmapload.open_store(sys.argv[2]).verify())
before = peak()
told = []
checks = Checks("first", 2, store.layout.chunks)
readers = [BufferedReader] + [MappedReader] * store.field("image").codec.is_raw
ways = [lambda: store.read_chunk("image", 1)]
made = [kind(store, store.layout.fields, checks, drop_behind=False) for kind in readers]
ways += [lambda reader=reader: reader.load(1) for reader in made]
for way in ways:
    try:
        way()
    except mmapload.ChunkError as error:
        told.append((error.field, error.chunk, error.samples))
assert told == [("image", 1, range(4, 8))] * len(ways), told
assert sum(fault is not None for fault in store.verify()) == 4
print(peak() - before)
"""


@pytest.mark.parametrize("elements", [2**20, 2**28, 2**48])
def test_claims_of_a_gigabyte_or_a_petabyte_take_no_memory(
    store: Store, tmp_path: Path, elements: int
) -> None:
    """Address space is counted, so that memory which was never touched counts too."""
    shutil.copytree(store.path, tmp_path / "sound")
    claim(store, elements=elements)
    grown = int(run_python(PEAK, store.path, tmp_path / "sound"))
    threads = 72 * 1024  # KiB: one thread's stack and arena
    assert grown < 2 * threads


@pytest.mark.parametrize("samples", [2**20, 2**52])
def test_claims_of_chunks_that_are_not_there_end_soon(store: Store, samples: int) -> None:
    claim(store, samples=samples)
    claimed = open_store(store.path)
    with pytest.raises(ChunkError, match=f"no such file .and {2 * (samples // LENGTH - 4) - 1:,} more."):
        ChunkDataset(store.path)
    assert len(claimed.missing_chunks()) == 2000
    found = [fault for fault in claimed.verify(2) if fault is not None]
    assert len(found) < 5000
    ends = [fault.found for fault in found if "more are missing" in str(fault)]
    assert ends[:2] == [f"{samples // LENGTH - 1004:,} more are missing"] * 2
    with pytest.raises(ChunkError, match="no such file"):
        claimed.read_chunk("image", samples // LENGTH - 1)
    with pytest.raises(ChunkError, match="no such file"):
        claimed.sample_name(samples - 1)
