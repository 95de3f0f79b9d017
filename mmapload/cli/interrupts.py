"""Ctrl-C during long work: once stops it cleanly, twice stops it now."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["interruptible"]

_FIRST: Final = b"\nmmapload: stopping after what is being read and written; Ctrl-C again stops at once\n"
_SECOND: Final = b"\nmmapload: stopped at once\n"
_STATUS: Final = 130


@contextmanager
def interruptible(advice: str = "") -> Iterator[None]:
    """Let the first SIGINT raise KeyboardInterrupt, and a second one end the process where it stands.

    Files that are being written stay as after a crash, which is what a resumed run expects.

    Parameters
    ----------
    advice : str
        What to add to the last line before the process ends, how to go on for instance.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(_number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGINT, second)
        _tell(_FIRST)
        raise KeyboardInterrupt

    def second(_number: int, _frame: FrameType | None) -> None:
        # No handler, buffer or thread that hangs may hold this up.
        _tell(_SECOND + advice.encode("utf-8", "backslashreplace"))
        os._exit(_STATUS)

    before = signal.getsignal(signal.SIGINT)
    if (
        before is not signal.default_int_handler
    ):  # ignored, as in the background of a shell, or a caller's own
        yield
        return
    signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _tell(text: bytes) -> None:
    try:
        os.write(2, text)
    except OSError:
        return
