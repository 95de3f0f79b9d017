"""What runs in a process that reads samples; `python -m mmapload.checking.worker DESCRIPTOR`."""

from __future__ import annotations

import contextlib
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from mmapload.checking.reading import Reader

__all__ = ["main"]


def main(descriptor: int) -> None:
    """Read the sources that come through a connection, and send what was found, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError), Connection(descriptor) as connection:
        reader = Reader(connection.recv())
        connection.send(True)
        while True:
            source: Any = connection.recv()
            try:
                found: Any = reader.read(source, range(len(source)))
            except Exception as error:  # noqa: BLE001 - whoever asked raises it
                found = error
            connection.send(found)


if __name__ == "__main__":
    main(int(sys.argv[1]))
