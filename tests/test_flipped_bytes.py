"""Every single byte of a store, flipped in turn: `verify` finds it, and no wrong value is loaded.

MMAPLOAD_FLIPS=1, which `make fuzz` sets, flips every byte of every file of stores of each codec; else some.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from mmapload import ChunkDataset, LayoutError, MmaploadError
from mmapload.codecs import CODEC_NAMES
from mmapload.preprocessing import preprocess
from mmapload.seals import SEAL
from mmapload.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT, BATCH = 5, 2
EVERYTHING = bool(os.environ.get("MMAPLOAD_FLIPS"))
STEP = 1 if EVERYTHING else 23

pytestmark = pytest.mark.timeout(7200 if EVERYTHING else 300)


def plain(number: int) -> dict[str, Any]:
    """A sample of two fields of fixed shape."""
    return {
        "image": (np.arange(6, dtype=np.uint8) + 6 * number).reshape(2, 3),
        "flow": np.linspace(-1, 1, 2, dtype=np.float32) * number,
    }


def mixed(number: int) -> dict[str, Any]:
    """A sample that differs from others in shape, with text and a time, which lacks a field or not."""
    return {
        "words": np.arange((3, 0, 1, 9, 6)[number], dtype=np.float32) + number,
        "boxes": np.full((number % 3, 2), number + 1, np.uint8),
        "caption": np.str_(("", "ab", "ü\U0001f600", "end", "a")[number]),
        "when": np.datetime64(1000 * number + 1, "ms"),
        **({"depth": np.float32(number + 1)} if number % 2 else {}),
    }


KINDS = {
    "plain": (plain, {}),
    "mixed": (mixed, {"ragged": "words,boxes", "optional": "depth"}),
}
CHOSEN = [(kind, codec) for kind in KINDS for codec in (CODEC_NAMES if EVERYTHING else ("raw", "zstd"))]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for stores, in memory where that is possible."""
    memory = Path("/dev/shm")
    folder = tmp_path_factory.mktemp("flips")
    if os.access(memory, os.W_OK):
        folder = memory / f"mmapload-flips-{os.getpid()}"
    for kind, (sample, _) in KINDS.items():
        (folder / kind).mkdir(parents=True)
        for number in range(COUNT):
            np.savez(folder / kind / f"s{number}.npz", **sample(number))
    yield folder
    shutil.rmtree(folder)


def positions(size: int, first: int) -> list[int]:
    """Which bytes of a file to flip."""
    if EVERYTHING or size < 5000:
        return list(range(first % STEP, size, STEP))
    return [*range(8), *range(first, size - 8, 8009), *range(size - 8, size)]


def bits(value: Any) -> Any:
    """Values as something that can be compared bit by bit."""
    if isinstance(value, torch.Tensor):
        return bits(value.numpy())
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return value if isinstance(value, str) else [bits(each) for each in value]


def loaded(folder: Path) -> tuple[Any, ...]:
    """Read all names and values."""
    store = open_store(folder)
    names = [store.sample_name(sample) for sample in range(min(len(store), 2 * COUNT))]
    dataset = ChunkDataset(folder, memory="1GiB")
    batch = dataset.read(range(len(dataset))).tensors
    return names, {name: bits(value) for name, value in batch.items()}


def faults(folder: Path) -> int:
    try:
        return sum(fault is not None for fault in open_store(folder).verify())
    except LayoutError:
        return 1


@pytest.mark.parametrize(("kind", "codec"), CHOSEN)
def test_each_flipped_byte_is_found_by_verify_and_gives_no_wrong_value(
    base: Path, kind: str, codec: str
) -> None:
    options = KINDS[kind][1]
    folder = base / f"{kind}-{codec}"
    preprocess(base / kind, folder, BATCH, codec=codec, chunk_bytes=1, **options)  # type: ignore[arg-type]
    expected = loaded(folder)
    assert expected[0] == [f"s{number}.npz" for number in range(COUNT)]
    flips = loads = 0
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        if "__mmapload__" in file.parts and codec != "raw":
            continue  # they are raw in every store
        with open(file, "r+b", buffering=0) as opened:
            for position in positions(file.stat().st_size, flips):
                byte = os.pread(opened.fileno(), 1, position)
                os.pwrite(opened.fileno(), bytes([byte[0] ^ (1 << flips % 8)]), position)
                flips += 1
                told = f"byte {position} of {file.relative_to(folder)}"
                assert faults(folder) > 0, told
                if position > 4000 and position % 31:  # where long lists are empty
                    os.pwrite(opened.fileno(), byte, position)
                    continue
                try:
                    assert loaded(folder) == expected, told
                    loads += 1  # a byte in what describes reserved arrays, say
                except MmaploadError:
                    pass
                os.pwrite(opened.fileno(), byte, position)
    assert faults(folder) == 0
    assert loaded(folder) == expected
    print(f"{flips:,} bytes of {kind}, {codec}: all found; {loads:,} harm no value, the others are refused")


@pytest.mark.parametrize("at", range(len(SEAL)))
def test_a_changed_byte_in_the_name_of_the_checksum_of_metadata_does_not_take_it_away(
    base: Path, at: int
) -> None:
    folder = base / "sealed"
    if not folder.exists():
        preprocess(base / "plain", folder, BATCH)
    root = folder / "zarr.json"
    text = root.read_bytes()
    place = text.index(SEAL.encode()) + at
    for byte in range(256):
        root.write_bytes(text[:place] + bytes([byte]) + text[place + 1 :])
        assert (faults(folder) == 0) == (byte == text[place]), byte
    root.write_bytes(text)
