"""What the tests of datasets, samplers and loaders share: stores whose samples tell their own number."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import mmapload

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

FLOW_BYTES = 16
SAMPLE_BYTES = 8 + 15 + FLOW_BYTES  # of one small sample, all fields


def sample(number: int, image: tuple[int, ...] = (3, 5)) -> dict[str, np.ndarray]:
    """Three fields of different kinds that all follow from the number."""
    return {
        "number": np.array(number, np.int64),
        "image": np.full(image, number % 251, np.uint8),
        "flow": np.arange(4, dtype=np.float32) + number,
    }


def write_store(
    path: Path,
    count: int,
    batch_size: int = 4,
    chunk_length: int = 8,
    codec: str = "raw",
    image: tuple[int, ...] = (3, 5),
) -> str:
    """Write `count` samples in chunks of `chunk_length`."""
    shutil.copytree(_written(count, batch_size, chunk_length, codec, image), path)
    return str(path)


@functools.cache
def _written(count: int, batch_size: int, chunk_length: int, codec: str, image: tuple[int, ...]) -> str:
    """Write each kind of store once: a copy takes a fraction of the time, since it is not synced to disk."""
    folder = tempfile.mkdtemp(prefix="mmapload-test-")
    atexit.register(shutil.rmtree, folder)
    store = mmapload.preprocess(
        [sample(number, image) for number in range(count)],
        f"{folder}/store",
        batch_size,
        codec=codec,
        chunk_bytes=chunk_length * max(FLOW_BYTES, int(np.prod(image))),
    )
    assert store.layout.chunk_length == min(chunk_length, -(-count // batch_size) * batch_size)
    return store.path


def numbers_of(batch: dict[str, torch.Tensor]) -> list[int]:
    """The numbers of a collated batch, once all its other values have been found to fit them."""
    number = batch["number"]
    assert number.dtype == torch.int64
    assert number.ndim == 1
    assert batch["image"].dtype == torch.uint8
    assert batch["flow"].shape == (len(number), 4)
    of_image = (number % 251).to(torch.uint8).reshape(-1, *[1] * (batch["image"].ndim - 1))
    assert torch.equal(batch["image"], of_image.expand_as(batch["image"]))
    assert torch.equal(batch["flow"], torch.arange(4.0) + number[:, None])
    return number.tolist()


def numbers(loader: Iterable[dict[str, torch.Tensor]]) -> list[list[int]]:
    """The numbers of each batch of an epoch."""
    return [numbers_of(batch) for batch in loader]


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    """All numbers in one list."""
    return [number for batch in batches for number in batch]


def collate_numbers(samples: Any) -> list[int]:
    """A user's collate_fn, which sees single samples."""
    for each in samples:
        assert isinstance(each, dict)
        assert each["flow"].shape == (4,)
    return [int(each["number"]) for each in samples]


def keep_samples(samples: Any) -> Any:
    """The collate_fn that hands the samples on."""
    return samples


def double_in_place(each: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A user's transform that writes into what it is given."""
    for name in each:
        each[name] *= 2
    return each


def digest(folder: str) -> str:
    """SHA-256 over the names and bytes of every file of a store."""
    found = hashlib.sha256()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            found.update(os.path.relpath(path, folder).encode())
            with open(path, "rb") as file:
                found.update(file.read())
    return found.hexdigest()


def damage(path: str, field: str, chunk: int) -> str:
    """Flip a byte in the middle of a chunk's file; returns its path."""
    store = mmapload.open_store(path)
    file = store.chunk_path(store.field(field), chunk)
    with open(file, "r+b") as opened:
        opened.seek(os.path.getsize(file) // 2)
        byte = opened.read(1)[0]
        opened.seek(-1, os.SEEK_CUR)
        opened.write(bytes([byte ^ 0xFF]))
    return file


class Negated(mmapload.ChunkDataset):
    """A user's subclass that overrides `__getitem__` alone."""

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        return {"negative": -found["number"]}
