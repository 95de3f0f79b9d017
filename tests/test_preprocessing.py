"""From samples to a store that three readers agree on."""

from __future__ import annotations

import json
import math
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.codecs import CODEC_NAMES
from mmapload.errors import MmaploadError, SourceError
from mmapload.layout import CORE_DTYPES
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.preprocessing.opening import parse_fields
from mmapload.writer.checksums import checksums_nbytes
from mmapload.writer.names import names_nbytes
from tests.preprocessing_cases import CountedSource, samples, stored, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def data_sets(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], int, int]:
    """Fields of random bits, a batch size, and the largest chunk in bytes."""
    batch = draw(st.sampled_from([1, 2, 4, 7]))
    length = batch * draw(st.integers(1, 3))
    count = draw(st.sampled_from([1, max(1, length - 1), length, length + 1, 2 * length, 13, 31]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    fields = {}
    for name in draw(st.sampled_from([["x"], ["x", "y"], ["b", "a", "c"]])):
        dtype = CORE_DTYPES[draw(st.sampled_from(sorted(CORE_DTYPES)))]
        shape = (count, *draw(SHAPES))
        nbytes = math.prod(shape) * dtype.itemsize
        bits = np.frombuffer(rng.bytes(nbytes), np.uint8)
        fields[name] = (bits & 1 if dtype.kind == "b" else bits).view(dtype).reshape(shape)
    largest = max(values.nbytes // count for values in fields.values())
    return fields, batch, max(1, largest * length)


@settings(max_examples=60)
@given(
    data=data_sets(),
    codec=st.sampled_from(CODEC_NAMES),
    kind=st.sampled_from(["sequence", "iterable", "npz"]),
    jobs=st.integers(1, 3),
)
def test_our_reader_zarr_python_and_tensorstore_read_the_bits_that_were_written(
    data: tuple[dict[str, np.ndarray], int, int], codec: str, kind: str, jobs: int
) -> None:
    zarr = pytest.importorskip("zarr")
    tensorstore = pytest.importorskip("tensorstore")
    fields, batch, chunk_bytes = data
    count = len(next(iter(fields.values())))
    listed = [{name: values[i] for name, values in fields.items()} for i in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        source = (
            listed
            if kind == "sequence"
            else iter(listed)
            if kind == "iterable"
            else write_npz(Path(folder, "in"), listed)
        )
        out = Path(folder, "out")
        store = preprocess(source, out, batch, codec=codec, chunk_bytes=chunk_bytes, jobs=jobs)
        assert len(store) == count
        assert store.fields == tuple(fields)
        assert [fault for fault in store.verify() if fault] == []
        assert store.missing_chunks() == []
        for name, values in fields.items():
            wanted = np.ascontiguousarray(values)
            again = zarr.open_array(out / name, mode="r")
            driver = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(out / name)}}
            others = [again[...], tensorstore.open(driver).result().read().result()]
            for found in [stored(store, name), *map(np.asarray, others)]:
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
                assert np.ascontiguousarray(found).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("shuffle", [None, 3])
def test_the_bytes_of_a_store_do_not_depend_on_jobs_place_or_kind_of_run(
    tmp_path: Path, codec: str, shuffle: int | None
) -> None:
    source = write_npz(tmp_path / "in", samples(50))
    trees = []
    for number, jobs in enumerate([1, 2, 5, None]):
        out = tmp_path / str(number) / "store"
        preprocess(source, out, 4, codec=codec, chunk_bytes=120, jobs=jobs, shuffle=shuffle)
        trees.append(tree(out))
    assert all(each == trees[0] for each in trees)
    assert len(trees[0]) == 2 * 13 + 2 + 1 + 4 + 3  # chunk files, their documents, root, reserved group
    assert not any(name.startswith(".") for name in os.listdir(tmp_path / "0"))


def test_a_sequence_and_an_iterable_of_the_same_samples_give_the_same_chunks(tmp_path: Path) -> None:
    for name, source in [("sequence", samples(21)), ("iterable", iter(samples(21)))]:
        preprocess(source, tmp_path / name, 4, chunk_bytes=150)
    trees = [tree(tmp_path / name) for name in ("sequence", "iterable")]
    assert [each.pop("zarr.json").count(b"mmapload") for each in trees] == [1, 1]
    assert trees[0] == trees[1]


def test_a_short_iterable_gets_the_chunk_length_that_its_number_of_samples_asks_for(tmp_path: Path) -> None:
    for count, length in [(1, 4), (3, 4), (4, 4), (5, 8), (9, 12)]:
        store = preprocess(iter(samples(count)), tmp_path / str(count), 4)
        assert (store.layout.chunk_length, len(store), store.layout.chunks) == (length, count, 1)


def test_shuffle_is_a_permutation_that_the_seed_alone_decides(tmp_path: Path) -> None:
    orders = {}
    for seed in (0, 1, None):
        store = preprocess(CountedSource(5000), tmp_path / str(seed), 8, shuffle=seed, chunk_bytes="8KiB")
        orders[seed] = stored(store, "x")[:, 0].tolist()
        assert [store.sample_name(i) for i in (0, 4999)] == [f"n{orders[seed][i]}" for i in (0, 4999)]
    assert orders[None] == list(range(5000))
    assert sorted(orders[0]) == sorted(orders[1]) == orders[None]
    assert orders[0] != orders[1]
    assert orders[0][:6] == [778, 2025, 3617, 2033, 830, 1064]  # the same on every machine
    told = json.loads((tmp_path / "1" / "zarr.json").read_bytes())["attributes"]["mmapload"]["source"]
    assert len(told.pop("contents")) == 16
    assert told == {"kind": "counted", "skipped": 0, "shuffle": 1}


def test_fields_are_selected_and_renamed(tmp_path: Path) -> None:
    values = samples(5)
    source = write_npz(tmp_path / "in", values)
    for name, given_source, fields in [
        ("a", source, "y=flow,x"),
        ("b", values, ["y=flow", "x"]),
        ("c", iter(values), {"y": "flow", "x": "x"}),
    ]:
        store = preprocess(given_source, tmp_path / name, 2, fields=fields)
        assert store.fields == ("flow", "x")
        assert (stored(store, "flow") == [each["y"] for each in values]).all()


@pytest.mark.parametrize("fields", ["", "a,", "a=", "=b", "a,a", "a=c,b=c", [], {}])
def test_a_selection_that_makes_no_sense_is_refused(fields: object) -> None:
    with pytest.raises(ValueError, match="fields"):
        parse_fields(fields)


def test_field_names_that_a_store_cannot_have_are_refused_with_the_renaming_to_type(tmp_path: Path) -> None:
    one_option = r"--fields enc//W=enc__W.*all of them in one option: --fields [^ ]*enc//W=enc__W"
    with pytest.raises(ValueError, match=one_option):
        preprocess([{"x": 1, "enc//W": 2}], tmp_path / "out", 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "value",
    [
        np.longdouble(1),
        np.array([None]),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.zeros(2, "V3"),
        2**70,
    ],
)
def test_types_that_a_store_cannot_hold_are_refused_by_name(tmp_path: Path, value: object) -> None:
    with pytest.raises(SourceError, match="a store cannot hold"):
        preprocess([{"x": value}], tmp_path / "out", 1)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"codec": "gzip"}, "raw, zstd, blosc-lz4, blosc-zstd"),
        ({"chunk_bytes": "64 parsecs"}, "64MiB"),
        ({"jobs": 0}, "jobs"),
        ({"shuffle": -1}, "seed"),
        ({"on_error": "ignore"}, "fail, skip"),
    ],
)
def test_options_that_are_none_are_refused(tmp_path: Path, options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        preprocess(samples(2), tmp_path / "out", **({"batch_size": 2} | options))


@pytest.mark.parametrize("source", [3, {"x": np.zeros(3)}, None, b"bytes"])
def test_what_is_no_source_is_refused(tmp_path: Path, source: object) -> None:
    with pytest.raises((TypeError, SourceError), match=r"path|mapping"):
        preprocess(source, tmp_path / "out", 1)


@pytest.mark.parametrize("source", [[], (each for each in ()), np.zeros((0, 3))])
def test_a_source_without_samples_is_refused(tmp_path: Path, source: object) -> None:
    with pytest.raises(SourceError, match="no sample"):
        preprocess(source, tmp_path / "out", 1)
    assert os.listdir(tmp_path) == []


def test_a_folder_without_samples_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "notes.txt").write_text("x")
    with pytest.raises(SourceError, match=r"no file.* 1 files"):
        preprocess(tmp_path / "in", tmp_path / "out", 1)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(("source", "out"), [("", "out"), (["in", ""], "out"), ("in", "")])
def test_an_empty_path_is_refused_and_not_taken_for_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: object, out: str
) -> None:
    write_npz(tmp_path / "in", samples(2))
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty" if out == "" else tmp_path)
    with pytest.raises(ValueError, match="empty: give"):
        preprocess(source if out else tmp_path / "in", out, 1)
    assert sorted(os.listdir(tmp_path)) == ["empty", "in"]


@pytest.mark.parametrize("character", ["n", "\N{SNOWMAN}"])
def test_a_name_too_long_for_the_files_beside_the_store_is_refused(tmp_path: Path, character: str) -> None:
    longest = 237 // len(character.encode())
    result = execute(
        plan_preprocess(CountedSource(3, bad={1}), tmp_path / (character * longest), 1, on_error="skip")
    )
    assert (len(result.store), len(os.listdir(tmp_path))) == (2, 2)
    with pytest.raises(MmaploadError, match="at most 237 bytes"):
        preprocess(samples(2), tmp_path / (character * (longest + 1)), 1)


@pytest.mark.parametrize("count", [31, 32])
@pytest.mark.parametrize("kind", [list, iter])
def test_more_axes_than_the_format_allows_are_refused_before_anything_is_written(
    tmp_path: Path, count: int, kind: Callable[[object], object]
) -> None:
    source = kind([{"x": np.ones((1,) * count)}])
    if count == 31:
        store = preprocess(source, tmp_path / "out", 1)
        assert store.field("x").shape == (1,) * 31
    else:
        with pytest.raises(ValueError, match="'x' has 32 axes, and a store holds at most 31"):
            preprocess(source, tmp_path / "out", 1)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc-lz4"])
@pytest.mark.parametrize("value", [1.0, np.zeros((0, 2))])
def test_a_batch_larger_than_any_store_is_refused(tmp_path: Path, codec: str, value: object) -> None:
    with pytest.raises(ValueError, match="smaller batch size"):
        plan_preprocess([{"x": value}], tmp_path / "out", 10**24, codec=codec)


def test_shuffling_an_iterable_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shuffle needs a length"):
        preprocess(iter(samples(3)), tmp_path / "out", 1, shuffle=1)


def test_a_plan_tells_everything_and_writes_nothing(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(10))
    (tmp_path / "in" / ".hidden.npz").touch()
    (tmp_path / "in" / "readme.txt").touch()
    plan = plan_preprocess(source, tmp_path / "out", 4, jobs=2, chunk_bytes=64)
    assert (plan.samples, plan.chunk_length, plan.chunks, plan.jobs) == (10, 4, 3, 2)
    assert (plan.hidden, plan.foreign, plan.fits) == (1, 1, True)
    assert plan.names_bytes == names_nbytes(10, 10 * len("s0.npz"))
    assert plan.store_bytes == 12 * 31 + plan.names_bytes + checksums_nbytes(3, 2)
    assert plan.memory_bytes == 2 * 4 * 31
    text = plan.describe()
    for words in (
        "10 samples",
        "uint8 (3, 5)",
        "float32 (4,)",
        "3 chunks",
        "2 jobs",
        "1 hidden and 1 foreign",
    ):
        assert words in text
    assert os.listdir(tmp_path) == ["in"]
    compressed = plan_preprocess(source, tmp_path / "out", 4, jobs=2, chunk_bytes=64, codec="zstd")
    assert compressed.memory_bytes == 2 * (4 * 31 + 64 + 2**16)
    assert "at most" in compressed.describe()


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ([], ""),
        ([".a.npz"], "1 hidden file"),
        (["a.txt"], "1 foreign file"),
        (["a.txt", "b.txt"], "2 foreign files"),
        ([".a.npz", "a.txt"], "1 hidden and 1 foreign files"),
    ],
)
def test_of_files_that_are_skipped_only_those_are_told_that_there_are(
    tmp_path: Path, names: list[str], told: str
) -> None:
    source = write_npz(tmp_path / "in", samples(2))
    for name in names:
        (tmp_path / "in" / name).touch()
    plan = plan_preprocess(source, tmp_path / "out", 4)
    assert plan.passed_over == told
    assert (f"{told} skipped" if told else "fields") in plan.describe().splitlines()[1]


@pytest.mark.parametrize(
    ("count", "batch", "codec", "told"),
    [
        (300, 1000, "raw", ", of which 68.4 KiB of zeros fill the last chunk, "),
        (300, 32, "raw", None),  # 20 of 320
        (300, 300, "raw", None),
        (310, 300, "raw", "of zeros fill the last chunk"),
        (300, 1000, "zstd", None),
    ],
)
def test_a_plan_tells_how_much_fills_the_last_chunk_where_that_is_much(
    tmp_path: Path, count: int, batch: int, codec: str, told: str | None
) -> None:
    source = [{"x": np.zeros(100, np.uint8)}] * count
    plan = plan_preprocess(source, tmp_path / "out", batch, codec=codec, chunk_bytes=1)
    assert plan.padding_bytes == (-count % batch) * 100
    text = plan.describe()
    assert told in text if told else "last chunk" not in text
    if codec == "raw":
        chunks = -(-count // batch)
        execute(plan)
        files = [path.stat().st_size for path in (tmp_path / "out" / "x").glob("c.*")]
        assert sum(files) == count * 100 + plan.padding_bytes + 4 * chunks


def test_too_little_room_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    plan = plan_preprocess(CountedSource(10, width=2**44), tmp_path / "out", 2)
    assert not plan.fits
    assert "TOO LITTLE" in plan.describe()
    with pytest.raises(MmaploadError, match=r"TiB, and its file system has .* free"):
        execute(plan)
    assert os.listdir(tmp_path) == []


def test_a_finished_store_is_overwritten_only_when_asked_and_only_when_the_new_one_is_whole(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    preprocess(CountedSource(10), out, 2)
    first = tree(out)
    with pytest.raises(MmaploadError, match="--overwrite"):
        preprocess(CountedSource(5), out, 2)
    with pytest.raises(SourceError):
        preprocess(CountedSource(20, bad={19}), out, 2, overwrite=True, chunk_bytes=16)
    assert tree(out) == first
    # Another number of samples: what the failed run left does not match, and is thrown away.
    assert len(preprocess(CountedSource(5), out, 2, overwrite=True)) == 5
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_store_is_never_overwritten(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("precious")
    preprocess(samples(2), tmp_path / "store", 1)
    (tmp_path / "store" / "notes.txt").write_text("precious")
    before = tree(tmp_path)
    for name in ("file", "folder", "store"):
        with pytest.raises(MmaploadError, match="never overwritten"):
            preprocess(samples(2), tmp_path / name, 1, overwrite=overwrite)
    assert tree(tmp_path) == before


def test_an_empty_folder_gives_way(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert len(preprocess(samples(2), tmp_path / "out", 1)) == 2


def test_a_link_to_a_store_stays_a_link(tmp_path: Path) -> None:
    preprocess(samples(2), tmp_path / "real", 1)
    (tmp_path / "link").symlink_to("real")
    preprocess(samples(3), tmp_path / "link", 1, overwrite=True)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "x" / "c.2.0.0").exists() or len(tree(tmp_path / "real")) > 3
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


def test_a_source_inside_the_target_is_refused_and_a_target_inside_the_source_works(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(3))
    with pytest.raises(MmaploadError, match=r"never overwritten|inside"):
        preprocess(source, tmp_path / "in", 1, overwrite=True)
    with pytest.raises(MmaploadError, match=r"never overwritten|inside"):
        preprocess(source, tmp_path, 1, overwrite=True)
    for _ in range(2):
        assert len(preprocess(source, source / "out", 1, overwrite=True)) == 3
    inside = plan_preprocess(source, source / "other", 1)
    assert inside.in_source
    assert "inside the source's folder" in inside.describe()
    for path in (source, source / "s0.npz", f"{source}/*.npz"):
        plan = plan_preprocess(path, tmp_path / "in.mml", 1)
        assert not plan.in_source
        assert "inside the source" not in plan.describe()
    assert not plan_preprocess(f"{source}/*.npz", source / "other", 1).in_source, "no glob meets it"


def test_a_store_given_for_its_source_is_named_as_one(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(3))
    preprocess(source, tmp_path / "in.mml", 1)
    for path in (tmp_path / "in.mml", [source, tmp_path / "in.mml"]):
        with pytest.raises(SourceError, match=r"in\.mml: a store already: give the folder of .npz files"):
            preprocess(path, tmp_path / "out", 1)


def test_the_umask_decides_who_may_read_a_store(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        preprocess(write_npz(tmp_path / "in", samples(3)), tmp_path / "out", 1)
    finally:
        os.umask(old)
    for where, _, names in os.walk(tmp_path / "out"):
        assert stat.S_IMODE(os.stat(where).st_mode) == 0o750
        assert {stat.S_IMODE(os.stat(os.path.join(where, name)).st_mode) for name in names} <= {0o640}


def test_a_torch_dataset_and_tensors_are_taken(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Squares(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> dict[str, object]:
            return {"x": torch.full((2,), index, requires_grad=True, dtype=torch.float32), "y": index**2}

    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self) -> object:
            return iter(Squares()[i] for i in range(5))

    for name, source in [("map", Squares()), ("iterable", Endless())]:
        store = preprocess(source, tmp_path / name, 2)
        assert stored(store, "y").tolist() == [0, 1, 4, 9, 16]
        assert stored(store, "x").dtype == np.float32


def test_a_failing_generator_raises_its_own_error_and_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> object:
        yield from samples(10)
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        preprocess(failing(), tmp_path / "out", 2, chunk_bytes=64)
    assert os.listdir(tmp_path) == []


MEMORY_SCRIPT = """
import resource, sys, zarr
from mmapload.preprocessing import plan_preprocess, execute
from mmapload.writer import documents
plan = plan_preprocess(sys.argv[1], sys.argv[2], 2, jobs=2, chunk_bytes="4MiB", codec=sys.argv[3])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
execute(plan)
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
print(grown, plan.memory_bytes, plan.store_bytes)
"""


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_memory_stays_under_the_stated_bound(tmp_path: Path, codec: str) -> None:
    # 128 MiB of data through at most 32 MiB of buffers; 24 MiB are for threads, codecs and zarr's imports.
    values = np.arange(2**19, dtype="f4")
    source = write_npz(tmp_path / "in", [{"x": values + i} for i in range(64)])
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_SCRIPT, str(source), str(tmp_path / "out"), codec],
        check=True,
        capture_output=True,
        text=True,
    )
    grown, bound, total = map(int, done.stdout.split())
    assert total >= 2**27
    assert bound <= 2**25
    assert grown < bound + 24 * 2**20


def test_a_new_name_that_no_field_can_have_is_refused_with_what_to_type_for_the_array(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"field name '\.\.' .*: rename it, .*--fields x=field"):
        preprocess(samples(2), tmp_path / "out", 1, fields="x=..")


def test_fields_that_are_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"fields: expected names such as a,b=c, found \[1\]"):
        preprocess(samples(2), tmp_path / "out", 1, fields=[1])  # type: ignore[list-item]


def test_a_stand_in_of_more_digits_than_python_writes_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"fill: 'x' is a number of 16,610 bits, which no dtype holds"):
        preprocess(samples(2), tmp_path / "out", 1, fill={"x": 10**5000})
