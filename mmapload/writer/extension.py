"""Put appended samples in their place in a finished store, which is valid before, meanwhile and after.

Everything is written in the work folder first. Then files are renamed into the store, one after the other:
chunk files that nobody looks for yet; a root that says that an append is under way, so that either of two
checksums of the last chunk is right; that chunk, whose old samples are as they were; what is listed of
samples and chunk files; the arrays' documents; and the root with the new number of samples, which ends it.
The journal says when renaming begins, and from then on it is only ever taken to its end.
"""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.layout import RESERVED_GROUP
from mmapload.opening import METADATA
from mmapload.reserved import NAME_ARRAYS, checksums_array, read_elements
from mmapload.seals import APPENDING, document_text, sealed
from mmapload.writer.checksums import trailers
from mmapload.writer.durable import explained, open_regular, sync_folder, write_durably
from mmapload.writer.journal import Journal, read_journal
from mmapload.writer.reserved import ReservedArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from mmapload.layout import FieldLayout, StoreLayout
    from mmapload.store import Store
    from mmapload.writer.workfolder import WorkFolder

__all__ = ["commit", "committed", "put_in_place", "without_commit"]

_COMMIT: Final = "commit"
_BEGIN, _END = "begin.json", "end.json"


def committed(entries: Sequence[Mapping[str, Any]]) -> int:
    """Say how many samples the store had, if a journal tells that files are put in their places; else 0."""
    told = next((entry.get("samples") for entry in entries if _COMMIT in entry), 0)
    return told if isinstance(told, int) and told > 0 else 0


def without_commit(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a journal that tell of chunks and of what was left out."""
    return [entry for entry in entries if _COMMIT not in entry]


def commit(
    work: WorkFolder,
    store: Store,
    samples: int,
    part: StoreLayout,
    names: Iterable[str],
    source: Mapping[str, Any],
) -> None:
    """Write what the store's lists and documents are to be, and note that all that is left is renaming.

    Parameters
    ----------
    work : WorkFolder
        With the chunk files in its store, numbered from 0 on.
    store : Store
        What is appended to.
    samples : int
        How many it has.
    part : StoreLayout
        Of what was written: samples of the last chunk, if it was not full, and the new ones.
    names : iterable of str
        Those of the samples in `part`; not looked at if the store keeps none.
    source : mapping
        What the root is to say of how the store was made.
    """
    rows, first_chunk = samples % part.chunk_length, samples // part.chunk_length
    total = samples - rows + part.samples
    shutil.rmtree(work.commit, ignore_errors=True)
    os.mkdir(work.commit)
    files = os.path.join(work.commit, "files")
    documents = {name: _read(os.path.join(store.path, name, METADATA)) for name in store.fields}
    for name, document in documents.items():
        document["shape"][0] = total
        os.makedirs(os.path.join(files, name))
        _write(os.path.join(files, name, METADATA), document)
    last: list[int] = []
    if store.layout.has_names:
        _write_names(files, store.path, samples, names, rows)
    if store.layout.has_checksums:
        last = _write_checksums(files, store.path, work.store, part, first_chunk, first=bool(rows))
    root = _read(os.path.join(store.path, METADATA))
    root.pop("consolidated_metadata", None)  # of other tools; it would be out of date
    notes = root["attributes"]["mmapload"]
    notes.pop(APPENDING, None)
    under_way = {**notes, APPENDING: {"samples": total, "checksums": last}}
    for name, told in ((_BEGIN, under_way), (_END, {**notes, "samples": total, "source": dict(source)})):
        whole = {**root, "attributes": {**root["attributes"], "mmapload": told}}
        _write(os.path.join(work.commit, name), sealed(whole, documents))
    for folder, _, _ in os.walk(work.commit):
        sync_folder(folder)
    sync_folder(work.path)
    with Journal(work.journal, read_journal(work.journal)[1]) as journal:
        journal.append([{_COMMIT: total, "samples": samples}])


def put_in_place(work: WorkFolder, store: Store, samples: int) -> None:
    """Rename into the store what was committed; what was renamed before is left out. Then remove the rest.

    Parameters
    ----------
    work : WorkFolder
        After `commit`, by this process or another.
    store : Store
        What is appended to.
    samples : int
        How many it had before.
    """
    layout = store.layout
    first_chunk, rows = divmod(samples, layout.chunk_length)
    for field in layout.fields:
        chunks = [chunk for chunk in _chunks_in(work.store, field) if chunk or not rows]
        _move_chunks(work.store, store.path, field, chunks, first_chunk)
    _move(os.path.join(work.commit, _BEGIN), os.path.join(store.path, METADATA))
    sync_folder(store.path)
    for field in layout.fields:
        _move_chunks(work.store, store.path, field, _chunks_in(work.store, field), first_chunk)
    files = os.path.join(work.commit, "files")
    for name in sorted(_entries(os.path.join(files, RESERVED_GROUP))):
        _move_files(os.path.join(files, RESERVED_GROUP, name), os.path.join(store.path, RESERVED_GROUP, name))
    for field in layout.fields:
        _move_files(os.path.join(files, field.name), os.path.join(store.path, field.name))
    _move(os.path.join(work.commit, _END), os.path.join(store.path, METADATA))
    sync_folder(store.path)
    work.discard()


def _write_names(files: str, store: str, samples: int, names: Iterable[str], rows: int) -> None:
    """Write the ends of the lists of names: chunk files that change, and new ones."""
    ends, texts = NAME_ARRAYS["ends"], NAME_ARRAYS["names"]
    end = int(read_elements(store, ends, samples - 1, samples).view("<i8")[0])
    listed_ends = ReservedArray(files, ends, samples - samples % ends.chunk_length)
    listed_ends.extend(read_elements(store, ends, listed_ends.length, samples).view("<i8"))
    listed = ReservedArray(files, texts, end - end % texts.chunk_length)
    listed.extend(read_elements(store, texts, listed.length, end))
    for number, name in enumerate(names):
        if number >= rows:
            text = np.frombuffer(name.encode("utf-8", "surrogateescape"), np.uint8)
            end += text.size
            listed.extend(text)
            listed_ends.extend(np.array([end], "<i8"))
    listed.close()
    listed_ends.close()


def _write_checksums(
    files: str, store: str, written: str, part: StoreLayout, first_chunk: int, *, first: bool
) -> list[int]:
    """Write the end of the list of checksums; returns the first chunk's if it takes another's place."""
    array = checksums_array(len(part.fields))
    listed = ReservedArray(files, array, first_chunk - first_chunk % array.chunk_length)
    there = read_elements(store, array, listed.length, first_chunk)
    listed.extend(there.view("<u4").reshape(-1, len(part.fields)))
    last: list[int] = []
    for chunk in range(part.chunks):
        row = trailers(written, part, chunk)
        listed.extend(row[None])
        if first and chunk == 0:
            last = row.tolist()
    listed.close()
    return last


def _chunks_in(folder: str, field: FieldLayout) -> list[int]:
    """List the numbers of the chunk files that are still in the work folder."""
    there = set(_entries(os.path.join(folder, field.name)))
    numbers = sorted(int(name.split(".")[1]) for name in there if name.startswith("c."))
    return [number for number in numbers if field.chunk_key(number) in there]


def _move_chunks(
    folder: str, store: str, field: FieldLayout, chunks: Iterable[int], first_chunk: int
) -> None:
    for chunk in chunks:
        source = os.path.join(folder, field.name, field.chunk_key(chunk))
        _move(source, os.path.join(store, field.name, field.chunk_key(first_chunk + chunk)))
    sync_folder(os.path.join(store, field.name))


def _move_files(folder: str, place: str) -> None:
    """Rename the files of a folder, the metadata last."""
    for name in sorted(_entries(folder)):  # "c..." comes before "zarr.json"
        _move(os.path.join(folder, name), os.path.join(place, name))
    sync_folder(place)


def _move(path: str, place: str) -> None:
    if os.path.lexists(path):  # or it was renamed by the run that was cut off
        os.rename(path, place)


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _read(path: str) -> dict[str, Any]:
    with open_regular(path) as file:
        found: dict[str, Any] = json.load(file)
    return found


def _write(path: str, document: Mapping[str, Any]) -> None:
    text = document_text(document)
    with explained(path, len(text)):
        write_durably(path, [text])
