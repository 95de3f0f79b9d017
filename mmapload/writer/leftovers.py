"""What an export that was cut off has left in its work folder, and what of it can be kept."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mmapload.opening import METADATA
from mmapload.reserved import checksums_array, read_elements
from mmapload.writer.durable import open_regular, sync_folder, write_durably

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from mmapload.store import Store
    from mmapload.writer.workfolder import WorkFolder

__all__ = ["Done", "begin", "begun_from", "contents_of", "is_written", "only_files"]

_AT_ONCE: Final = 1 << 20
_LONGEST: Final = 1 << 10


@dataclass(slots=True)
class Done:
    """What is done of an export, by this run and one before.

    Attributes
    ----------
    resumes : bool
        Whether an earlier run has begun it.
    before, nbytes_before : int
        Files that it has left, and their bytes.
    files, nbytes : int
        Files that are surely as they have to be, and their bytes.
    same : int
        How many of these were left by the earlier run.
    """

    resumes: bool
    before: int = 0
    nbytes_before: int = 0
    files: int = 0
    nbytes: int = 0
    same: int = 0

    @property
    def is_any(self) -> bool:
        """Whether something is worth being kept."""
        return self.resumes or self.files > 0

    def interrupted(self, work: WorkFolder, samples: int) -> str:
        """Say after an interrupt what there is, and how to go on."""
        if not os.path.isdir(work.store):
            return f"interrupted; {work.out} is whole" if os.path.lexists(work.out) else "interrupted"
        if not self.is_any:
            return "interrupted; nothing was written yet"
        kept = max(self.before, self.files)
        return (
            f"interrupted; {kept:,} of {samples:,} files are kept in {work.path}: the same command continues"
        )


def contents_of(store: Store) -> str:
    """Return what tells a store from all that hold something else: of its metadata and all its checksums.

    Raises
    ------
    ChunkError
        If the list of checksums is missing or damaged.
    """
    layout = store.layout
    with open(os.path.join(store.path, METADATA), "rb") as file:
        found = hashlib.sha256(file.read())
    if layout.has_checksums:
        found.update(read_elements(store.path, checksums_array(len(layout.fields)), 0, layout.chunks))
    return found.hexdigest()


def begun_from(work: WorkFolder) -> str | None:
    """Return what `begin` was told in an earlier run; None if no run has begun an export here."""
    with contextlib.suppress(FileNotFoundError), open_regular(work.export) as file:
        text = file.read(_LONGEST).decode("ascii", "replace")
        return text if os.path.isdir(work.store) else None
    return None


def begin(work: WorkFolder, identity: str) -> None:
    """Throw away what is there, keep what is exported, and make an empty folder."""
    work.clear()
    write_durably(work.export, [identity.encode("ascii")])
    os.mkdir(work.store)
    sync_folder(work.path)


def only_files(folder: str, names: Collection[str]) -> tuple[int, int]:
    """Remove all below a folder but files of these names; returns how many there are, and their bytes.

    Parameters
    ----------
    names : collection of str
        Paths relative to the folder, with "/".
    """
    above = {name[:at] for name in names for at, each in enumerate(name) if each == "/"}
    files = nbytes = 0
    for size in _kept(folder, "", set(names), above):
        files += 1
        nbytes += size
    return files, nbytes


def _kept(folder: str, below: str, names: Collection[str], above: Collection[str]) -> Iterator[int]:
    """Yield the size of every file that is kept."""
    with os.scandir(os.path.join(folder, below)) as entries:
        found = list(entries)
    for entry in found:
        name = f"{below}/{entry.name}" if below else entry.name
        if name in above and entry.is_dir(follow_symlinks=False):
            yield from _kept(folder, name, names, above)
        elif name in names and entry.is_file(follow_symlinks=False):
            yield entry.stat(follow_symlinks=False).st_size
        elif entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def is_written(path: str, data: memoryview) -> bool:
    """Whether a file is there, and has just these bytes.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     _ = file.write(b"abc"), file.flush()
    ...     [is_written(file.name, memoryview(each)) for each in (b"abc", b"abd", b"abcd")]
    [True, False, False]
    """
    try:
        file = open_regular(path)
    except FileNotFoundError:
        return False
    with file:
        if os.fstat(file.fileno()).st_size != len(data):
            return False
        parts = (data[at : at + _AT_ONCE] for at in range(0, len(data), _AT_ONCE))
        same = all(file.read(len(part)) == part for part in parts)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return same
