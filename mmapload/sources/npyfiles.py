"""Samples from `.npy` files: one file is one sample with a single field, called "data" unless renamed."""

from __future__ import annotations

import hashlib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from isal import isal_zlib

from mmapload.errors import SourceError
from mmapload.notes import bytes_of
from mmapload.sources import ArraySpec
from mmapload.sources.absent import absent_fields, fill_advice
from mmapload.sources.archives import listed, opened_file, selected
from mmapload.sources.npy import MAGIC, Header, header_length, parse_header
from mmapload.sources.signatures import FIRST_BYTES, kind_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy.typing as npt

    from mmapload.sources.listing import Listing

__all__ = ["NPY_FIELD", "NpySource", "is_npy", "npy_header"]

NPY_FIELD: Final = "data"
"""What the array of an `.npy` file is called, and one that is a sample by itself."""

_PIECE: Final = 2**20


def is_npy(path: str) -> bool:
    """Whether a file is taken for an `.npy` file, by its name.

    Examples
    --------
    >>> is_npy("x.NPY"), is_npy("x.npz")
    (True, False)
    """
    return path.lower().endswith(".npy")


def npy_header(fd: int, path: str, size: int) -> tuple[bytes, Header]:
    """Read what comes before the array in an `.npy` file, and what it says.

    Parameters
    ----------
    fd : int
        Descriptor of the file; its position is neither used nor moved.
    path : str
        For messages.
    size : int
        Bytes in the file.

    Raises
    ------
    SourceError
        If this is no `.npy` file, is damaged, has more or fewer bytes than its header says, or holds what a
        store cannot.
    """
    first = os.pread(fd, FIRST_BYTES, 0)
    if not first:
        raise SourceError(path, None, "the file is empty (0 bytes): fetch or write it again")
    if first.startswith(b"PK\x03\x04"):
        raise SourceError(path, None, "not an .npy file but a zip or .npz file: rename it to .npz")
    if not first.startswith(MAGIC):
        what, advice = kind_of(first)
        raise SourceError(path, None, f"not an .npy file ({size} bytes) but {what}: {advice}")
    length = header_length(first, path, None)
    header = first[:length] if length <= len(first) else os.pread(fd, length, 0)
    if len(header) < length:
        there = f"{len(header)} of the {length} bytes of its header"
        raise SourceError(path, None, f"an .npy file cut short: {there} are there; fetch or write it again")
    found = parse_header(header, path, None)
    short = found.spec.nbytes - (size - length)
    if short:
        differs = f"{short} bytes missing" if short > 0 else f"{-short} bytes too many"
        raise SourceError(
            path,
            None,
            f"{found.spec} takes {found.spec.nbytes} bytes behind the header, and {size - length} are there, "
            f"{differs}: fetch or write it again",
        )
    return header, found


class NpySource:
    """Samples from `.npy` files, read in place, in C order and native byte order, bit for bit.

    Parameters
    ----------
    files : Listing
        The files, in the order of the samples.
    fields : mapping of str to str, optional
        {"data": name} gives the field another name.
    optional : collection of str
        Fields that a file may lack.

    Attributes
    ----------
    kind : str
        "npy".
    parallel : bool
        True: every call opens its own file and keeps nothing.

    Examples
    --------
    >>> import os, tempfile
    >>> from mmapload.sources.listing import list_files
    >>> folder = tempfile.TemporaryDirectory()
    >>> np.save(os.path.join(folder.name, "s0.npy"), np.ones((2, 3), ">f4", order="F"))
    >>> source = NpySource(list_files([folder.name], suffixes=(".npy",)), {"data": "x"})
    >>> {field: str(spec) for field, spec in source.schema(0).items()}
    {'x': 'float32 (2, 3)'}
    >>> x = np.empty((2, 3), "f4")
    >>> absent = source.read(0, {"x": x})
    >>> float(x.sum())
    6.0
    >>> folder.cleanup()
    """

    def __init__(
        self, files: Listing, fields: Mapping[str, str] | None = None, optional: Collection[str] = ()
    ) -> None:
        self.kind = "npy"
        self.parallel = True
        self._files = files
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)

    def __len__(self) -> int:
        """Count the files."""
        return len(self._files)

    def name(self, index: int) -> str:
        """Path of file `index`, relative to the listing's root."""
        return self._files.names[index]

    def describe(self, index: int) -> str:
        """Path of file `index`, to open it by."""
        return self._files.path(index)

    def part(self, indices: range) -> NpySource:
        """Return a source of some of the files, to be sent to another process."""
        return NpySource(self._files.part(indices), self._fields, self._optional)

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Read what is in file `index` from its header.

        Raises
        ------
        SourceError
            If it is no sound `.npy` file, or fields are selected that it has not.
        """
        with self._opened(index) as (_, _, arrays):
            return {field: header.spec for field, header in arrays.items()}

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Read file `index` into the array given.

        Returns
        -------
        tuple of str
            The optional fields that it lacks.

        Raises
        ------
        SourceError
            If it is no sound `.npy` file or changes meanwhile, or its field, dtype or shape is not that of
            `into`.
        """
        with self._opened(index) as (fd, start, arrays):
            path = self._files.path(index)
            absent = absent_fields(arrays, into, self._optional)
            if absent is None:
                missing = [field for field in into if field not in arrays]
                raise SourceError(
                    path,
                    None,
                    f"an .npy file has the field {listed(arrays)} alone, expected {listed(into)}; "
                    f"{fill_advice(missing)}",
                )
            for field, header in arrays.items():
                _read_array(fd, path, start, field, header, into[field])
        return absent

    def fingerprint(self, index: int) -> bytes:
        """Summarise file `index`: its name, and all that is in it, for it has no CRC-32 of its own.

        Returns
        -------
        bytes
            16 bytes.
        """
        path, crc, position = self._files.path(index), 0, 0
        buffer = np.empty(_PIECE, np.uint8)
        with opened_file(path, self._files.stamp(index)) as (fd, _):
            while got := os.preadv(fd, [buffer], position):
                crc = isal_zlib.crc32(buffer[:got], crc)
                position += got
        facts = repr([self.name(index), position, crc]).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(facts, digest_size=16).digest()

    @contextmanager
    def _opened(self, index: int) -> Iterator[tuple[int, int, dict[str, Header]]]:
        """Open a file: descriptor, where its array begins, and the header by its field."""
        path = self._files.path(index)
        with opened_file(path, self._files.stamp(index)) as (fd, status):
            text, header = npy_header(fd, path, status.st_size)
            yield fd, len(text), selected(path, {NPY_FIELD: header}, self._fields, self._optional)


def _read_array(fd: int, path: str, start: int, field: str, header: Header, into: npt.NDArray[Any]) -> None:
    expected = ArraySpec(into.dtype, into.shape)
    if header.spec != expected:
        if not expected.holds(header.spec):
            raise SourceError(path, None, f"field {field!r} is {header.spec}, expected {expected}")
        narrow = np.empty(
            header.spec.shape, header.spec.dtype
        )  # text shorter than the longest of all samples
        _read_array(fd, path, start, field, header, narrow)
        into[...] = narrow
        return
    if not into.nbytes:
        return
    payload = bytes_of(into)
    filled = 0
    while filled < payload.nbytes:
        got = os.preadv(fd, [payload[filled:]], start + filled)
        if not got:
            raise SourceError(path, None, f"the file ended at byte {start + filled} while being read")
        filled += got
    if header.fortran:
        np.copyto(into, into.reshape(into.shape[::-1]).T.copy())
    if header.swapped:
        into.byteswap(inplace=True)
