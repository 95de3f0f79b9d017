"""Read every file of a store and say what is wrong with it."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from mmapload.chunkfile import read_chunk_file
from mmapload.elements import ElementCounts
from mmapload.errors import ChunkError, LayoutError
from mmapload.extents import parse_extents
from mmapload.layout import RESERVED_GROUP
from mmapload.opening import METADATA, read_reserved, rewritten_documents, root_document
from mmapload.presence import chunks_there, missing_chunks
from mmapload.ragged import EXTENTS, chunk_files, combined_checksum, extents_array, field_groups
from mmapload.reserved import (
    NAME_ARRAYS,
    checksums_array,
    elements_array,
    end_of_names,
    expect_ends,
    reserved_arrays,
)
from mmapload.seals import appending, is_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["verified"]

_ExpectListed: TypeAlias = "Callable[[FieldLayout, int, bytes], None]"
_Locate: TypeAlias = "Callable[[ChunkError], ChunkError]"
_Found = TypeVar("_Found")


def verified(
    path: str, layout: StoreLayout, expect_listed: _ExpectListed, locate: _Locate, threads: int
) -> Iterator[ChunkError | LayoutError | None]:
    """Read every chunk file of a store: yields for each None, or what is wrong with it.

    Parameters
    ----------
    path : str
        The store's folder.
    expect_listed : callable
        Raises ChunkError if the checksum that ends a file is not the one that is listed for it.
    locate : callable
        Adds to an error which samples it concerns.
    threads : int
        Each keeps one chunk in memory.
    """
    counts = ElementCounts(path, layout)
    for field in layout.fields:
        if field.is_ragged:
            yield from _ragged_faults(path, layout, field, counts, expect_listed, locate, threads)
            continue
        chunks = layout.chunks if field.sample_nbytes else 0

        def check_listed(chunk: int, _: Bytes, trailer: bytes, field: FieldLayout = field) -> None:
            expect_listed(field, chunk, trailer)

        yield from _faults(path, field, chunks, threads, locate, check_listed)
    lengths, problems = _read_documents(path, layout)
    if problems:
        yield LayoutError(path, problems)
    group = os.path.join(path, RESERVED_GROUP)
    if layout.ragged:
        elements = elements_array(len(layout.ragged))
        yield from _faults(group, elements, -(-layout.chunks // elements.chunk_length), threads, locate)
    if layout.has_checksums:
        listed = checksums_array(len(layout.fields))
        chunks = -(-layout.chunks // listed.chunk_length)
        yield from _faults(group, listed, chunks, threads, locate)
    if layout.has_names:
        total = lengths.get("names") if _is_as_opened(root_document(path), layout) else None
        ends, names = NAME_ARRAYS["ends"], NAME_ARRAYS["names"]

        def check_ends(chunk: int, content: Bytes, _: bytes) -> None:
            expect_ends(path, chunk, content, layout.samples, total)

        chunks = -(-layout.samples // ends.chunk_length)
        yield from _faults(group, ends, chunks, threads, locate, check_ends)
        there = end_of_names(path, layout.samples) if total is None else total
        yield from _faults(group, names, -(-there // names.chunk_length), threads, locate)


def _is_as_opened(root: Mapping[str, Any], layout: StoreLayout) -> bool:
    """Whether no samples have been appended since the store was opened, or are being appended."""
    notes = root.get("attributes", {}).get("mmapload", {})
    return appending(root) is None and notes.get("samples") == layout.samples


def _read_documents(path: str, layout: StoreLayout) -> tuple[dict[str, int], list[str]]:
    """Read all metadata anew: returns the lengths of the reserved arrays, and what is wrong."""
    exact = {"ends": layout.samples, "checksums": layout.chunks, "elements": layout.chunks}
    extents = [replace(extents_array(field), name=f"{EXTENTS}/{field.name}") for field in layout.ragged]
    exact |= dict.fromkeys((array.name for array in extents), layout.samples)
    reserved = (*reserved_arrays(layout), *extents)
    least = [(array, exact.get(array.name, 0)) for array in reserved]
    groups = [RESERVED_GROUP, *([f"{RESERVED_GROUP}/{EXTENTS}"] if extents else [])] if reserved else []
    lengths, problems = read_reserved(path, groups, least)
    root = root_document(path)
    if not root:
        problems.append(
            f"{METADATA}: cannot be read any more, as it could when the store was opened: the store was "
            "moved or removed meanwhile, or the file was damaged; verify it where it is now, or restore it"
        )
    if is_sealed(root):
        own = [*groups, *(f"{RESERVED_GROUP}/{array.name}" for array in reserved)]
        fields = [field.name for field in layout.fields]
        above = field_groups(fields, [field.name for field in layout.ragged])
        problems += rewritten_documents(path, ["", *above, *fields, *own])
        if _is_as_opened(root, layout):
            problems += [
                f"{RESERVED_GROUP}/{name}/{METADATA}: shape: expected {exact[name]} rows, found {length}"
                for name, length in lengths.items()
                if length != exact.get(name, length)
            ]
    return lengths, problems


def _ragged_faults(
    path: str,
    layout: StoreLayout,
    field: FieldLayout,
    counts: ElementCounts,
    expect_listed: _ExpectListed,
    locate: _Locate,
    threads: int,
) -> Iterator[ChunkError | None]:
    """Read all files of a ragged field, their padding too: yields for each None, or what is wrong with it."""
    try:
        values = counts.of(field)
    except ChunkError as error:
        yield error  # without these numbers nobody knows which files there are
        return

    def look(chunk: int) -> list[ChunkError | None]:
        found: list[ChunkError | None] = []
        trailers = []
        files = chunk_files(path, field, chunk, int(values[chunk]))
        for number, (array, name) in enumerate(files):
            try:
                content = read_chunk_file(array, chunk, name)
                trailers.append(content.trailer)
                if number == 0:
                    samples = layout.chunk_samples(chunk)
                    parse_extents(field, chunk, name, content.data, samples, int(values[chunk]))
                elif number == len(files) - 1:
                    _expect_padding(field, chunk, name, content.data, int(values[chunk]))
                if number == len(files) - 1 and len(trailers) == len(files):
                    expect_listed(field, chunk, combined_checksum(trailers))
            except ChunkError as error:
                # What is wrong with other files, of the list of checksums say, is told when they are read.
                own = error.path == name or os.path.dirname(error.path) == os.path.join(path, field.name)
                found.append(locate(error) if own else None)
            else:
                found.append(None)
        return found

    for several in _in_order(look, range(layout.chunks), threads):
        yield from several


def _expect_padding(field: FieldLayout, chunk: int, path: str, data: Bytes, values: int) -> None:
    """Refuse a last piece that does not end in zeros."""
    used = ((values - 1) % field.piece_length + 1) * field.dtype.itemsize
    if data[used:].any():
        expected = f"zeros behind {used:,} bytes of values"
        raise ChunkError(field.name, chunk, path, expected, "something else")


def _faults(
    parent: str,
    array: FieldLayout,
    chunks: int,
    threads: int,
    locate: _Locate,
    check: Callable[[int, Bytes, bytes], None] | None = None,
) -> Iterator[ChunkError | None]:
    """Read the chunk files of an array side by side, and yield what is wrong with each, in order."""
    folder = os.path.join(parent, array.name)
    kept = threading.local()  # memory used before is several times faster than fresh memory

    def allocate(nbytes: int) -> Bytes:
        if getattr(kept, "out", np.empty(0)).nbytes < nbytes:
            kept.out = np.empty(nbytes, np.uint8)
        out: Bytes = kept.out[:nbytes]
        return out

    def fault(chunk: int) -> ChunkError | None:
        path = os.path.join(folder, array.chunk_key(chunk))
        try:
            content = read_chunk_file(array, chunk, path, allocate)
            if check is not None:
                check(chunk, content.data, content.trailer)
        except ChunkError as error:
            # What is wrong with other files, of the list of checksums say, is told when they are read.
            return locate(error) if error.path == path else None
        return None

    there = chunks_there(folder, array, chunks)
    missing = missing_chunks(there, chunks)
    more = chunks - len(there) - len(missing)
    yield from _in_order(fault, sorted({*there, *missing}), threads)
    if more:
        path = os.path.join(folder, array.chunk_key(missing[-1] + 1))
        yield ChunkError(array.name, missing[-1] + 1, path, "a chunk file", f"{more:,} more are missing")


def _in_order(fault: Callable[[int], _Found], chunks: Iterable[int], threads: int) -> Iterator[_Found]:
    """Call a function for each chunk, in threads; yield what it returns in the order of the chunks."""
    if threads == 1:
        yield from map(fault, chunks)
        return
    ahead: deque[Future[_Found]] = deque()
    with ThreadPoolExecutor(threads, "mmapload-verify") as pool:
        for chunk in chunks:
            ahead.append(pool.submit(fault, chunk))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
