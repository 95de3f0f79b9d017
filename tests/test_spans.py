"""Places for chunks in one array: right bytes at the right rows, reserved before and after."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.codecs import CHECKSUM_BYTES, RawCodec
from mmapload.layout import FieldLayout
from mmapload.mappings import PAGE
from mmapload.spans import MOST_BYTES, Span
from tests.loading_cases import maps_of, run_python

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from mmapload.codecs import Bytes


def field_of(sample_nbytes: int, chunk_length: int) -> FieldLayout:
    """Describe a raw field."""
    return FieldLayout("x", np.dtype("u1"), (sample_nbytes,), chunk_length, RawCodec())


def protections(start: int, stop: int) -> set[str]:
    """Say what may be done with addresses, by what the system says of them."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, allowed = line.split()[:2]
        first, last = (int(each, 16) for each in addresses.split("-"))
        if first < stop and last > start:
            found.add(allowed)
    return found


def map_chunk(span: Span, chunk: int, path: Path, after: Callable[[], None] | None = None) -> Bytes | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return span.map(chunk, fd, path.stat().st_size, after)
    finally:
        os.close(fd)


@given(
    sample_nbytes=st.sampled_from([1, 3, 64, 1000, 1024, 4096, 16381]),
    chunk_length=st.sampled_from([1, 2, 7, 32, 300]),
    chunks=st.integers(1, 5),
    data=st.data(),
)
@settings(max_examples=60)
def test_rows_of_any_chunks_are_the_samples_that_their_files_hold(
    tmp_path_factory: pytest.TempPathFactory,
    sample_nbytes: int,
    chunk_length: int,
    chunks: int,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("chunks")
    span = Span.of(field_of(sample_nbytes, chunk_length), chunks)
    assert span is not None
    content = np.random.default_rng(0).integers(0, 256, (chunks * chunk_length, sample_nbytes), np.uint8)
    held = []
    for chunk in data.draw(st.permutations(range(chunks))):
        path = folder / str(chunk)
        rows = content[chunk * chunk_length : (chunk + 1) * chunk_length]
        path.write_bytes(rows.tobytes() + bytes(CHECKSUM_BYTES))
        held.append(map_chunk(span, chunk, path))
        assert held[-1] is not None
        assert held[-1].ctypes.data % PAGE == 0
    samples = np.array(data.draw(st.lists(st.integers(0, len(content) - 1), max_size=50)), np.int64)
    rows = span.rows(samples, samples // chunk_length, chunk_length)
    np.testing.assert_array_equal(span.array.take(rows, 0), content[samples])


def test_a_place_takes_one_map_at_a_time_and_is_reserved_again_when_its_last_array_is_gone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(bytes(range(256)) * 32 + bytes(CHECKSUM_BYTES))
    span = Span.of(field_of(64, 128), 3)
    assert span is not None
    start = span.array.ctypes.data
    assert protections(start, start + span.array.nbytes) == {"---p"}
    events: list[str] = []
    memory = map_chunk(span, 1, path, lambda: events.append(f"{maps_of(path)} maps"))
    assert memory is not None
    assert protections(memory.ctypes.data, memory.ctypes.data + memory.nbytes) == {"rw-p"}
    assert map_chunk(span, 1, path) is None
    assert map_chunk(span, 0, path) is not None, "other places are free"
    part = memory[100:200]
    del memory
    assert part.tobytes() == bytes(range(100, 200))
    assert events == []
    del part
    assert events == ["0 maps"]
    assert protections(start, start + span.array.nbytes) == {"---p"}
    assert map_chunk(span, 1, path) is not None


def test_the_address_space_is_given_back_with_the_last_chunk_and_not_before(tmp_path: Path) -> None:
    path = tmp_path / "chunk"
    path.write_bytes(bytes(1024 + CHECKSUM_BYTES))
    span = Span.of(field_of(1, 1024), 2)
    assert span is not None
    start, stop = span.array.ctypes.data, span.array.ctypes.data + span.array.nbytes
    memory = map_chunk(span, 0, path)
    del span
    assert protections(start, stop) == {"---p", "rw-p"}
    del memory
    assert "rw-p" not in protections(start, stop) or maps_of(path) == 0


def test_no_address_space_is_reserved_beyond_what_a_process_has_or_may_have() -> None:
    assert Span.of(field_of(1024, 2**20), MOST_BYTES // 2**30 + 1) is None
    told = run_python(
        "import resource, numpy as np\n"
        "from tests.test_spans import field_of\n"
        "from mmapload.spans import Span\n"
        "resource.setrlimit(resource.RLIMIT_AS, (2**34, 2**34))\n"
        "print(Span.of(field_of(1024, 16), 4))\n"
    )
    assert told.strip() == "None"
