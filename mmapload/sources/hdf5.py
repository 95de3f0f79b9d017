"""Arrays in HDF5 files, by h5py.

Only what lies in the file itself is read: external links, external data and virtual datasets lead to other
files, where a missing one would read as fill values.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import MmaploadError, SourceError
from mmapload.sources.arrays import explained_read
from mmapload.sources.plainfiles import open_plain
from mmapload.sources.signatures import FIRST_BYTES, kind_of
from mmapload.sources.stored import rows_at_once

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mmapload.sources.stored import StoredArray

__all__ = ["Hdf5Format", "StoredDataset", "datasets_in", "opened_hdf5"]

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
_MOST_LEVELS: Final = 32
_OTHER_FILE: Final = (
    "is {}, which leads to another file: give that one, or leave it out by naming the others: --fields a,b"
)


class Hdf5Format:
    """Datasets of HDF5 files, by their paths from the root without the first `/`."""

    kind = "hdf5"
    parallel = False  # the library reads for one thread at a time

    @contextmanager
    def open(self, path: str) -> Iterator[Mapping[str, StoredArray]]:
        """Open a file and list its datasets.

        Raises
        ------
        SourceError
            If h5py is missing, or the file is no HDF5 file; says what it is instead.
        """
        with opened_hdf5(path) as file:
            yield _Datasets(path, datasets_in(file, path))


@contextmanager
def opened_hdf5(path: str) -> Iterator[Any]:
    """Open an HDF5 file to be read; see `Hdf5Format.open`."""
    h5py = _library(path)
    open_plain(path).close()  # the library would wait for whoever writes into a pipe
    try:
        file = h5py.File(path, "r", locking="best-effort")
    except Exception as error:
        if isinstance(error, OSError) and (instead := _instead(path)):
            raise SourceError(path, None, instead) from None
        raise explained_read(error, path) from error
    with file:
        yield file


def _library(path: str) -> Any:
    try:
        import h5py
    except ImportError:
        raise SourceError(
            path, None, 'HDF5 files are read by h5py, which is not installed: pip install "mmapload[hdf5]"'
        ) from None
    return h5py


def _instead(path: str) -> str | None:
    """Say what a file is that is no HDF5 file; None if it is one, or cannot be read."""
    try:
        with open(path, "rb") as file:
            first = file.read(FIRST_BYTES)
            file.seek(512)  # where the signature is, if a MATLAB header or the like is in front
            second = file.read(len(_SIGNATURE))
    except OSError:
        return None
    if _SIGNATURE in {first[: len(_SIGNATURE)], second}:
        return None
    what, advice = kind_of(first)
    return f"not an HDF5 file but {what}: {advice}"


def datasets_in(file: Any, path: str, skip: Collection[str] = ()) -> dict[str, Any]:
    """List all datasets of a file by their paths, and errors in the place of those that lie elsewhere.

    Parameters
    ----------
    file : h5py.File
        Open.
    path : str
        For messages.
    skip : collection of str
        Groups that hold what others refer to, not data of their own.
    """
    found: dict[str, Any] = {}
    _collect(file, path, "", {hash(file.id), *(hash(file[key].id) for key in skip if key in file)}, found)
    return found


def _collect(group: Any, path: str, above: str, seen: set[int], found: dict[str, Any]) -> None:
    """List what is in a group; one that several links lead to, under the first of its names."""
    import h5py

    for key in group:
        name = above + key
        link = group.get(key, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            found[name] = SourceError(path, name, _OTHER_FILE.format(f"a link to {link.filename}"))
            continue
        try:
            child = group[key]
        except (KeyError, OSError, RuntimeError) as error:
            found[name] = SourceError(path, name, f"a link that leads nowhere ({error})")
            continue
        if isinstance(child, h5py.Dataset):
            found[name] = child
        elif isinstance(child, h5py.Group) and hash(child.id) not in seen:
            seen.add(hash(child.id))
            if name.count("/") >= _MOST_LEVELS:
                raise SourceError(path, name, f"lies deeper than in {_MOST_LEVELS} groups")
            _collect(child, path, name + "/", seen, found)


class _Datasets(Mapping[str, "StoredDataset"]):
    """The arrays of an open file."""

    def __init__(self, path: str, datasets: Mapping[str, Any]) -> None:
        self._path = path
        self._datasets = datasets

    def __iter__(self) -> Iterator[str]:
        return iter(self._datasets)

    def __len__(self) -> int:
        return len(self._datasets)

    def __getitem__(self, name: str) -> StoredDataset:
        dataset = self._datasets[name]
        if isinstance(dataset, MmaploadError):
            raise dataset
        return StoredDataset(self._path, name, dataset)


@dataclass(frozen=True, slots=True)
class StoredDataset:
    """A dataset in an open file.

    Attributes
    ----------
    path, name : str
        For messages.
    dataset : h5py.Dataset
        Its data lies in this file, and is more than a shape.
    """

    path: str
    name: str
    dataset: Any

    def __post_init__(self) -> None:
        if self.dataset.shape is None:
            raise self._error("is an empty dataset, without shape and data")
        if self.dataset.is_virtual:
            raise self._error(_OTHER_FILE.format("a virtual dataset"))
        if self.dataset.external:
            raise self._error(_OTHER_FILE.format("a dataset whose data lie outside"))

    def _error(self, cause: str) -> SourceError:
        return SourceError(self.path, self.name, cause)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its lengths."""
        shape: tuple[int, ...] = self.dataset.shape
        return shape

    @property
    def chunked(self) -> bool:
        """Whether the file keeps it in chunks, compressed perhaps."""
        return self.dataset.chunks is not None

    @property
    def rows(self) -> int:
        """Rows in a chunk, or in about 1 MiB."""
        chunks = self.dataset.chunks
        return rows_at_once(self.shape, self.dataset.dtype.itemsize, chunks[0] if chunks else None)

    def read(self, start: int | None = None, stop: int | None = None) -> Any:
        """Read these rows, or the whole dataset."""
        import h5py

        source = self.dataset
        text = h5py.check_string_dtype(source.dtype)
        if text is not None and text.length is None:
            source = source.asstr() if text.encoding == "utf-8" else source
        try:
            return source[...] if start is None else source[start:stop]
        except Exception as error:
            raise explained_read(error, self.path, self.name) from error
