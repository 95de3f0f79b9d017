"""Files that people have published, stored and served; they are no part of the project, but lie beside it.

| file | tests |
| --- | --- |
| chemprop_classification_features.npz | test_rows_of_a_real_file_come_back_as_numpy_reads_them |
| | test_values_that_are_no_numbers_are_counted_in_a_real_table |
| chemprop_mol_bond_features.npz | test_a_real_file_comes_back_as_numpy_reads_it |
| | test_real_molecules_of_two_types_become_one_by_a_cast |
| ibl_alignment_data.npz | test_a_real_list_of_names_is_refused_and_becomes_text_where_it_is_trusted |
| ibl_pcqs_session_0.npy | test_real_sessions_of_different_lengths_come_back_in_the_order_of_their_numbers |
| ibl_pcqs_session_1.npy | test_real_sessions_of_different_lengths_come_back_in_the_order_of_their_numbers |
| ibl_pcqs_session_10.npy | test_real_sessions_of_different_lengths_come_back_in_the_order_of_their_numbers |
| imitation_lfs_pointer.npz | test_a_real_pointer_is_called_one |
| imitation_pendulum_rollouts.npz | test_real_rollouts_of_two_tasks_are_refused_by_the_name_of_the_array |
| libnpy_int32_big.npy | test_a_real_file_comes_back_as_numpy_reads_it |
| libnpy_test_compressed.npz | test_a_real_file_comes_back_as_numpy_reads_it |
| libnpy_uint8_fortran.npy | test_a_real_file_comes_back_as_numpy_reads_it |
| | test_real_arrays_in_fortran_order_are_served_in_c_order |
| loftr_scannet_test_pairs.npz | test_rows_of_a_real_file_come_back_as_numpy_reads_them |
| | test_real_numbers_of_scenes_and_frames_stay_exact |
| npzjl_linspace_v2.npy | test_a_real_file_comes_back_as_numpy_reads_it |
| numcodecs_U4_fortran.npy | test_a_real_file_comes_back_as_numpy_reads_it |
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mmapload
from mmapload.checking import check
from mmapload.cli import main
from mmapload.errors import SourceError
from tests.case_makers import expect_tests_of, put_npz
from tests.npz_files import REAL as FOLDER
from tests.preprocessing_cases import stored

REAL = Path(FOLDER)
pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not on this machine")


def test_every_real_file_has_a_test_that_there_is() -> None:
    expect_tests_of(__doc__ or "", __file__)
    named = {line.split("|")[1].strip() for line in (__doc__ or "").splitlines() if line.startswith("|")}
    assert {name for name in os.listdir(REAL) if name.endswith((".npz", ".npy"))} <= named


@pytest.mark.parametrize(
    "name",
    [
        "libnpy_test_compressed.npz",
        "numcodecs_U4_fortran.npy",
        "libnpy_int32_big.npy",
        "libnpy_uint8_fortran.npy",
        "npzjl_linspace_v2.npy",
        "chemprop_mol_bond_features.npz",
    ],
)
def test_a_real_file_comes_back_as_numpy_reads_it(tmp_path: Path, name: str) -> None:
    loaded = np.load(REAL / name)
    arrays = {"data": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
    store = mmapload.preprocess(REAL / name, tmp_path / "out", 1)
    assert set(store.fields) == set(arrays)
    for field, array in arrays.items():
        wanted = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
        found = store.read_chunk(field, 0)[0]
        assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())


@pytest.mark.parametrize(
    ("name", "samples", "rows"),
    [
        ("chemprop_classification_features.npz", 500, "features"),
        ("loftr_scannet_test_pairs.npz", 1500, "name"),
    ],
)
def test_rows_of_a_real_file_come_back_as_numpy_reads_them(
    tmp_path: Path, name: str, samples: int, rows: str
) -> None:
    store = mmapload.preprocess(REAL / name, tmp_path / "out", 4, samples="rows")
    assert len(store) == samples
    wanted = np.load(REAL / name)[rows]
    assert stored(store, rows).tobytes() == wanted.tobytes()
    batch = next(iter(mmapload.ChunkDataLoader(store.path, batch_size=samples)))[rows]
    assert batch.dtype == {"features": torch.float64, "name": torch.uint16}[rows]
    assert batch.numpy().tobytes() == wanted.tobytes()


def test_real_molecules_of_two_types_become_one_by_a_cast(tmp_path: Path) -> None:
    options: dict[str, Any] = {"samples": "keys", "ragged": "auto"}
    source = REAL / "chemprop_mol_bond_features.npz"
    with pytest.raises(SourceError, match=r"arr_1.*float64 \(0, 2\), expected int64"):
        mmapload.preprocess(source, tmp_path / "out", 4, **options)
    store = mmapload.preprocess(source, tmp_path / "out2", 4, cast="data=int64", **options)
    found = [array for chunk in range(store.layout.chunks) for array in store.read_chunk("data", chunk)]
    loaded = np.load(source)
    assert [array.tolist() for array in found] == [loaded[f"arr_{number}"].tolist() for number in range(11)]


def test_values_that_are_no_numbers_are_counted_in_a_real_table(capsys: pytest.CaptureFixture[str]) -> None:
    source = REAL / "chemprop_classification_features.npz"
    report = check(source, samples="rows")
    assert (report.samples, report.sound) == (500, True)
    assert [(each.field, each.nan, each.inf) for each in report.non_finite] == [("features", 32, 0)]
    rows = np.flatnonzero(np.isnan(np.load(source)["features"]).any(axis=1))
    assert report.non_finite[0].samples.tolist() == rows.tolist()
    assert main(["check", str(source), "--samples", "rows", "--quiet"]) == 0
    assert f"'features' has 32 NaN values in {len(rows)} of 500 samples" in capsys.readouterr().out


def test_a_real_list_of_names_is_refused_and_becomes_text_where_it_is_trusted(tmp_path: Path) -> None:
    source = REAL / "ibl_alignment_data.npz"
    with pytest.raises(SourceError, match=r"member 'brain_regions_ref\.npy'.*np\.array\(\.\.\., dtype=str\)"):
        mmapload.preprocess(source, tmp_path / "out", 1)
    assert not list(tmp_path.iterdir())
    with pytest.warns(UserWarning, match="trust"):
        store = mmapload.preprocess(source, tmp_path / "out", 1, allow_pickle=True)
    with np.load(source, allow_pickle=True) as loaded:
        for name in loaded.files:
            wanted = loaded[name].astype(str) if loaded[name].dtype == object else loaded[name]
            found = store.read_chunk(name, 0)[0]
            assert (found.dtype, found.shape, found.tobytes()) == (
                wanted.dtype,
                wanted.shape,
                wanted.tobytes(),
            )


def test_real_sessions_of_different_lengths_come_back_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """And in that of their rows, though they lie in Fortran order."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in (10, 0, 1):
        shutil.copy(REAL / f"ibl_pcqs_session_{number}.npy", folder)
    with pytest.raises(
        SourceError, match=r"\(2003, 5\), expected float64 \(2040, 5\), as in .*session_0\.npy"
    ):
        mmapload.preprocess(folder, tmp_path / "out", 2)
    store = mmapload.preprocess(folder, tmp_path / "out", 2, ragged="auto")
    assert [store.sample_name(i) for i in range(3)] == [f"ibl_pcqs_session_{n}.npy" for n in (0, 1, 10)]
    ds = mmapload.ChunkDataset(store.path)
    for sample, number in enumerate((0, 1, 10)):
        found = ds[sample]["data"]
        assert found.is_contiguous()
        assert np.array_equal(found.numpy(), np.load(REAL / f"ibl_pcqs_session_{number}.npy"))
    first = torch.tensor([-35, 1, 0.61010396, 1.36934611, 0.5], dtype=torch.float64)
    assert torch.allclose(ds[0]["data"][0], first, rtol=0, atol=1e-8)


def test_rows_of_real_sessions_follow_one_another(tmp_path: Path) -> None:
    sessions = [str(REAL / f"ibl_pcqs_session_{number}.npy") for number in (0, 1, 10)]
    store = mmapload.preprocess(sessions, tmp_path / "out", 8, samples="rows")
    assert np.array_equal(stored(store, "data"), np.concatenate([np.load(path) for path in sessions]))


def test_a_real_pointer_is_called_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(REAL / "imitation_lfs_pointer.npz"), str(tmp_path / "out"), "--batch-size", "1"]
    assert main(["preprocess", *command]) == 1
    said = capsys.readouterr().err
    assert "not a zip file (131 bytes) but a Git LFS pointer" in said
    assert "run git lfs pull" in said
    assert "pickle" not in said


def test_real_rollouts_of_two_tasks_are_refused_by_the_name_of_the_array(tmp_path: Path) -> None:
    """One has float32 actions, the other int64 ones of another shape: nothing is cast unasked."""
    source = REAL / "imitation_pendulum_rollouts.npz"
    with np.load(source) as loaded:
        arrays = {name: loaded[name] for name in loaded.files if name != "infos"}
    folder = tmp_path / "in"
    put_npz(folder, "cartpole.npz", **(arrays | {"acts": np.arange(26964) % 2}))
    shutil.copy(source, folder / "pendulum.npz")
    fields = ",".join(arrays)
    with pytest.raises(SourceError, match=r"member 'infos\.npy': holds an object array"):
        mmapload.preprocess(source, tmp_path / "out", 1)
    with pytest.raises(SourceError, match=r"'acts'.* float32 \(11200, 1\), expected int64 \(26964,\)"):
        mmapload.preprocess(folder, tmp_path / "out", 1, fields=fields)
    with pytest.raises(SourceError, match=r"'acts'.*float32 \(11200, 1\), expected int64 \(26964,\)"):
        mmapload.preprocess(folder, tmp_path / "out", 1, fields=fields, ragged="auto")
    store = mmapload.preprocess(source, tmp_path / "one", 1, fields=fields)
    for name, array in arrays.items():
        assert np.array_equal(store.read_chunk(name, 0)[0], array)


@pytest.mark.parametrize(
    "name", ["libnpy_uint8_fortran.npy", "libnpy_int32_big.npy", "npzjl_linspace_v2.npy"]
)
def test_real_arrays_in_fortran_order_are_served_in_c_order(tmp_path: Path, name: str) -> None:
    """And those of another byte order in the machine's own."""
    ds = mmapload.ChunkDataset(mmapload.preprocess(REAL / name, tmp_path / "out", 1).path)
    found, wanted = ds[0]["data"], np.load(REAL / name)
    assert found.is_contiguous()
    assert (found.numpy().dtype, found.tolist()) == (wanted.dtype.newbyteorder("="), wanted.tolist())


def test_real_numbers_of_scenes_and_frames_stay_exact(tmp_path: Path) -> None:
    source = REAL / "loftr_scannet_test_pairs.npz"
    ds = mmapload.ChunkDataset(mmapload.preprocess(source, tmp_path / "out", 32, samples="rows").path)
    with np.load(source) as loaded:
        names, poses = loaded["name"], loaded["rel_pose"]
    assert ds[0]["name"].dtype == torch.uint16
    assert ds[0]["name"].tolist() == names[0].tolist()
    assert names[0, 0] == 707
    assert ds[1499]["rel_pose"].numpy().tobytes() == poses[1499].tobytes()
