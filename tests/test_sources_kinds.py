"""What all kinds of source share: how they are told apart, left out where bad, and brought back by export."""

from __future__ import annotations

import io
import json
import tarfile
from typing import TYPE_CHECKING

import numpy as np
import pytest

import mmapload
from mmapload.cli import main
from mmapload.errors import SourceError
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.sources.kinds import KINDS, Request, open_files
from tests.preprocessing_cases import stored
from tests.reading_cases import same

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 7


def arrays(first: int = 0) -> dict[str, np.ndarray]:
    """Rows that all formats hold: negative zeros, NaN with payloads, and labels that number the rows."""
    rng = np.random.default_rng(first)
    x = rng.integers(0, 2**32, (ROWS, 2, 3), np.uint32).view("f4")
    x[0] = -0.0
    return {"x": x, "y": np.arange(first, first + ROWS)}


def write_npz(path: Path, found: dict[str, np.ndarray]) -> None:
    np.savez(path, **found)


def write_hdf5(path: Path, found: dict[str, np.ndarray]) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(path, "w") as file:
        for name, array in found.items():
            file.create_dataset(
                name, data=array, **({"chunks": True, "compression": "gzip"} if array.ndim else {})
            )


def write_zarr(path: Path, found: dict[str, np.ndarray], version: int = 3) -> None:
    import zarr

    group = zarr.open_group(path, mode="w", zarr_format=version)
    for name, array in found.items():
        group.create_array(name, data=array, chunks=tuple(max(1, n // 2) for n in array.shape))


def write_zarr2(path: Path, found: dict[str, np.ndarray]) -> None:
    write_zarr(path, found, 2)


def write_torch(path: Path, found: dict[str, np.ndarray]) -> None:
    import torch

    torch.save({name: torch.from_numpy(np.asarray(array).copy()) for name, array in found.items()}, path)


def write_safetensors(path: Path, found: dict[str, np.ndarray]) -> None:
    module = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    module.save_file({name: np.ascontiguousarray(array) for name, array in found.items()}, path)


def write_matlab(path: Path, found: dict[str, np.ndarray]) -> None:
    module = pytest.importorskip("scipy.io", reason="scipy is not installed")
    # MATLAB has two axes at least.
    module.savemat(path, {name: array.reshape(*array.shape, 1) for name, array in found.items()})


def write_tar(path: Path, found: dict[str, np.ndarray]) -> None:
    """A sample a row, as WebDataset has it."""
    with tarfile.open(path, "w") as tar:
        for row in range(ROWS):
            for name, array in found.items():
                data = io.BytesIO()
                np.save(data, array[row])
                info = tarfile.TarInfo(f"{row:03d}.{name}.npy")
                info.size = len(data.getvalue())
                data.seek(0)
                tar.addfile(info, data)


BY_ROWS: dict[str, tuple[str, Callable[[Path, dict[str, np.ndarray]], None]]] = {
    "npz": (".npz", write_npz),
    "hdf5": (".h5", write_hdf5),
    "zarr": (".zarr", write_zarr),
    "zarr of version 2": (".zarr", write_zarr2),
    "torch": (".pt", write_torch),
    "safetensors": (".safetensors", write_safetensors),
    "matlab": (".mat", write_matlab),
}


def expected_row(kind: str, name: str, array: np.ndarray) -> np.ndarray:
    """A row as the store has it: MATLAB's last axis was made when the file was written."""
    return array.reshape(*array.shape, 1) if kind == "matlab" else array


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("kind", BY_ROWS)
def test_rows_of_every_kind_come_out_of_a_store_bit_by_bit(tmp_path, kind, shuffle):
    suffix, write = BY_ROWS[kind]
    (tmp_path / "in").mkdir()
    made = {f"{part}{suffix}": arrays(part * 100) for part in (1, 2)}
    for name, found in made.items():
        write(tmp_path / "in" / name, found)
    preprocess(tmp_path / "in", tmp_path / "store", 4, samples="rows", shuffle=shuffle, chunk_bytes=100)
    assert mmapload.export(tmp_path / "store", tmp_path / "out").files == 2 * ROWS
    for name, found in made.items():
        for row in range(ROWS):
            with np.load(tmp_path / "out" / f"{name}[{row}].npz") as sample:
                assert sorted(sample.files) == ["x", "y"]
                for field in sample.files:
                    assert same(sample[field], expected_row(kind, field, found[field][row]))


@pytest.mark.parametrize("kind", ["npz", "npy", "webdataset", "hdf5", "torch", "safetensors", "matlab"])
def test_samples_of_a_file_each_come_out_of_a_store_bit_by_bit(tmp_path, kind):
    (tmp_path / "in").mkdir()
    found = arrays()
    if kind == "webdataset":
        write_tar(tmp_path / "in" / "a.tar", found)
    for row in range(0 if kind == "webdataset" else ROWS):
        sample = {name: array[row] for name, array in found.items()}
        if kind == "npy":
            np.save(tmp_path / "in" / f"{row}.npy", sample["x"])
        elif kind == "matlab":
            write_matlab(tmp_path / "in" / f"{row}.mat", {"x": sample["x"], "y": sample["y"].reshape(1)})
        else:
            BY_ROWS[kind][1](tmp_path / "in" / f"{row}{BY_ROWS[kind][0]}", sample)
    store = preprocess(tmp_path / "in", tmp_path / "store", 4, chunk_bytes=100)
    assert len(store) == ROWS
    mmapload.export(store, tmp_path / "out")
    for row in range(ROWS):
        with np.load(tmp_path / "out" / f"{store.sample_name(row).removesuffix('.npz')}.npz") as sample:
            for field in sample.files:
                name = {"data": "x", "x.npy": "x", "y.npy": "y"}.get(field, field)
                assert sample[field].dtype == found[name].dtype
                assert sample[field].tobytes() == found[name][row].tobytes()


@pytest.mark.parametrize("samples", ["rows", "keys"])
@pytest.mark.parametrize("kind", ["npz", "hdf5", "torch", "webdataset"])
def test_a_file_of_many_samples_that_is_bad_is_left_out_where_bad_ones_are(tmp_path, kind, samples):
    suffix, write = BY_ROWS.get(kind, (".tar", write_tar))
    options = {} if kind == "webdataset" else {"samples": samples}
    folder = tmp_path / "in"
    folder.mkdir()
    found = arrays() if samples == "rows" or kind == "webdataset" else {"a": np.ones(3), "b": np.ones(3)}
    for name in ("a", "c"):
        write(folder / f"{name}{suffix}", found)
    (folder / f"b{suffix}").write_bytes(b"<html>quota exceeded</html>")
    with pytest.raises(SourceError, match=rf"b\{suffix}"):
        preprocess(folder, tmp_path / "out", 2, **options)
    result = execute(plan_preprocess(folder, tmp_path / "out", 2, on_error="skip", **options))
    assert [each.file for each in result.skipped] == [str(folder / f"b{suffix}")]
    assert len(result.store) == 2 * (ROWS if samples == "rows" or kind == "webdataset" else 2)
    files = {name[:1] for name in map(result.store.sample_name, range(len(result.store)))}
    assert files == {"a", "c"}
    if samples == "rows":
        took = {**options, "take": [2, 0, ROWS, ROWS + 3], "shuffle": 2}
        taken = execute(plan_preprocess(folder, tmp_path / "some", 2, on_error="skip", **took))
        assert (len(taken.store), len(taken.skipped)) == (3, 1)


def test_the_first_file_may_be_the_bad_one_and_all_bad_is_an_error(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.h5").write_bytes(b"")
    with pytest.raises(SourceError, match=r"a\.h5"):
        preprocess(folder, tmp_path / "out", 2, samples="rows", on_error="skip")
    write_hdf5(folder / "b.h5", arrays())
    command = [str(folder), f"{tmp_path}/out", "--batch-size", "2", "--samples", "rows"]
    assert main(["preprocess", *command, "--on-error", "skip", "--quiet"]) == 3
    assert len(mmapload.open_store(tmp_path / "out")) == ROWS
    (line,) = (tmp_path / "out.skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["file"] == str(folder / "a.h5")


def test_a_chunk_of_the_source_is_decoded_once_for_each_chunk_of_a_shuffled_store(tmp_path, monkeypatch):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(1000.0), chunks=(50,), compression="gzip")
    reads = []
    read = h5py.Dataset.__getitem__
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda self, at: reads.append(at) or read(self, at))
    store = preprocess(tmp_path / "a.h5", tmp_path / "out", 50, samples="rows", shuffle=1, chunk_bytes=2000)
    assert store.layout.chunks == 4
    # 20 chunks in the file, and what was read to learn what samples are.
    assert len(reads) <= 4 * 20 + 10
    values = stored(store, "x")
    assert sorted(values.tolist()) == list(range(1000))
    assert [f"a.h5[{int(value)}]" for value in values] == [store.sample_name(i) for i in range(1000)]


def test_bad_samples_of_a_shuffled_sequence_leave_no_gap(tmp_path):
    samples = [{"x": np.full(2, k if k % 7 else np.str_("bad"))} for k in range(100)]
    result = execute(
        plan_preprocess(samples, tmp_path / "out", 5, on_error="skip", shuffle=1, chunk_bytes=100, jobs=1)
    )
    assert len(result.skipped) == 15
    left = stored(result.store, "x")[:, 0].tolist()
    assert sorted(left) == [k for k in range(100) if k % 7]
    sound = [k for k in range(100) if k % 7]
    assert left != sound


@pytest.mark.parametrize("suffixes", [(".npz", ".h5"), (".npy", ".pt", ".tar"), (".png", ".npz")])
def test_a_mixture_of_kinds_is_refused_with_counts_and_a_glob_takes_one(tmp_path, suffixes):
    for suffix in suffixes:
        (tmp_path / f"a{suffix}").touch()
    (tmp_path / f"b{suffixes[0]}").touch()
    kinds = {suffix: kind.name for kind in KINDS for suffix in kind.suffixes}
    with pytest.raises(SourceError, match=r"a mixture of files, .*by a glob in quotes") as caught:
        open_files([tmp_path], None, Request(None, (), "files"))
    for suffix in suffixes:
        count = 2 if suffix == suffixes[0] else 1
        assert f"{count} of kind {kinds[suffix]}" in str(caught.value)
    if suffixes[0] != ".png":
        _, listing = open_files([tmp_path / f"*{suffixes[0]}"], None, Request(None, (), "files", skip=True))
        assert [name[:1] for name in listing.names] == ["a", "b"]


def test_zarr_folders_and_files_are_a_mixture_too(tmp_path):
    write_zarr(tmp_path / "a.zarr", arrays())
    write_npz(tmp_path / "b.npz", arrays())
    with pytest.raises(SourceError, match="1 of kind npz, 1 of kind zarr"):
        open_files([tmp_path], None, Request(None, (), "files"))
    with pytest.raises(SourceError, match="1 of kind npz, 1 of kind zarr"):
        open_files([tmp_path / "a.zarr", tmp_path / "b.npz"], None, Request(None, (), "files"))


@pytest.mark.parametrize("name", ["a.tar", "a.png"])
def test_what_a_sample_is_has_no_choice_where_the_kind_says_it(tmp_path, name):
    (tmp_path / name).touch()
    for samples in ("rows", "keys"):
        with pytest.raises(ValueError, match=f"samples='{samples}' is no choice for a source of kind"):
            open_files([tmp_path / name], None, Request(None, (), samples))
    np.save(tmp_path / "b.npy", np.ones(3))
    with pytest.raises(ValueError, match=r"allow_pickle is for \.npz files"):
        open_files([tmp_path / "b.npy"], None, Request(None, (), "files", allow_pickle=True))
