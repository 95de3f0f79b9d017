"""`on_error="skip"`: the store holds exactly the sound samples, in order, whatever the jobs met when."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapload.checking import check
from mmapload.errors import SourceError, StateMismatchError
from mmapload.preprocessing import execute, plan_preprocess, preprocess, skipped_path
from mmapload.writer.journal import Journal
from tests.preprocessing_cases import CountedSource, damage, samples, stored, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Iterator


@settings(max_examples=25)
@given(
    count=st.integers(1, 60),
    bad=st.sets(st.integers(0, 59), max_size=20),
    batch=st.sampled_from([1, 3, 4]),
    batches=st.integers(1, 4),
    jobs=st.integers(1, 4),
    shuffle=st.sampled_from([None, 5]),
    parallel=st.booleans(),
)
def test_what_is_left_is_every_sound_sample_in_order(
    count: int, bad: set[int], batch: int, batches: int, jobs: int, shuffle: int | None, parallel: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        options = {"chunk_bytes": 8 * batch * batches, "jobs": jobs, "shuffle": shuffle}
        source = CountedSource(count, bad, parallel=parallel)
        order = stored(preprocess(CountedSource(count), Path(folder, "all"), batch, **options), "x")[:, 0]
        expected = [index for index in order.tolist() if index not in bad]
        listed = sorted(bad & set(range(count)))
        if not expected:
            with pytest.raises(SourceError, match="no other sample is sound"):
                preprocess(source, out, batch, on_error="skip", **options)
            return
        result = execute(plan_preprocess(source, out, batch, on_error="skip", **options))
        store = result.store
        assert stored(store, "x").tolist() == [[index, -index] for index in expected]
        assert [store.sample_name(i) for i in range(len(store))] == [f"n{index}" for index in expected]
        assert store.layout.source["skipped"] == len(listed)
        assert [fault for fault in store.verify() if fault] == []
        assert [each.index for each in result.skipped] == listed
        assert len(os.listdir(out / "x")) == store.layout.chunks + 1
        # As a store that was made of the sound samples alone.
        assert store.layout.chunk_length == min(batch * batches, -(-len(expected) // batch) * batch)
        lines = Path(skipped_path(str(out))).read_text().splitlines() if listed else []
        assert [json.loads(line) for line in lines] == [
            {"index": index, "file": f"/numbers/n{index}", "member": "x", "cause": "a bad number"}
            for index in listed
        ]
        assert os.path.exists(skipped_path(str(out))) == bool(listed)


def test_bad_npz_files_of_all_kinds_are_listed_with_member_and_cause(tmp_path: Path) -> None:
    values = samples(20)
    source = write_npz(tmp_path / "in", values)
    (source / "s0.npz").write_bytes(b"")
    (source / "s5.npz").write_bytes((source / "s5.npz").read_bytes()[:-30])
    damage(source / "s6.npz")
    np.savez(source / "s13.npz", x=np.zeros((3, 6), np.uint8), y=np.zeros(4, "f4"))
    np.savez(source / "s19.npz", x=np.zeros((3, 5), np.uint8))
    out = tmp_path / "out"
    store = preprocess(source, out, 4, chunk_bytes=60, jobs=3, on_error="skip")
    bad = [0, 5, 6, 13, 19]
    good = [number for number in range(20) if number not in bad]
    assert stored(store, "x").tolist() == [values[number]["x"].tolist() for number in good]
    lines = [json.loads(line) for line in Path(skipped_path(str(out))).read_text().splitlines()]
    assert [line["index"] for line in lines] == bad
    assert [os.path.basename(line["file"]) for line in lines] == [f"s{number}.npz" for number in bad]
    assert lines[2]["member"] == "x.npy"
    assert all(line["cause"] for line in lines)
    trees = {0: tree(out)}
    for jobs in (1, 2, 5):
        preprocess(source, tmp_path / f"out{jobs}", 4, chunk_bytes=60, jobs=jobs, on_error="skip")
        trees[jobs] = tree(tmp_path / f"out{jobs}")
    assert all(each == trees[0] for each in trees.values())


def test_the_default_stops_at_the_first_bad_file_and_names_file_member_cause_and_the_way_out(
    tmp_path: Path,
) -> None:
    source = write_npz(tmp_path / "in", samples(20))
    damage(source / "s6.npz")
    with pytest.raises(SourceError, match=r"s6.npz, member 'x.npy': .*--on-error skip") as caught:
        preprocess(source, tmp_path / "out", 4, chunk_bytes=60, jobs=3)
    assert caught.value.file == str(source / "s6.npz")
    assert not (tmp_path / "out").exists()


def test_one_bad_file_does_not_hide_another_that_was_met_with_it(tmp_path: Path) -> None:
    # Both threads have begun their chunk when the first of them meets its bad sample.
    for _ in range(5):
        with pytest.raises(SourceError, match="n0") as caught:
            preprocess(CountedSource(8, bad={0, 4}), tmp_path / "out", 4, chunk_bytes=1, jobs=2)
        assert caught.value.file == "/numbers/n0" or "n0" in caught.value.cause


def test_a_run_that_skips_nothing_removes_the_list_of_the_one_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    preprocess(CountedSource(8, bad={3}), out, 4, on_error="skip")
    assert os.path.exists(skipped_path(str(out)))
    preprocess(CountedSource(8), out, 4, on_error="skip", overwrite=True)
    assert os.listdir(tmp_path) == ["out"]


def test_unfinished_work_that_left_samples_out_is_not_continued_by_a_run_that_would_not(
    tmp_path: Path,
) -> None:
    class Stopping(CountedSource):
        def read(self, index: int, into: dict[str, np.ndarray]) -> None:
            if index == 30:
                raise KeyboardInterrupt
            super().read(index, into)

    with pytest.raises(KeyboardInterrupt, match="the same command continues"):
        preprocess(Stopping(40, bad={3}, parallel=False), tmp_path / "out", 4, chunk_bytes=1, on_error="skip")
    with pytest.raises(StateMismatchError, match=r"left out bad samples.*saved on_error skip"):
        preprocess(CountedSource(40, parallel=False), tmp_path / "out", 4, chunk_bytes=1)
    source = CountedSource(40, bad={3}, parallel=False)
    preprocess(source, tmp_path / "out", 4, chunk_bytes=1, on_error="skip")
    assert min(source.reads) >= 28
    assert len(source.reads) < 15


def test_an_iterable_leaves_out_what_does_not_fit(tmp_path: Path) -> None:
    values = [{"x": i} for i in range(10)]
    bad = {0: {"x": object()}, 3: {"x": 0.5}, 4: {"y": 1}, 8: 7}
    mixed = [bad.get(i, value) for i, value in enumerate(values)]
    result = execute(plan_preprocess(iter(mixed), tmp_path / "out", 4, on_error="skip"))
    assert stored(result.store, "x").tolist() == [i for i in range(10) if i not in bad]
    assert [each.index for each in result.skipped] == sorted(bad)
    assert result.store.layout.source["skipped"] == 4
    with pytest.raises(SourceError, match=r"sample 2, member 'x': float64 \(\), expected int64 \(\)"):
        preprocess(iter([*mixed[1:4], values[1], mixed[3]]), tmp_path / "other", 4)


@pytest.mark.parametrize("fields", [None, "x=y"])
def test_a_bad_first_sample_stays_bad_where_a_generator_mends_the_dict_that_it_yields(
    tmp_path: Path, fields: str | None
) -> None:
    def mending() -> Iterator[dict[str, object]]:
        sample: dict[str, object] = {}
        for value in (object(), 1, 2):
            sample["x"] = value
            yield sample

    plan = plan_preprocess(mending(), tmp_path / "out", 2, on_error="skip", fields=fields)
    result = execute(plan)
    name = "y" if fields else "x"
    assert stored(result.store, name).tolist() == [1, 2]
    assert [(each.index, each.file, each.member) for each in result.skipped] == [(0, "sample 0", name)]


def test_the_journal_is_flushed_a_few_times_a_chunk_however_many_samples_are_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    append = Journal.append
    monkeypatch.setattr(Journal, "append", lambda *args: flushed.append(1) or append(*args))
    source = CountedSource(1024, bad=range(1, 1024, 2), parallel=False)
    store = preprocess(source, tmp_path / "out", 128, chunk_bytes=1, on_error="skip")
    assert (len(store), len(source.reads)) == (512, 1024)
    assert len(flushed) <= 4 * 8 + 4 + 1  # for half of what is left to be found bad, again and again


def test_samples_are_left_out_that_are_unlike_most_even_if_the_first_is_one(tmp_path: Path) -> None:
    values = samples(30)
    values[0] = {"x": np.zeros((9, 9), np.uint8), "y": values[0]["y"]}
    values[1] = {"z": values[1]["y"]}
    source = write_npz(tmp_path / "in", values)
    store = preprocess(source, tmp_path / "out", 4, on_error="skip")
    assert stored(store, "x").tolist() == [value["x"].tolist() for value in values[2:]]
    lines = Path(skipped_path(str(tmp_path / "out"))).read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == [0, 1]
    # A field that stands in where it is missing may be in samples before the one that is like most.
    for number in range(2, 30):
        np.savez(source / f"s{number}.npz", x=values[number]["x"])
    store = preprocess(source, tmp_path / "filled", 4, on_error="skip", fill={"y": 0})
    assert stored(store, "y").tolist() == [[0.0] * 4] * 28
    assert str(store.layout.fields[1].dtype) == "float32"


@pytest.mark.parametrize("ragged", [None, "auto"])
def test_a_first_file_that_is_unlike_most_is_the_bad_one_also_where_none_are_left_out(
    tmp_path: Path, ragged: str | None
) -> None:
    source = write_npz(tmp_path / "in", samples(12))
    np.savez_compressed(source / "bomb.npz", x=np.zeros(10**7, np.uint8), y=np.zeros(4, "f4"))
    with pytest.raises(SourceError) as caught:
        preprocess(source, tmp_path / "out", 4, ragged=ragged)
    assert caught.value.file == str(source / "bomb.npz")
    assert "uint8 (10000000,), expected uint8 (3, 5)" in str(caught.value)
    assert "bad too" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    # One that lacks what may be missing, or has what most lack, fits: fields keep its order.
    np.savez(source / "bomb.npz", y=np.ones(4, "f4"))
    store = preprocess(source, tmp_path / "out", 4, fill={"x": 0}, ragged=ragged)
    assert (store.fields, len(store)) == (("y", "x"), 13)


def test_a_file_whose_name_is_not_utf8_is_a_bad_one_among_others(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", samples(5))
    for name in (b"t\xe9.npz", b"\xff\xfe.npz"):
        try:
            shutil.copy(source / "s0.npz", os.path.join(os.fsencode(source), name))
        except OSError:
            pytest.skip("this file system has no names but UTF-8")
    (source / "u.npz").write_bytes(b"")
    cause = "its name is not UTF-8: rename it"
    with pytest.raises(SourceError) as caught:
        preprocess(source, tmp_path / "out", 4)
    told = str(caught.value)
    assert told.startswith(rf"{source}/$'t\xe9'.npz: {cause}; 2 others of 8 samples are bad too, ")
    assert r"$'\xff\xfe'.npz: the same" in told
    assert "u.npz: the file is empty" in told
    assert os.listdir(tmp_path) == ["in"]
    faults = [(fault.file, fault.cause) for fault in check(source).faults]
    assert faults[::2] == [(rf"{source}/$'{name}'.npz", cause) for name in (r"t\xe9", r"\xff\xfe")]
    store = preprocess(source, tmp_path / "out", 4, on_error="skip")
    lines = Path(skipped_path(str(tmp_path / "out"))).read_text().splitlines()
    assert len(store) == 5
    assert [(json.loads(line)["file"], json.loads(line)["cause"]) for line in lines] == faults


def test_files_that_one_thread_reads_are_judged_and_named_in_the_same_way(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    source = tmp_path / "in"
    source.mkdir()
    for name, length in ((b"a.h5", 9), (b"b.h5", 3), (b"c.h5", 3), (b"d\xe9.h5", 3), (b"e\xe9.h5", 3)):
        with h5py.File(tmp_path / "one.h5", "w") as file:
            file["x"] = np.zeros(length)
        try:
            os.rename(tmp_path / "one.h5", os.path.join(os.fsencode(source), name))
        except OSError:
            pytest.skip("this file system has no names but UTF-8")
    told = (
        r"d\xe9'.h5: its name is not UTF-8: rename it; 1 other of 5 samples is bad too, .*e\xe9'.h5: the same"
    )
    with pytest.raises(SourceError, match=told.replace("\\", "\\\\")):
        preprocess(source, tmp_path / "out", 2)
    for name in (b"d\xe9.h5", b"e\xe9.h5"):
        os.remove(os.path.join(os.fsencode(source), name))
    with pytest.raises(
        SourceError, match=r"a\.h5, member 'x': float64 \(9,\), expected float64 \(3,\), as in .*b\.h5"
    ):
        preprocess(source, tmp_path / "out", 2)
