"""Arrays in MATLAB's `.mat` files: of versions 4 to 7.2 by scipy, and of 7.3, which are HDF5 files, by h5py.

Arrays have MATLAB's shapes: at least two axes, rows first. An HDF5 library sees the axes of a 7.3 file in
reverse, since MATLAB writes columns first; they are turned round.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import MmaploadError, SourceError
from mmapload.sources.arrays import explained_read
from mmapload.sources.hdf5 import StoredDataset, datasets_in, opened_hdf5
from mmapload.sources.plainfiles import open_plain
from mmapload.sources.signatures import FIRST_BYTES, kind_of
from mmapload.sources.stored import InMemory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mmapload.sources.stored import StoredArray

__all__ = ["MatlabFormat"]

_V73: Final = b"MATLAB 7.3"
_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_NUMBERS: Final = frozenset(
    [
        "single",
        "double",
        "logical",
        *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    ]
)
_OTHERS: Final = "save numbers, or leave it out by naming the others: --fields a,b"


class MatlabFormat:
    """Variables of `.mat` files that are numbers or logicals."""

    kind = "matlab"
    parallel = False  # scipy holds the interpreter; h5py reads for one thread at a time

    @contextmanager
    def open(self, path: str) -> Iterator[Mapping[str, StoredArray]]:
        """Open a file; one of an old version is read when it is opened, the variables that are asked for.

        Raises
        ------
        SourceError
            If it is no MATLAB file, or the library that reads it is missing.
        """
        try:
            with open_plain(path) as file:
                first = file.read(FIRST_BYTES)
        except OSError as error:
            raise explained_read(error, path) from error
        if first.startswith((_V73, _HDF5)):
            with opened_hdf5(path) as file:
                yield _Turned(path, datasets_in(file, path, skip=("#refs#", "#subsystem#")))
        else:
            yield _Variables(path, _listed(path, first))


def _listed(path: str, first: bytes) -> dict[str, str]:
    """Return the names of all variables and their classes."""
    try:
        from scipy.io import whosmat
    except ImportError:
        raise SourceError(
            path,
            None,
            'MATLAB files are read by scipy, which is not installed: pip install "mmapload[matlab]"',
        ) from None
    try:
        return {name: class_ for name, _, class_ in whosmat(path, appendmat=False)}
    except Exception as error:
        if not first.startswith(b"MATLAB") and not isinstance(error, OSError):
            what, advice = kind_of(first)
            raise SourceError(path, None, f"not a MATLAB file but {what}: {advice}") from None
        raise explained_read(error, path) from error


class _Variables(Mapping[str, InMemory]):
    """The variables of a file of an old version."""

    def __init__(self, path: str, classes: Mapping[str, str]) -> None:
        self._path = path
        self._classes = classes
        self._read: dict[str, InMemory] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._classes)

    def __len__(self) -> int:
        return len(self._classes)

    def __getitem__(self, name: str) -> InMemory:
        from scipy.io import loadmat

        class_ = self._classes[name]
        if class_ not in _NUMBERS:
            raise _no_numbers(self._path, name, class_)
        if name not in self._read:
            try:
                found = loadmat(self._path, appendmat=False, variable_names=[name])[name]
            except Exception as error:
                raise explained_read(error, self._path, name) from error
            self._read[name] = InMemory(found.astype(bool) if class_ == "logical" else found)
        return self._read[name]


def _no_numbers(path: str, name: str, class_: str) -> SourceError:
    return SourceError(path, name, f"of MATLAB's class {class_}, which is not read: {_OTHERS}")


class _Turned(Mapping[str, "StoredArray"]):
    """The variables of a 7.3 file."""

    def __init__(self, path: str, datasets: Mapping[str, Any]) -> None:
        self._path = path
        self._datasets = datasets

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, name: str) -> StoredArray:
        dataset = self._datasets[name]
        if isinstance(dataset, MmaploadError):
            raise dataset
        class_ = dataset.attrs.get("MATLAB_class", b"double")
        class_ = class_.decode("ascii", "replace") if isinstance(class_, bytes) else str(class_)
        if class_ not in _NUMBERS:
            raise _no_numbers(self._path, name, class_)
        if dataset.parent is not None and "MATLAB_sparse" in dataset.parent.attrs:
            raise _no_numbers(self._path, name, "sparse")
        stored = StoredDataset(self._path, name, dataset)
        if dataset.attrs.get("MATLAB_empty", 0):
            shape = tuple(int(length) for length in stored.read().ravel())
            dtype = {"single": "f4", "double": "f8", "logical": "?"}.get(class_, class_)
            return InMemory(np.empty(shape, dtype) if 0 in shape else np.zeros(shape, dtype))
        return _TurnedDataset(stored, logical=class_ == "logical")


@dataclass(frozen=True, slots=True)
class _TurnedDataset:
    """A dataset whose axes MATLAB has in the reverse order; its rows are the last axis in the file."""

    stored: StoredDataset
    logical: bool
    chunked: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths in MATLAB."""
        return self.stored.shape[::-1]

    @property
    def rows(self) -> int:
        """All rows: they lie scattered in the file."""
        return max(1, self.shape[0])

    def read(self, start: int | None = None, stop: int | None = None) -> Any:
        """Read these rows, or the whole array."""
        found = self.stored.read().T
        if found.dtype.names == ("real", "imag"):
            both = np.empty(found.shape, np.result_type(found.dtype["real"], np.complex64))
            both.real, both.imag = found["real"], found["imag"]
            found = both
        found = found.astype(bool) if self.logical else found
        return found if start is None else found[start:stop]
