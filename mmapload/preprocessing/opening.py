"""From what the user calls a source to one of the protocols of `sources`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from mmapload.errors import SourceError
from mmapload.sources.kinds import Request, open_files
from mmapload.sources.samples import IterableSource, SequenceSource
from mmapload.sources.taking import take_from
from mmapload.writer.workfolder import is_store

if TYPE_CHECKING:
    from collections.abc import Collection

    from mmapload.preprocessing.plan import Samples
    from mmapload.sources import IndexedSource
    from mmapload.sources.listing import Listing
    from mmapload.sources.takelists import Take
    from mmapload.store import StrPath

__all__ = ["OpenedSource", "open_source", "parse_fields"]


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source, the files behind it where there are any, and the folders in which all files count."""

    source: IndexedSource | IterableSource
    listing: Listing | None = None
    folders: tuple[str, ...] = ()

    def take(self, taken: Take) -> OpenedSource:
        """Return the same with some of the samples alone.

        Raises
        ------
        ValueError, TypeError
            If there are no such samples, or nobody knows how many there are.
        """
        if isinstance(self.source, IterableSource):
            raise TypeError("take needs samples that can be counted, and an iterable lacks a length")
        return replace(self, source=take_from(self.source, taken))


def parse_fields(fields: str | Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    """Read a selection of fields: "a,b=c", a list of such parts, or a mapping of old names to new.

    Raises
    ------
    ValueError, TypeError
        If a part is empty or no text, or a name is there twice.

    Examples
    --------
    >>> parse_fields("image,flow/xy=flow")
    {'image': 'image', 'flow/xy': 'flow'}
    """
    if fields is None:
        return None
    if isinstance(fields, Mapping):
        pairs = [(str(old), str(new)) for old, new in fields.items()]
    else:
        parts = fields.split(",") if isinstance(fields, str) else list(fields)
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(f"fields: expected names such as a,b=c, found {fields!r}")
        pairs = []
        for part in parts:
            old, separator, new = (side.strip() for side in part.partition("="))
            pairs.append((old, new if separator else old))
    if not pairs or any(not old or not new for old, new in pairs):
        raise ValueError(f"fields: expected names such as a,b=c, found {fields!r}")
    chosen = dict(pairs)
    if len(chosen) < len(pairs) or len(set(chosen.values())) < len(pairs):
        raise ValueError(f"fields: a name is there twice in {fields!r}")
    return chosen


def open_source(
    source: Any,
    fields: Mapping[str, str] | None,
    list_file: StrPath | None,
    optional: Collection[str],
    samples: Samples = "files",
    *,
    allow_pickle: bool = False,
    in_order: bool = True,
    skip: bool = False,
    scratch: str = ".",
    ragged: Collection[str] = (),
) -> OpenedSource:
    """Open a source whose samples may lack the optional fields; reads no sample.

    `in_order`, `skip`, the folder `scratch` and the `ragged` fields are for `kinds.Request`.

    Raises
    ------
    SourceError
        If there are no files, or paths that do not exist or are stores.
    ValueError
        If a path is empty.
    TypeError
        If it is nothing that samples can come from.
    """
    paths = _as_paths(source, given=list_file is not None)
    if paths is not None:
        if any(not os.fspath(path) for path in paths):
            raise ValueError("a path of the source is empty: give a folder, a file or a glob")
        folders = tuple(os.fspath(path) for path in paths if os.path.isdir(path))
        for folder in filter(is_store, folders):
            raise SourceError(folder, None, "a store already: give the folder of .npz files it was made from")
        request = Request(
            fields,
            optional,
            samples,
            allow_pickle,
            in_order=in_order,
            skip=skip,
            folder=scratch,
            ragged=ragged,
        )
        opened, listing = open_files(paths, list_file, request)
        return OpenedSource(opened, listing, folders)
    if list_file is not None:
        raise TypeError("a list of files goes with paths, not with samples from Python")
    if allow_pickle:
        raise TypeError("allow_pickle is for arrays of objects in .npz files, not for samples from Python")
    if samples != "files":
        raise TypeError(f"samples={samples!r} says how samples lie in files; those from Python are one each")
    if all(hasattr(source, name) for name in ("kind", "parallel", "schema", "read", "fingerprint")):
        return OpenedSource(cast("IndexedSource", source))
    if _is_sequence(source) and not isinstance(source, Mapping):
        return OpenedSource(SequenceSource(source, fields, optional))
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        return OpenedSource(IterableSource(source, fields, optional))
    raise TypeError(
        "a source is a path, a list of paths, or a sequence or iterable of {name: array}, "
        f"not {type(source).__name__}"
    )


def _as_paths(source: Any, *, given: bool) -> list[StrPath] | None:
    if isinstance(source, (str, os.PathLike)):
        return [source]
    if source is None and given:
        return []
    if isinstance(source, (list, tuple)) and all(isinstance(each, (str, os.PathLike)) for each in source):
        return list(source) if source or given else None
    return None


def _is_sequence(source: object) -> bool:
    """Whether a source has a length and an index; torch's IterableDataset has the index by name only."""
    iterable_only = any(kind.__name__ == "IterableDataset" for kind in type(source).__mro__)
    return isinstance(source, Sequence) or (
        hasattr(source, "__len__") and hasattr(source, "__getitem__") and not iterable_only
    )
