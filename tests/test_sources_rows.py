"""Rows of archives as samples: values, names, order, memory, and files that are not sound."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from mmapload.errors import SourceError
from mmapload.sources import forward, rows, spill
from mmapload.sources.grouped import UnsoundFileError
from mmapload.sources.kinds import Request, open_files
from tests.row_files import ROWS, arrays, damage_payload, npy, write_rows

COUNTS = {"a": ROWS, "b": 1, "c": 77}


def opened(folder, *, fields=None, optional=(), **options):
    request = Request(fields, optional, "rows", folder=str(folder), **options)
    return open_files([folder], None, request)[0]


def gathered(source, indices, piece=50):
    """Read samples piece by piece; their arrays, and the sums of all."""
    into = {
        field: np.empty((len(indices), *spec.shape), spec.dtype) for field, spec in source.schema(0).items()
    }
    sums = {}
    for start in range(0, len(indices), piece):
        some = indices[start : start + piece]
        found = source.read_many(some, {key: array[start : start + piece] for key, array in into.items()})
        for key, (nbytes, total) in found.sums.items():
            before = sums.get(key, (0, 0))
            sums[key] = before[0] + nbytes, before[1] ^ total
    return into, sums


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_several_files_are_those_that_numpy_reads_in_any_order(tmp_path, deflate, shuffled):
    expected = write_rows(tmp_path / "in", COUNTS, deflate=deflate)
    source = opened(tmp_path / "in", in_order=not shuffled)
    order = np.random.default_rng(1).permutation(len(source)) if shuffled else np.arange(len(source))
    found, sums = gathered(source, order.tolist())
    for key, array in expected.items():
        assert found[key].dtype.isnative
        np.testing.assert_array_equal(found[key], array[order])
    source.prove(sums)
    source.prove_rest(sums)
    assert source.parallel is (shuffled or not deflate)  # what is inflated forwards takes one thread


def test_names_say_file_and_row(tmp_path):
    write_rows(tmp_path / "in" / "deep", COUNTS, deflate=False)
    source = opened(tmp_path / "in")
    assert len(source) == sum(COUNTS.values())
    assert source.name(17) == "deep/a.npz[17]"
    assert source.name(ROWS) == "deep/b.npz[0]"
    assert source.describe(ROWS + 1) == f"{tmp_path}/in/deep/c.npz[0]"
    names = [source.name(index) for index in range(len(source))]
    assert source.names(range(len(source))) == names
    assert source.names([ROWS + 5, 3]) == [names[ROWS + 5], names[3]]
    assert source.names_nbytes() == sum(map(len, names))
    assert list(source.roll()) == ["deep/a.npz[230]", "deep/b.npz[1]", "deep/c.npz[77]"]


def test_a_file_without_rows_has_no_samples(tmp_path):
    expected = write_rows(tmp_path, {"a": 0, "b": 3, "c": 0, "d": 2}, deflate=False)
    source = opened(tmp_path)
    assert [source.name(index) for index in range(5)] == [
        *(f"b.npz[{k}]" for k in range(3)),
        "d.npz[0]",
        "d.npz[1]",
    ]
    found, sums = gathered(source, range(5))
    np.testing.assert_array_equal(found["y"], expected["y"])
    source.prove_rest(sums)


def test_every_deflated_array_is_inflated_once_whatever_the_order(tmp_path, monkeypatch):
    write_rows(tmp_path / "in", COUNTS, deflate=True)
    read = []

    def counted(real):
        def read_whole(fd, path, column):
            read.append((path, column.name))
            return real(fd, path, column)

        return read_whole

    for module in (forward, spill, rows):
        monkeypatch.setattr(module, "read_whole", counted(module.read_whole))
    for in_order in (True, False):
        source = opened(tmp_path / "in", in_order=in_order)
        indices = (
            range(len(source)) if in_order else np.random.default_rng(2).permutation(len(source)).tolist()
        )
        read.clear()
        _, sums = gathered(source, indices)
        source.prove_rest(sums)
        # Columns without bytes are looked at in the end, where it costs nothing.
        assert sorted(set(read)) == sorted(read)
        assert len([name for _, name in read if name != "e.npy"]) == 4 * len(COUNTS)


def test_a_stored_array_is_read_once_if_all_of_it_is_taken(tmp_path, monkeypatch):
    write_rows(tmp_path / "in", COUNTS, deflate=False)
    monkeypatch.setattr(
        rows, "read_whole", lambda fd, path, column: pytest.fail(column.name) if column.nbytes else ()
    )
    source = opened(tmp_path / "in")
    _, sums = gathered(source, range(len(source)))
    source.prove_rest(sums)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("key", ["x", "f"])
def test_a_changed_byte_is_found_if_only_some_rows_are_read_too(tmp_path, whole, in_order, key):
    write_rows(tmp_path / "in", COUNTS, deflate=False)
    damage_payload(tmp_path / "in" / "c.npz", key)
    source = opened(tmp_path / "in", in_order=in_order)
    indices = range(len(source)) if whole else range(ROWS + 20, ROWS + 30)

    def read_and_prove():
        _, sums = gathered(source, indices)
        source.prove_rest(sums)

    with pytest.raises(
        UnsoundFileError, match=rf"c.npz, member .{key}.npy.: its contents are damaged"
    ) as caught:
        read_and_prove()
    assert list(caught.value.indices) == list(range(ROWS + 1, len(source)))


def test_single_rows_are_read_of_sound_files_alone(tmp_path):
    write_rows(tmp_path / "in", COUNTS, deflate=False)
    damage_payload(tmp_path / "in" / "c.npz", "x")
    source = opened(tmp_path / "in")
    into = {field: np.empty(spec.shape, spec.dtype) for field, spec in source.schema(0).items()}
    source.read(3, into)
    np.testing.assert_array_equal(into["f"], arrays(0)["f"][3])
    with pytest.raises(UnsoundFileError, match="damaged"):
        source.read(len(source) - 1, into)


def test_deflated_bytes_that_are_damaged_make_a_whole_file_unsound(tmp_path):
    write_rows(tmp_path / "in", COUNTS, deflate=True)
    path = tmp_path / "in" / "c.npz"
    data = bytearray(path.read_bytes())
    data[data.index(b"f.npy") + 300] ^= 0xFF
    path.write_bytes(data)
    source = opened(tmp_path / "in")
    gathered(source, range(ROWS))
    with pytest.raises(UnsoundFileError, match=r"c\.npz"):
        gathered(source, range(ROWS + 1, len(source)))


def test_a_file_that_is_replaced_after_its_header_was_read_is_refused(tmp_path):
    write_rows(tmp_path, {"a": 20}, deflate=False)
    source = opened(tmp_path)
    write_rows(tmp_path, {"a": 30}, deflate=False)
    with pytest.raises(UnsoundFileError, match="changed since"):
        gathered(source, range(20))


def test_arrays_of_other_lengths_are_named_and_can_be_left_out(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.zeros((50, 3)), y=np.zeros(50), mean=np.zeros(3), n=np.zeros(7))
    with pytest.raises(
        SourceError,
        match=r"differ in their number of rows: 50 in 'x', 'y'; 3 in 'mean'; 7 in 'n'; .*--fields x,y",
    ):
        opened(tmp_path)
    source = opened(tmp_path, fields={"x": "image", "y": "y"})
    assert {field: str(spec) for field, spec in source.schema(0).items()} == {
        "image": "float64 (3,)",
        "y": "float64 ()",
    }


def test_a_single_value_has_no_rows(tmp_path):
    np.savez(tmp_path / "s.npz", x=np.zeros((50, 3)), scale=np.float32(2))
    with pytest.raises(SourceError, match=r"s.npz, member .scale.npy.: a single value, which has no rows"):
        opened(tmp_path)
    assert len(opened(tmp_path, fields={"x": "x"})) == 50


def test_files_that_are_not_alike_are_refused_before_a_row_is_read(tmp_path):
    np.savez(tmp_path / "a.npz", obs=np.zeros((10, 3), "f4"), acts=np.zeros(10, "i8"))
    np.savez(tmp_path / "b.npz", obs=np.zeros((12, 3), "f4"), acts=np.zeros((12, 1), "f4"))
    with pytest.raises(
        SourceError, match=r"b.npz, member .acts.npy.: rows of 'acts' are float32 \(1,\), expected int64 \(\)"
    ):
        opened(tmp_path)
    np.savez(tmp_path / "b.npz", obs=np.zeros((12, 3), "f4"), infos=np.zeros(12))
    with pytest.raises(SourceError, match=r"b.npz: lacks 'acts' and also has 'infos'"):
        opened(tmp_path)


def test_a_file_may_lack_an_optional_field(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(5.0))
    np.savez(tmp_path / "b.npz", x=np.arange(3.0), flow=np.full((3, 2), 7.0))
    source = opened(tmp_path, optional=("flow",))
    into = {"x": np.zeros(8), "flow": np.zeros((8, 2))}
    found = source.read_many(range(8), into)
    assert {field: list(places) for field, places in found.absent.items()} == {"flow": [0, 1, 2, 3, 4]}
    assert into["x"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    assert into["flow"][5:].tolist() == [[7, 7]] * 3


def test_a_bad_file_stands_for_one_bad_sample_where_bad_ones_are_left_out(tmp_path):
    write_rows(tmp_path, {"a": 3, "c": 2}, deflate=False)
    (tmp_path / "b.npz").write_bytes(b"<html>quota exceeded</html>")
    with pytest.raises(SourceError, match="HTML"):
        opened(tmp_path)
    source = opened(tmp_path, skip=True)
    assert [source.name(index) for index in range(6)] == [
        "a.npz[0]",
        "a.npz[1]",
        "a.npz[2]",
        "b.npz",
        "c.npz[0]",
        "c.npz[1]",
    ]
    with pytest.raises(SourceError, match="HTML"):
        source.schema(3)
    assert source.names_nbytes() == sum(map(len, source.names(range(6))))


def test_text_of_different_lengths_comes_whole_from_every_file(tmp_path):
    np.savez(tmp_path / "a.npz", t=np.array(["a", "bc"]))
    np.savez(tmp_path / "b.npz", t=np.array(["a longer one", "x", "日本"]))
    np.savez(tmp_path / "c.npz", t=np.array(["c"]))
    source = opened(tmp_path)
    into = {"t": np.empty(6, "<U12")}
    source.read_many(range(6), into)
    assert into["t"].tolist() == ["a", "bc", "a longer one", "x", "日本", "c"]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_npy_files_of_every_version_and_order_are_those_that_numpy_reads(
    tmp_path, version, order, shuffled
):
    made = [
        np.random.default_rng(k).standard_normal((60 + k, 3, 4)).astype(">f4", order=order) for k in range(2)
    ]
    for number, array in enumerate(made):
        (tmp_path / f"s{number}.npy").write_bytes(npy(array, version))
    source = opened(tmp_path, fields={"data": "x"}, in_order=not shuffled)
    indices = np.random.default_rng(3).permutation(121) if shuffled else np.arange(121)
    found, _ = gathered(source, indices.tolist())
    np.testing.assert_array_equal(found["x"], np.concatenate(made)[indices])
    assert found["x"].flags.c_contiguous
    assert source.kind == "npy"


def test_no_file_stays_open_and_nothing_is_left_beside_the_store(tmp_path):
    write_rows(tmp_path / "in", COUNTS, deflate=True)
    (tmp_path / "scratch").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for in_order in (True, False):
        request = Request(None, (), "rows", in_order=in_order, folder=str(tmp_path / "scratch"))
        source = open_files([tmp_path / "in"], None, request)[0]
        gathered(source, range(len(source)))
        assert os.listdir(tmp_path / "scratch") == []
        del source
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_disk_that_is_full_is_told_of_when_rows_are_copied(tmp_path):
    write_rows(tmp_path / "in", {"a": 20_000}, deflate=True)
    script = (
        "import resource, sys, numpy as np\n"
        "from mmapload.sources.kinds import Request, open_files\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "request = Request({'x': 'x'}, (), 'rows', in_order=False, folder=sys.argv[1])\n"
        "source = open_files([sys.argv[1]], None, request)[0]\n"
        "source.read_many([5], {'x': np.empty((1, 4, 6), 'u1')})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "in"], capture_output=True, text=True, check=False
    )
    assert "MmaploadError: no room in" in done.stderr
    assert "without --shuffle" in done.stderr
