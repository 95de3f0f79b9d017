"""Stores that zarr-python wrote: opened, read, and every fault in them found and named."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.codecs import checksum
from mmapload.errors import ChunkError, LayoutError, StoreNotFoundError
from mmapload.layout import CORE_DTYPES, RESERVED_GROUP
from mmapload.preprocessing import preprocess
from mmapload.reserved import NAME_ARRAYS
from mmapload.store import Store, open_store
from mmapload.writer.checksums import write_checksums
from mmapload.writer.documents import field_document, group_document
from tests.preprocessing_cases import write_npz

if TYPE_CHECKING:
    from collections.abc import Callable


def arrays(samples: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "image": rng.integers(0, 256, (samples, 3, 4), np.uint8),
        "flow": rng.standard_normal((samples, 2), np.float32),
        "label": rng.integers(-9, 9, samples, np.int64),
    }


def chunk_files(store: Store) -> list[str]:
    return [
        store.chunk_path(field, chunk)
        for field in store.layout.fields
        for chunk in range(store.layout.chunks)
    ]


def faults(store: Store, threads: int = 2) -> list[ChunkError]:
    return [fault for fault in store.verify(threads) if fault is not None]


def edit(path: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file in place."""
    with open(path) as file:
        document = json.load(file)
    change(document)
    with open(path, "w") as file:
        json.dump(document, file)


@pytest.mark.parametrize("samples", [1, 3, 4, 5, 8, 11])
def test_a_store_that_zarr_wrote_is_read(zarr_store, codec_name, samples):
    written = arrays(samples)
    store = open_store(zarr_store(written, batch_size=2, chunk_length=4, codec=codec_name))
    assert len(store) == samples
    assert store.fields == ("image", "flow", "label")
    assert store.layout.chunk_length == 4
    for name, array in written.items():
        read = np.concatenate([store.read_chunk(name, chunk) for chunk in range(store.layout.chunks)])
        assert read.dtype == array.dtype
        assert np.array_equal(read, array)
        assert store.field(name).codec.name == codec_name
    assert faults(store) == []
    assert store.missing_chunks() == []


@pytest.mark.parametrize("name", sorted(CORE_DTYPES))
def test_every_core_type_is_read_bit_by_bit(zarr_store, codec_name, name):
    dtype = CORE_DTYPES[name]
    data = np.random.default_rng(1).integers(0, 256, (5, 3 * dtype.itemsize), np.uint8)
    if name == "bool":
        data &= 1
    array = data.view(dtype)
    store = open_store(zarr_store({"x": array}, batch_size=2, chunk_length=2, codec=codec_name))
    assert store.field("x").dtype == dtype
    for chunk in range(3):
        assert store.read_chunk("x", chunk).tobytes() == array[2 * chunk : 2 * chunk + 2].tobytes()


def test_a_field_with_an_empty_axis_has_no_files_and_reads_empty(zarr_store):
    store = open_store(zarr_store({"x": np.zeros((5, 3, 0), "f4"), "y": np.arange(5)}, batch_size=2))
    assert store.read_chunk("x", 2).shape == (1, 3, 0)
    assert store.missing_chunks() == []
    assert faults(store) == []
    assert store.chunk_files == 3


def test_chunks_read_are_the_callers_own(zarr_store):
    store = open_store(zarr_store(arrays(4), batch_size=4))
    first = store.read_chunk("image", 0)
    first[...] = 0
    assert store.read_chunk("image", 0).any()


def test_chunks_and_fields_that_do_not_exist_are_named(zarr_store):
    store = open_store(zarr_store(arrays(5), batch_size=2))
    for chunk in (-1, 3, 10**9):
        with pytest.raises(IndexError, match=f"chunk {chunk} of 3"):
            store.read_chunk("image", chunk)
    with pytest.raises(KeyError, match="no field 'flux', only image, flow, label"):
        store.read_chunk("flux", 0)


def test_a_store_pickles_small_and_reads_on_the_other_side(zarr_store):
    store = open_store(zarr_store(arrays(100), batch_size=2))
    pickled = pickle.dumps(store)
    assert len(pickled) < 2000
    assert pickle.loads(pickled) == store


def test_opening_keeps_nothing_open_and_touches_no_chunk(zarr_store):
    path = zarr_store(arrays(5), batch_size=2)
    for chunk in chunk_files(open_store(path)):
        os.remove(chunk)
    before = len(os.listdir("/proc/self/fd"))
    assert len(open_store(path)) == 5
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_fingerprint_is_that_of_what_is_in_the_store_wherever_it_lies(zarr_store, tmp_path):
    path = zarr_store(arrays(5), batch_size=2)
    before = open_store(path).fingerprint
    shutil.move(path, tmp_path / "elsewhere")
    assert open_store(tmp_path / "elsewhere").fingerprint == before
    others = [
        zarr_store(arrays(6), batch_size=2),
        zarr_store(arrays(5), batch_size=1, chunk_length=2),
        zarr_store(arrays(5), batch_size=2, chunk_length=4),
        zarr_store(arrays(5), batch_size=2, codec="zstd"),
        zarr_store({"image": arrays(5)["image"]}, batch_size=2),
        zarr_store(arrays(5), batch_size=2, source={"kind": "npz", "shuffle": 3}),
    ]
    assert len({before, *(open_store(other).fingerprint for other in others)}) == 7


@pytest.mark.parametrize("threads", [1, 3])
def test_every_flipped_byte_of_every_chunk_file_is_found_and_named(zarr_store, codec_name, threads):
    store = open_store(zarr_store(arrays(5), batch_size=2, codec=codec_name))
    for field in store.layout.fields:
        for chunk in range(store.layout.chunks):
            path = store.chunk_path(field, chunk)
            whole = Path(path).read_bytes()
            for position in range(0, len(whole), threads):
                with open(path, "r+b") as file:
                    file.seek(position)
                    file.write(bytes([whole[position] ^ 0x40]))
                (fault,) = faults(store, threads)
                assert (fault.field, fault.chunk, fault.path) == (field.name, chunk, path)
                with open(path, "r+b") as file:
                    file.write(whole)
    assert faults(store, threads) == []


@pytest.mark.parametrize(
    "harm",
    [
        os.remove,
        lambda path: os.truncate(path, os.path.getsize(path) - 1),
        lambda path: os.truncate(path, os.path.getsize(path) + 1),
        lambda path: os.truncate(path, 0),
        lambda path: (os.remove(path), os.mkdir(path)),
    ],
    ids=["missing", "short", "long", "empty", "folder"],
)
def test_a_chunk_file_that_is_not_whole_is_an_error_wherever_it_is_read(zarr_store, codec_name, harm):
    store = open_store(zarr_store(arrays(5), batch_size=2, codec=codec_name))
    path = store.chunk_path(store.field("flow"), 2)
    harm(path)
    with pytest.raises(ChunkError) as caught:
        store.read_chunk("flow", 2)
    (fault,) = faults(store)
    for error in (caught.value, fault):
        assert (error.field, error.chunk, error.path) == ("flow", 2, path)
        assert error.expected
        assert error.found
    assert np.array_equal(store.read_chunk("flow", 1), arrays(5)["flow"][2:4]), "the others still read"


def test_faults_come_in_the_order_of_fields_and_chunks(zarr_store):
    store = open_store(zarr_store(arrays(40), batch_size=1))
    for name, chunk in (("label", 3), ("image", 39), ("flow", 0), ("image", 2)):
        os.truncate(store.chunk_path(store.field(name), chunk), 1)
    found = list(store.verify(threads=4))
    assert len(found) == store.chunk_files == 120
    assert [(fault.field, fault.chunk) for fault in found if fault] == [
        ("image", 2),
        ("image", 39),
        ("flow", 0),
        ("label", 3),
    ]


def test_missing_chunks_are_listed_without_reading(zarr_store):
    store = open_store(zarr_store(arrays(5), batch_size=2))
    gone = store.chunk_path(store.field("label"), 1)
    os.remove(gone)
    shutil.rmtree(os.path.join(store.path, "image"))
    assert store.missing_chunks() == [
        *(("image", chunk, store.chunk_path(store.field("image"), chunk)) for chunk in range(3)),
        ("label", 1, gone),
    ]


def test_every_flipped_byte_of_metadata_is_refused_or_changes_nothing_that_is_read(zarr_store):
    """JSON has no checksum: whatever a flip makes of it, there is an answer and never a crash."""
    written = arrays(5)
    path = zarr_store(written, batch_size=2)
    for document in ("zarr.json", "image/zarr.json"):
        whole = Path(path, document).read_bytes()
        for position in range(len(whole)):
            with open(os.path.join(path, document), "r+b") as file:
                file.seek(position)
                file.write(bytes([whole[position] ^ 0x02]))
            try:
                store = open_store(path)
                store.read_chunk("image", 0)
            except (LayoutError, ChunkError, KeyError):
                pass
            with open(os.path.join(path, document), "r+b") as file:
                file.write(whole)


def test_all_problems_of_all_documents_are_told_at_once(zarr_store):
    path = zarr_store(arrays(5), batch_size=2)
    edit(f"{path}/image/zarr.json", lambda document: document.update(data_type="string", zarr_format=2))
    os.remove(f"{path}/flow/zarr.json")
    with open(f"{path}/label/zarr.json", "w") as file:
        file.write('{"a": 1, "a": 1}')
    with pytest.raises(LayoutError) as caught:
        open_store(path)
    assert caught.value.path == path
    told = "\n".join(caught.value.problems)
    for part in (
        "image/zarr.json: zarr_format: expected 3",
        "image/zarr.json: data_type",
        "flow/zarr.json: missing",
        "label/zarr.json: the key 'a' is there twice",
        "label/zarr.json: shape",
    ):
        assert part in told
    assert all(problem in str(caught.value) for problem in caught.value.problems)


def test_fields_of_different_chunk_lengths_are_refused(zarr_store):
    path = zarr_store(arrays(8), batch_size=2, chunk_length=4)
    grid = {"name": "regular", "configuration": {"chunk_shape": [2]}}
    edit(f"{path}/label/zarr.json", lambda document: document.update(chunk_grid=grid))
    with pytest.raises(LayoutError, match=r"one chunk length, found \[2, 4\]"):
        open_store(path)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "null", '{"zarr_format": 3, "node_type": "group"}'])
def test_a_root_that_is_none_is_refused_with_a_reason(tmp_path, text):
    (tmp_path / "zarr.json").write_text(text)
    with pytest.raises(LayoutError) as caught:
        open_store(tmp_path)
    assert caught.value.problems
    assert all(problem.startswith("zarr.json: ") for problem in caught.value.problems)


def test_what_is_no_store_says_what_it_is_and_is_not_made(tmp_path):
    with pytest.raises(StoreNotFoundError, match=r"no store at .*nowhere; `mmapload preprocess"):
        open_store(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreNotFoundError, match="is a file, not a store"):
        open_store(tmp_path / "file")
    with pytest.raises(StoreNotFoundError, match=r"folder without zarr\.json"):
        open_store(tmp_path)
    os.mkdir(tmp_path / ".out.partial")
    with pytest.raises(StoreNotFoundError, match=r"unfinished.*same `mmapload preprocess` command"):
        open_store(tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        open_store("")


def test_a_relative_path_and_a_link_are_followed(zarr_store, tmp_path, monkeypatch):
    path = zarr_store(arrays(5), batch_size=2)
    monkeypatch.chdir(tmp_path)
    relative = open_store(os.path.relpath(path))
    assert relative.path == path
    os.symlink(path, tmp_path / "link")
    assert len(open_store(tmp_path / "link")) == 5
    monkeypatch.chdir("/")
    assert relative.read_chunk("image", 0).shape == (2, 3, 4)


def add_names(path: str, names: list[str]) -> None:
    """Write the reserved group by hand, as `docs/format.md` has it."""
    texts = [name.encode("utf-8", "surrogateescape") for name in names]
    contents = {
        "names": b"".join(texts),
        "ends": np.cumsum([len(text) for text in texts]).astype("<i8").tobytes(),
    }
    os.makedirs(os.path.join(path, RESERVED_GROUP))
    Path(path, RESERVED_GROUP, "zarr.json").write_bytes(group_document({}))
    for name, content in contents.items():
        layout = NAME_ARRAYS[name]
        os.makedirs(os.path.join(path, RESERVED_GROUP, name))
        document = field_document(layout, len(content) // layout.dtype.itemsize)
        Path(path, RESERVED_GROUP, name, "zarr.json").write_bytes(document)
        for chunk in range(-(-len(content) // layout.chunk_nbytes)):
            part = content[chunk * layout.chunk_nbytes : (chunk + 1) * layout.chunk_nbytes]
            padded = np.frombuffer(part.ljust(layout.chunk_nbytes, b"\0"), np.uint8)
            with open(os.path.join(path, RESERVED_GROUP, name, f"c.{chunk}"), "wb") as file:
                file.write(padded.tobytes() + checksum(padded))


NAMES = ["a/b.npz", "", "größe.npz", "画像/1.npz", "bad\udcff.npz", "last.npz"]


def test_the_name_of_every_sample_is_read(zarr_store):
    path = zarr_store(arrays(6), batch_size=2, names=True)
    add_names(path, NAMES)
    store = open_store(path)
    assert [store.sample_name(sample) for sample in range(6)] == NAMES
    assert faults(store) == []
    for sample in (-1, 6):
        with pytest.raises(IndexError, match=f"sample {sample} of 6"):
            store.sample_name(sample)


def test_names_that_cross_chunks_are_read_whole(zarr_store):
    per_chunk = NAME_ARRAYS["names"].chunk_length
    names = ["x" * (per_chunk - 3), "crosses", "y" * (2 * per_chunk + 1), "end"]
    path = zarr_store({"x": np.arange(4)}, batch_size=2, names=True)
    add_names(path, names)
    store = open_store(path)
    assert [store.sample_name(sample) for sample in range(4)] == names
    assert len(list(store.verify())) == 2 + 1 + 4


def test_ends_that_cross_chunks_are_read(zarr_store):
    samples = NAME_ARRAYS["ends"].chunk_length + 2
    path = zarr_store({"x": np.zeros(samples, "u1")}, batch_size=samples, names=True)
    add_names(path, [f"{sample % 10}" for sample in range(samples)])
    store = open_store(path)
    for sample in (0, samples - 3, samples - 2, samples - 1):
        assert store.sample_name(sample) == f"{sample % 10}"


def test_a_store_without_names_says_none(zarr_store):
    assert open_store(zarr_store(arrays(5), batch_size=2)).sample_name(3) is None


@pytest.mark.parametrize("name", ["names", "ends"])
def test_damaged_names_are_found_and_named(zarr_store, name):
    path = zarr_store(arrays(6), batch_size=2, names=True)
    add_names(path, NAMES)
    store = open_store(path)
    damaged = os.path.join(path, RESERVED_GROUP, name, "c.0")
    with open(damaged, "r+b") as file:
        file.seek(2)
        file.write(b"\x7f")
    (fault,) = faults(store)
    assert (fault.field, fault.chunk, fault.path) == (name, 0, damaged)
    with pytest.raises(ChunkError, match="checksum"):
        store.sample_name(0)
    os.remove(damaged)
    with pytest.raises(ChunkError, match="no such file"):
        store.sample_name(0)


def write_ends(path: str, ends: list[int], chunk: int = 0) -> str:
    """Write a chunk of the array `ends`, whose checksum is right, and return its path."""
    values = np.zeros(NAME_ARRAYS["ends"].chunk_length, "<i8")
    values[: len(ends)] = ends
    file = Path(path, RESERVED_GROUP, "ends", f"c.{chunk}")
    file.write_bytes(values.tobytes() + checksum(values.view(np.uint8)))
    return str(file)


@pytest.mark.parametrize(
    ("ends", "found", "sample"),
    [
        ([3, 1, 9], "1 after 3 for sample 1", 1),
        ([-1, 6, 9], "-1 after 0 for sample 0", 0),
        ([3, 6, -1], "-1 after 6 for sample 2", 2),
        ([3, 6, 0], "0 after 6 for sample 2", 2),
        ([3, 6, 8], "8", None),
        ([0, 0, 0], "0", None),
        ([3, 10, 10], "10", None),
        ([3, 6, 2**62], f"{2**62:,}", 2),
    ],
)
def test_ends_of_names_that_cannot_be_are_faults_whatever_their_checksum(zarr_store, ends, found, sample):
    path = zarr_store(arrays(3), batch_size=2, names=True)
    add_names(path, ["abc", "def", "ghi"])
    file = write_ends(path, ends)
    (fault,) = faults(open_store(path))
    assert (fault.field, fault.chunk, fault.path, fault.found) == ("ends", 0, file, found)
    if sample is not None:
        with pytest.raises(ChunkError) as caught:
            open_store(path).sample_name(sample)
        assert os.path.basename(caught.value.path) == f"c.{caught.value.chunk}"


def test_ends_are_compared_across_their_chunks_and_an_error_names_chunk_and_file(zarr_store):
    samples = NAME_ARRAYS["ends"].chunk_length + 2
    path = zarr_store({"x": np.zeros(samples, "u1")}, batch_size=samples, names=True)
    add_names(path, ["x"] * samples)
    assert faults(open_store(path)) == []
    file = write_ends(path, [samples - 3, samples], chunk=1)
    (fault,) = faults(open_store(path))
    assert (fault.chunk, fault.path) == (1, file)
    assert fault.found == f"{samples - 3:,} after {samples - 2:,} for sample {samples - 2:,}"
    with pytest.raises(ChunkError) as caught:
        open_store(path).sample_name(samples - 2)
    assert (caught.value.chunk, caught.value.path, caught.value.found) == (1, file, fault.found)


def test_a_store_whose_names_are_all_empty_is_whole(zarr_store):
    path = zarr_store(arrays(3), batch_size=2, names=True)
    add_names(path, ["", "", ""])
    assert faults(open_store(path)) == []
    assert open_store(path).sample_name(2) == ""


@pytest.mark.parametrize("harm", ["gone", "pipe", "folder", "shorter", "another type"])
@pytest.mark.parametrize("array", ["", "names", "ends", "checksums"])
def test_metadata_of_what_is_reserved_is_verified(zarr_store, array, harm):
    path = zarr_store(arrays(3), batch_size=2, names=True)
    add_names(path, ["abc", "def", "ghi"])
    write_checksums(path, open_store(path).layout)
    edit(os.path.join(path, "zarr.json"), lambda root: root["attributes"]["mmapload"].update(checksums=True))
    assert faults(open_store(path)) == []
    document = Path(path, RESERVED_GROUP, array, "zarr.json")
    text = document.read_text()
    document.unlink()
    if harm == "pipe":
        os.mkfifo(document)
    elif harm == "folder":
        document.mkdir()
    elif harm == "shorter":
        document.write_text(re.sub(r'"shape": \[\s*[0-9]+', '"shape": [0', text).replace("group", "array"))
    elif harm == "another type":
        document.write_text(re.sub("u?int[0-9]+", "int16", text).replace("group", "[]"))
    found = [fault for fault in open_store(path).verify() if fault is not None]
    (fault,) = [each for each in found if isinstance(each, LayoutError)] or found
    if isinstance(fault, LayoutError):
        assert [problem.partition(": ")[0] for problem in fault.problems] == [
            os.path.join(RESERVED_GROUP, array, "zarr.json")
        ]
    else:
        assert (array, harm, fault.field, fault.found) == ("names", "shorter", "ends", "9")


def test_a_store_opens_and_reads_without_torch_zarr_and_numcodecs(zarr_store):
    path = zarr_store(arrays(5), batch_size=2)
    script = (
        "import sys, mmapload\n"
        f"store = mmapload.open_store({path!r})\n"
        "assert store.read_chunk('image', 0).shape == (2, 3, 4)\n"
        "assert not {'torch', 'zarr', 'numcodecs', 'tqdm'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=240)


@pytest.mark.parametrize("gone", ["root", "all"])
@pytest.mark.parametrize("named", [True, False])
def test_verify_tells_of_a_store_that_goes_away_while_it_is_verified(tmp_path, gone, named):
    values = [{"x": np.full(9, i)} for i in range(24)]
    source = write_npz(tmp_path / "in", values) if named else values
    store = preprocess(source, tmp_path / "store", 4, chunk_bytes=1)
    faults = store.verify()
    assert next(faults) is None
    if gone == "root":
        os.rename(tmp_path / "store" / "zarr.json", tmp_path / "zarr.json")
    else:
        os.rename(tmp_path / "store", tmp_path / "elsewhere")
    found = [fault for fault in faults if fault is not None]
    (layout,) = [fault for fault in found if isinstance(fault, LayoutError)]
    (said,) = [problem for problem in layout.problems if problem.startswith("zarr.json: ")]
    assert "cannot be read any more" in said
    assert "moved or removed meanwhile" in said
    assert (found == [layout]) == (gone == "root")
