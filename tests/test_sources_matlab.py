"""MATLAB files: of version 5 written by scipy, of 7.3 written as MATLAB does, by h5py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.errors import SourceError
from mmapload.preprocessing import preprocess
from mmapload.sources.kinds import Request, open_files
from tests.preprocessing_cases import stored
from tests.reading_cases import read_sample, same

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.sources import IndexedSource

scipy_io = pytest.importorskip("scipy.io", reason="scipy is not installed")
h5py = pytest.importorskip("h5py", reason="h5py is not installed")

RNG = np.random.default_rng(0)
VARIABLES = {
    "double": RNG.standard_normal((3, 4)),
    "single": RNG.standard_normal((2, 3, 4)).astype("f4"),
    "int16": RNG.integers(-9, 9, (3, 2)).astype("i2"),
    "uint8": RNG.integers(0, 256, (3, 2)).astype("u1"),
    "int64": RNG.integers(-(2**62), 2**62, (3, 2)),
    "logical": RNG.integers(0, 2, (3, 5)).astype(bool),
    "complex": RNG.standard_normal((3, 2)) + 1j,
    "empty": np.zeros((0, 3)),
    "scalar": np.array([[0.5]]),
}


def opened(path: Any, samples="files", fields=None) -> IndexedSource:
    return open_files([path], None, Request(fields, (), samples))[0]


def write_v73(path: Path, variables: dict[str, np.ndarray]) -> None:
    """Write variables as MATLAB does: axes in reverse, classes in attributes, a header of 512 bytes."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in variables.items():
            logical = array.dtype == bool
            class_ = {"float64": "double", "float32": "single", "complex128": "double", "bool": "logical"}
            data = array.astype("u1") if logical else array
            if array.size == 0:
                data = np.array(array.shape, "u8").T
            elif array.dtype.kind == "c":
                both = np.empty(array.shape, [("real", "f8"), ("imag", "f8")])
                both["real"], both["imag"] = array.real, array.imag
                data = both
            made = file.create_dataset(name, data=data.T)
            made.attrs["MATLAB_class"] = np.bytes_(class_.get(array.dtype.name, array.dtype.name))
            if array.size == 0:
                made.attrs["MATLAB_empty"] = np.uint8(1)
    header = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM"
    with open(path, "r+b") as file:
        file.write(header.ljust(512, b"\0"))


@pytest.mark.parametrize("compressed", [False, True])
def test_variables_of_version_5_are_read_bit_by_bit(tmp_path, compressed):
    scipy_io.savemat(tmp_path / "a.mat", VARIABLES, do_compression=compressed)
    found = read_sample(opened(tmp_path / "a.mat"), 0)
    assert found.keys() == VARIABLES.keys()
    assert all(same(found[name], array) for name, array in VARIABLES.items())


def test_variables_of_version_7_3_have_the_shapes_that_matlab_shows(tmp_path):
    write_v73(tmp_path / "a.mat", VARIABLES)
    found = read_sample(opened(tmp_path / "a.mat"), 0)
    assert found.keys() == VARIABLES.keys()
    assert all(same(found[name], array) for name, array in VARIABLES.items())


@pytest.mark.parametrize("version", [5, 7.3])
def test_rows_are_samples(tmp_path, version):
    variables = {name: VARIABLES[name] for name in ("double", "int16", "logical", "complex")}
    scipy_io.savemat(tmp_path / "a.mat", variables) if version == 5 else write_v73(
        tmp_path / "a.mat", variables
    )
    source = opened(tmp_path / "a.mat", "rows")
    for index in (0, 1, 2, 0):
        found = read_sample(source, index)
        assert all(same(found[name], array[index]) for name, array in variables.items())


def test_files_are_samples_in_natural_order(tmp_path):
    for number in (10, 9):
        scipy_io.savemat(tmp_path / f"{number}.MAT", {"x": np.full((1, 2), number)}, appendmat=False)
    assert stored(preprocess(tmp_path, tmp_path / "out", 1), "x").tolist() == [[[9, 9]], [[10, 10]]]


@pytest.mark.parametrize(
    ("name", "value", "class_"),
    [
        ("text", "abc", "char"),
        ("struct", {"a": 1}, "struct"),
        ("cell", np.array([1, "a"], object), "cell"),
    ],
)
def test_other_classes_are_refused_by_name_unless_left_out(tmp_path, name, value, class_):
    scipy_io.savemat(tmp_path / "a.mat", {"x": [[1.0]], name: value})
    with pytest.raises(
        SourceError, match=rf"a\.mat, member '{name}': of MATLAB's class {class_}, .*--fields"
    ):
        opened(tmp_path / "a.mat").schema(0)
    assert read_sample(opened(tmp_path / "a.mat", fields={"x": "x"}), 0)["x"].tolist() == [[1]]


def test_sparse_matrices_and_other_classes_of_version_7_3_are_refused_by_name(tmp_path):
    import scipy.sparse

    scipy_io.savemat(tmp_path / "a.mat", {"s": scipy.sparse.eye(3)})
    with pytest.raises(SourceError, match="member 's': of MATLAB's class sparse"):
        opened(tmp_path / "a.mat").schema(0)
    write_v73(tmp_path / "b.mat", {"x": np.ones((1, 1))})
    with h5py.File(tmp_path / "b.mat", "r+") as file:
        file.create_dataset("text", data=np.array([[97]], "u2")).attrs["MATLAB_class"] = np.bytes_("char")
        file["#refs#/a"] = 1.0
        group = file.create_group("s")
        group.attrs["MATLAB_sparse"] = 3
        group["data"] = [1.0]
    assert [*opened(tmp_path / "b.mat", fields={"x": "x"}).schema(0)] == ["x"]
    for name, class_ in (("text", "char"), ("s/data", "sparse")):
        with pytest.raises(SourceError, match=rf"b\.mat, member '{name}': of MATLAB's class {class_}"):
            opened(tmp_path / "b.mat", fields={name: "x"}).schema(0)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "not a MATLAB file but nothing|cannot be read"),
        (lambda data: b"<html>" * 99, "not a MATLAB file but an HTML"),
        (lambda data: data[:200], "cannot be read"),
        (lambda data: data[:-20], "cannot be read"),
    ],
)
def test_a_file_that_is_none_or_cut_short_is_an_error(tmp_path, damage, words):
    scipy_io.savemat(tmp_path / "a.mat", {"x": np.arange(100.0)})
    (tmp_path / "a.mat").write_bytes(damage((tmp_path / "a.mat").read_bytes()))
    with pytest.raises(SourceError, match=rf"a\.mat.*({words})"):
        read_sample(opened(tmp_path / "a.mat"), 0)
