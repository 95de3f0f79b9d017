"""Which kind of source paths name, and how it is opened: a closed table, told by the names of files.

What is in files is looked at when they are read; each kind says what a file is that is not its own.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from mmapload.errors import SourceError
from mmapload.sources.arrays import ArraysSource
from mmapload.sources.hdf5 import Hdf5Format
from mmapload.sources.images import IMAGE_SUFFIXES, ImageSamples
from mmapload.sources.keys import KeysSource, look_at_keys
from mmapload.sources.laid_out import FileSamples, KeySamples, RowSamples
from mmapload.sources.listing import Listing, list_files, natural_key
from mmapload.sources.matlab import MatlabFormat
from mmapload.sources.npyfiles import NPY_FIELD, NpySource, is_npy
from mmapload.sources.npz import NpzSource
from mmapload.sources.objects import ObjectNpzSource
from mmapload.sources.plainfiles import is_folder
from mmapload.sources.rowfiles import look_at_rows
from mmapload.sources.rows import RowsSource
from mmapload.sources.safetensors import SafetensorsFormat
from mmapload.sources.tars import TarSamples
from mmapload.sources.torchfiles import TorchFormat
from mmapload.sources.zarr import ZarrFormat, is_zarr

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from mmapload.sources import IndexedSource
    from mmapload.sources.arrays import ArraySamples
    from mmapload.sources.stored import Format

__all__ = ["KINDS", "Kind", "Request", "SamplesAre", "open_files"]

_Opener: TypeAlias = "Callable[[Listing, Request], IndexedSource]"
SamplesAre: TypeAlias = Literal["files", "rows", "keys"]

_SINGLE: Final = NPY_FIELD


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a source's files.

    Attributes
    ----------
    fields : mapping of str to str, or None
        Which arrays to take, and the field that each becomes; None takes all.
    optional : collection of str
        Fields that a sample may lack.
    samples : "files", "rows" or "keys"
        What a sample is.
    in_order : bool
        Whether samples will be asked for in rising order.
    skip : bool
        Whether bad files are left out.
    folder : str
        Where a nameless file may lie that helps to read in another order.
    allow_pickle : bool
        Whether arrays of objects in `.npz` files are read.
    ragged : collection of str
        Fields whose samples may differ in shape, or "auto".
    """

    fields: Mapping[str, str] | None
    optional: Collection[str]
    samples: SamplesAre
    in_order: bool = field(default=True, kw_only=True)
    skip: bool = field(default=False, kw_only=True)
    folder: str = field(default=".", kw_only=True)
    allow_pickle: bool = False
    ragged: Collection[str] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of source.

    Attributes
    ----------
    name : str
        As it is kept in the store.
    suffixes : tuple of str
        What the names of its files end in, in lower case.
    open : callable
        Makes a source of its files.
    """

    name: str
    suffixes: tuple[str, ...]
    open: _Opener


def _npz(files: Listing, request: Request) -> IndexedSource:
    if request.allow_pickle:
        if request.samples != "files":
            raise ValueError("allow_pickle goes with samples='files': arrays of objects have no rows")
        return ObjectNpzSource(files, request.fields, request.optional, request.ragged)
    if request.samples == "rows":
        return _rows("npz", files, request)
    if request.samples == "keys":
        return KeysSource(look_at_keys(files, skip=request.skip), request.fields, request.optional)
    return NpzSource(files, request.fields, request.optional)


def _npy(files: Listing, request: Request) -> IndexedSource:
    if request.samples == "rows":
        return _rows("npy", files, request)
    _expect_files("npy", request)
    return NpySource(files, request.fields, request.optional)


def _rows(kind: str, files: Listing, request: Request) -> IndexedSource:
    found = look_at_rows(files, request.fields, request.optional, skip=request.skip)
    return RowsSource(found, kind, request.folder, in_order=request.in_order, optional=request.optional)


def _format(make: Callable[[], Format], *, container: bool = False) -> _Opener:
    """Return what opens files of named arrays; a `container` alone is never meant to be one sample."""

    def opened(files: Listing, request: Request) -> IndexedSource:
        samples: ArraySamples
        if request.samples == "rows":
            samples = RowSamples(files, make(), request.fields, skip=request.skip)
        elif request.samples == "keys":
            samples = KeySamples(files, make(), _SINGLE, skip=request.skip)
        elif container and len(files) == 1:
            raise SourceError(
                files.path(0),
                None,
                "is one file, and would be one sample: take each row of its arrays for one (--samples rows), "
                "or each group of arrays (--samples keys)",
            )
        else:
            samples = FileSamples(files, make())
        return ArraysSource(samples, request.fields, request.optional)

    return opened


def _tars(files: Listing, request: Request) -> IndexedSource:
    _expect_files("webdataset", request)
    samples = TarSamples(files, decode_images=request.fields is not None, skip=request.skip)
    return ArraysSource(samples, request.fields, request.optional)


def _images(files: Listing, request: Request) -> IndexedSource:
    _expect_files("images", request)
    return ArraysSource(ImageSamples(files), request.fields, request.optional)


def _expect_files(kind: str, request: Request) -> None:
    if request.samples != "files":
        raise ValueError(
            f"samples={request.samples!r} is no choice for a source of kind {kind}: leave it out"
        )


KINDS: Final = (
    Kind("npz", (".npz",), _npz),
    Kind("npy", (".npy",), _npy),
    Kind("hdf5", (".h5", ".hdf5", ".hdf"), _format(Hdf5Format, container=True)),
    Kind("webdataset", (".tar",), _tars),
    Kind("images", IMAGE_SUFFIXES, _images),
    Kind("torch", (".pt", ".pth"), _format(lambda: TorchFormat(_SINGLE))),
    Kind("safetensors", (".safetensors",), _format(SafetensorsFormat)),
    Kind("matlab", (".mat",), _format(MatlabFormat)),
)
_ZARR: Final = Kind("zarr", (), _format(lambda: ZarrFormat(_SINGLE), container=True))
_OF_SUFFIX: Final = {suffix: kind for kind in KINDS for suffix in kind.suffixes}


def open_files(
    paths: Sequence[str | os.PathLike[str]],
    list_file: str | os.PathLike[str] | None,
    request: Request,
) -> tuple[IndexedSource, Listing]:
    """Open a source that paths name; reads no sample.

    Parameters
    ----------
    paths : sequence of path
        Folders, files and globs, as `list_files` takes them; or Zarr folders, folders or globs of these.
    list_file : path, optional
        A text file that names files.
    request : Request
        What is wanted of them.

    Returns
    -------
    IndexedSource, Listing
        The source, and the files behind it.

    Raises
    ------
    SourceError
        If there is no file of any kind, or there are several kinds; counts each.
    ValueError
        If what a sample is does not go with the kind.
    """
    named = [os.path.abspath(path) for path in paths]
    zarr = {path: folders for path in named if (folders := _zarr_folders(path))}
    count = sum(len(folders) for folders in zarr.values())
    if zarr and len(zarr) == len(set(named)) and list_file is None:
        files = _listing([folder for path in zarr for folder in zarr[path]])
        return _ZARR.open(files, request), files
    files = list_files(paths, suffixes=tuple(_OF_SUFFIX), list_file=list_file)
    kinds = [_kind_of(name) for name in files.names]
    counts = Counter(kind.name for kind in kinds) + Counter({_ZARR.name: count})
    if counts.keys() == {"npz", "npy"} and list_file is None and not any(map(is_npy, named)):
        files = _without_npy(files)
        return _npz(files, request), files
    if len(counts) > 1:
        raise _mixture(files.root, counts)
    if request.allow_pickle and kinds[0].name != "npz":
        raise ValueError(f"allow_pickle is for .npz files, not for a source of kind {kinds[0].name}")
    return kinds[0].open(files, request), files


def _without_npy(files: Listing) -> Listing:
    """Leave out the `.npy` files of a folder of `.npz` files, and say which seem to be the same samples.

    An empty one is nothing, but may be a sample that was not written to its end: it stays, and is a bad one.
    """
    stems = {os.path.splitext(name)[0] for name in files.names if not is_npy(name)}
    sizes = [(files.stamp(index) or (-1, 0))[0] for index in range(len(files))]
    kept = [
        index
        for index, name in enumerate(files.names)
        if not is_npy(name) or (sizes[index] == 0 and os.path.splitext(name)[0] not in stems)
    ]
    names = [files.names[index] for index in kept]
    taken = set(names)
    others = [name for name in files.names if name not in taken]
    pairs = [name for name in others if os.path.splitext(name)[0] in stems]
    notes = files.notes
    if pairs:
        many = f" and {len(pairs) - 1:,} more" if len(pairs) > 1 else ""
        notes += (f"{pairs[0]}{many}: skipped, an .npz file of the same name lies beside it and is taken",)
    stamps = None if files.stamps is None else files.stamps.chosen(kept)
    foreign = files.foreign + len(others)
    return replace(files, names=tuple(names), foreign=foreign, notes=notes, stamps=stamps)


def _kind_of(name: str) -> Kind:
    """Return the kind of a file whose name ends in a suffix of the table."""
    return _OF_SUFFIX[os.path.splitext(name)[1].lower()]


def _zarr_folders(path: str) -> list[str]:
    """List the Zarr folders that a path names: itself, those right below it, or those that a glob matches."""
    if is_zarr(path):
        return [path]
    if not os.path.isdir(path):
        matches = glob.glob(path, recursive=True) if glob.has_magic(path) else []
        return sorted(filter(is_zarr, matches), key=natural_key)
    with os.scandir(path) as entries:  # of a million files a list of the entries would take much memory
        folders = [entry.path for entry in entries if is_folder(entry) and entry.name[0] != "."]
    folders = [folder for folder in folders if is_zarr(folder)]
    names = os.listdir(path) if folders else []
    suffixes = [os.path.splitext(name)[1].lower() for name in names if not name.startswith(".")]
    counts = Counter(_OF_SUFFIX[suffix].name for suffix in suffixes if suffix in _OF_SUFFIX)
    if counts:
        raise _mixture(path, counts + Counter({_ZARR.name: len(folders)}))
    return sorted(folders, key=natural_key)


def _listing(folders: Sequence[str]) -> Listing:
    """List folders as files are listed, by their names relative to the folder above all."""
    twice = [folder for folder, count in Counter(map(os.path.realpath, folders)).items() if count > 1]
    if twice:
        raise SourceError(twice[0], None, "the same folder is listed before: name it once")
    root = os.path.commonpath([os.path.dirname(folder) for folder in folders])
    return Listing(root, tuple(os.path.relpath(folder, root) for folder in folders), 0, 0)


def _mixture(root: str, counts: Mapping[str, int]) -> SourceError:
    told = ", ".join(f"{count:,} of kind {kind}" for kind, count in sorted(counts.items()))
    suffix = next(kind.suffixes[0] for kind in KINDS if kind.name in counts)
    glob_ = os.path.join(root, "**", f"*{suffix}")
    return SourceError(
        root,
        None,
        f"a mixture of files, {told}: name those of one kind by a glob in quotes, such as {glob_!r}",
    )
