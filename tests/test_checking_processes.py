"""`check` of many small files: read by processes, told as by one thread, and none of them stays behind."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import pytest

from mmapload.checking import blocks, check, processes
from mmapload.checking.processes import Processes
from mmapload.checking.reading import Usual
from mmapload.errors import MmaploadError
from mmapload.sources.listing import list_files
from mmapload.sources.npyfiles import NpySource
from mmapload.sources.npz import NpzSource
from mmapload.sources.objects import ObjectNpzSource
from tests.npz_files import npz_bytes
from tests.preprocessing_cases import damage, samples, write_npz

if TYPE_CHECKING:
    from mmapload.checking import CheckReport


@pytest.fixture
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_ENOUGH", 10)
    monkeypatch.setattr(blocks, "_MOST_IN_BLOCK", 7)


def refuse(*_: Any) -> NoReturn:
    raise AssertionError("read in this process")


def told(report: CheckReport) -> tuple[Any, ...]:
    outliers = [(each.field, str(each.found), each.samples.tolist()) for each in report.outliers]
    values = [(each.field, each.nan, each.inf, each.samples.tolist()) for each in report.non_finite]
    return report.samples, report.nbytes, report.faults, outliers, values, report.schema


@pytest.mark.usefixtures("few_are_many")
def test_processes_find_what_one_thread_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = samples(60)
    values[0] = {"x": values[0]["x"]}
    values[20]["y"][2] = np.nan
    values[33]["x"] = np.zeros((3, 6), "u1")
    values[59]["z"] = np.zeros(1)
    source = write_npz(tmp_path / "in", values)
    damage(source / "s41.npz")
    (source / "s58.npz").write_bytes(b"")
    one = check(source, jobs=1)
    assert [fault.index for fault in one.faults] == [41, 58]
    monkeypatch.setattr(NpzSource, "read", refuse)
    assert told(check(source, jobs=2)) == told(one)


@pytest.mark.usefixtures("few_are_many")
def test_npy_files_and_renamed_fields_are_read_by_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    monkeypatch.setattr(NpySource, "read", refuse)
    report = check(tmp_path, jobs=2, fields="data=x")
    assert report.sound
    assert list(report.schema) == ["x"]


@pytest.mark.usefixtures("few_are_many")
def test_where_no_interpreter_can_be_started_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_npz(tmp_path / "in", samples(30))
    for executable in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", executable)
        assert check(source, jobs=2).sound


def test_a_process_that_is_killed_is_an_error_and_no_sample_counts_as_read(tmp_path: Path) -> None:
    source = NpzSource(list_files([write_npz(tmp_path / "in", samples(4))]))
    readers = Processes(source, Usual(source.schema(0)))
    try:
        assert readers.read(range(2)).samples == 2
        (process,) = readers._started
        os.kill(process._process.pid, signal.SIGKILL)
        with pytest.raises(MmaploadError, match=r"status -9, at one of .*s2.npz to .*s3.npz"):
            readers.read(range(2, 4))
    finally:
        readers.stop()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found


def is_there(pid: int) -> bool:
    try:
        return "(python" in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """So many samples that processes read them, each of which takes a while."""
    first = tmp_path / "in" / "0.npz"
    first.parent.mkdir()
    first.write_bytes(npz_bytes({"x": np.zeros(4 << 20, "u1")}, deflate=True))
    for index in range(1, 2500):
        os.link(first, first.with_name(f"{index}.npz"))
    return first.parent


def begun(source: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """Begin to check a source; returns the process, and those that read for it."""
    command = [sys.executable, "-m", "mmapload", "check", str(source), "--jobs", "2"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1], start_new_session=True
    )
    while process.poll() is None and len(found := children(process.pid)) < 2:
        time.sleep(0.01)
    time.sleep(0.3)
    return process, found


def expect_gone(found: list[int]) -> None:
    for _ in range(1000):
        if not any(map(is_there, found)):
            return
        time.sleep(0.01)
    pytest.fail("a process is still there")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_however_a_check_ends_no_process_of_it_stays(many: Path, number: signal.Signals) -> None:
    """Ctrl-C goes to every process of the terminal's group; kill -9 can be told to nobody."""
    process, found = begun(many)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=60)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted after " in said
        assert "of 2,500 samples; 0 of them cannot be read" in said
        assert "Traceback" not in said
    expect_gone(found)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="there is no /proc")
def test_a_second_ctrl_c_ends_a_check_at_once_and_no_process_of_it_stays(many: Path) -> None:
    for _ in range(10):  # the first may have ended it before the second comes
        process, found = begun(many)
        assert process.stderr is not None
        os.killpg(process.pid, signal.SIGINT)
        while "Ctrl-C again stops at once" not in (line := process.stderr.readline()):
            assert line, "it ended without a word"
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in said
        expect_gone(found)
        if "stopped at once" in said:
            return
        assert "interrupted after " in said
    pytest.fail("no second Ctrl-C came in time")


def test_parts_of_a_source_are_read_as_the_whole_is(tmp_path: Path) -> None:
    for number in range(6):
        strokes = np.empty(2, object)
        strokes[0], strokes[1] = np.zeros((number + 1, 2)), np.zeros((3, 2))
        np.savez(tmp_path / f"{number}.npz", strokes=strokes)
    source = ObjectNpzSource(list_files([tmp_path]), ragged=["strokes"])
    part = pickle.loads(pickle.dumps(source.part(range(2, 5))))
    assert [part.name(index) for index in range(len(part))] == ["2.npz", "3.npz", "4.npz"]
    assert [part.schema(index) for index in range(3)] == [source.schema(index) for index in range(2, 5)]
