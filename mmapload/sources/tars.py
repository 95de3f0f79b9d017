"""WebDataset tar files: members that share a name up to its first dot are one sample.

The headers of all members are read once; then each is read where it lies.
"""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import SourceError, shown
from mmapload.sources.arrays import explained_read
from mmapload.sources.badfiles import BadFiles
from mmapload.sources.members import arrays_of, decode_member, is_image
from mmapload.sources.plainfiles import open_descriptor, open_plain
from mmapload.sources.signatures import FIRST_BYTES, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mmapload.sources.listing import Listing

__all__ = ["TarSamples"]

_NAME: Final = re.compile(r"((?:.*/|)[^./][^.]*)[.]([^/]*)", re.DOTALL)
"""A sample's key, and the extension under which it has this member; as the library webdataset has it."""
_BLOCK: Final = 512
_PIECE: Final = 2**20


@dataclass(frozen=True, slots=True)
class _Sample:
    """A sample's place: the number of its file, its key, and of each member extension, offset and size."""

    file: int
    key: str
    members: tuple[tuple[str, int, int], ...]


class TarSamples:
    """Samples in tar files, in the order of their members.

    The arrays of a sample go by the extensions of its members, in lower case: `cls`, `left.npy`; those in an
    `.npz` file or an object of JSON by their own names. Members whose names have no dot, or begin with one,
    belong to no sample.

    Parameters
    ----------
    files : Listing
        The tar files.
    decode_images : bool
        Whether images are decoded; else taking one is an error that says how they are.
    skip : bool
        Whether a file with which something is wrong stands for one bad sample.

    Raises
    ------
    SourceError
        If a file is no tar file, or damaged; or a member is there twice, is no plain file, or lies apart from
        the others of its sample. Names the other files that are bad.
    """

    def __init__(self, files: Listing, *, decode_images: bool, skip: bool = False) -> None:
        self.kind = "webdataset"
        self.parallel = True
        self.classes: Mapping[str, Sequence[str]] = {}
        self._files = files
        self._decode_images = decode_images
        self._samples: list[_Sample] = []
        self._stats: dict[int, tuple[int, int]] = {}
        bad = BadFiles(files, skip=skip)
        self._faults = bad.faults
        for file in bad.numbers():
            with bad.noting(file):
                self._samples += self._listed(file)
            if file in bad.faults:
                self._samples.append(_Sample(file, "", ()))

    def _listed(self, file: int) -> list[_Sample]:
        path = self._files.path(file)
        try:
            with open_plain(path) as plain:
                status = os.fstat(plain.fileno())
            self._stats[file] = status.st_size, status.st_mtime_ns
            return _index(path, file)
        except tarfile.TarError as error:
            raise _no_tar(path, error) from None
        except OSError as error:
            raise explained_read(error, path) from error

    def __len__(self) -> int:
        """Count the samples of all files."""
        return len(self._samples)

    def name(self, index: int) -> str:
        """Path of the file, relative to the listing's root, and the sample's key: "train.tar/0007"."""
        sample = self._samples[index]
        name = self._files.names[sample.file]
        return name if sample.file in self._faults else f"{name}/{sample.key}"

    def describe(self, index: int) -> str:
        """Path of the file and the sample's key."""
        sample = self._samples[index]
        path = self._files.path(sample.file)
        return path if sample.file in self._faults else f"{path}/{sample.key}"

    @contextmanager
    def arrays(self, index: int) -> Iterator[Mapping[str, Any]]:
        """Open the file of sample `index`; getting an array reads and decodes its member."""
        sample = self._samples[index]
        path = self._files.path(sample.file)
        if sample.file in self._faults:
            raise self._faults[sample.file]
        fd, status = open_descriptor(path)
        try:
            if (status.st_size, status.st_mtime_ns) != self._stats[sample.file]:
                raise SourceError(path, None, "changed since it was listed: wait until nothing writes to it")
            yield _Members(fd, path, sample, decode_images=self._decode_images)
        finally:
            os.close(fd)


class _Members(Mapping[str, Any]):
    """The arrays of one sample."""

    def __init__(self, fd: int, path: str, sample: _Sample, *, decode_images: bool) -> None:
        self._fd = fd
        self._path = path
        self._key = sample.key
        self._decode_images = decode_images
        self._found: dict[str, Any] = {}
        self._places: dict[str, tuple[int, int]] = {}
        for extension, offset, size in sample.members:
            several = None
            if extension.endswith(("npz", "json", "jsn")):
                several = arrays_of(extension, self._read(offset, size), path, self._member(extension))
            for name in (extension,) if several is None else several:
                if name in self._found or name in self._places:
                    raise SourceError(
                        path, self._member(extension), f"{shown(name)} is there twice in {sample.key}"
                    )
            if several is None:
                self._places[extension] = offset, size
            else:
                self._found |= several

    def __iter__(self) -> Iterator[str]:
        yield from self._places
        yield from self._found

    def __len__(self) -> int:
        return len(self._places) + len(self._found)

    def __getitem__(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        if is_image(name) and not self._decode_images:
            what = f"an image, which is decoded where it is named: --fields {name}=image, and the others"
            raise SourceError(self._path, self._member(name), what)
        return decode_member(name, self._read(*self._places[name]), self._path, self._member(name))

    def _member(self, extension: str) -> str:
        return f"{self._key}.{extension}"

    def _read(self, offset: int, size: int) -> bytes:
        pieces = []
        while size > 0:
            piece = os.pread(self._fd, min(size, 2**30), offset)
            if not piece:
                what = f"the file ended at byte {offset} while being read: it was changed meanwhile"
                raise SourceError(self._path, None, what)
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _index(path: str, file: int) -> list[_Sample]:
    """List the samples of one file."""
    samples: list[_Sample] = []
    seen: set[str] = set()
    key: str | None = None
    members: dict[str, tuple[int, int]] = {}
    with tarfile.open(path, "r:", encoding="utf-8") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # it keeps them all else
            found = _NAME.fullmatch(member.name)
            if member.isdir() or found is None:
                continue
            name, extension = found[1], found[2].lower()
            if not member.isreg() or member.issparse():
                raise SourceError(
                    path, member.name, "a link, device or sparse file: write the archive of plain files"
                )
            if name != key:
                if key is not None:
                    samples.append(_sample(file, key, members))
                if name in seen:
                    what = (
                        f"lies apart from the other members of sample {shown(name)}: sort the archive by name"
                    )
                    raise SourceError(path, member.name, what)
                _expect_text(path, name)
                seen.add(name)
                key, members = name, {}
            if extension in members:
                raise SourceError(path, member.name, "is there twice: write the archive again")
            members[extension] = member.offset_data, member.size
        if key is not None:
            samples.append(_sample(file, key, members))
        _expect_end(path, tar.offset)
    if not samples:
        raise SourceError(path, None, "holds no sample: no member has a name such as 0007.npy")
    return samples


def _sample(file: int, key: str, members: Mapping[str, tuple[int, int]]) -> _Sample:
    return _Sample(file, key, tuple((extension, *place) for extension, place in members.items()))


def _expect_text(path: str, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SourceError(path, None, f"a member's name is not UTF-8: {name!r}") from None


def _expect_end(path: str, offset: int) -> None:
    """See to it that zeros, and nothing else, follow: tarfile takes a damaged header for the end."""
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) < offset + _BLOCK:
            what = f"ends at byte {offset} without the zeros that end an archive: it was cut short"
            raise SourceError(path, None, f"{what}; fetch or write it again")
        file.seek(offset)
        while piece := file.read(_PIECE):
            rest = piece.lstrip(b"\0")
            if rest:
                at = (file.tell() - len(rest)) // _BLOCK * _BLOCK
                what = f"goes on at byte {at}, behind its last member: damaged, or two archives in one"
                raise SourceError(path, None, f"{what}; write it again")


def _no_tar(path: str, error: tarfile.TarError) -> SourceError:
    with open(path, "rb") as file:
        first = file.read(FIRST_BYTES)
    what, advice = kind_of(first)
    if what == "a tar archive" or "unexpected end" in str(error):
        return SourceError(path, None, f"a damaged tar archive ({error}): fetch or write it again")
    return SourceError(path, None, f"not a tar archive but {what}: {advice}")
