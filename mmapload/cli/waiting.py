"""Say that something goes on which takes a while and cannot say how far it is: how long it has taken."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["telling"]

_FIRST_SECONDS: Final = 2.0
_MOST_SECONDS: Final = 30.0


@contextmanager
def telling(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Tell on standard error, after two seconds and then ever more rarely, what is going on.

    Parameters
    ----------
    what : str
        Such as "looking at the source".
    quiet : bool
        Whether to tell nothing.
    """
    if quiet:
        yield
        return
    ended = threading.Event()
    began = time.monotonic()

    def tell() -> None:
        pause = _FIRST_SECONDS
        while not ended.wait(pause):
            print(f"{what}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            pause = min(2 * pause, _MOST_SECONDS)

    teller = threading.Thread(target=tell, name="mmapload-telling", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
