"""The folder beside OUT in which a store is built: one process at a time, then renamed into place.

`.<name>.partial` holds `lock`, `journal`, the list of the source's names, and `store`, which alone becomes
OUT; nothing of the others is ever in a store. In that of an export, `export` says what is exported.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import stat
import warnings
from typing import TYPE_CHECKING, Final

from mmapload.errors import MmaploadError
from mmapload.layout import RESERVED_GROUP
from mmapload.opening import METADATA, root_document
from mmapload.writer.durable import sync_folder

if TYPE_CHECKING:
    from typing import Self

__all__ = ["WorkFolder", "is_store", "partial_path"]

_EXCHANGE: Final = 2  # RENAME_EXCHANGE of renameat2(2)
_AT_FDCWD: Final = -100
_NO_LOCKS: Final = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_libc = ctypes.CDLL(None, use_errno=True)


def partial_path(out: str) -> str:
    """Return the folder in which the store at `out` is built."""
    parent, name = os.path.split(out)
    return os.path.join(parent, f".{name}.partial")


def is_store(path: str) -> bool:
    """Whether a store of mmapload lies at `path`, be it sound or not, and nothing else with it."""
    try:
        notes = root_document(path)["attributes"]["mmapload"]
        own = {METADATA, RESERVED_GROUP, *(name.partition("/")[0] for name in notes["fields"])}
        return own.issuperset(os.listdir(path))
    except (OSError, LookupError, TypeError):
        return False


class WorkFolder:
    """A work folder that this process has locked.

    Parameters
    ----------
    out : str
        Absolute path of the store to be.

    Raises
    ------
    MmaploadError
        If another process works on the same store, with its process id; or if something else lies in the
        place of the folder or of what is in it, a link for instance, which is never followed.
    """

    def __init__(self, out: str) -> None:
        self.out = out
        self.path = partial_path(out)
        self.store = os.path.join(self.path, "store")
        self.journal = os.path.join(self.path, "journal")
        self.names = os.path.join(self.path, "names")
        self.export = os.path.join(self.path, "export")
        self.commit = os.path.join(self.path, "commit")
        self._lock_path = os.path.join(self.path, "lock")
        self._replaced = os.path.join(self.path, "replaced")
        self._lock = self._acquire()
        try:
            for path in (self.journal, self.names, self.export):
                _expect(path, stat.S_IFREG)
            for path in (self.store, self.commit, self._replaced):
                _expect(path, stat.S_IFDIR)
        except BaseException:
            self.release()
            raise
        if os.path.isdir(self._replaced) and not os.path.lexists(out):
            os.rename(self._replaced, out)  # a crash between the two renames of `publish`

    def _acquire(self) -> int:
        while True:
            try:
                os.makedirs(self.path, exist_ok=True)
                _expect(self.path, stat.S_IFDIR)
                _expect(self._lock_path, stat.S_IFREG)
                fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            except FileNotFoundError:
                if not os.path.isdir(os.path.dirname(self.path)):
                    raise  # a link that leads nowhere is above it
                continue  # the one before us has just removed the folder
            except FileExistsError:
                _expect(self.path, stat.S_IFDIR)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = os.pread(fd, 100, 0).decode(errors="replace").strip() or "unknown"
                os.close(fd)
                raise MmaploadError(
                    f"process {owner} is writing {self.out}: wait until it has finished, or stop it"
                ) from None
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    os.close(fd)
                    raise
                warnings.warn(
                    f"the file system of {self.path} has no locks: let one process alone write there",
                    stacklevel=2,
                )
            with contextlib.suppress(FileNotFoundError):
                # Whoever held the lock before may have removed the file that we have locked.
                if os.path.samestat(os.fstat(fd), os.stat(self._lock_path)):
                    os.ftruncate(fd, 0)
                    os.pwrite(fd, str(os.getpid()).encode(), 0)
                    return fd
            os.close(fd)

    def expect_no(self, mark: str, what: str) -> None:
        """Refuse to go on where work of another kind has left its mark here, which is to be kept.

        Raises
        ------
        MmaploadError
            If there is something at the path `mark`.
        """
        if os.path.lexists(mark):
            raise MmaploadError(f"{self.path} is {what}: finish or remove it, or give another name")

    def clear(self) -> None:
        """Remove everything but the lock; the journal first, which speaks of the others."""
        for entry in sorted(os.listdir(self.path), key=lambda entry: entry != "journal"):
            path = os.path.join(self.path, entry)
            if path != self._lock_path:
                _remove(path)

    def keep_only(self, kept: dict[str, set[str]]) -> None:
        """Remove from the store all but these files of these folders, and make the folders."""
        os.makedirs(self.store, exist_ok=True)
        self._keep("", kept)
        for entry in kept:
            os.makedirs(os.path.join(self.store, entry), exist_ok=True)

    def _keep(self, below: str, kept: dict[str, set[str]]) -> None:
        """Remove from a folder all but these, and those on the way to them."""
        for entry in os.listdir(os.path.join(self.store, below)):
            name = os.path.join(below, entry)
            path = os.path.join(self.store, name)
            if name not in kept and not any(each.startswith(name + "/") for each in kept):
                _remove(path)
                continue
            _expect(path, stat.S_IFDIR)
            if name not in kept:
                self._keep(name, kept)
                continue
            for file in set(os.listdir(path)) - kept[name]:
                _remove(os.path.join(path, file))

    def publish(self) -> None:
        """Put the finished store in its place, at once, and remove the rest.

        A store that stands there is exchanged for the new one; where the system cannot do that in one step,
        it is put aside first, and put back by the next run if this one dies in between.
        """
        sync_folder(self.path)
        if not is_store(self.out):
            os.rename(self.store, self.out)  # an empty folder gives way, anything else is an error
        elif not _exchange(self.store, self.out):
            os.rename(self.out, self._replaced)
            os.rename(self.store, self.out)
        sync_folder(os.path.dirname(self.out))
        self.discard()

    def discard(self) -> None:
        """Remove the whole folder, the lock last."""
        self.clear()
        os.unlink(self._lock_path)
        with contextlib.suppress(OSError):
            os.rmdir(self.path)  # unless the next process has already made its lock there

    def release(self) -> None:
        """Give up the lock, and leave everything as it is."""
        with contextlib.suppress(OSError):  # where there are no locks
            # Closing alone would leave it with processes that were forked meanwhile, workers for instance.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _expect(path: str, kind: int) -> None:
    """Refuse what lies at a path, if anything, and is not of this kind: links above all, that lead away."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_IFMT(mode) != kind:
            link = "a symbolic link, " if stat.S_ISLNK(mode) else ""
            wanted = "folder" if kind == stat.S_IFDIR else "file"
            raise MmaploadError(f"{path} is {link}no {wanted}; the store is to be built there: move it away")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _exchange(one: str, other: str) -> bool:
    """Exchange two paths in one step (Linux 3.15, most file systems); False where that is not possible."""
    rename = getattr(_libc, "renameat2", None)
    if rename is None:
        return False
    return bool(
        rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_EXCHANGE)) == 0
    )
