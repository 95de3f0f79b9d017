"""The list of samples that were left out, beside the store."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from typing import TYPE_CHECKING, Final

from mmapload.writer.durable import explained, open_regular, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mmapload.errors import SourceError
    from mmapload.preprocessing.build import SkippedSample
    from mmapload.progress import Progress

__all__ = ["SkippedTold", "remove_skipped", "skipped_path", "write_skipped"]

_MOST_TOLD: Final = 10


class SkippedTold:
    """Tells the first samples that are left out, each as soon as it is found and once.

    Parameters
    ----------
    progress : Progress
        Whom to tell.
    out : str
        The store, beside which all will be listed.
    """

    def __init__(self, progress: Progress, out: str) -> None:
        self._progress = progress
        self._out = out
        self._told: set[int] = set()

    def tell(self, bad: Iterable[tuple[int, SourceError]]) -> None:
        """Tell of samples, by their numbers in the source."""
        for index, error in bad:
            if index in self._told or len(self._told) > _MOST_TOLD:
                continue
            self._told.add(index)
            if len(self._told) <= _MOST_TOLD:
                self._progress.note(f"left out: {error}")
            else:
                self._progress.note(f"left out: more; all will be listed in {skipped_path(self._out)}")


def skipped_path(out: str) -> str:
    """Return the file that lists what was left out of the store at `out`."""
    return f"{out}.skipped.jsonl"


def write_skipped(out: str, skipped: Iterable[SkippedSample], *, more: bool = False) -> None:
    """List what was left out, if anything was.

    Parameters
    ----------
    out : str
        The store.
    more : bool
        Whether it comes behind what is listed already, unless it is listed already itself.
    """
    path = skipped_path(out)
    lines = [json.dumps(dataclasses.asdict(each)) + "\n" for each in skipped]
    if lines:
        before = ""
        if more and os.path.exists(path):
            with open_regular(path) as file:
                before = file.read().decode()
        text = before.removesuffix("".join(lines)).encode() + "".join(lines).encode()
        with explained(path, len(text)):
            write_durably(path, [text])


def remove_skipped(out: str) -> None:
    """Remove the list, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(skipped_path(out))
