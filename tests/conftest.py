"""What several test modules share: stores written by zarr-python, so independently of our writer."""

from __future__ import annotations

import gc
import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from mmapload.codecs import CODEC_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import numpy as np

# Times vary on a loaded machine; what is tested does not.
settings.register_profile("mmapload", deadline=None)
settings.load_profile("mmapload")

# Workers of the start method "forkserver" come from a process that has torch: each would import it anew.
multiprocessing.set_forkserver_preload(["tests.preloaded"])


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of every garbage collection, of this process and of its forks.

    Going through torch's objects takes a tenth of a second, and a fork has to copy each page of them for it.
    """
    gc.collect()
    gc.freeze()


def write_with_zarr(
    path: str | os.PathLike[str],
    fields: Mapping[str, np.ndarray],
    batch_size: int,
    chunk_length: int | None = None,
    codec: str = "raw",
    **attributes: Any,
) -> None:
    """Write a store by zarr-python alone: what is in `fields` along axis 0 are the samples."""
    zarr = pytest.importorskip("zarr")
    from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, ZstdCodec

    notes = {
        "format_version": 1,
        "samples": len(next(iter(fields.values()))),
        "batch_size": batch_size,
        "fields": {name: {} for name in fields},
        "names": False,
        "source": {"kind": "test"},
    } | attributes
    group = zarr.create_group(os.fspath(path), zarr_format=3, attributes={"mmapload": notes})
    for name, array in fields.items():
        compressors: dict[str, list[Any]] = {
            "raw": [],
            "zstd": [ZstdCodec(level=3)],
            "blosc-lz4": [
                BloscCodec(typesize=array.dtype.itemsize, cname="lz4", shuffle="shuffle", blocksize=0)
            ],
            "blosc-zstd": [
                BloscCodec(typesize=array.dtype.itemsize, cname="zstd", shuffle="shuffle", blocksize=0)
            ],
        }
        stored = group.create_array(
            name,
            shape=array.shape,
            dtype=array.dtype,
            chunks=(chunk_length or batch_size, *(max(1, length) for length in array.shape[1:])),
            serializer=BytesCodec(endian="little"),
            compressors=[*compressors[codec], Crc32cCodec()],
            filters=None,
            fill_value=0,
            chunk_key_encoding={"name": "default", "separator": "."},
            config={"write_empty_chunks": True},
        )
        stored[...] = array


@pytest.fixture
def zarr_store(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes a store by zarr-python and returns its path."""

    def write(fields: Mapping[str, np.ndarray], batch_size: int, **options: Any) -> str:
        path = tmp_path / f"store{len(os.listdir(tmp_path))}"
        write_with_zarr(path, fields, batch_size, **options)
        return str(path)

    return write


@pytest.fixture(params=CODEC_NAMES)
def codec_name(request: pytest.FixtureRequest) -> str:
    """Each of the format's codecs."""
    return str(request.param)
