"""Read samples in processes of their own: of many small files, the interpreter would hold threads up.

Each process is given a few files at a time by their names, so that nothing grows with the source. It is a
fresh interpreter: nothing is forked, and the caller's own script is not run again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final, Protocol

from mmapload.checking.reading import Reader
from mmapload.errors import MmaploadError
from mmapload.sources import IndexedSource

if TYPE_CHECKING:
    from mmapload.checking.reading import Block, Usual

__all__ = ["Divisible", "Processes", "processes_pay"]

_ENOUGH: Final = 2000
"""Samples from which on it pays to start interpreters, a third of a second each."""


class Divisible(IndexedSource, Protocol):
    """A source that can be sent to another process in parts."""

    def part(self, indices: range) -> IndexedSource:
        """Return a source of these samples, small enough to be sent."""


def processes_pay(source: IndexedSource) -> bool:
    """Whether a source is better read by several processes than by several threads."""
    return hasattr(source, "part") and len(source) >= _ENOUGH and bool(sys.executable)


class Processes:
    """A process for every thread that reads; where none can be started, the thread reads itself.

    Parameters
    ----------
    source : Divisible
        Where the samples are.
    usual : Usual
        What a sample is first tried to be read as.
    """

    def __init__(self, source: Divisible, usual: Usual) -> None:
        self._source = source
        self._usual = usual
        self._own = threading.local()
        self._lock = threading.Lock()
        self._started: list[_Process] = []
        self._stopped = threading.Event()

    def read(self, indices: range) -> Block:
        """Read samples.

        Raises
        ------
        MmaploadError
            If the process ends meanwhile.
        """
        if not hasattr(self._own, "reader"):
            self._own.reader = self._start() or Reader(self._usual, self._stopped)
        reader: _Process | Reader = self._own.reader
        if isinstance(reader, Reader):
            return reader.read(self._source, indices)
        return reader.read(self._source.part(indices)).moved(indices.start)

    def stop(self) -> None:
        """End all processes where they stand: they only read."""
        self._stopped.set()
        with self._lock:
            for process in self._started:
                process.end()

    def _start(self) -> _Process | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            try:
                process = _Process()
            except OSError:
                return None
            self._started.append(process)
        return process if process.begin(self._usual) else None


class _Process:
    """An interpreter that reads samples, and the connection to it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [sys.executable, "-P", "-m", "mmapload.checking.worker", str(theirs.fileno())]
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the caller
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            self._connection = Connection(ours.detach())

    def begin(self, usual: Usual) -> bool:
        """Tell what samples usually have; returns whether there is an answer."""
        with contextlib.suppress(OSError, EOFError):
            self._connection.send(usual)
            return bool(self._connection.recv())
        return False

    def read(self, source: IndexedSource) -> Block:
        """Read a whole source."""
        try:
            self._connection.send(source)
            found: Any = self._connection.recv()
        except (OSError, EOFError):
            status = self._process.wait()
            first, last = source.describe(0), source.describe(len(source) - 1)
            raise MmaploadError(
                f"a process that read samples ended with status {status}, at one of {first} to {last}: "
                "the system may have lacked memory; --jobs 1 reads them one by one"
            ) from None
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]

    def end(self) -> None:
        self._process.kill()  # and whoever waits for an answer gets none
        self._process.wait()
