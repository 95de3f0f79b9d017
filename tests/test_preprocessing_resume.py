"""However a run ends, the next one goes on, and the result is as if nothing had happened."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mmapload.errors import MmaploadError, SourceError, StateMismatchError, StoreNotFoundError
from mmapload.preprocessing import check_unfinished, execute, execution, plan_preprocess, preprocess
from mmapload.progress import LineProgress
from mmapload.store import open_store
from mmapload.writer.journal import Journal
from mmapload.writer.workfolder import WorkFolder
from tests.preprocessing_cases import CountedSource, damage, samples, tree, write_npz

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ROOT = Path(__file__).parents[1]
SCRIPT = """
import sys, time
from mmapload.preprocessing import plan_preprocess, execute
from mmapload.progress import LineProgress
from tests.preprocessing_cases import CountedSource
class Slow(CountedSource):
    def read(self, index, into):
        time.sleep(float(sys.argv[2]))
        super().read(index, into)
plan = plan_preprocess(Slow(200, bad={30, 31, 99}), sys.argv[1], 4, jobs=2, chunk_bytes=32, on_error="skip")
print("ready", flush=True)
try:
    execute(plan, LineProgress(sys.stderr))
except KeyboardInterrupt as interrupt:
    sys.exit(f"stopped: {interrupt}")
"""


def start(out: Path, seconds_a_sample: float) -> subprocess.Popen[str]:
    """Start a run in a process of its own, and wait until it begins to write."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(out), str(seconds_a_sample)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def undisturbed(folder: Path) -> dict[str, bytes]:
    preprocess(CountedSource(200, bad={30, 31, 99}), folder, 4, chunk_bytes=32, on_error="skip")
    return tree(folder)


def wait_for_chunks(out: Path, count: int) -> None:
    """Wait until the journal tells of so many chunks."""
    journal = out.parent / f".{out.name}.partial" / "journal"
    while not journal.exists() or journal.read_bytes().count(b'"chunk"') < count:
        time.sleep(0.005)


def test_killed_at_random_moments_again_and_again_it_ends_as_if_undisturbed(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "wanted")
    moments = random.Random(1)
    kills, out = 0, tmp_path / "out"
    for _ in range(10):
        process = start(out, 0.005)
        try:
            process.communicate(timeout=moments.uniform(0, 0.25))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
        if out.exists():
            break
        with pytest.raises(StoreNotFoundError, match=r"no store|unfinished"):
            open_store(out)
    if not out.exists():
        start(out, 0).communicate()
    assert kills >= 3
    assert tree(out) == expected
    assert set(os.listdir(tmp_path)) == {"out", "out.skipped.jsonl", "wanted", "wanted.skipped.jsonl"}


def test_ctrl_c_keeps_what_is_written_and_says_how_to_go_on(tmp_path: Path) -> None:
    expected = undisturbed(tmp_path / "wanted")
    out = tmp_path / "out"
    process = start(out, 0.02)
    wait_for_chunks(out, 2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == 1
    assert "the same command continues" in told
    again = start(out, 0)
    _, told = again.communicate()
    assert "resuming: " in told
    assert "samples are already there" in told
    assert tree(out) == expected


@pytest.mark.parametrize("line", [1, 2, 5])
def test_an_interrupt_just_after_a_line_of_the_journal_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    lines: list[int] = []
    append = Journal.append

    def interrupted(self: Journal, entries: Iterable[Mapping[str, Any]]) -> None:
        append(self, entries)
        lines.append(len(lines))
        if len(lines) == line + 1:  # the first line says what is being made
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", interrupted)
    with pytest.raises(KeyboardInterrupt, match=r"[1-9]\d* of 40 samples are kept in .*: the same command"):
        preprocess(CountedSource(40), tmp_path / "out", 4, chunk_bytes=1, jobs=1)
    monkeypatch.undo()
    again = CountedSource(40)
    result = execute(plan_preprocess(again, tmp_path / "out", 4, chunk_bytes=1, jobs=1))
    assert result.resumed_samples >= 4 * line
    assert len(again.reads) == 40 - result.resumed_samples


def test_only_missing_chunks_are_read_again(tmp_path: Path) -> None:
    source = CountedSource(40, bad={38})
    with pytest.raises(SourceError, match=r"n38, member 'x': a bad number.*--on-error skip"):
        preprocess(source, tmp_path / "out", 4, chunk_bytes=1, jobs=1)
    mended = CountedSource(40)
    told = io.StringIO()
    result = execute(plan_preprocess(mended, tmp_path / "out", 4, chunk_bytes=1, jobs=1), LineProgress(told))
    assert mended.reads == [36, 37, 38, 39]
    assert result.resumed_samples == 36
    assert told.getvalue().splitlines()[:2] == [
        "resuming: reading the 9 chunks that are there, to check them",
        "resuming: 36 of 40 samples are already there",
    ]


def test_an_interrupt_while_chunks_are_checked_keeps_them_and_closes_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = begun(tmp_path)

    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patched:
        patched.setattr(execution, "check_written", interrupted)
        with pytest.raises(KeyboardInterrupt):
            preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    assert os.listdir("/proc/self/fd") == before
    assert execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1)).resumed_samples == 8


def test_what_failed_on_a_bad_sample_goes_on_with_skipping_it(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        preprocess(CountedSource(40, bad={38}), tmp_path / "out", 4, chunk_bytes=1, jobs=1)
    source = CountedSource(40, bad={38})
    preprocess(source, tmp_path / "out", 4, chunk_bytes=1, jobs=1, on_error="skip")
    assert min(source.reads) == 36


def begun(tmp_path: Path, **options: Any) -> Path:
    """Leave an unfinished store of eight of ten .npz files."""
    source = write_npz(tmp_path / "in", samples(10))
    good = (source / "s9.npz").read_bytes()
    damage(source / "s9.npz")
    with pytest.raises(SourceError):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1, jobs=1, **options)
    (source / "s9.npz").write_bytes(good)
    assert (tmp_path / ".out.partial").is_dir()
    return source


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 4}, "batch size.*saved 2, now 4"),
        ({"codec": "zstd"}, "codec.*saved raw, now zstd"),
        ({"chunk_bytes": "1KiB"}, "chunk bytes.*saved 1, now 1024"),
        ({"shuffle": 7}, "shuffle.*saved null, now 7"),
        ({"fields": "x"}, r"fields.*saved null, now \[\["),
    ],
)
def test_other_options_are_refused_and_named(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    source = begun(tmp_path)
    with pytest.raises(StateMismatchError, match=f"(?s)another {words}") as caught:
        preprocess(source, tmp_path / "out", **({"batch_size": 2, "chunk_bytes": 1} | options))
    assert "--overwrite" in str(caught.value)
    # The work is still there: with the old options it goes on.
    result = execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1))
    assert result.resumed_samples == 8


def test_overwrite_goes_on_with_what_matches_and_throws_away_what_does_not(tmp_path: Path) -> None:
    source = begun(tmp_path)
    plan = plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1, overwrite=True)
    assert plan.present_bytes > 0
    assert execute(plan).resumed_samples == 8
    begun(tmp_path / "other")
    plan = plan_preprocess(source, tmp_path / "other" / "out", 5, chunk_bytes=1, overwrite=True)
    assert execute(plan).resumed_samples == 0
    assert sorted(os.listdir(tmp_path / "other")) == ["in", "out"]


def test_a_sample_more_less_or_renamed_is_refused_and_named(tmp_path: Path) -> None:
    source = begun(tmp_path)
    (source / "s4.npz").rename(source / "s04b.npz")
    with pytest.raises(StateMismatchError, match=r'saved "s4.npz", now "s04b.npz"'):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    (source / "s04b.npz").rename(source / "s4.npz")
    (source / "s9.npz").rename(tmp_path / "away.npz")
    with pytest.raises(StateMismatchError, match=r'sample 9.*saved "s9.npz", now none'):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    (tmp_path / "away.npz").rename(source / "s9.npz")
    assert len(preprocess(source, tmp_path / "out", 2, chunk_bytes=1)) == 10


def test_contents_changed_under_the_same_size_and_time_are_refused_and_named(tmp_path: Path) -> None:
    source = begun(tmp_path)
    changed = source / "s3.npz"
    before, data = changed.stat(), changed.read_bytes()
    np.savez(changed, **(samples(10)[3] | {"x": np.ones((3, 5), np.uint8)}))
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (changed.stat().st_size, changed.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(StateMismatchError, match=r"s3.npz that has changed since"):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    changed.write_bytes(b"")
    with pytest.raises(StateMismatchError, match=r"s3.npz that has changed since.*now unreadable"):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    changed.write_bytes(data)
    assert len(preprocess(source, tmp_path / "out", 2, chunk_bytes=1)) == 10


def test_a_changed_schema_is_refused(tmp_path: Path) -> None:
    source = begun(tmp_path)
    first = samples(10)[0]
    np.savez(source / "s0.npz", y=first["y"], x=first["x"])
    with pytest.raises(StateMismatchError, match="another schema"):
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1)


def test_a_chunk_file_that_is_damaged_or_lost_meanwhile_is_written_again(tmp_path: Path) -> None:
    source = begun(tmp_path)
    partial = tmp_path / ".out.partial" / "store"
    data = bytearray((partial / "x" / "c.0.0.0").read_bytes())
    data[3] ^= 1
    (partial / "x" / "c.0.0.0").write_bytes(data)
    (partial / "y" / "c.1.0").unlink()
    (partial / "y" / "c.2.0").write_bytes(b"short")
    (partial / "y" / "c.9.0.tmp").write_bytes(b"left over")
    (partial / "stray").mkdir()
    told = io.StringIO()
    plan = plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    assert execute(plan, LineProgress(told)).resumed_samples == 2
    assert "3 chunks are not as they were written" in told.getvalue()
    preprocess(source, tmp_path / "wanted", 2, chunk_bytes=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")


@pytest.mark.parametrize("keep", [0, 10, -1, -40])
def test_a_journal_cut_short_counts_as_far_as_it_is_whole(tmp_path: Path, keep: int) -> None:
    source = begun(tmp_path)
    journal = tmp_path / ".out.partial" / "journal"
    journal.write_bytes(journal.read_bytes()[:keep])
    result = execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1))
    assert result.resumed_samples == (0 if keep >= 0 else 6)
    preprocess(source, tmp_path / "wanted", 2, chunk_bytes=1)
    assert tree(tmp_path / "out") == tree(tmp_path / "wanted")


SKIPPED = {"position": 9, "index": 9, "file": "s9.npz", "member": None, "cause": "bad", "digest": ""}


@pytest.mark.parametrize(
    "line",
    [
        {"x": 1},
        {"chunk": 99, "files": [], "digests": ""},
        {"chunk": 99, "files": [[34, "00"], [36, "00"]], "digests": ""},
        {"chunk": 4, "files": [], "digests": "0" * 32},
        {"chunk": 4, "files": [None, None], "digests": "0" * 32},
        {"chunk": 4, "files": [[34, 0], [36, "00"]], "digests": "0" * 32},
        {"chunk": 4, "files": [[34, "00"], [36, "00"]], "digests": "0" * 31},
        {"chunk": 4, "files": [[34, "00"], [36, "00"]], "digests": "0" * 32, "stand_ins": {"x": 1}},
        {"chunk": True, "files": [[34, "00"], [36, "00"]], "digests": "0" * 32},
        {"chunk": [], "files": [[34, "00"], [36, "00"]], "digests": "0" * 32},
        {"skip": 1, "from": 0},
        {"skip": [1], "from": 0},
        {"skip": [{}], "from": 0},
        {"skip": [SKIPPED]},
        {"skip": [SKIPPED], "from": -1},
        {"skip": [SKIPPED | {"position": 10}], "from": 5},
        {"skip": [SKIPPED | {"position": 10**400}], "from": 5},
        {"skip": [SKIPPED | {"member": 1}], "from": 5},
        {"skip": [SKIPPED | {"position": position} for position in range(10)], "from": 5},
    ],
)
def test_a_journal_that_no_run_has_written_is_refused_and_given_up_on_demand(
    tmp_path: Path, line: dict[str, Any]
) -> None:
    source = begun(tmp_path, on_error="fail")
    journal = tmp_path / ".out.partial" / "journal"
    with journal.open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(
        StateMismatchError, match=r"a journal, .*/journal, that is damaged: remove .*--overwrite"
    ) as caught:
        preprocess(source, tmp_path / "out", 2, chunk_bytes=1, on_error="skip")
    assert len(str(caught.value)) < 1000
    result = execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1, overwrite=True))
    assert result.resumed_samples == 0


@pytest.mark.parametrize(
    "line", [b"[" * 200_000, b'{"x": ' * 200_000, b'{"x": ' + b"[" * 900 + b"]" * 900 + b"}"]
)
def test_a_line_of_a_journal_that_cannot_be_parsed_is_its_end(tmp_path: Path, line: bytes) -> None:
    source = begun(tmp_path)
    journal = tmp_path / ".out.partial" / "journal"
    before = journal.read_bytes()
    journal.write_bytes(before + line + b"\n")
    assert execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1)).resumed_samples == 8
    begun(tmp_path / "again")
    (tmp_path / "again" / ".out.partial" / "journal").write_bytes(line + b"\n" + before)
    plan = plan_preprocess(tmp_path / "again" / "in", tmp_path / "again" / "out", 2, chunk_bytes=1)
    assert execute(plan).resumed_samples == 0


@pytest.mark.parametrize("entry", ["journal", "names"])
def test_a_pipe_or_an_endless_file_in_an_unfinished_store_does_not_hold_a_plan_up(
    tmp_path: Path, entry: str
) -> None:
    source = begun(tmp_path)
    place = tmp_path / ".out.partial" / entry
    place.unlink()
    os.mkfifo(place)
    plan = plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1)
    with pytest.raises(MmaploadError, match=f"{entry} is no file.*move it away"):
        check_unfinished(plan)
    place.unlink()
    place.touch()
    os.truncate(place, 6 * 2**30)
    if entry == "journal":
        check_unfinished(plan)  # it is as good as none
    else:
        with pytest.raises(StateMismatchError, match="another sample 0") as caught:
            check_unfinished(plan)
        assert len(str(caught.value)) < 2500


def test_a_pipe_in_the_place_of_a_chunk_file_is_replaced_by_a_file(tmp_path: Path) -> None:
    source = begun(tmp_path)
    place = tmp_path / ".out.partial" / "store" / "x" / "c.0.0.0"
    place.unlink()
    os.mkfifo(place)
    assert execute(plan_preprocess(source, tmp_path / "out", 2, chunk_bytes=1)).resumed_samples == 6
    assert (tmp_path / "out" / "x" / "c.0.0.0").is_file()


def test_a_second_process_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(out, 0.05)
    wait_for_chunks(out, 1)
    with pytest.raises(MmaploadError, match=f"process {process.pid} is writing"):
        preprocess(CountedSource(200), out, 4, overwrite=True)
    process.kill()
    process.communicate()
    # The lock of a dead process does not count.
    preprocess(CountedSource(200), out, 4, overwrite=True)
    with (
        WorkFolder(str(out)) as work,
        pytest.raises(MmaploadError, match=f"process {os.getpid()} is writing"),
    ):
        preprocess(CountedSource(200), out, 4, overwrite=True)
    work.discard()


def test_a_sequence_resumes_where_it_stopped_and_notices_other_contents(tmp_path: Path) -> None:
    values = samples(50)
    broken = [*values[:45], {"x": 1}, *values[46:]]
    for jobs in (1, 3):
        out = tmp_path / f"out{jobs}"
        with pytest.raises(SourceError, match="sample 45"):
            preprocess(broken, out, 4, chunk_bytes=1, jobs=jobs)
        other = [*values[:16], values[0], *values[17:]]
        with pytest.raises(StateMismatchError, match="sample 16 that has changed"):
            preprocess(other, out, 4, chunk_bytes=1, jobs=jobs)
        with pytest.raises(StateMismatchError, match="another number"):
            preprocess(values[:-1], out, 4, chunk_bytes=1, jobs=jobs)
        result = execute(plan_preprocess(values, out, 4, chunk_bytes=1, jobs=jobs))
        assert result.resumed_samples == 44
        preprocess(values, tmp_path / f"wanted{jobs}", 4, chunk_bytes=1)
        assert tree(out) == tree(tmp_path / f"wanted{jobs}")


def test_what_an_iterable_left_is_refused_by_name(tmp_path: Path) -> None:
    with WorkFolder(str(tmp_path / "out")) as work:
        Path(work.journal).write_text(json.dumps({"resumable": False, "kind": "iterable"}) + "\n")
    for source in (iter(samples(3)), samples(3)):
        with pytest.raises(StateMismatchError, match=r"cannot be taken up again.*--overwrite"):
            preprocess(source, tmp_path / "out", 2)
    assert len(preprocess(iter(samples(3)), tmp_path / "out", 2, overwrite=True)) == 3
