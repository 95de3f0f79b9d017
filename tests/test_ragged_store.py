"""Stores with fields whose samples differ in shape: written, read back, verified, resumed, as any other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapload
from mmapload.checks import Checks
from mmapload.codecs import CODEC_NAMES, checksum
from mmapload.errors import ChunkError, LayoutError, SourceError
from mmapload.gather import BatchReader
from mmapload.ragged import PADDING_SHARE
from mmapload.readers import BufferedReader, MappedReader
from mmapload.residency import Residency
from tests.numbered_samples import digest
from tests.ragged_cases import LENGTHS, same, sample, samples, write

PAGE_FORMAT = Path(__file__).parents[1] / "docs" / "format.md"


def read_all(store):
    """All samples of a store, by the store's own reader."""
    found = []
    for chunk in range(store.layout.chunks):
        fields = {name: store.read_chunk(name, chunk) for name in store.fields}
        for row in range(store.layout.chunk_samples(chunk)):
            found.append({name: array[row] for name, array in fields.items()})
    return found


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_store_of_ragged_and_fixed_fields_reads_as_it_was_written(tmp_path, codec):
    store = write(tmp_path / "store", codec=codec)
    assert [each.name for each in store.layout.ragged] == ["words", "boxes"]
    assert store.layout.chunks > 3
    for found, wanted in zip(read_all(store), samples(), strict=True):
        assert same(found, wanted)
    assert [*store.verify()] == [None] * (store.chunk_files + 2)


def test_chunk_i_of_every_field_holds_the_samples_of_chunk_i(tmp_path):
    store = write(tmp_path / "store")
    values = {field.name: store.values(field) for field in store.layout.ragged}
    for chunk in range(store.layout.chunks):
        rows = samples()[chunk * store.layout.chunk_length :][: store.layout.chunk_samples(chunk)]
        for name, counts in values.items():
            assert counts[chunk] == sum(row[name].size for row in rows)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.one_of(st.integers(0, 3), st.integers(0, 40), st.just(2000)), min_size=1, max_size=30),
    st.sampled_from(CODEC_NAMES),
    st.integers(1, 4),
    st.sampled_from([1, 300, 10**6]),
    st.one_of(st.none(), st.integers(0, 3)),
)
def test_any_lengths_come_back_and_padding_is_at_most_a_tenth(
    tmp_path_factory, lengths, codec, batch_size, chunk_bytes, shuffle
):
    path = tmp_path_factory.mktemp("ragged") / "store"
    store = write(
        path, lengths, codec=codec, batch_size=batch_size, chunk_bytes=chunk_bytes, shuffle=shuffle,
        ragged="words,boxes",
    )  # fmt: skip
    found = {int(each["number"]): each for each in read_all(store)}
    assert sorted(found) == list(range(len(lengths)))
    for number, length in enumerate(lengths):
        assert same(found[number], sample(number, length))
    for field in store.layout.ragged:
        counts = store.values(field)
        padded = int((-(-counts // field.piece_length)).sum()) * field.piece_length
        assert padded - counts.sum() <= PADDING_SHARE * counts.sum()
    assert not [fault for fault in store.verify() if fault]


def test_zarr_reads_samples_by_the_lines_of_the_page(tmp_path):
    zarr = pytest.importorskip("zarr")
    code = re.findall(r"```python\n(.*?)```", PAGE_FORMAT.read_text(encoding="utf-8"), re.DOTALL)[0]
    lines = {}
    exec(code, lines)
    for codec in CODEC_NAMES:
        write(tmp_path / codec, codec=codec)
        group = zarr.open_group(tmp_path / codec, mode="r")
        for number, wanted in enumerate(samples()):
            for name in ("words", "boxes"):
                found = lines["ragged_sample"](group, name, number)
                assert found.dtype == wanted[name].dtype
                assert found.tolist() == wanted[name].tolist()
                assert found.shape == wanted[name].shape


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_the_store_is_the_same_for_any_number_of_jobs(tmp_path, jobs):
    folder = tmp_path / "source"
    folder.mkdir()
    for number, each in enumerate(samples()):
        np.savez(folder / f"{number:03}.npz", **each)
    options = {"chunk_bytes": 400, "ragged": "auto", "shuffle": 3}
    one = mmapload.preprocess(folder, tmp_path / "one", 2, jobs=1, **options)
    other = mmapload.preprocess(folder, tmp_path / "other", 2, jobs=jobs, **options)
    assert digest(one.path) == digest(other.path)


def test_disk_use_is_that_of_the_payload(tmp_path):
    """With holes in the files, and within a tenth of it without."""
    probe = tmp_path / "probe"
    probe.touch()
    os.truncate(probe, 2**22)
    if probe.stat().st_blocks:
        pytest.skip("this file system makes no holes")
    generator = np.random.default_rng(0)
    lengths = np.minimum(np.exp(generator.normal(np.log(500), 1, 4000)).astype(int) + 1, 10_000)
    store = mmapload.preprocess(
        [{"x": np.ones(length, np.float32)} for length in lengths],
        tmp_path / "store",
        32,
        ragged="x",
        chunk_bytes="2MiB",
    )
    payload = int(lengths.sum()) * 4
    files = [path for path in Path(store.path).rglob("*") if path.is_file()]
    used = sum(path.stat().st_blocks * 512 for path in files)
    apparent = sum(path.stat().st_size for path in files)
    assert used <= 1.02 * payload + 2**16 * 4
    assert apparent <= 1.1 * payload + 2**16 * 4


def test_a_sample_of_another_shape_is_refused_with_both_files_and_the_option(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    np.savez(folder / "a.npz", x=np.zeros((3, 4)), y=1)
    np.savez(folder / "b.npz", x=np.zeros((5, 4)), y=1)
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(folder, tmp_path / "out", 1)
    for part in ("a.npz", "b.npz", "(3, 4)", "(5, 4)", "--ragged x", "ragged="):
        assert part in str(caught.value)
    store = mmapload.preprocess(folder, tmp_path / "out", 1, ragged="x", overwrite=True)
    assert [each.shape for each in store.read_chunk("x", 0)] == [(3, 4), (5, 4)]


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ({"x": np.zeros((5, 4, 1))}, "float64 (5, 4, 1)"),
        ({"x": np.zeros((5, 4), np.float32)}, "float32 (5, 4)"),
        ({"x": np.zeros((3, 4)), "y": np.zeros(2)}, "float64 (2,)"),
    ],
)
def test_what_ragged_samples_must_have_in_common_is_refused_before_anything_is_written(
    tmp_path, second, found
):
    folder = tmp_path / "source"
    folder.mkdir()
    np.savez(folder / "a.npz", **({"x": np.zeros((3, 4)), "y": np.zeros(3)} | {}))
    np.savez(folder / "b.npz", **({"x": np.zeros((3, 4)), "y": np.zeros(3)} | second))
    with pytest.raises(SourceError, match=re.escape(found)) as caught:
        mmapload.preprocess(folder, tmp_path / "out", 1, ragged="x")
    assert "a.npz" in str(caught.value)
    assert "b.npz" in str(caught.value)
    assert not [name for name in os.listdir(tmp_path) if "out" in name]


def test_names_that_cannot_be_ragged_and_sources_that_come_once_are_refused(tmp_path):
    with pytest.raises(ValueError, match="'flux' is not there"):
        mmapload.preprocess(samples(), tmp_path / "out", 2, ragged="flux")
    with pytest.raises(ValueError, match="'number' has no axes"):
        mmapload.preprocess(samples(), tmp_path / "out", 2, ragged="number")
    with pytest.raises(ValueError, match="make it a sequence"):
        mmapload.preprocess(iter(samples()), tmp_path / "out", 2, ragged="auto")


def test_fields_that_do_not_differ_stay_fixed_unless_they_are_named(tmp_path):
    given = [{"x": np.zeros(3), "y": np.zeros(2)} for _ in range(4)]
    store = mmapload.preprocess(given, tmp_path / "auto", 2, ragged="auto")
    assert not store.layout.ragged
    store = mmapload.preprocess(given, tmp_path / "named", 2, ragged="y")
    assert [field.name for field in store.layout.ragged] == ["y"]


def every_file(store):
    return sorted(path for path in Path(store.path).rglob("*") if path.is_file())


def test_every_byte_of_a_chunk_file_is_verified_those_in_holes_too(tmp_path):
    store = write(tmp_path / "store", LENGTHS[:7], chunk_bytes=64)
    for path in every_file(store):
        content = path.read_bytes()
        if path.name == "zarr.json":
            continue
        step = max(1, len(content) // 97)
        with open(path, "r+b", buffering=0) as opened:
            for position in [*range(0, len(content), step), len(content) - 1]:
                os.pwrite(opened.fileno(), bytes([content[position] ^ 1 << position % 8]), position)
                assert any(store.verify()), (path, position)  # the first fault is enough
                os.pwrite(opened.fileno(), content[position : position + 1], position)
    assert not [fault for fault in store.verify() if fault]


def test_files_that_are_swapped_missing_or_cut_are_found(tmp_path):
    lengths = [12] * 8
    store = write(tmp_path / "store", lengths, chunk_bytes=96)
    folder = Path(store.path) / "words"
    first, second = folder / "c.0.0", folder / "c.1.0"
    content = first.read_bytes(), second.read_bytes()
    first.write_bytes(content[1])
    second.write_bytes(content[0])
    faults = [fault for fault in store.verify() if fault]
    assert len(faults) == 2
    assert all("c.0.0" in str(fault) or "c.1.0" in str(fault) for fault in faults)
    with pytest.raises(ChunkError):
        store.read_chunk("words", 0)
    first.write_bytes(content[0][:-1])
    second.unlink()
    found = [str(fault) for fault in store.verify() if fault]
    assert any("no such file" in fault for fault in found)
    assert any("bytes" in fault for fault in found)
    assert store.missing_chunks() == [("words", 1, str(second))]
    with pytest.raises(ChunkError, match="samples 2 to 3"):
        store.expect_all_files(store.layout.fields)


def test_numbers_of_values_that_need_more_files_than_there_are_end_no_search(tmp_path):
    store = write(tmp_path / "store")
    path = next(Path(store.path).glob("__mmapload__/elements/c.*"))
    counts = np.frombuffer(path.read_bytes()[:-4], "<i8").copy()
    counts[0] = 2**46
    path.write_bytes(counts.tobytes() + checksum(counts.view(np.uint8)))
    opened = mmapload.open_store(store.path)
    faults = [str(fault) for fault in opened.verify() if fault]
    assert any("field 'words'" in fault and "files of values" in fault for fault in faults)
    with pytest.raises(ChunkError, match="files of values"):
        opened.missing_chunks()
    with pytest.raises(ChunkError, match="files of values"):
        mmapload.ChunkDataset(store.path)[0]


def test_metadata_that_does_not_fit_is_refused(tmp_path):
    store = write(tmp_path / "store")
    path = Path(store.path) / "__mmapload__" / "extents" / "words" / "zarr.json"
    text = path.read_text()
    path.write_text(text.replace("int64", "int32"))
    with pytest.raises(LayoutError, match="extents/words"):
        mmapload.open_store(store.path)
    path.unlink()
    with pytest.raises(LayoutError, match="extents/words"):
        mmapload.open_store(store.path)


@pytest.mark.parametrize("kind", [MappedReader, BufferedReader])
@pytest.mark.parametrize("verify", ["first", "never", "always"])
def test_both_readers_load_what_was_written(tmp_path, kind, verify):
    store = write(tmp_path / "store")
    fields = store.layout.fields
    reader = kind(store, fields, Checks(verify, len(fields), store.layout.chunks), drop_behind=False)
    for _ in range(2):
        for chunk in range(store.layout.chunks):
            first = chunk * store.layout.chunk_length
            arrays = reader.load(chunk)
            count = store.layout.chunk_samples(chunk)
            for row in range(count):
                wanted = samples()[first + row]
                assert same({name: arrays[name][row] for name in store.fields}, wanted)
            part = reader.load(chunk, count - 1, count)
            assert same({name: part[name][0] for name in store.fields}, samples()[first + count - 1])


@pytest.mark.parametrize("codec", ["raw", "blosc-lz4"])
@pytest.mark.parametrize("budget", [1, 10**9])
def test_batches_of_any_samples_are_joined(tmp_path, codec, budget):
    store = write(tmp_path / "store", codec=codec)
    fields = store.layout.fields
    kind = MappedReader if codec == "raw" else BufferedReader
    reader = kind(store, fields, Checks("first", len(fields), store.layout.chunks), drop_behind=False)
    residency = Residency(reader, store.chunk_nbytes(fields), store.layout.chunks, budget)
    reading = BatchReader(residency, fields, store.layout.chunk_length)
    generator = np.random.default_rng(1)
    for count in (0, 1, 2, 7, 23, 60):
        numbers = generator.integers(0, len(LENGTHS), count)
        batch = reading.batch(numbers)
        assert list(batch) == list(store.fields)
        for place, number in enumerate(numbers.tolist()):
            assert same({name: batch[name][place] for name in batch}, samples()[number])
    assert residency.counts.peak_bytes <= max(budget, store.chunk_nbytes(fields).max())


def test_long_pieces_are_mapped_side_by_side_and_padding_is_not_read(tmp_path):
    lengths = [800_000, 760_000, 840_000, 40_000, 120_000, 80_000]
    given = [{"x": np.arange(length, dtype=np.float32) + i} for i, length in enumerate(lengths)]
    store = mmapload.preprocess(given, tmp_path / "store", 2, ragged="x", chunk_bytes=1)
    (field,) = store.layout.fields
    values = store.values(field)
    assert (values // field.piece_length).max() >= 2
    assert field.piece_length * 4 % 2**16 == 0
    reader = MappedReader(store, (field,), Checks("first", 1, 3), drop_behind=False)
    for chunk in (0, 1, 2):
        before = reader.bytes_loaded
        array = reader.load(chunk)["x"]
        assert reader.bytes_loaded - before == values[chunk] * 4
        for row in (0, 1):
            assert array[row].tolist() == given[2 * chunk + row]["x"].tolist()
        array[0][:] = -1
    again = reader.load(0, 1, 2)["x"]
    assert again[0].tolist() == given[1]["x"].tolist()


def test_a_run_that_is_killed_is_resumed_to_the_same_bytes(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for number, each in enumerate(samples(LENGTHS * 4)):
        np.savez(folder / f"{number:03}.npz", **each)
    options = "2, jobs=2, chunk_bytes=400, ragged='auto', shuffle=1"
    script = (
        "import os, sys, mmapload\n"
        "import mmapload.preprocessing.build as build\n"
        "commit, count = build.Build.commit, [0]\n"
        "def dying(self, chunks):\n"
        "    commit(self, chunks)\n"
        "    count[0] += len(chunks)\n"
        "    if count[0] > 5: os.kill(os.getpid(), 9)\n"
        "build.Build.commit = dying\n"
        f"mmapload.preprocess({str(folder)!r}, {str(tmp_path / 'out')!r}, {options})\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    assert (tmp_path / ".out.partial").is_dir()
    resumed = mmapload.preprocess(folder, tmp_path / "out", 2, chunk_bytes=400, ragged="auto", shuffle=1)
    whole = mmapload.preprocess(folder, tmp_path / "whole", 2, chunk_bytes=400, ragged="auto", shuffle=1)
    assert digest(resumed.path) == digest(whole.path)


def test_bad_samples_are_left_out_and_the_others_move_up(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    for number, each in enumerate(samples()):
        path = folder / f"{number:03}.npz"
        np.savez(path, **each)
        if number in {4, 9, 10}:
            content = bytearray(path.read_bytes())
            content[len(content) // 3] ^= 0xFF
            path.write_bytes(content if number != 9 else b"no zip file")
    store = mmapload.preprocess(
        folder, tmp_path / "out", 2, chunk_bytes=400, ragged="words,boxes", on_error="skip"
    )
    left = [int(each["number"]) for each in read_all(store)]
    assert len(left) < len(LENGTHS)
    for found in read_all(store):
        assert same(found, samples()[int(found["number"])])
    assert not [fault for fault in store.verify() if fault]


def test_optional_fields_have_a_mask(tmp_path):
    given = samples()
    for number in (2, 3, 11):
        del given[number]["words"]
        del given[number]["image"]
    store = mmapload.preprocess(
        given, tmp_path / "out", 2, ragged="words,boxes", optional="words,image", chunk_bytes=400
    )
    assert store.fields[-2:] == ("words_present", "image_present")
    for number, found in enumerate(read_all(store)):
        lacks = number in {2, 3, 11}
        assert bool(found["words_present"]) == bool(found["image_present"]) == (not lacks)
        if lacks:
            assert found["words"].shape == (0,)
            assert not found["image"].any()
        else:
            assert found["words"].tolist() == samples()[number]["words"].tolist()
    assert store.layout.source["optional"] == {"words": "words_present", "image": "image_present"}


def test_the_mask_of_a_stream_says_the_same(tmp_path):
    given = [{"x": np.zeros(2), "y": np.float32(i)} if i % 3 else {"x": np.zeros(2)} for i in range(1, 11)]
    store = mmapload.preprocess(iter(given), tmp_path / "out", 2, optional=["y"], fill={"y": 7})
    found = [bool(each["y_present"]) for each in read_all(store)]
    assert found == ["y" in each for each in given]
    assert [float(each["y"]) for each in read_all(store)] == [each.get("y", 7) for each in given]


def test_a_mask_takes_no_name_that_samples_have(tmp_path):
    with pytest.raises(ValueError, match="x_present"):
        mmapload.preprocess([{"x": 1, "x_present": 2}], tmp_path / "out", 1, optional="x")
