"""Lists of samples to take: numbers or masks, from files or from Python."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources.archives import header_of, listed, members_by_key, opened, read_array
from mmapload.sources.listing import Listing
from mmapload.sources.npyfiles import NPY_FIELD, NpySource, is_npy

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["Take", "parse_take"]

_LONGEST: Final = 64
"""Characters of a line with a number."""


@dataclass(frozen=True, slots=True, eq=False)
class Take:
    """Which samples of a source are taken.

    Attributes
    ----------
    indices : ndarray of int64, shape (samples,)
        Their numbers in the source, in the order in which they are taken.
    total : int or None
        How many samples the source must have: the length of a mask.
    where : str
        Says in messages where the numbers come from.
    """

    indices: npt.NDArray[np.int64]
    total: int | None
    where: str

    @property
    def rising(self) -> bool:
        """Whether the order is that of the source."""
        return bool((np.diff(self.indices) > 0).all())

    @property
    def note(self) -> str:
        """What changes with the numbers or their order."""
        digest = hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()
        return f"{len(self.indices)} samples, sha256 {digest}"


def parse_take(given: Any) -> Take:
    """Read which samples are to be taken.

    Parameters
    ----------
    given : path, or array of int or bool, shape (samples,)
        Numbers of samples, or for every sample whether it is taken. A path names a text file with a number a
        line, an `.npy` file, or an array in an `.npz` file, as in "split.npz:train".

    Raises
    ------
    ValueError, TypeError
        If it is none of these, is empty, or holds a number twice or below 0; says which.

    Examples
    --------
    >>> parse_take([False, True, True]).indices.tolist()
    [1, 2]
    """
    if isinstance(given, (str, os.PathLike)):
        path = os.fspath(given)
        where = f"take: {path}"
        values = _read_file(path, where)
    else:
        where = "take"
        values = np.asarray(given.detach() if hasattr(given, "detach") else given)
    if values.ndim != 1 or values.dtype.kind not in "iub":
        what = f"an array of {values.dtype} with shape {values.shape}"
        raise ValueError(f"{where}: expected numbers of samples, or true and false, one axis; found {what}")
    total = len(values) if values.dtype.kind == "b" else None
    indices = np.flatnonzero(values).astype(np.int64) if total is not None else _whole(values, where)
    if not len(indices):
        raise ValueError(f"{where}: no sample is named")
    ordered = np.sort(indices)
    if ordered[0] < 0:
        at = int(np.argmin(indices))
        raise ValueError(f"{where}: entry {at} is {indices[at]}, and samples are counted from 0")
    twice = ordered[1:][np.diff(ordered) == 0]
    if len(twice):
        places = np.flatnonzero(indices == twice[0])[:2].tolist()
        more = len(np.unique(twice)) - 1
        also = f", and {more:,} others are" if more else ""
        raise ValueError(
            f"{where}: sample {twice[0]} is named twice, by entries {places[0]} and {places[1]}{also}"
        )
    return Take(indices, total, where)


def _whole(values: npt.NDArray[Any], where: str) -> npt.NDArray[np.int64]:
    if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{where}: {values.max()} is no number of a sample")
    return values.astype(np.int64)


def _read_file(path: str, where: str) -> npt.NDArray[Any]:
    archive, separator, key = path.rpartition(":")
    try:
        if separator and archive.lower().endswith(".npz") and not os.path.exists(path):
            return _read_member(archive, key)
        if path.lower().endswith(".npz"):
            with opened(path) as npz:
                keys = members_by_key(npz)
            if len(keys) > 1:
                raise ValueError(f"{where} has {listed(keys)}: say which, as in {path}:{next(iter(keys))}")
            return _read_member(path, next(iter(keys)))
        if is_npy(path):
            absolute = os.path.abspath(path)
            source = NpySource(Listing(os.path.dirname(absolute), (os.path.basename(absolute),), 0, 0))
            spec = source.schema(0)[NPY_FIELD]
            values = np.empty(spec.shape, spec.dtype)
            source.read(0, {NPY_FIELD: values})
            return values
        return _read_text(path, where)
    except SourceError as error:
        raise ValueError(f"take: {error}") from None
    except OSError as error:
        raise ValueError(f"{where}: cannot be read: {error.strerror}") from None


def _read_member(path: str, key: str) -> npt.NDArray[Any]:
    with opened(path) as npz:
        keys = members_by_key(npz)
        if key not in keys:
            raise SourceError(path, None, f"has no array {shown(key)}; it has {listed(keys)}")
        spec = header_of(npz, keys[key]).spec
        values = np.empty(spec.shape, spec.dtype)
        read_array(npz, key, keys[key], values)
    return values


def _read_text(path: str, where: str) -> npt.NDArray[np.int64]:
    numbers = []
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(iter(lambda: file.readline(_LONGEST), ""), start=1):
            text = line.strip()
            if not text:
                continue
            try:
                numbers.append(int(text))
            except ValueError:
                raise ValueError(
                    f"{where}: line {number} is {shown(text)}, not the number of a sample"
                ) from None
            if abs(numbers[-1]) >= 2**63:
                raise ValueError(f"{where}: line {number} is {text}, no number of a sample")
    return np.array(numbers, np.int64)
