"""Progress: a bar on a terminal, sparse lines elsewhere, nothing when quiet; always on standard error."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from mmapload.progress import BarProgress, LineProgress, SilentProgress, progress_to

if TYPE_CHECKING:
    from pathlib import Path

MIB = 2**20


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_kind_fits_the_stream() -> None:
    assert isinstance(progress_to(io.StringIO()), LineProgress)
    assert isinstance(progress_to(Terminal()), BarProgress)
    assert isinstance(progress_to(Terminal(), quiet=True), SilentProgress)


@pytest.mark.parametrize(("rows", "columns", "kind"), [(40, 100, BarProgress), (0, 0, LineProgress)])
def test_a_terminal_that_tells_no_size_gets_lines(rows: int, columns: int, kind: type) -> None:
    ours, theirs = os.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with open(theirs, "w", closefd=False) as terminal:
            assert isinstance(progress_to(terminal), kind)
    finally:
        os.close(ours)
        os.close(theirs)


def test_lines_come_soon_then_every_half_minute_and_at_the_end() -> None:
    now = 100.0
    stream = io.StringIO()
    progress = LineProgress(stream, lambda: now)
    progress.start(1000, MIB, done=100)
    for second in range(1, 91):
        now = 100.0 + second
        progress.at(100 + 10 * second)
    now += 3
    progress.close()
    assert stream.getvalue().splitlines() == [
        "150 of 1,000 samples, 150 MiB, 10 MB/s, 0:05, 1:25 left",
        "450 of 1,000 samples, 450 MiB, 10 MB/s, 0:35, 0:55 left",
        "750 of 1,000 samples, 750 MiB, 10 MB/s, 1:05, 0:25 left",
        "1,000 of 1,000 samples, 1000 MiB, 10 MB/s, 1:33",
    ]


def test_the_time_left_follows_a_rate_that_falls() -> None:
    """As when the first samples were in the page cache, and the others have to come from the disk."""
    now, done = 0.0, 0
    stream = io.StringIO()
    progress = LineProgress(stream, lambda: now)
    progress.start(100_000, MIB)
    for second in range(1, 361):
        now, done = float(second), done + (100 if second <= 150 else 10)
        progress.at(done)
    last = stream.getvalue().splitlines()[-1]
    left = (100_000 - 15_000 - 10 * 185) // 10
    assert last.endswith(f", 5:35, {left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")


def test_a_number_that_nobody_knows_is_left_out() -> None:
    now = 0.0
    stream = io.StringIO()
    progress = LineProgress(stream, lambda: now)
    progress.start(None, MIB)
    now = 3700.0
    progress.at(7400)
    assert stream.getvalue() == "7,400 samples, 7.23 GiB, 2 MB/s, 1:01:40\n"


def test_notes_are_lines_and_nothing_else_is_said_before_the_start() -> None:
    stream = io.StringIO()
    progress = LineProgress(stream)
    progress.note("resuming")
    progress.close()
    assert stream.getvalue() == "resuming\n"


def test_a_bar_shows_samples_rate_and_follows_when_work_is_done_again() -> None:
    stream = Terminal()
    progress = BarProgress(stream)
    progress.note("before")
    progress.start(1000, MIB, done=10)
    progress.at(500)
    progress.at(400)
    progress.note("between")
    progress.at(1000)
    progress.close()
    text = stream.getvalue()
    assert text.startswith("before\n")
    assert "between\n" in text
    assert "10/1000" in text
    assert "1000/1000" in text
    assert "MB/s" in text


SCRIPT = """
import sys
from mmapload.preprocessing import preprocess
preprocess([{"x": i} for i in range(10)], sys.argv[1], 2, quiet=False)
"""


def test_preprocess_draws_a_bar_on_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out")], stdout=subprocess.PIPE, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(ours, 4096):
            shown += piece
    except OSError:
        pass  # the other side is closed
    finally:
        os.close(ours)
    assert process.communicate()[0] == b""
    assert process.returncode == 0
    assert b"10/10" in shown


def test_preprocess_writes_lines_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert done.stdout == ""
    assert done.stderr.startswith("10 of 10 samples, 80 B, ")
