"""Say that something goes on which takes a while: how long it has taken, and how far it has come."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mmapload.progress import duration
from mmapload.stages import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["telling"]

_FIRST_SECONDS: Final = 2.0
_MOST_SECONDS: Final = 30.0


@contextmanager
def telling(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Tell on standard error, after two seconds and then ever more rarely, what is going on.

    What is done within may say by `stages.reached` how far it is.

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
    stage = Stage()

    def tell() -> None:
        pause = _FIRST_SECONDS
        while not ended.wait(pause):
            parts = [str(stage)] if str(stage) else []
            parts.append(f"{time.monotonic() - began:.0f} s")
            if stage.seconds_left is not None:
                parts.append(f"{duration(stage.seconds_left)} left")
            print(f"{what}: {', '.join(parts)}", file=sys.stderr, flush=True)
            pause = min(2 * pause, _MOST_SECONDS)

    teller = threading.Thread(target=tell, name="mmapload-telling", daemon=True)
    teller.start()
    try:
        with stage.heard():
            yield
    finally:
        ended.set()
        teller.join()
