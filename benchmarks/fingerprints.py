"""Tell samples apart by a few of their bytes, so that what a loader delivered can be checked exactly.

A fingerprint is up to 32 bytes of each field, spread evenly over the sample, side by side. It is read from
the source by numpy alone, and from the fixed buffer that every batch is copied to: the same small work for
every loader.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from mmapload.layout import FieldLayout

BYTES_PER_FIELD: Final = 32


class WrongSamplesError(Exception):
    """A loader delivered something else than every sample of the source once."""


@dataclass(frozen=True, slots=True)
class Came:
    """What came, against what had to: numbers of samples.

    Attributes
    ----------
    count : int
        All that came.
    lacking : int
        Those that did not come.
    repeated : int
        Those that came again.
    foreign : int
        Those that are no samples of the source.
    """

    count: int
    lacking: int
    repeated: int
    foreign: int


def positions(nbytes: int) -> npt.NDArray[np.int64]:
    """Choose the bytes of a sample of this size that are looked at."""
    return np.linspace(0, max(nbytes - 1, 0), min(BYTES_PER_FIELD, nbytes)).astype(np.int64)


def of_source(files: Iterable[str], fields: Sequence[FieldLayout]) -> Counter[bytes]:
    """Read every file and count the fingerprints found.

    Raises
    ------
    WrongSamplesError
        If a file has no array that the store has, or one of another shape.
    """
    found: Counter[bytes] = Counter()
    for file in files:
        parts = []
        with np.load(file) as arrays:
            for field in fields:
                if field.name not in arrays.files:
                    raise WrongSamplesError(
                        f"{file} has no array {field.name!r}, and the store has a field of that name"
                    )
                array = np.ascontiguousarray(arrays[field.name], field.dtype)
                if array.size != math.prod(field.shape):
                    raise WrongSamplesError(
                        f"{field.name!r} of {file} has shape {array.shape}, and of the store {field.shape}"
                    )
                parts.append(array.reshape(-1).view(np.uint8)[positions(field.sample_nbytes)])
        found[np.concatenate(parts).tobytes()] += 1
    return found


class FixedBuffer:
    """Where each batch is copied to, once: in place of a device. Remembers whose samples they were.

    Parameters
    ----------
    fields : sequence of FieldLayout
        Of the store.
    batch : int
        Samples of a full batch.
    expected : Counter of bytes
        The fingerprints that have to come in an epoch.
    spare : int
        How many more samples may come, until that is an error at once.
    """

    def __init__(
        self, fields: Sequence[FieldLayout], batch: int, expected: Counter[bytes], spare: int = 0
    ) -> None:
        self._expected = expected
        self._targets: dict[str, torch.Tensor] = {}
        self._chosen: list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]] = []
        for field in fields:
            array: npt.NDArray[Any] = np.empty((batch, *field.shape), field.dtype)
            array.fill(1)  # fresh memory is slow to write to, and it is no loader's fault
            self._targets[field.name] = torch.from_numpy(array)
            rows = array.reshape(batch, math.prod(field.shape)).view(np.uint8)
            self._chosen.append((rows, positions(field.sample_nbytes)))
        # In one piece, made before: small objects that stay, put down batch after batch between the loader's
        # large ones, would keep their memory from being used again.
        width = sum(len(at) for _, at in self._chosen)
        self._seen = np.zeros((expected.total() + spare, width), np.uint8)
        self._count = 0

    def take(self, batch: dict[str, torch.Tensor]) -> None:
        """Copy a batch, and note the fingerprints of its samples.

        Raises
        ------
        WrongSamplesError
            If fields, shapes or dtypes are not the store's, or too many samples came.
        """
        if batch.keys() != self._targets.keys():
            raise WrongSamplesError(f"a batch has the fields {list(batch)}, not {list(self._targets)}")
        count = 0
        for name, target in self._targets.items():
            tensor = batch[name]
            count = len(tensor)
            if tensor.dtype != target.dtype or tensor.shape[1:] != target.shape[1:]:
                raise WrongSamplesError(
                    f"{name!r} came as {tensor.dtype} {tuple(tensor.shape)}, not as {target.dtype} "
                    f"{tuple(target.shape)}"
                )
            target[:count].copy_(tensor)
        start, self._count = self._count, self._count + count
        if self._count > len(self._seen):
            raise WrongSamplesError(f"more than {len(self._seen)} samples came")
        column = 0
        for rows, at in self._chosen:
            self._seen[start : self._count, column : column + len(at)] = rows[:count, at]
            column += len(at)

    def compare(self) -> Came:
        """Compare what has come since the last time with what had to, and forget it."""
        seen = Counter(row.tobytes() for row in self._seen[: self._count])
        count, self._count = self._count, 0
        lacking, surplus = self._expected - seen, seen - self._expected
        repeated = sum(times for key, times in surplus.items() if key in self._expected)
        return Came(count, lacking.total(), repeated, surplus.total() - repeated)

    def check(self) -> None:
        """Compare likewise, where every sample has to come once.

        Raises
        ------
        WrongSamplesError
            If it was not every sample once.
        """
        came = self.compare()
        surplus = came.repeated + came.foreign
        if came.lacking or surplus:
            told = f"{came.lacking} did not come, and {surplus} came that should not"
            raise WrongSamplesError(f"of {self._expected.total()} samples {told}")
