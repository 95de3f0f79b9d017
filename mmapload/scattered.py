"""Copy many pieces of memory at once, without the interpreter: a call for each costs more than its bytes.

`process_vm_readv` (Linux, man 2) copies between lists of pieces, of a process's own memory too.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]

__all__ = ["copy_pieces"]

LARGE_BYTES: Final = 2**16
"""From this size on a piece is copied by a call of its own: the system would look up each of its pages."""

MOST_PIECES: Final = 1024
"""Of one call: `IOV_MAX` of Linux."""

_readv: Final[Any] = getattr(ctypes.CDLL(None, use_errno=True), "process_vm_readv", None)
if _readv is not None:
    _readv.restype = ctypes.c_ssize_t
    _readv.argtypes = (ctypes.c_int, *[ctypes.c_void_p, ctypes.c_ulong] * 2, ctypes.c_ulong)


def copy_pieces(targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
    """Copy pieces of memory, none of which overlap; releases the GIL meanwhile.

    Parameters
    ----------
    targets, sources : ndarray of int64
        Addresses. The caller holds what lies there.
    lengths : ndarray of int64
        Bytes of each piece.

    Examples
    --------
    >>> memory, room = np.arange(6, dtype=np.uint8), np.zeros(3, np.uint8)
    >>> lows, begins = np.array([0, 1]), np.array([4, 1])
    >>> copy_pieces(room.ctypes.data + lows, memory.ctypes.data + begins, np.array([1, 2]))
    >>> room.tolist()
    [4, 1, 2]
    """
    large = lengths >= LARGE_BYTES
    if large.any():
        _copy_each(targets[large], sources[large], lengths[large])
        targets, sources, lengths = targets[~large], sources[~large], lengths[~large]
    for start in range(0, len(lengths), MOST_PIECES):
        part = slice(start, start + MOST_PIECES)
        if not _copy_at_once(targets[part], sources[part], lengths[part]):
            _copy_each(targets[part], sources[part], lengths[part])


def _copy_at_once(targets: Numbers, sources: Numbers, lengths: Numbers) -> bool:
    """Copy up to `MOST_PIECES` with one call; False where a system has none, or does not allow it."""
    if _readv is None:
        return False
    pieces = np.empty((2, len(lengths), 2), np.int64)
    pieces[0, :, 0], pieces[1, :, 0], pieces[:, :, 1] = targets, sources, lengths
    first = pieces.ctypes.data
    done = _readv(os.getpid(), first, len(lengths), first + pieces.strides[0], len(lengths), 0)
    return bool(done == lengths.sum())


def _copy_each(targets: Numbers, sources: Numbers, lengths: Numbers) -> None:
    for target, source, length in zip(*(each.tolist() for each in (targets, sources, lengths)), strict=True):
        ctypes.memmove(target, source, length)
