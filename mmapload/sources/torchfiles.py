"""Tensors in `.pt` and `.pth` files, as torch.save writes them; nothing else in them is ever unpickled."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError
from mmapload.sources.arrays import explained_read
from mmapload.sources.plainfiles import open_plain
from mmapload.sources.signatures import FIRST_BYTES, kind_of
from mmapload.sources.stored import Arrays, InMemory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from mmapload.sources.stored import StoredArray

__all__ = ["TorchFormat"]

_SAFE: Final = (2, 6)
"""Before torch 2.6 `weights_only` could be got round (CVE-2025-32434)."""
_ZIP: Final = b"PK\x03\x04"
_PICKLE: Final = b"\x80"
_MOST_LEVELS: Final = 32
_REFUSED: Final = (
    "holds Python objects besides tensors, dicts and plain values, and those are never unpickled here, for a "
    "pickle runs what it says; save a tensor, or a dict of tensors: torch.save({'image': image}, path)"
)


class TorchFormat:
    """A tensor, or a dict of tensors, in a file; nested dicts too.

    Parameters
    ----------
    single : str
        What a tensor is called that is alone in its file.
    """

    kind = "torch"
    parallel = True

    def __init__(self, single: str) -> None:
        self._single = single

    @contextmanager
    def open(self, path: str) -> Iterator[Mapping[str, StoredArray]]:
        """Load a file, by a map where its format allows.

        Raises
        ------
        SourceError
            If it holds anything but tensors, dicts and numbers, or is no such file.
        """
        import torch

        if tuple(int(part) for part in torch.__version__.split(".")[:2]) < _SAFE:
            raise SourceError(
                path, None, f"reading it safely takes torch 2.6, and {torch.__version__} is there"
            )
        try:
            with open_plain(path) as file:
                first = file.read(FIRST_BYTES)
        except OSError as error:
            raise explained_read(error, path) from error
        if not first.startswith((_ZIP, _PICKLE)):
            what, advice = kind_of(first)
            raise SourceError(path, None, f"not a file of torch.save but {what}: {advice}")
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=first.startswith(_ZIP))
        except Exception as error:
            if type(error).__name__ == "UnpicklingError":
                raise SourceError(path, None, _REFUSED) from None
            raise explained_read(error, path) from error
        found: dict[str, StoredArray | SourceError] = {}
        _collect(loaded, "", path, self._single, found)
        yield Arrays(found)


def _collect(
    value: Any, name: str, path: str, single: str, found: dict[str, StoredArray | SourceError]
) -> None:
    import torch

    if isinstance(value, dict):
        if name.count("/") >= _MOST_LEVELS:
            raise SourceError(path, name, f"lies deeper than in {_MOST_LEVELS} dicts")
        for key, each in value.items():
            if not isinstance(key, str):
                raise SourceError(
                    path, name or None, f"a dict with the key {key!r}: the keys have to be text"
                )
            _collect(each, f"{name}/{key}" if name else key, path, single, found)
    elif isinstance(value, torch.Tensor):
        found[name or single] = InMemory(value)
    elif isinstance(value, (bool, int, float, complex)):
        found[name or single] = InMemory(np.asarray(value))
    else:
        what = f"is neither a tensor nor a number but {type(value).__name__}"
        found[name or single] = SourceError(
            path, name or None, f"{what}: leave it out by naming the others: --fields a,b"
        )
