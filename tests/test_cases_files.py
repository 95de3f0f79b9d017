"""Files as people bring them: one that is not sound, arrays of every kind and layout, odd archives and keys.

What went wrong for somebody, each time with the tests that hold what mmapload does instead:

| what | tests |
| --- | --- |
| npz_truncated | test_a_run_stops_before_it_publishes_and_names_every_bad_file |
| | test_bad_sources.py::test_check_and_skipping_tell_each_for_what_it_is_and_keep_the_sound_ones |
| npz_zero_bytes | test_an_empty_npy_file_among_npz_files_is_a_bad_sample |
| lfs_pointer | test_bad_sources.py::test_check_and_skipping_tell_each_for_what_it_is_and_keep_the_sound_ones |
| | test_bad_sources.py::test_a_run_that_leaves_nothing_out_stops_for_it_and_writes_nothing |
| npy_short | test_a_short_npy_file_is_refused_with_both_counts_and_left_as_it_is |
| | test_readers.py::test_a_file_of_the_wrong_size_is_refused_by_name_before_it_is_mapped |
| object_ragged | test_lists_of_arrays_come_back_in_dtype_and_shape |
| | test_preprocessing_objects.py::test_by_default_they_are_refused_with_what_to_do |
| object_dict_0d | test_preprocessing_objects.py::test_the_command_warns_and_stores_a_dict_by_its_keys |
| keys_differ | test_files_with_other_keys_are_all_named_before_anything_is_there |
| shape_variable | test_arrays_of_any_number_of_rows_come_back_without_padding |
| | test_ragged_dataset.py::test_every_sample_comes_once_in_an_epoch |
| scalars_0d | test_single_values_keep_shape_and_dtype_and_make_batches_of_one_axis |
| fortran_order | test_arrays_in_any_order_in_memory_and_any_byte_order_are_served_as_numpy_reads_them |
| big_endian | test_arrays_in_any_order_in_memory_and_any_byte_order_are_served_as_numpy_reads_them |
| dtype_zoo | test_kinds.py::test_any_array_comes_back_with_every_bit |
| | test_sources_npy.py::test_long_double_is_refused_by_name |
| structured | test_records_are_refused_with_the_names_of_their_fields |
| strings_fixed | test_kinds.py::test_the_longest_text_of_all_files_survives_whole |
| | test_kinds.py::test_text_in_one_sample_and_bytes_in_another_are_named |
| | test_kinds.py::test_plain_loaders_of_torch_deliver_them |
| | test_texts_of_different_lengths_are_no_outliers |
| nan_inf_negzero | test_chunks_of_one_value_keep_every_bit_and_check_lists_where_numbers_are_none |
| | test_preprocessing_nonfinite.py::test_a_run_counts_samples_with_such_values_those_of_an_interrupted_one_too |
| | test_interop.py::test_chunks_of_zeros_have_their_files |
| zip64_small | test_sources_npz.py::test_zip64_figures_in_a_small_file_are_read |
| | test_sources_zipdir.py::test_full_32_bit_figures_are_taken_from_the_zip64_fields |
| keys_slashes | test_nested.py::test_names_with_slashes_in_a_file_become_groups_and_come_back |
| | test_nested.py::test_names_that_cannot_be_groups_are_refused_and_nothing_is_written |
| | test_sources_hostile.py::test_names_of_arrays_are_keys_and_never_paths |
| | test_sources_hostile.py::test_names_that_could_be_paths_are_refused_with_the_renaming_and_go_under_the_new_name |
| keys_duplicate | test_sources_zipdir.py::test_a_name_that_occurs_twice_is_named |
| | test_sources_npz.py::test_two_members_of_one_key_are_refused |
| header_versions | test_sources_npy.py::test_headers_say_what_numpy_wrote |
| | test_sources_npy.py::test_python_2_long_shapes_are_read |
| | test_sources_npy.py::test_a_header_beyond_the_limit_is_refused_with_the_limit |
| npz_shared_after_fork | test_forked_workers_read_what_was_opened_before_the_fork_for_themselves |
| | test_dataset.py::test_a_dataset_used_before_a_fork_works_in_the_children |
"""  # noqa: E501

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import mmapload
from mmapload.checking import check
from mmapload.cli import main
from mmapload.errors import SourceError
from tests.case_makers import expect_tests_of, list_of_arrays, numbered, put_npy, put_npz, put_sound
from tests.npz_files import npy_bytes, npz_bytes, put
from tests.preprocessing_cases import stored


def test_the_table_names_tests_that_there_are() -> None:
    expect_tests_of(__doc__ or "", __file__)


def preprocess(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> tuple[int, str]:
    """Run the command into `out` beside the folder; returns its status and all that it says."""
    command = ["preprocess", str(folder), str(folder.parent / "out"), "--batch-size", "2", *options]
    status = main(command)
    said = capsys.readouterr()
    return status, said.out + said.err


def test_a_run_stops_before_it_publishes_and_names_every_bad_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    put_sound(folder, [0, 1, 2, 3, 5, 8])
    data = npz_bytes({"x": numbered(4, (64, 64)), "id": np.int64(4)})
    for number, length in ((4, len(data) // 2), (6, len(data) - 10), (7, 30)):
        put(folder / f"s{number}.npz", data[:length])
    status, said = preprocess(capsys, folder)
    assert status == 1
    assert f"{folder}/s4.npz: a zip file cut short ({len(data) // 2} bytes)" in said
    assert "2 others of 9 samples are bad too, as far as headers tell" in said
    assert f"s6.npz: a zip file cut short ({len(data) - 10} bytes)" in said
    assert "s7.npz: a zip file cut short (30 bytes)" in said
    assert os.listdir(tmp_path) == ["in"]
    status, said = preprocess(capsys, folder, "--on-error", "skip")
    assert status == 3
    assert "left out 3 bad of 9 samples" in said
    listed = [json.loads(line)["file"] for line in (tmp_path / "out.skipped.jsonl").read_text().splitlines()]
    assert listed == [f"{folder}/s{number}.npz" for number in (4, 6, 7)]
    assert stored(mmapload.open_store(tmp_path / "out"), "id").tolist() == [0, 1, 2, 3, 5, 8]


def test_of_very_many_bad_files_some_are_named_and_all_counted(tmp_path: Path) -> None:
    """For another reason each, or all for the same."""
    for number in range(30):
        put(tmp_path / "same" / f"s{number:02}.npz", b"")
        put(tmp_path / "each" / f"s{number:02}.npz", b"<html>" + bytes([60]) * number)
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path / "same", tmp_path / "out", 2)
    told = "29 others of 30 samples are bad too, as far as headers tell: s01.npz, s02.npz, s03.npz, s04.npz"
    assert caught.value.cause.endswith(f"{told}, s05.npz and 24 more: the same")
    with pytest.raises(SourceError) as caught:
        mmapload.preprocess(tmp_path / "each", tmp_path / "out", 2)
    assert "s20.npz: not a zip file (26 bytes)" in caught.value.cause
    assert caught.value.cause.endswith("; and 9 more")


def test_a_damaged_file_is_named_beside_those_that_headers_tell(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put_sound(folder, range(6))
    data = bytearray((folder / "s2.npz").read_bytes())
    data[data.index(struct.pack("<f", 201))] ^= 1
    put(folder / "s2.npz", data)
    put_npz(folder, "s4.npz", x=numbered(4, (3, 5)), id=np.int64(4), mask=np.zeros(2))
    put_npz(folder, "s5.npz", id=np.int64(5))
    with pytest.raises(SourceError, match=r"s2\.npz, member 'x\.npy': .*CRC-32") as caught:
        mmapload.preprocess(folder, tmp_path / "out", 2)
    assert "s4.npz: also has 'mask'; field 'x' is float32 (3, 5), expected float32 (3, 4)" in str(
        caught.value
    )
    assert "s5.npz: lacks 'x'" in str(caught.value)


def test_an_empty_npy_file_among_npz_files_is_a_bad_sample(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A writer that was killed may have left it; one that is whole, or beside an archive, is no sample."""
    folder = tmp_path / "in"
    put_sound(folder, range(3))
    put(folder / "s3.npz", b"")
    put(folder / "s4.npy", b"")
    put(folder / "s0.npy", b"")
    put_npy(folder, "mean.npy", np.zeros(3))
    status, said = preprocess(capsys, folder)
    assert status == 1
    assert f"{folder}/s3.npz: the file is empty (0 bytes)" in said
    assert "1 other of 5 samples is bad too, as far as headers tell: s4.npy: the same" in said
    assert "2 foreign files skipped" in said
    status, said = preprocess(capsys, folder, "--on-error", "skip")
    assert status == 3
    assert "left out 2 bad of 5 samples" in said
    assert stored(mmapload.open_store(tmp_path / "out"), "id").tolist() == [0, 1, 2]
    assert [Path(fault.file).name for fault in check(folder).faults] == ["s3.npz", "s4.npy"]


def test_a_short_npy_file_is_refused_with_both_counts_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    for number in range(4):
        put_npy(folder, f"a{number}.npy", numbered(number))
    whole = npy_bytes(numbered(4))
    put(folder / "a1.npy", whole[:-20])
    put(folder / "a2.npy", whole + bytes(20))
    before = {path: path.read_bytes() for path in folder.iterdir()}
    status, said = preprocess(capsys, folder)
    assert status == 1
    assert f"{folder}/a1.npy: float32 (3, 4) takes 48 bytes behind the header, and 28 are there" in said
    assert "a2.npy: float32 (3, 4) takes 48 bytes behind the header, and 68 are there" in said
    assert preprocess(capsys, folder, "--on-error", "skip")[0] == 3
    expected = np.stack([numbered(0), numbered(3)])
    assert np.array_equal(stored(mmapload.open_store(tmp_path / "out"), "data"), expected)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def parts(sample: dict[str, Any], name: str) -> list[torch.Tensor]:
    """Return a list of arrays as it was, by the lines of the page."""
    page = (Path(__file__).parents[1] / "docs" / "sources.md").read_text(encoding="utf-8")
    lines: dict[str, Any] = {}
    exec(page[page.index("def arrays_of") :].partition("```")[0], lines)
    found: list[torch.Tensor] = lines["arrays_of"](sample, name)
    return found


TRUSTED = pytest.warns(UserWarning, match="only for files that you trust")
LISTS = {
    "rows": [[numbered(i + j, (i + j, 3), "i2") for j in range(3)] for i in range(4)],
    "images": [[numbered(i, (2 + i, 5 - j, 3), "u1") for j in range(1 + i % 2)] for i in range(4)],
    "empty_lists": [[numbered(i, (2, j), "f8") for j in range(i)] for i in range(4)],
    "alike_by_chance": [[numbered(j, (2 + (i and j),), "c8") for j in range(2)] for i in range(3)],
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_arrays_come_back_in_dtype_and_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "in"
    for number, arrays in enumerate(LISTS[name]):
        put_npz(folder, f"s{number}.npz", strokes=list_of_arrays(arrays), y=np.int64(number))
    status, said = preprocess(capsys, folder, "--ragged", "auto")
    assert status == 1
    assert "s0.npz, member 'strokes.npy': holds an object array" in said
    status, said = preprocess(capsys, folder, "--allow-pickle")
    assert status == 1
    status, said = preprocess(capsys, folder, "--allow-pickle", "--ragged", "auto")
    assert status == 0, said
    ds = mmapload.ChunkDataset(tmp_path / "out")
    assert set(ds[0]) == {"strokes", "strokes_shapes", "y"}
    for number, arrays in enumerate(LISTS[name]):
        found = [each.numpy() for each in parts(ds[number], "strokes")]
        assert [(each.dtype, each.shape) for each in found] == [(each.dtype, each.shape) for each in arrays]
        assert [each.tolist() for each in found] == [each.tolist() for each in arrays]


def test_a_list_that_numpy_made_one_array_is_a_list_where_the_field_is_named(tmp_path: Path) -> None:
    """`np.array(list, dtype=object)` does that where all its arrays have one shape."""
    lists = [[numbered(0, (2, 3)), numbered(1, (2, 3))], [numbered(2, (1, 3)), numbered(3, (4, 3))]]
    for number, arrays in enumerate(lists):
        put_npz(tmp_path / "in", f"s{number}.npz", a=np.array(arrays, dtype=object))
    with pytest.warns(UserWarning, match="trust"):
        store = mmapload.preprocess(
            tmp_path / "in", tmp_path / "out", 2, allow_pickle=True, ragged="a", cast="a=float32"
        )
    ds = mmapload.ChunkDataset(store.path)
    assert [[each.tolist() for each in parts(ds[i], "a")] for i in range(2)] == [
        [each.tolist() for each in arrays] for arrays in lists
    ]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ([numbered(0), numbered(1, (2, 2), "f8")], "float32 and float64"),
        ([numbered(0), numbered(1, (2,))], "2 and 1 axes"),
        ([np.ones((), "f4"), np.zeros((), "f4")], "0 axes"),
        ([np.array(["a"]), np.array(["b", "c"])], "save numbers"),
        ([numbered(0), None], "NoneType"),
    ],
)
def test_lists_of_what_is_unlike_are_refused_by_name(tmp_path: Path, arrays: list[Any], said: str) -> None:
    put_npz(tmp_path / "in", "s0.npz", a=list_of_arrays(arrays))
    with pytest.raises(SourceError, match=rf"s0\.npz, member 'a\.npy': .*{said}"), TRUSTED:
        mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, allow_pickle=True, ragged="auto")


def test_of_a_list_that_is_selected_the_shapes_have_to_be(tmp_path: Path) -> None:
    put_npz(tmp_path / "in", "s0.npz", a=list_of_arrays([numbered(0, (2,)), numbered(1, (3,))]), b=1)
    options: dict[str, Any] = {"allow_pickle": True, "ragged": "w"}
    with pytest.raises(SourceError, match="name it too, --fields a,a_shapes"), TRUSTED:
        mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, fields="a=w", **options)
    with pytest.warns(UserWarning, match="trust"):
        store = mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, fields="a=w,a_shapes=n", **options)
    assert store.fields == ("w", "n")


def test_files_with_other_keys_are_all_named_before_anything_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    put_sound(folder, [0, 1, 3])
    put_npz(folder, "s2.npz", arr_0=numbered(2))
    put_npz(folder, "s4.npz", x=numbered(4), id=np.int64(4), mask=np.zeros(4, "u1"))
    status, said = preprocess(capsys, folder)
    assert status == 1
    assert f"{folder}/s2.npz: lacks 'x', 'id' and also has 'arr_0'" in said
    assert "s4.npz: also has 'mask'" in said
    assert os.listdir(tmp_path) == ["in"]
    status, said = preprocess(capsys, folder, "--fields", "x,id")
    assert status == 1
    assert f"{folder}/s2.npz: has no array 'x', 'id'; it has 'arr_0'" in said
    assert "s4.npz" not in said
    assert preprocess(capsys, folder, "--fields", "x,id", "--fill", "id=-1", "--fill", "x=0")[0] == 0
    assert stored(mmapload.open_store(tmp_path / "out"), "id").tolist() == [0, 1, -1, 3, 4]


def test_arrays_of_any_number_of_rows_come_back_without_padding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, rows = tmp_path / "in", [3, 0, 7, 1, 5, 5, 2]
    for number, count in enumerate(rows):
        put_npz(folder, f"s{number}.npz", points=numbered(number, (count, 3)), id=np.int64(number))
    status, said = preprocess(capsys, folder)
    assert status == 1
    assert "s1.npz, member 'points.npy': field 'points' is float32 (0, 3), expected float32 (3, 3)" in said
    assert "s0.npz; where samples may differ in shape: --ragged points" in said
    assert preprocess(capsys, folder, "--ragged", "points")[0] == 0
    ds = mmapload.ChunkDataset(tmp_path / "out")
    for number, count in enumerate(rows):
        assert torch.equal(ds[number]["points"], torch.from_numpy(numbered(number, (count, 3))))
    batch = next(iter(DataLoader(ds, batch_size=7)))
    assert [len(each) for each in batch["points"]] == rows
    padded = mmapload.ChunkDataset(tmp_path / "out", ragged="pad")
    batch = next(iter(mmapload.ChunkDataLoader(padded, batch_size=7)))
    assert tuple(batch["points"].shape) == (7, 7, 3)
    assert batch["points_lengths"].tolist() == [[count, 3] for count in rows]
    assert tuple(padded[1]["points"].shape) == (0, 3)


def test_single_values_keep_shape_and_dtype_and_make_batches_of_one_axis(tmp_path: Path) -> None:
    for number in range(4):
        arrays = {"y": np.float64(number / 4), "n": np.int32(number), "half": np.float16(number)}
        put_npz(
            tmp_path / "in", f"s{number}.npz", **arrays, ok=np.bool_(number % 2), name=np.array(f"c{number}")
        )
    ds = mmapload.ChunkDataset(mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2).path)
    wanted = {"y": torch.float64, "n": torch.int32, "half": torch.float16, "ok": torch.bool}
    assert {name: (ds[3][name].shape, ds[3][name].dtype) for name in wanted} == {
        name: (torch.Size(()), dtype) for name, dtype in wanted.items()
    }
    assert ds[3]["name"] == "c3"
    for loader in (DataLoader(ds, batch_size=4), mmapload.ChunkDataLoader(ds, batch_size=4)):
        batch = next(iter(loader))
        assert {name: (tuple(batch[name].shape), batch[name].dtype) for name in wanted} == {
            name: ((4,), dtype) for name, dtype in wanted.items()
        }
        assert batch["y"].tolist() == [0, 0.25, 0.5, 0.75]
        assert batch["name"] == ["c0", "c1", "c2", "c3"]


LAID_OUT = {
    "fortran": np.asfortranarray(numbered(1, (5, 12))),
    "three_axes": np.asfortranarray(numbered(2, (2, 3, 4), "i8")),
    "transposed": numbered(3, (2, 3), "i2").T,
    "swapped_axes": numbered(4, (2, 3, 4)).transpose(1, 2, 0),
    "one_axis": np.asfortranarray(numbered(5, (6,))),
    "big": numbered(6, (2, 3), ">f4"),
    "big_fortran": np.asfortranarray(numbered(7, (2, 3), ">u2")),
    "big_single": np.array(258, ">i8"),
    "big_complex": numbered(8, (3,), ">c16"),
    "sliced": numbered(9, (6, 6))[::2, ::-3],
}


@pytest.mark.parametrize("suffix", ["npz", "npy"])
def test_arrays_in_any_order_in_memory_and_any_byte_order_are_served_as_numpy_reads_them(
    tmp_path: Path, suffix: str
) -> None:
    for name, array in LAID_OUT.items():
        path = tmp_path / name / f"s.{suffix}"
        path.parent.mkdir()
        np.savez(path, data=array) if suffix == "npz" else np.save(path, array)
        store = mmapload.preprocess(path, tmp_path / name / "out", 1)
        found = mmapload.ChunkDataset(store.path)[0]["data"]
        wanted = np.array(array, array.dtype.newbyteorder("="), order="C")
        assert found.is_contiguous()
        assert (found.numpy().dtype, found.numpy().tobytes()) == (wanted.dtype, wanted.tobytes()), name
        assert tuple(found.shape) == array.shape
        assert store.field("data").dtype.isnative
        codecs = json.loads(Path(store.path, "data", "zarr.json").read_text())["codecs"]
        if array.dtype.itemsize > 1:
            assert codecs[0] == {"name": "bytes", "configuration": {"endian": "little"}}


RECORDS = {
    "packed": np.zeros(4, [("x", "u2"), ("t", "i8"), ("p", "?")]),
    "aligned": np.zeros(2, np.dtype([("t", "f8"), ("k", "i1"), ("xyz", "f4", (3,))], align=True)),
    "dates": np.zeros(1, [("when", "M8[D]"), ("n", "i8")]),
    "nested": np.zeros((), [("a", [("b", "f4")]), ("c", "i4")]),
}


@pytest.mark.parametrize("name", RECORDS)
def test_records_are_refused_with_the_names_of_their_fields(tmp_path: Path, name: str) -> None:
    array = RECORDS[name]
    put_npz(tmp_path / "in", "s0.npz", events=array, y=np.int64(1))
    put_npy(tmp_path / "npy", "s0.npy", array)
    for folder, where in (("in", r"s0\.npz, member 'events\.npy'"), ("npy", r"s0\.npy")):
        with pytest.raises(SourceError, match=rf"{where}: holds a structured dtype") as caught:
            mmapload.preprocess(tmp_path / folder, tmp_path / "out", 1)
        for field in array.dtype.names or ():
            assert repr(field) in caught.value.cause
        assert "as an array of its own" in caught.value.cause
    assert mmapload.preprocess(tmp_path / "in", tmp_path / "out", 1, fields="y").fields == ("y",)


def test_texts_of_different_lengths_are_no_outliers(tmp_path: Path) -> None:
    for number, text in enumerate(["a", "scene_0042", "", "naïve Straße", "日本"]):
        put_npz(tmp_path, f"s{number}.npz", tag=np.array([text, "z"]), code=np.array(text.encode()))
    report = check(tmp_path)
    assert report.sound
    assert {name: str(kind) for name, kind in report.schema.items()} == {
        "tag": "<U12 (2,)",
        "code": "|S14 ()",
    }
    put_npz(tmp_path, "s5.npz", tag=np.array(["w"]), code=np.array("male"))
    outliers = check(tmp_path).outliers
    assert {(each.field, str(each.found)) for each in outliers} == {("code", "<U4 ()"), ("tag", "<U1 (1,)")}
    assert [each.samples.tolist() for each in outliers] == [[5], [5]]


def test_chunks_of_one_value_keep_every_bit_and_check_lists_where_numbers_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = np.frombuffer(struct.pack("<4I", 0x7FC00001, 0x7F800001, 0x80000000, 0x7F800000), "f4")
    values = [np.full((2, 4), each, "f4") for each in (0, np.nan, -0.0)] + [np.resize(odd, (2, 4))]
    folder = tmp_path / "in"
    for number in range(16):
        put_npz(folder, f"s{number:02}.npz", x=values[number // 4], y=values[number // 4].astype("f8"))
    for codec in ("raw", "zstd", "blosc-lz4"):
        store = mmapload.preprocess(folder, tmp_path / codec, 4, codec=codec, chunk_bytes=1)
        assert store.layout.chunks == 4
        served = torch.stack([mmapload.ChunkDataset(store.path)[i]["x"] for i in range(16)]).numpy()
        for found in (stored(store, "x"), served, zarr.open_group(store.path, mode="r")["x"][:]):
            assert [each.tobytes() for each in found] == [values[i // 4].tobytes() for i in range(16)]
    assert main(["check", str(folder), "--quiet"]) == 0
    said = capsys.readouterr().out
    names = ", ".join(f"s{number:02}.npz" for number in (*range(4, 8), *range(12, 16)))
    assert f"'x' has 48 NaN and 8 infinite values in 8 of 16 samples: {names}" in said


@pytest.mark.filterwarnings("ignore:This DataLoader will create 8 worker processes")
def test_forked_workers_read_what_was_opened_before_the_fork_for_themselves(tmp_path: Path) -> None:
    put_sound(tmp_path / "in", range(64))
    store = mmapload.preprocess(tmp_path / "in", tmp_path / "out", 4, chunk_bytes=1)
    ds = mmapload.ChunkDataset(store.path)
    expected = [numbered(number).tolist() for number in range(64)]
    assert [ds[number]["x"].tolist() for number in range(64)] == expected  # opened, mapped and checked here
    loader = DataLoader(ds, 8, num_workers=8, multiprocessing_context="fork", persistent_workers=True)
    for _ in range(20):
        assert [each for batch in loader for each in batch["x"].tolist()] == expected
