"""What stands in for an array that a sample lacks: exactly what was given, from any source, or an error."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mmapload.cli.fill import parse_fill
from mmapload.errors import SourceError, StateMismatchError
from mmapload.layout import CORE_DTYPES
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.preprocessing.fill import check_fill, exactly
from mmapload.sources.npz import NpzSource
from mmapload.store import open_store
from tests.preprocessing_cases import samples, stored, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Collection

COUNT = 13
BATCH = 4


def lacking(which: Collection[int], field: str = "y", count: int = COUNT) -> list[dict[str, np.ndarray]]:
    """Samples of which some lack a field."""
    values = samples(count)
    for index in which:
        del values[index][field]
    return values


def npz(folder: Path, values: list[dict[str, Any]]) -> object:
    return write_npz(folder / "in", values)


def sequence(folder: Path, values: list[dict[str, Any]]) -> object:
    return values


def iterable(folder: Path, values: list[dict[str, Any]]) -> object:
    return iter(values)


KINDS = pytest.mark.parametrize("kind", [npz, sequence, iterable])
Kind: TypeAlias = Callable[[Path, list[dict[str, Any]]], object]


def expected(values: list[dict[str, np.ndarray]], stand_in: np.ndarray) -> bytes:
    return np.stack([np.broadcast_to(each.get("y", stand_in), (4,)) for each in values]).tobytes()


# what is stored


@KINDS
@pytest.mark.parametrize("which", [(), (3,), (1, 3, 12), range(1, 13), (0,), (0, 1, 5), range(12), range(13)])
def test_an_array_stands_in_exactly_where_a_sample_lacks_the_field(
    tmp_path: Path, kind: Kind, which: Collection[int]
) -> None:
    values = lacking(which)
    array = np.array([1, -0.0, np.nan, np.inf], "f4")
    plan = plan_preprocess(kind(tmp_path, values), tmp_path / "out", BATCH, chunk_bytes=1, fill={"y": array})
    result = execute(plan)
    assert stored(result.store, "y").tobytes() == expected(values, array)
    assert stored(result.store, "x").tobytes() == np.stack([each["x"] for each in values]).tobytes()
    assert result.filled == {"y": len(which)}
    assert {*result.store.fields} == {"x", "y"}


@KINDS
@pytest.mark.parametrize("which", [(), (3,), range(1, 13)])
@pytest.mark.parametrize("value", [0, -0.0, math.nan, -math.inf, 0.5, True, np.float32(0.1), np.int8(-3)])
def test_a_number_stands_in_for_every_element(
    tmp_path: Path, kind: Kind, which: Collection[int], value: float
) -> None:
    values = lacking(which)
    store = preprocess(kind(tmp_path, values), tmp_path / "out", BATCH, chunk_bytes=1, fill={"y": value})
    assert stored(store, "y").tobytes() == expected(values, np.full(4, value, "f4"))


@pytest.mark.parametrize("kind", [npz, sequence])
@pytest.mark.parametrize("which", [(0,), range(12)])
def test_the_first_sample_that_has_the_field_says_its_dtype_and_shape(
    tmp_path: Path, kind: Kind, which: Collection[int]
) -> None:
    values = lacking(which)
    store = preprocess(kind(tmp_path, values), tmp_path / "out", BATCH, fill={"y": 0})
    assert stored(store, "y").tobytes() == expected(values, np.zeros(4, "f4"))


@KINDS
def test_a_sample_may_lack_all_its_fields_but_no_file_is_empty(tmp_path: Path, kind: Kind) -> None:
    values = [{"y": np.arange(4, dtype="f4")}, {} if kind is not npz else {"z": np.zeros(1)}]
    fields = None if kind is not npz else "y"
    store = preprocess(kind(tmp_path, values), tmp_path / "out", BATCH, fields=fields, fill={"y": 7})
    assert stored(store, "y").tolist() == [[0, 1, 2, 3], [7, 7, 7, 7]]


@pytest.mark.parametrize("dtype", CORE_DTYPES)
def test_every_dtype_is_filled_bit_by_bit(tmp_path: Path, dtype: str) -> None:
    rng = np.random.default_rng(1)
    size = np.dtype(dtype).itemsize
    bits = rng.integers(0, 2 if dtype == "bool" else 256, (3, 5 * size), dtype=np.uint8)
    array = bits.view(dtype)  # NaN with payloads among them
    for order in ("C", "F"):
        big = np.array(array, dtype=array.dtype.newbyteorder(">"), order=order)
        big.byteswap(inplace=True)
        big[...] = 0 if dtype == "bool" else 1
        np.copyto(big.view(f"V{size}"), array.byteswap().view(f"V{size}"))
        values = [{"a": np.uint8(1)}, {"a": np.uint8(2)}]
        store = preprocess(values, tmp_path / order, 2, fill={"y": big})
        assert stored(store, "y").dtype == np.dtype(dtype)
        assert stored(store, "y").tobytes() == array.tobytes() * 2


def test_fields_are_filled_under_their_names_in_the_store_in_the_order_selected(tmp_path: Path) -> None:
    for kind in (npz, sequence, iterable):
        values = lacking({0, 4})
        array = np.full(4, 2, "f4")
        out = tmp_path / kind.__name__
        store = preprocess(kind(tmp_path, values), out, BATCH, fields="y=flow,x=image", fill={"flow": array})
        assert store.fields == ("flow", "image")
        assert stored(store, "flow").tobytes() == expected(values, array)


def test_a_field_that_no_sample_has_comes_behind_those_of_the_first(tmp_path: Path) -> None:
    fill = {"label": np.array(-1), "z": np.zeros((2, 3), "u1"), "y": 0}
    source = write_npz(tmp_path / "in", lacking({0, 2}))
    store = preprocess(source, tmp_path / "out", BATCH, fill=fill)
    assert store.fields == ("x", "label", "z", "y")
    assert stored(store, "label").tolist() == [-1] * COUNT
    assert store.layout.source["fill"] == {"label": -1, "z": 0, "y": 0.0}


@pytest.mark.parametrize("jobs", [1, 3])
def test_shuffled_samples_keep_their_own_stand_ins(tmp_path: Path, jobs: int) -> None:
    values = lacking({0, 3, 7})
    source = write_npz(tmp_path / "in", values)
    store = preprocess(
        source, tmp_path / "out", BATCH, chunk_bytes=1, jobs=jobs, shuffle=5, fill={"y": np.nan}
    )
    names = [store.sample_name(index) for index in range(COUNT)]
    assert sorted(names, key=len) != names
    in_order = [values[int(str(name)[1:-4])] for name in names]
    assert stored(store, "y").tobytes() == expected(in_order, np.full(4, np.nan, "f4"))


def test_what_the_caller_changes_after_planning_changes_nothing(tmp_path: Path) -> None:
    array = np.arange(4, dtype="f4")
    plan = plan_preprocess(lacking({1}), tmp_path / "out", BATCH, fill={"y": array})
    array[:] = 9
    assert stored(execute(plan).store, "y")[1].tolist() == [0, 1, 2, 3]


def test_without_anything_to_fill_the_store_is_the_same_but_for_its_note(tmp_path: Path) -> None:
    plain = preprocess(samples(COUNT), tmp_path / "plain", BATCH)
    empty = preprocess(samples(COUNT), tmp_path / "empty", BATCH, fill={})
    filled = preprocess(samples(COUNT), tmp_path / "filled", BATCH, fill={"y": 0})
    assert tree(tmp_path / "empty") == tree(tmp_path / "plain")
    assert "fill" not in plain.layout.source
    assert {**empty.layout.source, "fill": {"y": 0.0}} == filled.layout.source
    for files in (plain_files := tree(tmp_path / "plain"), filled_files := tree(tmp_path / "filled")):
        files.pop("zarr.json")
    assert plain_files == filled_files


def test_a_number_and_the_array_of_it_make_the_same_store(tmp_path: Path) -> None:
    for name, value in (
        ("number", 0),
        ("array", np.zeros(4, "f4")),
        ("wide", np.broadcast_to(np.float32(0), 4)),
    ):
        preprocess(lacking({2}), tmp_path / name, BATCH, fill={"y": value})
    assert tree(tmp_path / "number") == tree(tmp_path / "array") == tree(tmp_path / "wide")


# which samples are read


def test_the_field_is_sought_in_headers_and_no_array_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    schema = NpzSource.schema
    monkeypatch.setattr(NpzSource, "schema", lambda self, index: seen.append(index) or schema(self, index))
    monkeypatch.delattr(NpzSource, "read")
    source = write_npz(tmp_path / "in", lacking(range(9)))
    plan_preprocess(source, tmp_path / "out", BATCH, fill={"y": 0})
    most = [0, 1, 3, 4, 6]  # of nine, which are as the first is
    assert seen == most + list(range(1, 10))
    seen.clear()
    plan_preprocess(source, tmp_path / "out", BATCH, fill={"y": np.zeros(4, "f4")})
    assert seen == most


def test_a_sequence_is_not_run_through_for_a_field_that_none_of_its_first_samples_has(tmp_path: Path) -> None:
    class Counted(list[dict[str, int]]):
        taken = 0

        def __getitem__(self, index: Any) -> Any:
            self.taken += 1
            return super().__getitem__(index)

    values = Counted([{"x": 1}] * 3000 + [{"x": 1, "y": 2}])
    with pytest.raises(ValueError, match=r"none of the first 1,024 samples has 'y' \(the first has 'x'\)"):
        plan_preprocess(values, tmp_path / "out", BATCH, fill={"y": 0})
    assert values.taken == 1024
    plan_preprocess(values, tmp_path / "out", BATCH, fill={"y": np.array(0)})


def test_a_generator_that_yields_one_dict_again_and_again_is_filled(tmp_path: Path) -> None:
    def source() -> Any:
        sample: dict[str, Any] = {}
        for index in range(6):
            sample.clear()
            sample["x"] = np.array([index])
            if index % 2 == 0:
                sample["y"] = np.float32(index)
            yield sample

    store = preprocess(source(), tmp_path / "out", 2, fill={"y": -1})
    assert stored(store, "x")[:, 0].tolist() == [*range(6)]
    assert stored(store, "y").tolist() == [0, -1, 2, -1, 4, -1]


# what is refused


@KINDS
def test_a_field_that_nothing_describes_is_refused_with_what_to_type(tmp_path: Path, kind: Kind) -> None:
    words = (
        r"the first sample of an iterable lacks 'y'" if kind is iterable else r"no sample has 'y'"
    ) + r" \(the first has 'x'\).*--fill y=0:float32:4x256x448"
    with pytest.raises(ValueError, match=words):
        preprocess(kind(tmp_path, lacking(range(COUNT))), tmp_path / "out", BATCH, fill={"y": 0})
    assert not [name for name in os.listdir(tmp_path) if name != "in"]


@KINDS
def test_an_array_unlike_the_samples_is_refused_with_both(tmp_path: Path, kind: Kind) -> None:
    for array in (np.zeros(5, "f4"), np.zeros(4, "f8"), np.zeros((), "f4")):
        with pytest.raises(ValueError, match=r"fill: 'y' is given as float.*it is float32 \(4,\)"):
            preprocess(kind(tmp_path, samples(3)), tmp_path / "out", BATCH, fill={"y": array})
    with pytest.raises(SourceError, match=r"float32 \(4,\), expected float64 \(4,\)"):
        preprocess(kind(tmp_path, lacking({0})), tmp_path / "out", BATCH, fill={"y": np.zeros(4)})


@KINDS
def test_every_other_mismatch_stays_an_error(tmp_path: Path, kind: Kind) -> None:
    for change, words in [
        (lambda sample: sample.pop("x"), "'x'"),
        (lambda sample: sample.update(z=np.zeros(1)), "'z'"),
        (lambda sample: sample.update(y=np.zeros(5, "f4")), r"float32 \(5,\), expected float32 \(4,\)"),
        (lambda sample: sample.update(y=np.zeros(4, "f8")), r"float64 \(4,\), expected float32 \(4,\)"),
        (lambda sample: sample.update(y=np.array(["a"])), r"<U1 \(1,\), expected float32 \(4,\)|is <U1"),
    ]:
        values = lacking({1, 4})
        change(values[3])
        with pytest.raises(SourceError, match=words):
            preprocess(kind(tmp_path, values), tmp_path / "out", BATCH, fill={"y": 0}, overwrite=True)


@KINDS
def test_where_an_array_is_missing_the_error_says_how_to_fill_it(tmp_path: Path, kind: Kind) -> None:
    with pytest.raises(SourceError, match=r"--fill y=0 \(fill=\{'y': 0\}\)"):
        preprocess(kind(tmp_path, lacking({2})), tmp_path / "out", BATCH, overwrite=True)
    with pytest.raises(SourceError, match=r"--fill y=0 \(fill=\{'y': 0\}\)"):
        preprocess(kind(tmp_path, lacking({0})), tmp_path / "out", BATCH, overwrite=True)
    with pytest.raises(SourceError, match=r"--fill flow=0 \(fill=\{'flow': 0\}\)"):
        preprocess(
            kind(tmp_path, lacking({0})),
            tmp_path / "out",
            BATCH,
            fields={"x": "x", "y": "flow"},
            overwrite=True,
        )


@pytest.mark.parametrize(
    ("fill", "error", "words"),
    [
        (["y"], TypeError, "expected a mapping"),
        ("y=0", TypeError, "expected a mapping"),
        ({1: 0}, TypeError, "expected a mapping"),
        ({"y": "0"}, ValueError, "'y' is given as <U1 \\(\\), and in .* it is float32"),
        ({"y": None}, ValueError, "'y': a store cannot hold Python objects"),
        ({"y": np.ma.masked_array([1.0], mask=[True])}, ValueError, "'y': a store cannot hold a mask"),
        ({"y": np.zeros(4, "M8[s]")}, ValueError, "'y' is given as datetime64\\[s\\] \\(4,\\), and in"),
        ({"y": np.longdouble(0)}, ValueError, "'y': a store cannot hold .*differs from machine to machine"),
        ({"x": 300}, ValueError, "'x' is uint8, which cannot hold 300: it holds whole numbers from 0 to 255"),
        ({"x": -1}, ValueError, "cannot hold -1"),
        ({"x": 0.5}, ValueError, "cannot hold 0.5"),
        ({"x": -0.0}, ValueError, "cannot hold -0.0"),
        ({"x": math.nan}, ValueError, "cannot hold nan"),
        ({"x": 10**30}, ValueError, "cannot hold 1000000000000000000000000000000"),
        (
            {"y": 0.1},
            ValueError,
            "'y' is float32, which cannot hold 0.1: it holds 0.10000000149011612, the nearest",
        ),
        ({"y": 2**24 + 1}, ValueError, "cannot hold 16777217: it holds 16777216.0, the nearest"),
        ({"y": 1e39}, ValueError, "cannot hold 1e\\+39: it holds real numbers up to 3.4028234663852886e"),
        ({"y": 1j}, ValueError, "cannot hold 1j: it holds real numbers"),
        ({"a//b": np.zeros(1)}, ValueError, "the field name 'a//b' has an empty part"),
        ({"Y": np.zeros(4, "f4")}, ValueError, "differs from 'y' only by case"),
        ({"z": np.zeros((1,) * 32)}, ValueError, "32 axes"),
    ],
)
def test_what_cannot_stand_in_is_refused_by_name_before_anything_is_written(
    tmp_path: Path, fill: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        preprocess(samples(3), tmp_path / "out", BATCH, fill=fill)
    assert not os.listdir(tmp_path)


def test_a_field_that_is_not_selected_cannot_be_filled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="fill: 'z' is not among the fields that are taken, 'x', 'flow'"):
        preprocess(samples(3), tmp_path / "out", BATCH, fields="x,y=flow", fill={"z": 0})


def test_a_stand_in_goes_by_the_new_name_and_whoever_gives_the_old_one_is_told_so(tmp_path: Path) -> None:
    words = "fill: 'y' is taken under the name 'flow', .*give 'flow' in place of 'y'"
    with pytest.raises(ValueError, match=words):
        preprocess(lacking({1}), tmp_path / "out", BATCH, fields="x,y=flow", fill={"y": 0})
    store = preprocess(lacking({1}), tmp_path / "out", BATCH, fields="x,y=flow", fill={"flow": 0})
    assert not stored(store, "flow")[1].any()


@KINDS
def test_of_fields_that_are_swapped_or_nowhere_it_is_said_what_works(tmp_path: Path, kind: Kind) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with pytest.raises(SourceError, match=r"has no array 'frames', 'nope'") as raised:
        preprocess(kind(first, samples(3)), tmp_path / "out", BATCH, fields="frames=x,nope")
    told = str(raised.value)
    assert "given as old=new: did you mean x=frames?" in told
    assert "--fill x" not in told
    typed = told[told.rindex("--fill ") :].split()[1].rstrip(";")
    assert typed == "nope=0:float32:4x256x448"
    right = kind(second, samples(3))
    store = preprocess(right, tmp_path / "out", BATCH, fields="x=frames,nope", fill=parse_fill([typed]))
    assert store.fields == ("frames", "nope")


# bad samples, interrupted runs


@KINDS
def test_bad_samples_are_left_out_and_others_filled(tmp_path: Path, kind: Kind) -> None:
    values = lacking({1, 4, 8})
    values[0] = {"x": np.zeros(1, [("structured", "f4")])}
    values[2]["y"] = np.zeros(1, [("structured", "f4")])
    values[4]["x"] = np.zeros((3, 5), "f4")  # lacks y and is bad
    plan = plan_preprocess(
        kind(tmp_path, values),
        tmp_path / "out",
        2,
        chunk_bytes=1,
        on_error="skip",
        fill={"y": np.ones(4, "f4")},
    )
    result = execute(plan)
    assert [each.index for each in result.skipped] == [0, 2, 4]
    kept = [value for index, value in enumerate(values) if index not in {0, 2, 4}]
    assert stored(result.store, "y").tobytes() == expected(kept, np.ones(4, "f4"))
    assert result.filled == {"y": 2}


def test_a_bad_sample_met_while_the_field_is_sought_is_passed_over_or_an_error(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", lacking({0, 1, 2}))
    (source / "s1.npz").write_bytes(b"no zip")
    with pytest.raises(SourceError, match=r"s1\.npz"):
        plan_preprocess(source, tmp_path / "out", BATCH, fill={"y": 0})
    plan = plan_preprocess(source, tmp_path / "out", BATCH, fill={"y": 0}, on_error="skip")
    assert str(plan.schema["y"]) == "float32 (4,)"
    assert execute(plan).filled == {"y": 2}


@pytest.mark.parametrize("kind", [npz, sequence])
def test_a_resumed_run_counts_the_samples_that_were_filled_before(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = {0, 2, 5, 6, 11, 12}
    source = kind(tmp_path, lacking(which))
    options: dict[str, Any] = {"chunk_bytes": 1, "jobs": 1, "fill": {"y": np.full(4, 3, "f4")}}
    wanted = preprocess(source, tmp_path / "wanted", 2, **options)
    plan = plan_preprocess(source, tmp_path / "out", 2, **options)
    read = type(plan.source).read

    def stopping(self: Any, index: int, into: Any) -> Any:
        if index == 9:
            raise KeyboardInterrupt
        return read(self, index, into)

    with monkeypatch.context() as patched:
        patched.setattr(type(plan.source), "read", stopping)
        with pytest.raises(KeyboardInterrupt, match="the same command continues"):
            execute(plan)
    result = execute(plan_preprocess(source, tmp_path / "out", 2, **options))
    assert result.resumed_samples > 0
    assert result.filled == {"y": len(which)}
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")
    assert wanted.fingerprint == result.store.fingerprint


@pytest.fixture
def unfinished(tmp_path: Path) -> Path:
    """A folder of samples, and beside it what a run with -0.0 for y has left."""
    source = write_npz(tmp_path / "in", lacking({1, 3}))
    bad = source / f"s{COUNT - 1}.npz"
    content = bad.read_bytes()
    bad.write_bytes(b"no zip")
    with pytest.raises(SourceError):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1, jobs=1, fill={"y": -0.0})
    bad.write_bytes(content)
    return source


@pytest.mark.parametrize(
    "fill", [{"y": 0.0}, {"y": 1}, {"y": math.nan}, {"y": np.arange(4, dtype="f4")}, {"y": -0.0, "x": 0}, {}]
)
def test_another_stand_in_does_not_continue_an_unfinished_store(
    tmp_path: Path, unfinished: Path, fill: dict[str, Any]
) -> None:
    with pytest.raises(StateMismatchError, match=r"begun with another fill.*saved \{\"y\": -0.0\}"):
        preprocess(unfinished, tmp_path / "out", 2, chunk_bytes=1, fill=fill)
    store = preprocess(unfinished, tmp_path / "out", 2, chunk_bytes=1, fill={"y": -0.0})
    assert np.signbit(stored(store, "y")[1]).all()


def test_a_file_that_gets_the_array_later_is_seen_when_the_run_goes_on(
    tmp_path: Path, unfinished: Path
) -> None:
    np.savez(unfinished / "s1.npz", **samples(COUNT)[1])
    with pytest.raises(StateMismatchError, match=r"s1.npz that has changed since"):
        preprocess(unfinished, tmp_path / "out", 2, chunk_bytes=1, fill={"y": -0.0})


# what is said of it


def test_the_plan_shows_what_stands_in(tmp_path: Path) -> None:
    fill = {"y": -0.0, "z": np.arange(3), "m": np.array([True, True])}
    lines = plan_preprocess(samples(3), tmp_path / "out", BATCH, fill=fill).describe().splitlines()
    assert "x  uint8 (3, 5), 15 B a sample" in lines[1]
    assert "y  float32 (4,), 16 B a sample, -0.0 where missing" in lines[2]
    assert "z  int64 (3,), 24 B a sample, an array where missing" in lines[3]
    assert "m  bool (2,), 2 B a sample, True where missing" in lines[4]


def note(value: Any, dtype: str) -> Any:
    """What a store says of a stand-in, having been through its file."""
    stand_in = check_fill({"y": np.full((2, 3), value, dtype)}, None)["y"]
    return json.loads(json.dumps(stand_in.note, allow_nan=False))


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0, "i8", "0"),
        (2**64 - 1, "u8", "18446744073709551615"),
        (True, "?", "true"),
        (0, "f4", "0.0"),
        (-0.0, "f2", "-0.0"),
        (np.float32(0.1), "f4", "0.10000000149011612"),
        (math.nan, "f4", '"NaN"'),
        (math.inf, "f8", '"Infinity"'),
        (-math.inf, "f2", '"-Infinity"'),
        (-math.nan, "f8", '"0xfff8000000000000"'),
        (complex(-0.0, math.nan), "c8", '[-0.0, "NaN"]'),
    ],
)
def test_the_note_of_a_value_is_literally_this(value: Any, dtype: str, text: str) -> None:
    assert json.dumps(note(value, dtype)) == text


def test_the_payload_of_a_nan_is_noted() -> None:
    value = np.array(0x7FC00001, "u4").view("f4")
    assert check_fill({"y": value}, None)["y"].note == "0x7fc00001"


def test_the_note_of_an_array_is_the_hash_of_its_bytes() -> None:
    array = np.array([[1, 2], [3, 4]], ">u2", order="F")
    digest = hashlib.sha256(bytes([1, 0, 2, 0, 3, 0, 4, 0])).hexdigest()
    assert check_fill({"y": array}, None)["y"].note == {"sha256": digest}
    zeros = np.array([0.0, -0.0])
    assert "sha256" in check_fill({"y": zeros}, None)["y"].note, "equal, and not the same"


def bits_of_note(found: Any, dtype: np.dtype[Any]) -> bytes:
    """Read a note as zarr-python reads fill values; but digits by hand, which it takes through a float64."""
    zarr_dtype = pytest.importorskip("zarr.dtype")
    if dtype.kind == "c":
        return b"".join(bits_of_note(part, np.finfo(dtype).dtype) for part in found)
    if isinstance(found, str) and found.startswith("0x"):
        return bytes.fromhex(found[2:])[::-1]
    kind = zarr_dtype.parse_dtype(dtype, zarr_format=3)
    return np.asarray(kind.from_json_scalar(found, zarr_format=3), dtype).tobytes()


@given(st.sampled_from(sorted(CORE_DTYPES)), st.binary(min_size=16, max_size=16))
@example("float16", bytes.fromhex("017c") * 8)
@example("complex64", bytes.fromhex("0100807f000000800000000000000000"))
def test_the_note_of_a_value_holds_all_its_bits_as_a_fill_value_does(dtype: str, data: bytes) -> None:
    bits = bytes([data[0] & 1]) if dtype == "bool" else data[: np.dtype(dtype).itemsize]
    found = check_fill({"y": np.frombuffer(bits, dtype).reshape(())}, None)["y"].note
    assert bits_of_note(json.loads(json.dumps(found, allow_nan=False)), np.dtype(dtype)) == bits


NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-300, 70_000),
    st.floats(),
    st.floats(width=16),
    st.complex_numbers(),
)


@given(st.sampled_from(sorted(CORE_DTYPES)), NUMBERS)
def test_a_number_is_held_as_the_very_number_or_refused(dtype: str, value: complex) -> None:
    try:
        found = exactly("y", value, np.dtype(dtype))
    except ValueError as error:
        assert f"{value!r}" in str(error)  # noqa: PT017 - both outcomes are right
        assert not is_held(value, np.dtype(dtype))
    else:
        assert (found.dtype, found.shape) == (np.dtype(dtype), ())
        assert is_held(value, np.dtype(dtype))
        back = found.item()
        for mine, given_part in ((back.real, value.real), (back.imag, value.imag)):
            assert math.isnan(given_part) if mine != mine else mine == given_part


def is_held(value: complex, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype holds a number: told by its bounds, and by struct's rounding of floats."""
    if dtype.kind in "biu":
        if isinstance(value, complex) or (isinstance(value, float) and not value.is_integer()):
            return False
        if isinstance(value, float) and value == 0 and math.copysign(1, value) < 0:
            return False
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return bool(low <= value <= high)
    if isinstance(value, complex) and dtype.kind != "c":
        return False
    part = np.finfo(dtype).dtype
    return all(fits(each, part) for each in (value.real, value.imag))


def fits(value: float, dtype: np.dtype[Any]) -> bool:
    if isinstance(value, float) and not math.isfinite(value):
        return True
    exact = int(value) if isinstance(value, bool) else value
    mantissa, exponent = math.frexp(exact) if isinstance(exact, float) else (0.0, 0)
    info = np.finfo(dtype)
    if exact == 0:
        return True
    if isinstance(exact, int):
        odd = abs(exact) // (abs(exact) & -abs(exact))
        return odd.bit_length() <= info.nmant + 1 and abs(exact) <= int(info.max)
    # The last bit of the mantissa, and the smallest step that the dtype has at this size.
    step = max(exponent - info.nmant - 1, int(info.minexp) - info.nmant)
    return abs(exact) <= float(info.max) and (mantissa * 2.0 ** (exponent - step)).is_integer()


def test_a_filled_store_is_opened_checked_and_described_like_any_other(tmp_path: Path) -> None:
    preprocess(lacking({0, 1}), tmp_path / "out", BATCH, fill={"y": np.inf})
    store = open_store(tmp_path / "out")
    assert {fault for fault in store.verify() if fault} == set()
    root = json.loads((tmp_path / "out" / "zarr.json").read_text())
    assert root["attributes"]["mmapload"]["source"] == {
        "kind": "sequence",
        "skipped": 0,
        "shuffle": None,
        "fill": {"y": "Infinity"},
    }
