"""Samples appended to a finished store: as if written at once, and the old ones readable at every moment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload import (
    ChunkDataset,
    ChunkSampler,
    MmaploadError,
    StateMismatchError,
    StoreNotFoundError,
    opening,
)
from mmapload.cli import main
from mmapload.errors import SourceError
from mmapload.preprocessing import execute, plan_preprocess, preprocess
from mmapload.store import Store, open_store
from mmapload.writer import extension
from tests.preprocessing_cases import CountedSource, damage, samples, stored, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[1]
VALUES = samples(23)


def in_parts(folder: Path, first: int) -> tuple[Path, Path, Path]:
    """Write the values as .npz files: the first ones, the others, and all of them."""
    for number, value in enumerate(VALUES):
        for part in ("all", "first" if number < first else "second"):
            (folder / part).mkdir(exist_ok=True)
            np.savez(folder / part / f"s{number:02}.npz", **value)  # type: ignore[arg-type]
    return folder / "first", folder / "second", folder / "all"


@pytest.mark.parametrize("codec", ["raw", "zstd", "blosc-lz4"])
@pytest.mark.parametrize("first", [1, 4, 8, 11])
def test_a_store_appended_to_equals_one_written_at_once_byte_for_byte(
    tmp_path: Path, first: int, codec: str
) -> None:
    one, other, every = in_parts(tmp_path, first)
    options: dict[str, Any] = {"chunk_bytes": 70, "codec": codec}
    preprocess(one, tmp_path / "out", 2, **options)
    before = open_store(tmp_path / "out").fingerprint
    store = preprocess(other, tmp_path / "out", 2, **options, append=True)
    assert store.layout.chunk_length == (4 if first > 2 else 2)
    if first > 2:  # a store of one sample has chunks of one batch
        assert tree(tmp_path / "out") == tree(
            Path(preprocess(every, tmp_path / "all.mml", 2, **options).path)
        )
    assert np.array_equal(stored(store, "x"), [value["x"] for value in VALUES])
    assert np.array_equal(stored(store, "y"), [value["y"] for value in VALUES])
    assert [store.sample_name(number) for number in range(23)] == [
        f"s{number:02}.npz" for number in range(23)
    ]
    assert [fault for fault in store.verify() if fault] == []
    assert store.fingerprint != before
    assert sorted(os.listdir(tmp_path)) == sorted(
        {"out", "first", "second", "all", *(["all.mml"] if first > 2 else [])}
    )


def test_samples_from_python_are_appended_again_and_again(tmp_path: Path) -> None:
    preprocess(VALUES[:3], tmp_path / "out", 2, chunk_bytes=1)
    parts = (VALUES[3:4], iter(VALUES[4:9]), VALUES[9:16], iter(VALUES[16:]))
    for part in parts:
        store = preprocess(part, tmp_path / "out", 2, append=True)
        assert [fault for fault in store.verify() if fault] == []
    assert np.array_equal(stored(store, "x"), [value["x"] for value in VALUES])
    assert store.layout.source["kind"] == "sequence, iterable"
    assert os.listdir(tmp_path) == ["out"]


def test_names_grow_across_the_chunks_that_they_are_in(tmp_path: Path) -> None:
    """8,192 ends, and 64 KiB of names, are in a chunk of these."""
    count = 8200
    preprocess(CountedSource(count), tmp_path / "out", 64, chunk_bytes=1)
    store = preprocess(CountedSource(count + 20), tmp_path / "out", 64, append=True)
    assert len(store) == 2 * count + 20
    assert [fault for fault in store.verify(2) if fault] == []
    for sample in (0, 8191, 8192, count - 1, count, len(store) - 1):
        number = sample if sample < count else sample - count
        assert store.sample_name(sample) == f"n{number}"
        assert store.read_chunk("x", sample // 64)[sample % 64].tolist() == [number, -number]


def test_a_shuffled_append_permutes_the_new_samples(tmp_path: Path) -> None:
    preprocess(CountedSource(10), tmp_path / "out", 2, chunk_bytes=1, shuffle=3)
    alone = stored(preprocess(CountedSource(15), tmp_path / "alone", 2, shuffle=3), "x")
    store = preprocess(CountedSource(15), tmp_path / "out", 2, shuffle=3, append=True)
    assert np.array_equal(stored(store, "x")[10:], alone)
    assert [store.sample_name(10 + number) for number in range(15)] == [f"n{each}" for each in alone[:, 0]]


@pytest.mark.parametrize(
    ("options", "sample", "words"),
    [
        ({"batch_size": 4}, VALUES[0], "batch size.*saved 2, now 4"),
        ({"codec": "zstd"}, VALUES[0], "codec.*saved raw, now zstd"),
        ({"shuffle": 7}, VALUES[0], "order of writing.*saved None, now 7"),
        ({}, {"x": VALUES[0]["x"]}, r"other fields.*saved y float32 \(4,\), now no such field"),
        ({}, VALUES[0] | {"y": np.zeros(5, "f4")}, r"saved y float32 \(4,\), now y float32 \(5,\)"),
        ({}, VALUES[0] | {"y": np.zeros(4, "f8")}, r"saved y float32 \(4,\), now y float64 \(4,\)"),
        ({}, VALUES[0] | {"z": 1}, r"saved no such field, now z int64 \(\)"),
    ],
)
def test_what_does_not_suit_the_store_is_refused_with_both_sides(
    tmp_path: Path, options: dict[str, Any], sample: dict[str, Any], words: str
) -> None:
    preprocess(VALUES[:3], tmp_path / "out", 2)
    before = tree(tmp_path / "out")
    with pytest.raises(StateMismatchError, match=words):
        preprocess([sample] * 3, tmp_path / "out", **({"batch_size": 2} | options), append=True)
    assert tree(tmp_path) == {f"out/{name}": content for name, content in before.items()}


def test_fields_are_taken_in_the_order_of_the_store(tmp_path: Path) -> None:
    preprocess(VALUES[:3], tmp_path / "out", 2)
    turned = [dict(reversed(value.items())) for value in VALUES[3:]]
    store = preprocess(turned, tmp_path / "out", 2, append=True)
    assert store.fields == ("x", "y")
    assert np.array_equal(stored(store, "y"), [value["y"] for value in VALUES])


def test_nothing_can_be_appended_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"nothing can be appended: there is no store at .*--append"):
        preprocess(VALUES, tmp_path / "out", 2, append=True)
    assert os.listdir(tmp_path) == []
    preprocess(VALUES[:3], tmp_path / "out", 2)
    with pytest.raises(SourceError, match="no sample in it"):
        preprocess([], tmp_path / "out", 2, append=True)
    assert os.listdir(tmp_path) == ["out"]


def test_bad_samples_are_left_out_and_listed_behind_those_of_before(tmp_path: Path) -> None:
    out = tmp_path / "out"
    preprocess(CountedSource(5, bad={2}), out, 2, chunk_bytes=1, on_error="skip")
    plan = plan_preprocess(CountedSource(9, bad={0, 7}), out, 2, on_error="skip", append=True)
    result = execute(plan)
    assert [each.index for each in result.skipped] == [0, 7]
    assert (len(result.store), result.store.layout.source["skipped"]) == (4 + 7, 3)
    lines = Path(f"{out}.skipped.jsonl").read_text().splitlines()
    assert [f'"index": {index},' in line for index, line in zip((2, 0, 7), lines, strict=True)] == [True] * 3
    before = tree(out)
    with pytest.raises(SourceError, match=r"no other sample is sound|no sound sample"):
        preprocess(CountedSource(2, bad={0, 1}), out, 2, on_error="skip", append=True)
    assert tree(out) == before


def test_the_command_says_what_it_will_do_and_does_it(tmp_path: Path, capsys: Any) -> None:
    one, other, _ = in_parts(tmp_path, 11)
    out = str(tmp_path / "out")
    assert main(["preprocess", str(one), out, "--batch-size", "2", "--quiet"]) == 0
    command = ["preprocess", str(other), out, "--batch-size", "2", "--append"]
    assert main(command[:-1]) == 1
    assert "--append" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 0
    assert "npz, appended to 11 samples: 12 samples" in capsys.readouterr().out
    assert main(command) == 0
    assert "23 samples in" in capsys.readouterr().out
    assert main(["verify", out]) == 0
    assert main(command[:-1]) == 1
    assert "--append" not in capsys.readouterr().err, "they would come twice"


def test_a_saved_state_of_the_store_as_it_was_is_refused_and_says_that_samples_may_have_come(
    tmp_path: Path,
) -> None:
    preprocess(VALUES[:8], tmp_path / "out", 2)
    old = ChunkDataset(tmp_path / "out")
    state = ChunkSampler(old, 2).state_dict()
    new = preprocess(VALUES[8:], tmp_path / "out", 2, append=True)
    with pytest.raises(StateMismatchError, match="appended") as caught:
        ChunkSampler(ChunkDataset(tmp_path / "out"), 2).load_state_dict(state)
    assert old.store.fingerprint in str(caught.value)
    assert new.fingerprint in str(caught.value)


# ---- while it is put in place


def at_each_step(monkeypatch: pytest.MonkeyPatch, check: Callable[[int], None]) -> list[int]:
    """Call `check` before each file is renamed into the store, and after the last."""
    steps: list[int] = []
    move = extension._move

    def moved(path: str, place: str) -> None:
        check(len(steps))
        steps.append(len(steps))
        move(path, place)
        check(len(steps))

    monkeypatch.setattr(extension, "_move", moved)
    return steps


@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("first", [10, 12])
def test_at_every_step_whoever_reads_has_the_right_values_and_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, first: int
) -> None:
    one, other, _ = in_parts(tmp_path, first)
    out = tmp_path / "out"
    preprocess(one, out, 2, chunk_bytes=70, codec=codec)
    before = ChunkDataset(out, verify="always")
    assert [before[number]["x"].tolist() for number in range(first)]  # its list of checksums is read
    unread = ChunkDataset(out, verify="always")
    known = open_store(out)
    used: list[Store] = []

    def check(_: int) -> None:
        now = ChunkDataset(out)
        assert len(now) in {first, len(VALUES)}
        used.append(now.store)
        assert [fault for fault in now.store.verify() if fault] == []
        assert [fault for fault in known.verify() if fault] == []
        fresh = Store(known.path, known.layout)
        assert (
            fresh.read_chunk("y", known.layout.chunks - 1)[0].tolist()
            == before[4 * (known.layout.chunks - 1)]["y"].tolist()
        )
        for ds in (before, now, *([] if len(used) % 2 else [unread])):
            for number in range(len(ds)):
                assert ds[number]["x"].numpy().tobytes() == VALUES[number]["x"].tobytes()
                assert ds.store.sample_name(number) == f"s{number:02}.npz"

    steps = at_each_step(monkeypatch, check)
    preprocess(other, out, 2, chunk_bytes=70, codec=codec, append=True)
    assert len(steps) > 10
    assert {len(store) for store in used} == {first, len(VALUES)}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_store_that_changes_while_it_is_opened_is_opened_as_it_is_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Between its root and its fields samples are appended, or another store takes its place."""
    out = tmp_path / "out"
    preprocess(VALUES[:3], out, 2)
    read = opening._read_root

    def read_and_change(folder: str, given: str) -> bytes:
        text = read(folder, given)
        monkeypatch.undo()
        if overwrite:
            preprocess([{"x": np.float64(number)} for number in range(23)], out, 2, overwrite=True)
        else:
            preprocess(VALUES[3:], out, 2, append=True)
        return text

    monkeypatch.setattr(opening, "_read_root", read_and_change)
    store = open_store(out)
    assert len(store) == 23
    assert [fault for fault in store.verify() if fault] == []


def test_a_chunk_file_that_was_swapped_is_noticed_also_while_samples_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    preprocess(VALUES[:10], out, 2, chunk_bytes=70)

    def check(_: int) -> None:
        store = open_store(out)
        chunk = store.layout.chunks - 1
        last, first = (Path(store.chunk_path(store.field("x"), each)) for each in (chunk, 0))
        kept = last.read_bytes()
        last.write_bytes(first.read_bytes())
        with pytest.raises(MmaploadError, match="swapped"):
            store.read_chunk("x", chunk)
        last.write_bytes(kept)

    at_each_step(monkeypatch, check)
    preprocess(VALUES[10:], out, 2, append=True)


class StopError(Exception):
    """What ends a run in the tests."""


def cut_off(monkeypatch: pytest.MonkeyPatch, step: int, *arguments: Any) -> bool:
    """Let an append end before it renames file number `step`, or after the last; False if there are fewer."""

    def check(number: int) -> None:
        if number == step:
            raise StopError

    with monkeypatch.context() as patched:
        at_each_step(patched, check)
        try:
            preprocess(*arguments, append=True)
        except StopError:
            return True
    return False


@pytest.mark.parametrize("step", [0, 2, 5, 10, 11])
def test_an_append_cut_off_in_its_last_step_is_finished_by_the_same_call_and_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    preprocess(VALUES[:5], tmp_path / "out", 2, chunk_bytes=70)
    assert cut_off(monkeypatch, step, VALUES[5:14], tmp_path / "out", 2)
    result = execute(plan_preprocess(VALUES[5:14], tmp_path / "out", 2, append=True))
    assert (len(result.store), os.listdir(tmp_path)) == (14, ["out"])
    assert tree(tmp_path / "out") == tree(
        Path(preprocess(VALUES[:14], tmp_path / "wanted", 2, chunk_bytes=70).path)
    )
    # Other samples: first the old ones are all there, and it is said.
    assert cut_off(monkeypatch, min(step, 8), VALUES[14:18], tmp_path / "out", 2)
    for overwrite in (False, True):
        others = VALUES[18:] if overwrite else iter(VALUES[18:])
        if overwrite:
            assert cut_off(monkeypatch, min(step, 8), VALUES[18:20], tmp_path / "out", 2)
        with pytest.raises(
            MmaploadError, match=r"interrupted in its last step is finished now.*(18|20) samples"
        ):
            preprocess(others, tmp_path / "out", 2, append=True, overwrite=overwrite)
    store = preprocess(VALUES[20:], tmp_path / "out", 2, append=True)
    assert np.array_equal(stored(store, "x"), [value["x"] for value in VALUES])


def test_where_an_append_was_given_up_in_its_last_step_another_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever removes the work folder has the old samples, and files that nobody looks for."""
    for step in range(100):
        out = tmp_path / f"out{step}"
        preprocess(VALUES[:5], out, 2, chunk_bytes=70)
        if not cut_off(monkeypatch, step, VALUES[9:20], out, 2):
            break
        shutil.rmtree(tmp_path / f".out{step}.partial")
        if len(open_store(out)) == 16:
            continue
        assert len(open_store(out)) == 5
        store = preprocess(VALUES[5:], out, 2, append=True)
        assert [fault for fault in store.verify() if fault] == []
        assert np.array_equal(stored(store, "x"), [value["x"] for value in VALUES])
    assert step > 10


@pytest.mark.parametrize("step", [None, 0, 3, 8])
def test_an_append_begun_over_another_store_never_goes_on_over_the_one_that_took_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int | None
) -> None:
    """Samples of the first one's last chunk are in the unfinished work, and its checksums in the lists."""
    for name, values in ("out", VALUES[:5]), ("other", VALUES[5:10]):
        preprocess(values, tmp_path / name, 2, chunk_bytes=70)
    new = list(VALUES[10:20])
    if step is None:
        with pytest.raises(SourceError):
            preprocess([*new[:-1], {}], tmp_path / "out", 2, jobs=1, append=True)
    else:
        assert cut_off(monkeypatch, step, new, tmp_path / "out", 2)
    (tmp_path / "out").rename(tmp_path / "kept")
    (tmp_path / "other").rename(tmp_path / "out")
    before = tree(tmp_path / "out")
    with pytest.raises(StateMismatchError, match="begun over another store: put that back, or start anew"):
        preprocess(new, tmp_path / "out", 2, append=True)
    assert tree(tmp_path / "out") == before
    store = preprocess(new, tmp_path / "out", 2, append=True, overwrite=True)
    assert np.array_equal(stored(store, "x"), [value["x"] for value in [*VALUES[5:10], *new]])
    assert not any(store.verify())


def test_an_append_that_fails_on_a_bad_sample_goes_on_where_it_stopped(tmp_path: Path) -> None:
    preprocess(CountedSource(11), tmp_path / "out", 2, chunk_bytes=32)
    before = tree(tmp_path / "out")
    with pytest.raises(SourceError):
        preprocess(CountedSource(20, bad={18}), tmp_path / "out", 2, jobs=1, append=True)
    assert tree(tmp_path / "out") == before
    source = CountedSource(20)
    result = execute(plan_preprocess(source, tmp_path / "out", 2, jobs=1, append=True))
    assert min(source.reads) >= 16
    assert result.resumed_samples > 10
    with pytest.raises(MmaploadError, match="finished store"):
        preprocess(source, tmp_path / "out", 2)


def test_an_unfinished_append_of_other_samples_is_refused_and_given_up_on_demand(tmp_path: Path) -> None:
    source = write_npz(tmp_path / "in", VALUES[:9])
    preprocess(VALUES[:3], tmp_path / "out", 2)
    good = (source / "s8.npz").read_bytes()
    damage(source / "s8.npz")
    with pytest.raises(SourceError):
        preprocess(source, tmp_path / "out", 2, jobs=1, append=True)
    (source / "s8.npz").write_bytes(good)
    (source / "s8.npz").rename(source / "s9.npz")
    with pytest.raises(StateMismatchError, match="another sample"):
        preprocess(source, tmp_path / "out", 2, append=True)
    assert len(preprocess(source, tmp_path / "out", 2, append=True, overwrite=True)) == 12
    assert sorted(os.listdir(tmp_path)) == ["in", "out"]


@pytest.mark.parametrize("append", [False, True])
def test_what_is_unfinished_says_where_its_samples_are_if_others_have_the_same_names(
    tmp_path: Path, append: bool
) -> None:
    other, source = write_npz(tmp_path / "a", VALUES[:9]), write_npz(tmp_path / "b", VALUES[9:18])
    if append:
        preprocess(other, tmp_path / "out", 2, chunk_bytes=1)
    good = (source / "s8.npz").read_bytes()
    damage(source / "s8.npz")
    with pytest.raises(SourceError):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1, jobs=1, append=append)
    (source / "s8.npz").write_bytes(good)
    anew = "--append --overwrite" if append else "--overwrite"
    words = f"begun with the samples in {source}/, and those in {other}/ are others: .* anew with {anew} "
    with pytest.raises(StateMismatchError, match=words):
        preprocess(other, tmp_path / "out", 2, chunk_bytes=1, append=append)
    moved = source.rename(tmp_path / "c")  # the same samples in another place go on
    assert len(preprocess(moved, tmp_path / "out", 2, chunk_bytes=1, append=append)) == 9 + 9 * append


def test_an_append_that_is_killed_before_any_system_call_ends_as_if_undisturbed(tmp_path: Path) -> None:
    one = [{"x": value["x"]} for value in VALUES]
    source = write_npz(tmp_path / "in", one[3:6])
    write_npz(tmp_path / "before", one[:3])
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash_points", str(source), folder, "append"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    killed, _, calls = done.stdout.split()
    assert int(killed) > (100 if os.environ.get("MMAPLOAD_KILLS") else 40)
    assert int(calls) > 100
