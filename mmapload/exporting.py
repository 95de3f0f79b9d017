"""From a store back to `.npz` files, one a sample: what went in comes out, bit by bit."""

from __future__ import annotations

import io
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import MmaploadError
from mmapload.progress import SilentProgress, progress_to
from mmapload.sizes import format_size
from mmapload.store import Store, open_store
from mmapload.writer.durable import explained, free_bytes, sync_folder, write_durably
from mmapload.writer.leftovers import Done, begin, begun_from, contents_of, is_written, only_files
from mmapload.writer.workfolder import WorkFolder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.progress import Progress
    from mmapload.store import StrPath

__all__ = ["ExportResult", "export", "export_store", "npz_bytes"]

_SUFFIX: Final = ".npz"
_LONGEST_PART: Final = 255 - len(".tmp")
_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What was exported.

    Attributes
    ----------
    out : str
        Absolute path of the folder.
    files : int
        How many files are in it, and in the folders below.
    nbytes : int
        Their bytes.
    named : bool
        Whether they have the names that samples had in their source; else the samples' numbers.
    """

    out: str
    files: int
    nbytes: int
    named: bool


def export(store: Store | StrPath, out: StrPath, *, quiet: bool = True) -> ExportResult:
    """Write every sample of a store into an `.npz` file of its own, as `numpy.savez` does.

    Files have the names that samples had in their source, with `.npz` behind those of another suffix, and lie
    in the same folders; where the store keeps no names, or they are no names of different files, files have
    the samples' numbers. The folder is built in `.<name>.partial` beside `out` and renamed when it is whole.
    Each chunk file's checksum is compared with what it holds. A run that was interrupted, killed or out of
    room is continued by the same call: files that are there are compared with what they have to be, and not
    written again.

    Parameters
    ----------
    store : Store or path
        What to export.
    out : path
        A folder that does not exist, or is empty.
    quiet : bool
        Whether to tell nothing on standard error.

    Returns
    -------
    ExportResult
        What is in the folder.

    Raises
    ------
    StoreNotFoundError, LayoutError
        If there is no store, or it is not as the format wants it.
    ChunkError
        If a chunk file is missing or damaged.
    MmaploadError
        If there is something at `out`, another process writes there, or there is too little room.
    OSError
        If the disk is full or does not take the data; nothing is at `out` yet, and the same call continues.
    KeyboardInterrupt
        With a text that says how to go on.

    Notes
    -----
    A value that stood in for a missing array is exported like any other, and text with the dtype of the
    longest in the store. Fields that a sample lacks, of which the store keeps a mask, are left out.

    Examples
    --------
    >>> import os, tempfile
    >>> from mmapload.preprocessing import preprocess
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = preprocess([{"x": 0.5}, {"x": -0.0}], f"{folder}/store", batch_size=2)
    ...     result = export(store, f"{folder}/npz")
    ...     sorted(os.listdir(f"{folder}/npz")), float(np.load(f"{folder}/npz/1.npz")["x"])
    (['0.npz', '1.npz'], -0.0)
    """
    opened = store if isinstance(store, Store) else open_store(store)
    return export_store(opened, out, progress_to(quiet=quiet))


def export_store(store: Store, out: StrPath, progress: Progress | None = None) -> ExportResult:
    """Export a store that is open; as `export`, telling `progress` how far it has come."""
    progress = progress or SilentProgress()
    target = _target(out)
    names = _names(store)
    if names is None and store.layout.has_names:
        progress.note("the samples' names are no names of different files: numbers are used instead")
    identity = contents_of(store)
    with WorkFolder(target) as work:
        work.expect_no(work.journal, "an unfinished store")
        begun = begun_from(work)
        done = Done(resumes=begun == identity)
        try:
            if done.resumes:
                _keep(store, work, names, done, progress)
            else:
                begin(work, identity)
                if begun is not None:
                    progress.note("the store is not as it was when this export was begun: it starts anew")
            _expect_room(store, target, work.path, done.nbytes_before)
            _write_all(store, work.store, names, progress, done)
            _check_target(target)
            work.publish()
        except BaseException as error:
            told = done.interrupted(work, len(store))
            if not (done.is_any and os.path.isdir(work.store)):
                work.discard()
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(told) from None
            if done.is_any and isinstance(error, MmaploadError):
                progress.note(told)
            raise
        finally:
            progress.close()
    if done.before > done.same:
        many = f"{done.before - done.same:,} files"
        progress.note(f"{many} were not as they have to be, and were written again")
    return ExportResult(target, len(store), done.nbytes, names is not None)


def _keep(
    store: Store, work: WorkFolder, names: Sequence[str] | None, done: Done, progress: Progress
) -> None:
    """Keep the files that an earlier run has left, and nothing else."""
    files = names or [_number(store, index) for index in range(len(store))]
    done.before, done.nbytes_before = only_files(work.store, files)
    if done.before:
        there = f"{done.before:,} of {len(store):,} files"
        progress.note(f"resuming: {there} are there, and are compared with the store")


def _target(out: StrPath) -> str:
    if not os.fspath(out):
        raise ValueError("out is empty: give the path of a new folder")
    target = os.path.abspath(out)
    _check_target(target)
    return target


def _check_target(target: str) -> None:
    empty = os.path.isdir(target) and not os.path.islink(target) and not os.listdir(target)
    if os.path.lexists(target) and not empty:
        kind = "a folder with things in it" if os.path.isdir(target) else "there already"
        raise MmaploadError(f"{target} is {kind}, and nothing is ever overwritten: give a new name")


def _bytes_a_sample(store: Store) -> int:
    return sum(store.sample_nbytes(field) for field in store.layout.fields)


def _expect_room(store: Store, target: str, folder: str, there: int) -> None:
    needed, free = len(store) * _bytes_a_sample(store), free_bytes(folder) + there
    if needed > free:
        raise MmaploadError(
            f"{target} takes {format_size(needed)}, and its file system has {format_size(free)} free: "
            "make room, or give another place"
        )


def _write_all(
    store: Store, folder: str, names: Sequence[str] | None, progress: Progress, done: Done
) -> None:
    """Write all samples, those of a chunk side by side; of an earlier run's files those that have changed."""
    folders = {folder}
    write = partial(_write, compare=done.before > 0)
    progress.start(len(store), _bytes_a_sample(store))
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "mmapload-export") as pool:
        for chunk in range(store.layout.chunks):
            first = chunk * store.layout.chunk_length
            paths = [
                os.path.join(folder, names[index] if names else _number(store, index))
                for index in range(first, first + store.layout.chunk_samples(chunk))
            ]
            for each in {os.path.dirname(path) for path in paths} - folders:
                os.makedirs(each, exist_ok=True)
                folders |= _up_to(each, folder)
            for nbytes, there in pool.map(write, paths, _samples(store, chunk)):
                done.files += 1
                done.nbytes += nbytes
                done.same += there
                progress.at(done.files)
    for each in sorted(folders, reverse=True):
        sync_folder(each)


def _number(store: Store, index: int) -> str:
    """Return the name of a sample's file where samples have no names."""
    width = len(str(max(0, len(store) - 1)))
    return f"{index:0{width}d}{_SUFFIX}"


def _names(store: Store) -> list[str] | None:
    """Return the path of each sample's file, relative to the folder; None if the store has no fit names."""
    if not store.layout.has_names:
        return None
    names = []
    for index in range(len(store)):
        name = store.sample_name(index)
        if not name or not _is_path(name):
            return None
        names.append(name if name.lower().endswith(_SUFFIX) else name + _SUFFIX)
    files = set(names)
    above = {name[:at] for name in names for at, each in enumerate(name) if each == "/"}
    return names if len(files) == len(names) and not above & files else None


def _is_path(name: str) -> bool:
    """Whether a name is the path of a file below a folder, whatever made it up."""
    parts = name.split("/")
    return "\0" not in name and all(
        part not in {"", ".", ".."} and len(os.fsencode(part)) <= _LONGEST_PART - len(_SUFFIX)
        for part in parts
    )


def _up_to(folder: str, root: str) -> set[str]:
    """Return a folder and those above it, below the root."""
    found = set()
    while folder != root:
        found.add(folder)
        folder = os.path.dirname(folder)
    return found


def _samples(store: Store, chunk: int) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
    """Read a chunk, and yield its samples."""
    layout = store.layout
    values = {field.name: store.read_chunk(field.name, chunk) for field in layout.fields}
    masks = layout.source.get("optional")
    masks = masks if isinstance(masks, dict) else {}
    for row in range(layout.chunk_samples(chunk)):
        yield {
            field.name: np.asarray(values[field.name][row], None if field.is_ragged else field.values_dtype)
            for field in layout.fields
            if field.name not in masks.values()
            and not (masks.get(field.name) in values and not values[masks[field.name]][row])
        }


def _write(path: str, sample: Mapping[str, npt.NDArray[Any]], *, compare: bool) -> tuple[int, bool]:
    """Write a sample's file, unless it is there; returns its bytes, and whether it was."""
    data = npz_bytes(sample)
    if compare and is_written(path, data):
        return len(data), True
    with explained(path, len(data)):
        write_durably(path, [data])
    return len(data), False


def npz_bytes(sample: Mapping[str, npt.NDArray[Any]]) -> memoryview:
    """Return what `numpy.savez` writes for these arrays, but for the time, which is always the same.

    `savez` itself takes names as keywords, of which it has some for itself.
    """
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in sample.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                header = np.lib.format.header_data_from_array_1_0(array)
                np.lib.format.write_array_header_1_0(member, header)
                member.write(array.tobytes())
    return file.getbuffer()
