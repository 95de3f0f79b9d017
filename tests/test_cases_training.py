"""Training as people do it: their folders, runs that are cut off, workers and memory, samplers and wrappers.

What went wrong for somebody, each time with the tests that hold what mmapload does instead:

| what | tests |
| --- | --- |
| dir_hidden | test_sources_listing.py::test_hidden_and_foreign_files_are_skipped_and_counted |
| | test_sources_listing.py::test_globs_take_what_matches_and_all_below_folders_that_match |
| dir_order | test_sources_listing.py::test_folders_are_listed_in_natural_order_whatever_was_made_first |
| | test_sources_listing.py::test_the_order_is_a_total_function_of_the_paths |
| | test_cli.py::test_info_of_a_sample_says_its_file_its_place_and_its_values |
| dir_duplicate_stems | test_files_of_one_name_in_several_folders_are_all_there_and_a_pair_of_npz_and_npy_is_told |
| dir_empty | test_sources_listing.py::test_a_source_without_a_sample_is_refused_with_path_pattern_and_counts |
| | test_sources_listing.py::test_paths_that_are_missing_or_of_another_kind_are_refused |
| | test_preprocessing.py::test_a_folder_without_samples_is_refused_and_leaves_nothing |
| dir_partial_files | test_sources_listing.py::test_a_download_that_has_not_ended_is_skipped_and_refused_by_name |
| | test_sources_npz.py::test_a_file_that_changed_since_it_was_listed_is_refused |
| | test_a_file_that_is_written_before_all_is_read_is_an_error_whatever_its_kind |
| preprocess_interrupted | test_killed.py::test_killed_at_any_moment_with_two_jobs_it_ends_as_if_undisturbed |
| | test_preprocessing_resume.py::test_ctrl_c_keeps_what_is_written_and_says_how_to_go_on |
| | test_what_is_unfinished_says_so_under_either_name |
| disk_full | test_preprocessing.py::test_too_little_room_is_an_error_before_anything_is_written |
| | test_preprocessing_limits.py::test_a_disk_that_fills_up_is_a_clear_error_and_the_run_goes_on_once_there_is_room |
| | test_preprocessing_limits.py::test_a_limit_on_the_size_of_files_is_a_clear_error |
| source_changed | test_the_same_command_over_a_finished_store_says_that_it_is_stale |
| | test_every_kind_of_file_is_compared_by_its_contents |
| | test_preprocessing_resume.py::test_contents_changed_under_the_same_size_and_time_are_refused_and_named |
| | test_preprocessing_resume.py::test_other_options_are_refused_and_named |
| not_multiple | test_what_fills_the_last_chunk_is_never_served |
| | test_cli.py::test_info_tells_samples_batches_chunks_sizes_and_origin |
| | test_pages_name_what_people_look_for |
| chunk_lost | test_faults.py::test_each_fault_is_an_error_that_names_the_samples_whatever_reads_the_file |
| | test_dataset.py::test_a_missing_chunk_is_found_when_the_dataset_is_made |
| | test_dataset.py::test_samples_of_whole_chunks_are_served_beside_a_damaged_one |
| memmap_spawn_copy | test_dataset.py::test_a_pickle_is_small_whatever_has_been_read |
| | test_dataset.py::test_a_pickle_is_as_small_for_more_chunks |
| | test_loader.py::test_workers_that_are_spawned_give_the_same |
| fd_exhaustion | test_many_small_chunks_are_written_and_loaded_with_few_descriptors |
| | test_of_very_many_chunks_fewer_are_held_than_a_process_may_have_maps |
| | test_mappings.py::test_two_thousand_maps_hold_no_descriptor |
| readonly_tensor | test_dataset.py::test_loading_works_where_every_warning_is_an_error |
| | test_dataset.py::test_writing_into_a_sample_or_batch_reaches_no_later_read |
| | test_mappings.py::test_a_map_is_writable_and_writing_never_reaches_the_file_or_another_map |
| inplace_transform | test_dataset.py::test_a_transform_in_place_sees_the_same_values_every_epoch |
| | test_loader.py::test_a_transform_in_place_sees_the_same_values_every_epoch |
| fork_deadlock | test_workers_that_are_forked_after_everything_was_used_serve_every_codec |
| | test_codecs.py::test_a_process_forked_after_use_still_decodes |
| | test_residency.py::test_a_process_forked_while_chunks_are_being_loaded_reads_on_its_own |
| worker_killed | test_loader.py::test_a_worker_that_is_killed_is_a_worker_error_and_no_hang |
| | test_loader_workers.py::test_a_killed_worker_is_an_error_in_seconds_and_the_loader_goes_on |
| | test_loader_workers.py::test_a_killed_training_process_leaves_no_process_and_no_memory |
| | test_info_tells_what_loading_takes_on_this_machine |
| shm_small | test_info_tells_what_loading_takes_on_this_machine |
| | test_slots.py::test_slot_memory_has_no_name_in_the_file_system |
| | test_pages_name_what_people_look_for |
| page_cache_cgroup | test_memory_of_a_container_smaller_than_the_data_is_enough_to_preprocess_and_to_load |
| | test_pages_name_what_people_look_for |
| persistent_epoch | test_workers_that_stay_serve_each_epoch_in_its_own_order |
| | test_samplers.py::test_every_iteration_is_the_next_epoch_unless_one_is_set |
| ddp_uneven | test_samplers.py::test_ranks_share_every_sample_in_equal_steps |
| | test_torchrun.py::test_what_is_padded_is_every_sample_and_less_than_a_global_batch_more |
| | test_torchrun.py::test_what_is_kept_is_every_sample_once |
| subset_getitems | test_wrappers_of_all_kinds_serve_the_samples_they_name |
| | test_samplers.py::test_torchs_wrappers_serve_what_they_should_by_torchs_samplers |
| | test_dataset.py::test_a_subclass_that_overrides_getitem_is_respected_in_batches |
| | test_samplers.py::test_what_is_no_chunk_dataset_is_refused_with_advice |
| index_semantics | test_dataset.py::test_whatever_is_an_integer_is_an_index |
| | test_dataset.py::test_an_index_beyond_either_end_is_an_index_error_that_names_it |
| | test_dataset.py::test_what_is_no_integer_is_a_type_error |
| | test_dataset.py::test_iteration_ends_after_the_last_sample |
| | test_dataset.py::test_an_index_error_in_a_users_transform_does_not_end_a_loop_early |
| | test_dataset.py::test_the_end_of_an_iterator_in_a_users_transform_does_not_end_a_loop_early |
| weighted_sampler | test_samplers.py::test_torchs_random_samplers_serve_what_they_draw |
| | test_samplers.py::test_an_order_of_more_samples_than_torch_can_weigh_takes_no_list_of_them |
"""  # noqa: E501

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, random_split

import mmapload
from mmapload import ChunkDataLoader, ChunkDataset, ChunkSampler, MmaploadError, SourceError
from mmapload import StoreNotFoundError as NotThere
from mmapload.budget import most_maps
from mmapload.cli import main
from mmapload.cli.machine import machine_rows
from mmapload.codecs import CODEC_NAMES
from mmapload.preprocessing import execute, plan_preprocess
from tests.case_makers import expect_tests_of, numbered, put_npy, put_npz, put_sound
from tests.conftest import write_with_zarr
from tests.loading_cases import memory_cgroup, run_python

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parent.parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="what it counts, only Linux tells")


def test_the_table_names_tests_that_there_are() -> None:
    expect_tests_of(__doc__ or "", __file__)


def ids(batches: Iterable[dict[str, Any]]) -> list[int]:
    """The numbers of the samples of all batches, in order."""
    return [number for batch in batches for number in batch["id"].reshape(-1).tolist()]


def store_of(folder: Path, count: int, batch_size: int, name: str = "out", **options: Any) -> str:
    """A store of numbered samples."""
    samples = [{"x": numbered(number), "id": np.int64(number)} for number in range(count)]
    return mmapload.preprocess(samples, folder / name, batch_size, **options).path


# ---- folders


def test_files_of_one_name_in_several_folders_are_all_there_and_a_pair_of_npz_and_npy_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for person in range(2):
        put_sound(tmp_path / "in" / f"person{person}" / "run", range(3))
    put_npy(tmp_path / "in" / "person0" / "run", "s0.npy", numbered(9))
    out = f"{tmp_path}/out"
    assert main(["preprocess", f"{tmp_path}/in", out, "--batch-size", "2"]) == 0
    assert (
        "person0/run/s0.npy: skipped, an .npz file of the same name lies beside it" in capsys.readouterr().err
    )
    store = mmapload.open_store(out)
    names = [store.sample_name(number) for number in range(len(store))]
    assert names == [f"person{person}/run/s{number}.npz" for person in range(2) for number in range(3)]
    assert ids([ChunkDataset(out)[number] for number in range(6)]) == [0, 1, 2, 0, 1, 2]


WRITERS: dict[str, Any] = {
    "npz": lambda path, array: np.savez(path, x=array),
    "npy": np.save,
    "pt": lambda path, array: torch.save({"x": torch.from_numpy(array)}, path),
    "safetensors": lambda path, array: pytest.importorskip("safetensors.numpy").save_file({"x": array}, path),
    "mat": lambda path, array: pytest.importorskip("scipy.io").savemat(path, {"x": array}),
    "png": lambda path, array: pytest.importorskip("PIL.Image").fromarray(array).save(path),
}


def put_kind(folder: Path, kind: str, number: int, value: int) -> Path:
    """A file of one array of bytes, as its own library writes it; always of one size."""
    folder.mkdir(exist_ok=True)
    path = folder / f"s{number}.{kind}"
    WRITERS[kind](str(path), np.full((4, 4), value, np.uint8))
    return path


@pytest.mark.parametrize("kind", ["npy", "pt", "safetensors", "mat", "png"])
def test_a_file_that_is_written_before_all_is_read_is_an_error_whatever_its_kind(
    tmp_path: Path, kind: str
) -> None:
    for number in range(3):
        put_kind(tmp_path / "in", kind, number, number)
    plan = plan_preprocess(tmp_path / "in", tmp_path / "out", 2)
    time.sleep(0.02)  # times of files are those of the last tick
    path = put_kind(tmp_path / "in", kind, 1, 77)
    with pytest.raises(SourceError, match="changed since it was listed") as caught:
        execute(plan)
    assert caught.value.file == str(path)
    assert not (tmp_path / "out").exists()


# ---- runs that are cut off, and sources that change


def test_what_is_unfinished_says_so_under_either_name(tmp_path: Path) -> None:
    put_sound(tmp_path / "in", range(4))
    put_npz(tmp_path / "in", "s9.npz", x=numbered(9, (1, 1)), id=np.int64(9))
    with pytest.raises(SourceError):
        mmapload.preprocess(tmp_path / "in", tmp_path / "out", 2, chunk_bytes=1)
    for name in ("out", ".out.partial"):
        with pytest.raises(NotThere, match="unfinished"):
            ChunkDataset(tmp_path / name)


def kept_time(path: Path, write: Any) -> None:
    """Write a file anew under the time, and the size, that it had."""
    status = path.stat()
    write()
    assert path.stat().st_size == status.st_size
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_same_command_over_a_finished_store_says_that_it_is_stale(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    put_sound(source, range(12))

    def told(batch_size: int = 4, **options: Any) -> str:
        with pytest.raises(MmaploadError, match=r"is a finished store.*--overwrite") as caught:
            mmapload.preprocess(source, out, batch_size, **options)
        return str(caught.value)

    made = mmapload.preprocess(source, out, 4)
    assert "made of these very samples: give another name, or --overwrite" in told()
    assert "another batch size, 4 and not 2" in told(2)
    assert "another dtype of x, float32 and not float16" in told(cast="x=float16")
    assert "another codec of x, raw and not zstd" in told(codec="zstd")
    assert "another set of fields" in told(fields="x")
    kept_time(source / "s3.npz", lambda: put_npz(source, "s3.npz", x=numbered(33), id=np.int64(3)))
    assert "contents have changed since: it is STALE: give --overwrite" in told()
    again = mmapload.preprocess(source, out, 4, overwrite=True)
    assert ChunkDataset(out)[3]["x"][0, 0] == 3300
    assert again.fingerprint == made.fingerprint  # of the layout: states of training are still good
    (source / "s7.npz").unlink()
    put_sound(source, [12])
    assert "(s7.npz no longer there, s12.npz not in it): it is STALE: give --overwrite" in told()


def test_an_append_is_offered_where_it_is_accepted_and_adds_no_sample_twice(tmp_path: Path) -> None:
    source, other, out = tmp_path / "in", tmp_path / "other", tmp_path / "out"
    put_sound(source, range(4))
    put_sound(other, range(4, 8))
    mmapload.preprocess(source, out, 4)
    for samples, batch_size, offered in ((source, 4, False), (other, 2, False), (other, 4, True)):
        with pytest.raises(MmaploadError, match="is a finished store") as caught:
            mmapload.preprocess(samples, out, batch_size)
        assert ("--append" in str(caught.value)) == offered
    assert re.search("it is STALE: give another name, --append .*, or --overwrite", str(caught.value))
    put_sound(source, [4])  # the four that are there would be appended too
    with pytest.raises(MmaploadError, match=r"s4\.npz not in it") as caught:
        mmapload.preprocess(source, out, 4)
    assert "--append" not in str(caught.value)


def test_a_finished_store_whose_names_are_damaged_is_told_as_finished_and_damaged(tmp_path: Path) -> None:
    put_sound(tmp_path / "in", range(4))
    mmapload.preprocess(tmp_path / "in", tmp_path / "out", 4)
    names = tmp_path / "out" / "__mmapload__" / "names" / "c.0"
    found = names.read_bytes()
    names.write_bytes(bytes([found[0] ^ 1]) + found[1:])
    with pytest.raises(MmaploadError, match=r"is a finished store, which cannot be read: .*give ") as caught:
        mmapload.preprocess(tmp_path / "in", tmp_path / "out", 4)
    assert "--append" not in str(caught.value)


@pytest.mark.parametrize("samples", ["files", "rows"])
@pytest.mark.parametrize("kind", ["npz", "npy", "pt", "png"])
def test_every_kind_of_file_is_compared_by_its_contents(tmp_path: Path, kind: str, samples: Any) -> None:
    if kind == "png" and samples == "rows":
        pytest.skip("an image has no rows")
    source = tmp_path / "in"
    for number in range(3):
        put_kind(source, kind, number, number)
    for shuffle in (None, 3):
        options: dict[str, Any] = {"samples": samples, "shuffle": shuffle}
        mmapload.preprocess(source, tmp_path / "out", 2, overwrite=True, **options)
        with pytest.raises(MmaploadError, match="made of these very samples"):
            mmapload.preprocess(source, tmp_path / "out", 2, **options)
    kept_time(source / f"s1.{kind}", lambda: put_kind(source, kind, 1, 77))
    with pytest.raises(MmaploadError, match="contents have changed since: it is STALE"):
        mmapload.preprocess(source, tmp_path / "out", 2, **options)


def test_what_was_left_out_and_what_was_appended_are_no_change(tmp_path: Path) -> None:
    source = tmp_path / "in"
    put_sound(source, range(4))
    (source / "s4.npz").write_bytes(b"no zip file")
    mmapload.preprocess(source, tmp_path / "out", 2, on_error="skip")
    with pytest.raises(MmaploadError, match="made of these very samples"):
        mmapload.preprocess(source, tmp_path / "out", 2, on_error="skip")
    put_sound(tmp_path / "more", [5])
    mmapload.preprocess(tmp_path / "more", tmp_path / "out", 2, append=True)
    put_sound(source, [5])
    with pytest.raises(MmaploadError, match="made of these very samples"):
        mmapload.preprocess(source, tmp_path / "out", 2, on_error="skip")


# ---- the last chunk


@pytest.mark.parametrize("loader", [DataLoader, ChunkDataLoader])
def test_what_fills_the_last_chunk_is_never_served(tmp_path: Path, loader: Any) -> None:
    ds = ChunkDataset(store_of(tmp_path, 25, 8))
    assert [len(batch["id"]) for batch in loader(ds, 8)] == [8, 8, 8, 1]
    assert ids(loader(ds, 8)) == list(range(25))
    short = loader(ds, 8, drop_last=True)
    assert (len(short), ids(short)) == (3, list(range(24)))
    for beyond in (25, 31, -26):
        with pytest.raises(IndexError):
            ds[beyond]


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("training_loops.md", ["BatchNorm", "torch.compile", "drop_last=True"]),
        (
            "memory.md",
            ["RSS", "PSS", "USS", "memory.stat", "`anon`", "`file`", "--shm-size", "num_workers=0"],
        ),
    ],
)
def test_pages_name_what_people_look_for(page: str, words: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert [word for word in words if word not in text] == []


# ---- memory, descriptors, workers


@LINUX
def test_many_small_chunks_are_written_and_loaded_with_few_descriptors(tmp_path: Path) -> None:
    for number in range(200):
        put_npy(tmp_path / "in", f"a{number:04d}.npy", numbered(number, (16,)))
    run_python(
        "import os, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
        "import mmapload\n"
        "store = mmapload.preprocess(sys.argv[1], sys.argv[2], 1, chunk_bytes=1, jobs=8)\n"
        "assert store.layout.chunk_length == 1\n"
        "from torch.utils.data import DataLoader\n"
        "ds = mmapload.ChunkDataset(store.path)\n"
        "for loader in (DataLoader(ds, 1, shuffle=True), mmapload.ChunkDataLoader(ds, 1, shuffle='full')):\n"
        "    kept = [batch['data'] for batch in loader]\n"
        "    assert len(kept) == 200\n"
        "    assert len(os.listdir('/proc/self/fd')) < 20\n",
        tmp_path / "in",
        tmp_path / "out",
    )


@LINUX
def test_of_very_many_chunks_fewer_are_held_than_a_process_may_have_maps(tmp_path: Path) -> None:
    path, count = tmp_path / "store", most_maps()
    if count > 100_000:
        pytest.skip(f"a process may have {count} maps here, and so many files would take long to make")
    write_with_zarr(path, {"x": np.full((1, 4), 7, np.uint8)}, 1)
    for document in (path / "zarr.json", path / "x" / "zarr.json"):
        told = json.loads(document.read_text())
        told.pop("consolidated_metadata", None)
        if told["node_type"] == "group":
            told["attributes"]["mmapload"]["samples"] = count
        else:
            told["shape"][0] = count
        document.write_text(json.dumps(told))
    file = path / "x" / "c.0.0"
    for number in range(1, count):
        if number % 50_000 == 0:  # file systems allow so many links to a file
            file = Path(shutil.copy(file, path / "x" / f"c.{number}.0"))
        else:
            os.link(file, path / "x" / f"c.{number}.0")
    ds = ChunkDataset(path, memory="1GiB")
    assert not ds.exceeds_memory
    assert 1000 < ds.chunks_held <= count // 2
    assert ds.residency.capacity == ds.chunks_held
    assert ds[count - 1]["x"].tolist() == [7] * 4


REPEATS = int(os.environ.get("MMAPLOAD_FORKS", "1"))
"""How often workers are forked for each codec; `make fuzz` sets more."""


@pytest.mark.timeout(300 + 10 * REPEATS)
def test_workers_that_are_forked_after_everything_was_used_serve_every_codec(tmp_path: Path) -> None:
    for codec in CODEC_NAMES:
        store_of(tmp_path, 24, 4, codec, codec=codec, chunk_bytes=1)
    run_python(
        "import sys, zarr\n"
        "for codec in sys.argv[3:]:\n"  # zarr has its threads before mmapload is imported
        "    assert int(zarr.open_group(f'{sys.argv[1]}/{codec}', mode='r')['id'][5]) == 5\n"
        "import mmapload\n"
        "from torch.utils.data import DataLoader\n"
        "for codec in sys.argv[3:]:\n"
        "    ds = mmapload.ChunkDataset(f'{sys.argv[1]}/{codec}')\n"
        "    assert int(ds[0]['id']) == 0\n"
        "    for repeat in range(int(sys.argv[2])):\n"
        "        workers = dict(num_workers=2, multiprocessing_context='fork', timeout=30)\n"
        "        for kind in (DataLoader, mmapload.ChunkDataLoader):\n"
        "            seen = [number for batch in kind(ds, 4, **workers) for number in batch['id'].tolist()]\n"
        "            assert seen == list(range(24))\n",
        tmp_path,
        REPEATS,
        *CODEC_NAMES,
        timeout=240 + 10 * REPEATS,
    )


def test_info_tells_what_loading_takes_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store_of(tmp_path, 24, 4)
    assert main(["info", path]) == 0
    text = capsys.readouterr().out
    assert 'for chunks with memory="auto"' in text
    assert "all 1 chunks" in text
    assert main(["info", path, "--json"]) == 0
    here = json.loads(capsys.readouterr().out)["here"]
    assert (here["batch_bytes"], here["worker_bytes"], here["chunks_held"]) == (4 * 56, 3 * 4 * 56, 1)
    assert 0 < here["budget_bytes"] < here["available_bytes"]
    little = machine_rows({**here, "shared_bytes": 600}, chunks=1)[1][1]
    assert "TOO LITTLE: a container's --shm-size, num_workers=0, or ChunkDataLoader" in little
    assert len(machine_rows({**here, "shared_bytes": None}, chunks=1)) == 1
    assert "NOT ONE CHUNK" in machine_rows({**here, "chunks_held": 0}, chunks=1)[0][1]


@LINUX
def test_memory_of_a_container_smaller_than_the_data_is_enough_to_preprocess_and_to_load(
    tmp_path: Path,
) -> None:
    first = tmp_path / "in" / "s000.npz"
    first.parent.mkdir()
    np.savez_compressed(first, x=np.tile(np.arange(256, dtype=np.uint8), 2**14))  # 4 MiB, of few bytes
    for number in range(1, 48):
        os.link(first, first.parent / f"s{number:03d}.npz")
    with memory_cgroup(2**40) as folder:
        run_python(
            "import sys, torch, numpy, zarr, numcodecs, mmapload\n"
            "from pathlib import Path\n"
            "pages = int(Path('/proc/self/statm').read_text().split()[1])\n"
            "limit = pages * 4096 + 96 * 2**20\n"
            "Path(sys.argv[3], 'memory.limit_in_bytes').write_text(str(limit))\n"
            "Path(sys.argv[3], 'cgroup.procs').write_text('0')\n"
            "mmapload.preprocess(sys.argv[1], sys.argv[2], 1, chunk_bytes='4MiB')\n"
            "loader = mmapload.ChunkDataLoader(sys.argv[2], 1, shuffle='batch', memory='24MiB')\n"
            "assert sum(len(batch['x']) for epoch in range(2) for batch in loader) == 96\n",
            tmp_path / "in",
            tmp_path / "out",
            folder,
        )


# ---- samplers and wrappers


def test_workers_that_stay_serve_each_epoch_in_its_own_order(tmp_path: Path) -> None:
    ds = ChunkDataset(store_of(tmp_path, 48, 8, chunk_bytes=1))
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    ours, sampler = ChunkDataLoader(ds, 8, shuffle=True, **workers), ChunkSampler(ds, 8)
    torchs = DataLoader(ds, 8, sampler=sampler, **workers)
    orders = []
    for epoch in range(3):
        ours.set_epoch(epoch)
        sampler.set_epoch(epoch)
        orders.append(ids(ours))
        assert ids(torchs) == orders[-1]
        assert sorted(orders[-1]) == list(range(48))
    assert len(set(map(tuple, orders))) == 3


class Passing(Dataset[Any]):
    """A user's wrapper that knows single samples only."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def test_wrappers_of_all_kinds_serve_the_samples_they_name(tmp_path: Path) -> None:
    ds, other = (ChunkDataset(store_of(tmp_path, count, 8, str(count))) for count in (60, 10))
    back = list(range(59, 29, -1))
    part = Subset(ds, back)
    train, rest = random_split(ds, [40, 20], torch.Generator().manual_seed(0))
    both: ConcatDataset[Any] = ConcatDataset([ds, other])
    for samples, expected in (
        (part, back),
        (Subset(part, range(0, 30, 2)), back[::2]),
        (train, list(train.indices)),
        (rest, list(rest.indices)),
        (both, [*range(60), *range(10)]),
        (Subset(both, [65, 3, 59, 60]), [5, 3, 59, 0]),
        (Passing(part), back),
        (ConcatDataset([part, Subset(other, [9, -1])]), [*back, 9, 9]),
    ):
        assert ids(DataLoader(samples, 8)) == expected
    stacked = StackDataset(one=part, two=Subset(ds, range(30)))
    batch = next(iter(DataLoader(stacked, 4)))
    assert (ids([batch["one"]]), ids([batch["two"]])) == (back[:4], [0, 1, 2, 3])
