"""The source's `.npz` files in a benchmark, from a stranger: they are loaded, or named for what they are."""

from __future__ import annotations

import dataclasses
import lzma
import re
import tracemalloc
import zipfile
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import mmapload
from mmapload.bench import Settings, run_bench
from mmapload.bench.loaders import Part, fixed_buffers
from mmapload.bench.matching import expect_arrays, match, sample_paths
from mmapload.bench.source import sources
from mmapload.cli import main
from mmapload.errors import SourceError
from tests.npz_files import npy_bytes, put, zip_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from mmapload.store import Store

COUNT = 12
X = (2, 3)


def arrays_of(number: int) -> dict[str, Any]:
    return {"x": np.arange(number, number + 6, dtype="<f4").reshape(X), "y": np.int64(number)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    for number in range(COUNT):
        put(str(tmp_path / "src" / f"s{number}.npz"), zip_bytes(members_of(number)))
    return mmapload.preprocess(tmp_path / "src", tmp_path / "store", 4)


def members_of(number: int, **others: bytes) -> list[tuple[str, bytes]]:
    """Members of a file, some in place of its own or beside them."""
    own = {key: npy_bytes(array) for key, array in arrays_of(number).items()}
    return [(f"{key}.npy", data) for key, data in (own | others).items()]


def header(text: str, payload: bytes = b"") -> bytes:
    """Make a `.npy` array of any header."""
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode() + payload


def described(shape: str) -> bytes:
    return header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}", bytes(24))


HEADERS = {
    "an open bracket": (header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,3"), "is damaged"),
    "brackets": (header("(" * 9000), "is damaged"),
    "a shape beyond any array": (described(f"({10**30},)"), "more than an array"),
    "a petabyte": (described(f"({10**15},)"), "takes 4000000000000000 bytes, and 24 are there"),
    "a list for a key": (header("{[]: 1}"), "is damaged"),
    "objects": (npy_bytes(np.array([None])), "Python objects"),
    "no array": (b"not an array", "not a .npy array but text"),
    "no bytes": (b"", "nothing (0 bytes)"),
}


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"


def write_lzma(path: Path, number: int) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_LZMA) as archive:
        for name, data in members_of(number):
            archive.writestr(name, data)
    data = bytearray(path.read_bytes())
    for at in range(50, 60):
        data[at] ^= 255
    path.write_bytes(data)
    with pytest.raises(lzma.LZMAError), np.load(path) as archive:  # which is no OSError or ValueError
        archive["x"]


def write_bare(path: Path, number: int) -> None:
    path.write_bytes(npy_bytes(arrays_of(number)["x"]))


def write_pointer(path: Path, _: int) -> None:
    path.write_bytes(LFS)


def write_nothing(path: Path, _: int) -> None:
    path.write_bytes(b"")


def write_no_array(path: Path, _: int) -> None:
    np.savez(path)


FILES = {
    "an LZMA member": (write_lzma, "compressed by LZMA"),
    "a bare array": (write_bare, "a bare .npy array"),
    "a Git LFS pointer": (
        write_pointer,
        "a Git LFS pointer, which stands for a file not fetched yet: run git",
    ),
    "no array at all": (write_no_array, "an .npz file without arrays"),
    "an empty file": (write_nothing, "the file is empty"),
}


def refusal(store: Store, folder: Path) -> SourceError:
    with pytest.raises(SourceError) as caught:
        run_bench(store, Settings(4, rounds=1, samples=COUNT, source=str(folder)))
    assert "\n" not in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("number", [0, 5, COUNT - 1])
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_something_else_is_named_for_what_it_is(tmp_path, store, kind, number):
    write, said = FILES[kind]
    path = tmp_path / "src" / f"s{number}.npz"
    write(path, number)
    error = refusal(store, tmp_path / "src")
    assert (error.file, said in error.cause) == (str(path), True), error


@pytest.mark.parametrize("number", [6, 7])
@pytest.mark.parametrize("kind", HEADERS)
def test_an_array_whose_header_is_false_is_named_and_nothing_allocated(tmp_path, store, kind, number):
    data, said = HEADERS[kind]
    path = tmp_path / "src" / f"s{number}.npz"
    put(str(path), zip_bytes(members_of(number, x=data)))
    error = refusal(store, tmp_path / "src")
    assert (error.file, error.member, said in error.cause) == (str(path), "x.npy", True), error


@pytest.mark.parametrize("kind", HEADERS)
def test_arrays_that_the_store_does_not_use_may_be_anything(tmp_path, store, kind):
    data, _ = HEADERS[kind]
    for number in range(COUNT):
        members = members_of(number, a=data)
        put(str(tmp_path / "src" / f"s{number}.npz"), zip_bytes(members))
    assert match(store, str(tmp_path / "src")).keys == {"x": "x", "y": "y"}
    bench = run_bench(store, Settings(4, rounds=1, samples=COUNT, source=str(tmp_path / "src")))
    assert [each.samples for each in bench.standings if each.kind == "source"] == [COUNT] * 2


def test_only_arrays_like_a_field_are_inflated_and_only_those_used_are_loaded(tmp_path, store):
    """A member of zeros deflates a thousandfold."""
    data = npy_bytes(np.zeros(2**22, np.float32))
    for number in range(COUNT):
        members = members_of(number, large=data)
        put(str(tmp_path / "src" / f"s{number}.npz"), zip_bytes(members, deflate=True))
    part = Part(store, COUNT, 4, False, 10**9)
    buffers = fixed_buffers(part)
    tracemalloc.start()
    try:
        arrays = match(store, str(tmp_path / "src"))
        contenders = sources(part, str(tmp_path / "src"), arrays, buffers)
        assert next(contenders).prepare(0)() > 0
        put(str(tmp_path / "src" / "s5.npz"), zip_bytes(members_of(5, x=data), deflate=True))
        with pytest.raises(SourceError, match=r"s5\.npz.*float32 .4194304,., and field 'x'"):
            next(sources(part, str(tmp_path / "src"), arrays, buffers))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**22


@pytest.mark.parametrize(
    ("arrays", "member", "said"),
    [
        ({"x": np.zeros((3, 2), "f4")}, "x", r"float32 \(3, 2\), and field 'x' of .* is float32 \(2, 3\)"),
        ({"x": np.zeros(X, "f8")}, "x", r"float64 \(2, 3\), and field 'x' of .* is float32 \(2, 3\)"),
        ({"y": np.float32(1)}, "y", r"float32 \(\), and field 'y' of .* is int64 \(\)"),
        ({"x": None}, "x", r"there is none, and field 'x' of .* is float32 \(2, 3\)"),
    ],
)
def test_arrays_that_are_not_as_the_field_are_told_with_both_sides(tmp_path, store, arrays, member, said):
    path = tmp_path / "src" / "s5.npz"
    np.savez(path, **{key: value for key, value in (arrays_of(5) | arrays).items() if value is not None})
    error = refusal(store, tmp_path / "src")
    assert (error.file, error.member) == (str(path), member)
    assert re.match(said, error.cause)
    assert f"{tmp_path}/src is not what it was made from" in error.cause


@pytest.mark.parametrize("place", [0, 1])
def test_what_numpy_cannot_load_after_all_is_an_error_that_names_the_file(tmp_path, store, place):
    """Loaded by this process, and by a worker, from which torch passes on nothing but text."""
    part = Part(store, COUNT, 4, False, 10**9)
    arrays = match(store, str(tmp_path / "src"))
    (contender,) = list(sources(part, str(tmp_path / "src"), arrays, fixed_buffers(part)))[place : place + 1]
    work = contender.prepare(0)
    assert work() > 0
    path = tmp_path / "src" / "s5.npz"
    data = path.read_bytes()
    at = data.index(arrays_of(5)["x"].tobytes())
    path.write_bytes(data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :])
    with pytest.raises(SourceError, match=r"numpy cannot load it: BadZipFile: Bad CRC-32") as caught:
        work()
    assert caught.value.file == str(path)
    assert "\n" not in str(caught.value)
    np.savez(path, **(arrays_of(5) | {"x": np.zeros(7, "f4")}))
    with pytest.raises(SourceError, match=r"src: its files cannot be loaded: ") as caught:
        work()
    assert "\n" not in str(caught.value)


def test_headers_alone_are_looked_at_before_files_are_loaded(tmp_path, store):
    arrays = match(store, str(tmp_path / "src"))
    paths = sample_paths(store, str(tmp_path / "src"), range(COUNT))
    expect_arrays(store, str(tmp_path / "src"), paths, arrays)
    write_pointer(tmp_path / "src" / "s7.npz", 7)
    expect_arrays(store, str(tmp_path / "src"), paths[:7], arrays)
    with pytest.raises(SourceError, match=r"s7\.npz"):
        expect_arrays(store, str(tmp_path / "src"), paths, arrays)


@pytest.mark.parametrize("fill", [5, True, "x", ["x"], [1, 2], None, {"z": 0}])
def test_a_note_of_stand_ins_that_is_none_changes_nothing(tmp_path, store, fill):
    layout = dataclasses.replace(store.layout, source={**store.layout.source, "fill": fill})
    noted = dataclasses.replace(store, layout=layout)
    arrays = match(noted, str(tmp_path / "src"))
    assert (arrays.keys, arrays.stand_ins) == ({"x": "x", "y": "y"}, {})


def test_renamed_arrays_that_are_alike_in_some_files_are_told_apart_by_others(tmp_path):
    for number in range(COUNT):
        labels = {"p": np.int64(number // 6), "q": np.int64(number % 2), "r": np.int64(0)}
        put(str(tmp_path / "src" / f"s{number}.npz"), npz(labels))
    store = mmapload.preprocess(tmp_path / "src", tmp_path / "store", 4, fields={"q": "a", "p": "b"})
    assert match(store, str(tmp_path / "src")).keys == {"a": "q", "b": "p"}


def test_a_renamed_array_that_is_broken_in_one_file_is_named(tmp_path):
    for number in range(COUNT):
        put(str(tmp_path / "src" / f"s{number}.npz"), zip_bytes(members_of(number)))
    store = mmapload.preprocess(tmp_path / "src", tmp_path / "store", 4, fields={"x": "a"})
    put(str(tmp_path / "src" / "s0.npz"), zip_bytes(members_of(0, x=HEADERS["brackets"][0])))
    error = refusal(store, tmp_path / "src")
    assert (error.file, error.member) == (str(tmp_path / "src" / "s0.npz"), "x.npy")


def test_a_field_that_may_be_missing_is_not_taken_for_an_array_that_looks_like_its_stand_in(tmp_path):
    for number in range(COUNT):
        arrays = {"p": np.int64(number), "zero": np.int64(0)}
        if number == 0:
            del arrays["p"]
        put(str(tmp_path / "src" / f"s{number}.npz"), npz(arrays))
    store = mmapload.preprocess(tmp_path / "src", tmp_path / "store", 4, fields={"p": "a"}, fill={"a": 0})
    arrays = match(store, str(tmp_path / "src"))
    assert (arrays.keys, arrays.stand_ins["a"].tolist()) == ({"a": "p"}, 0)


def npz(arrays: dict[str, Any]) -> bytes:
    return zip_bytes([(f"{key}.npy", npy_bytes(array)) for key, array in arrays.items()])


def test_the_command_prints_one_line(tmp_path, store, capsys):
    write_pointer(tmp_path / "src" / "s5.npz", 5)
    command = ["bench", store.path, "--source", str(tmp_path / "src"), "--quiet", "--samples", "12"]
    assert main(command) == 1
    printed, told = capsys.readouterr()
    assert printed == ""
    assert told.startswith(f"mmapload: error: {tmp_path}/src/s5.npz: not a zip file")
    assert told.count("\n") == 1
