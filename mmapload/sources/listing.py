"""Which files a source is made of, in an order that depends on their names alone."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from mmapload.errors import SourceError
from mmapload.sources.naturally import natural_key, part_key
from mmapload.sources.origins import listed_origins, origin_of
from mmapload.sources.plainfiles import is_folder, typed
from mmapload.sources.stamps import Stamps, check_stamp
from mmapload.stages import reached

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mmapload.sources.origins import Origin
    from mmapload.sources.stamps import Stamp

__all__ = ["Listing", "list_files", "natural_key"]

_APART: Final = {
    *(
        "__MACOSX",
        "@eaDir",
        "#recycle",
        "@Recycle",
        "$RECYCLE.BIN",
        "System Volume Information",
        "lost+found",
    ),
}
"""Folders in which systems keep what nobody means: resource forks, thumbnails, what was deleted."""

_TOLD_EVERY = 1024


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a source, in order.

    Attributes
    ----------
    root : str
        Absolute path of the folder to which names are relative.
    names : tuple of str
        Relative path of every file, with `/` between its parts, and as `typed`. No two are equal.
    hidden : int
        How many hidden names were skipped; a hidden folder counts once, whatever is in it.
    foreign : int
        How many files with other suffixes were skipped.
    notes : tuple of str
        What else was noticed, to be told.
    stamps : Stamps or None
        Size and time of modification of every file, as it was when it was listed.
    misnamed : frozenset of str
        Those of the names that are not UTF-8 on the disk, and so bad.
    """

    root: str
    names: tuple[str, ...]
    hidden: int
    foreign: int
    notes: tuple[str, ...] = ()
    stamps: Stamps | None = field(default=None, compare=False, repr=False)
    misnamed: frozenset[str] = frozenset()

    def __len__(self) -> int:
        """Count the files."""
        return len(self.names)

    def path(self, index: int) -> str:
        """Absolute path of file `index`."""
        return os.path.join(self.root, self.names[index])

    def part(self, indices: range) -> Listing:
        """Return a listing of some of the files."""
        names = self.names[indices.start : indices.stop : indices.step]
        return Listing(self.root, names, 0, 0, stamps=self.stamps and self.stamps.chosen(indices))

    def stamp(self, index: int) -> Stamp | None:
        """Size and time of modification of file `index` when it was listed, where they are known."""
        return None if self.stamps is None else self.stamps[index]

    def check(self) -> None:
        """Compare all files with what they were when they were listed.

        Raises
        ------
        SourceError
            If one was written meanwhile.
        """
        for index in range(len(self)):
            with contextlib.suppress(FileNotFoundError):  # all that was in it has been read
                check_stamp(self.path(index), self.stamp(index), os.stat(self.path(index)))


def list_files(
    sources: Sequence[str | os.PathLike[str]],
    *,
    suffixes: tuple[str, ...] = (".npz",),
    list_file: str | os.PathLike[str] | None = None,
) -> Listing:
    """List the files of a source.

    A folder stands for the files in it and in the folders below, and a glob (`*`, `?`, `[...]` within a part
    of a path, `**` for any number of parts) for those that match it, or lie below a folder that does; both in
    the order of `natural_key`. Names that start with a dot, `__MACOSX` and its like are skipped and counted,
    unless a part of the glob begins as they do (`**/.*.npz`); so are files with other suffixes. Links to
    folders are followed, but never into a folder that is being listed. Several sources follow one another in
    the order given; last come the files named in `list_file`.

    Names are relative to the source's folder: a folder's own path, the parts of a glob before its first
    wildcard, the folder a file is in. With several sources they are relative to the deepest folder above all.

    Parameters
    ----------
    sources : sequence of path
        Folders, files and globs. A path that exists is taken as it is, whatever characters are in it.
    suffixes : tuple of str
        What names have to end in, in lower case; files in upper case count too.
    list_file : path, optional
        A text file in UTF-8 with the path of one file a line, in order, relative to the folder that the text
        file is in; it may be a pipe. Empty lines are skipped; a line has at most 4,096 bytes.

    Returns
    -------
    Listing
        At least one file.

    Raises
    ------
    SourceError
        If a path is missing or of another suffix, two lead to one place, a folder cannot be read, or none is.
    """
    origins = [origin_of(os.fspath(source), suffixes) for source in sources]
    if list_file is not None:
        origins += listed_origins(os.path.abspath(list_file), suffixes)
    if not origins:
        raise SourceError(f"{list_file or 'source'}", None, "names no file")
    folders = {origin.folder for origin in origins}
    root = os.path.commonpath(folders)
    reals = {folder: os.path.realpath(folder) for folder in folders}
    above = {folder: os.path.join(os.path.relpath(folder, root), "") for folder in folders - {root}}
    noticed = _Noticed()
    names = _Names(root, reals[root] if len(origins) == 1 else None)
    stamps = Stamps()
    for origin in origins:
        real = reals[origin.folder]
        only = [(os.path.join(real, origin.parts[0]), origin.parts[0])] if origin.literal else None
        for place, name in only or _walk(origin, real, suffixes, noticed):
            names.add(place, above.get(origin.folder, "") + name, linked=noticed.linked)
            stamps.add(place)
            if not len(stamps) % _TOLD_EVERY:
                reached("files found", len(stamps))
    if not names.found:
        raise SourceError(
            ", ".join(os.path.join(origin.folder, *origin.parts) for origin in origins),
            None,
            f"no file whose name ends in {' or '.join(suffixes)} (in upper or lower case), besides "
            f"{noticed.foreign} files of other kinds and {noticed.hidden} with hidden names",
        )
    told = noticed.hidden, noticed.foreign, noticed.notes
    return Listing(root, tuple(names.found), *told, stamps, frozenset(names.misnamed))


@dataclass(slots=True)
class _Noticed:
    """What was come across and is no file of the source."""

    hidden: int = 0
    foreign: int = 0
    linked: bool = False  # whether a link to a folder was followed
    folders: list[str] = field(default_factory=list)  # with a suffix of files

    @property
    def notes(self) -> tuple[str, ...]:
        more = f" and {len(self.folders) - 1:,} more" if len(self.folders) > 1 else ""
        return tuple(f"{name}{more}: a folder, though its name is a file's" for name in self.folders[:1])


class _Names:
    """Names of files, none of which leads to the place of another.

    A folder without links to others has each place once: its places need not be kept.
    """

    def __init__(self, root: str, real: str | None) -> None:
        self.found: list[str] = []
        self.misnamed: list[str] = []
        self._root = root
        self._real = real
        self._places: dict[str, str] | None = {} if real is None else None

    def add(self, place: str, name: str, *, linked: bool) -> None:
        if not name.isascii() and (shown := typed(name)) != name:
            if os.path.lexists(os.path.join(self._root, shown)):
                text = "its name is that of another, which is not UTF-8, as one types it: rename one of them"
                raise SourceError(os.path.join(self._root, shown), None, text)
            self.misnamed.append(shown)
            name = shown
        if linked and self._places is None:
            self._places = {os.path.join(self._real or "", each): each for each in self.found}
        if self._places is not None:
            if place in self._places:
                first = os.path.join(self._root, self._places[place])
                text = f"the same file is listed before, as {first}: name it once"
                raise SourceError(os.path.join(self._root, name), None, text)
            self._places[place] = name
        self.found.append(name)


def _walk(
    origin: Origin, real: str, suffixes: tuple[str, ...], noticed: _Noticed
) -> Iterator[tuple[str, str]]:
    """Yield the files of one origin in natural order: its place without links, and its relative name."""
    pattern = _Pattern.of(origin.parts)
    # A frame for each folder on the way down: entries to come, place, relative prefix, the pattern's state,
    # how many files were found before.
    frames = [(_scan(origin.folder), real, "", pattern.start(), 0)]
    found = 0
    barren: set[tuple[str, frozenset[int]]] = set()  # where nothing was; links may lead there 2**25 times
    while frames:
        entries, real, above, state, before = frames[-1]
        for name, folder, link in entries:
            reached = pattern.step(state, name)
            if not reached or (not folder and not pattern.whole(reached)):
                continue
            if (name.startswith(".") or name in _APART) and not pattern.means(state, name):
                noticed.hidden += 1
            elif folder:
                noticed.folders += [above + name] * name.lower().endswith(suffixes)
                inside = os.path.join(real, name)
                inside = os.path.realpath(inside) if link else inside
                noticed.linked |= link
                listed = next((frame for frame in frames if frame[1] == inside), None)
                if listed:
                    found += listed[3] != reached  # by another path, this glob might find something there
                elif (inside, reached) not in barren:
                    below = above + name
                    entries = _scan(os.path.join(origin.folder, below))
                    frames.append((entries, inside, below + "/", reached, found))
                    break
            elif name.lower().endswith(suffixes):
                found += 1
                yield os.path.join(real, name), above + name
            else:
                noticed.foreign += 1
        else:
            frames.pop()
            if found == before:
                barren.add((real, state))


def _scan(folder: str) -> Iterator[tuple[str, bool, bool]]:
    """List a folder in natural order: name, whether it is a folder, whether it is a link."""
    names: list[str] = []
    special: dict[str, tuple[bool, bool]] = {}  # of a million names nearly all are those of files
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                names.append(entry.name)
                if not len(names) % _TOLD_EVERY:
                    reached("names read", len(names))
                if not entry.is_file(follow_symlinks=False):
                    special[entry.name] = is_folder(entry), entry.is_symlink()
    except OSError as error:
        raise SourceError(folder, None, f"the folder cannot be read: {error.strerror}") from None
    names.sort(key=part_key)
    return ((name, *special.get(name, (False, False))) for name in names)


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A glob, matched part by part: a state is the set of parts that may come next.

    None stands for `**`. What lies below a folder that matches, matches.
    """

    parts: tuple[re.Pattern[str] | None, ...]
    firsts: tuple[str, ...]

    @classmethod
    def of(cls, parts: tuple[str, ...]) -> _Pattern:
        found = tuple(None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts)
        return cls(found, tuple(part[:1] for part in parts))

    def means(self, state: frozenset[int], name: str) -> bool:
        """Say whether a part begins as this name does, and matches it."""
        near = [(self.parts[at], self.firsts[at]) for at in state if at < len(self.parts)]
        return any(part is not None and first == name[0] and part.match(name) for part, first in near)

    def start(self) -> frozenset[int]:
        return self._settle({0})

    def step(self, state: frozenset[int], name: str) -> frozenset[int]:
        if self.whole(state):
            return state
        reached = set()
        for at in state:
            part = self.parts[at]
            if part is None:
                reached.add(at)
            elif part.match(name):
                reached.add(at + 1)
        return self._settle(reached)

    def whole(self, state: frozenset[int]) -> bool:
        return len(self.parts) in state

    def _settle(self, state: set[int]) -> frozenset[int]:
        for at, part in enumerate(self.parts):
            if part is None and at in state:
                state.add(at + 1)  # `**` may stand for no part at all
        return frozenset(state)
