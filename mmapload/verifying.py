"""Read every file of a store and say what is wrong with it."""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from mmapload.chunkfile import read_chunk_file
from mmapload.errors import ChunkError, LayoutError
from mmapload.layout import RESERVED_GROUP
from mmapload.opening import METADATA, read_reserved, rewritten_documents, root_document
from mmapload.presence import chunks_there, missing_chunks
from mmapload.reserved import NAME_ARRAYS, checksums_array, end_of_names, expect_ends, reserved_arrays
from mmapload.seals import appending, is_sealed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout, StoreLayout

__all__ = ["verified"]

_ExpectListed: TypeAlias = "Callable[[FieldLayout, int, bytes], None]"
_Locate: TypeAlias = "Callable[[ChunkError], ChunkError]"


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
    for field in layout.fields:
        chunks = layout.chunks if field.sample_nbytes else 0

        def check_listed(chunk: int, _: Bytes, trailer: bytes, field: FieldLayout = field) -> None:
            expect_listed(field, chunk, trailer)

        yield from _faults(path, field, chunks, threads, locate, check_listed)
    lengths, problems = _read_documents(path, layout)
    if problems:
        yield LayoutError(path, problems)
    group = os.path.join(path, RESERVED_GROUP)
    if layout.has_checksums:
        listed = checksums_array(len(layout.fields))
        chunks = -(-layout.chunks // listed.chunk_length)
        yield from _faults(group, listed, chunks, threads, locate)
    if layout.has_names:
        total = None if appending(root_document(path)) else lengths.get("names")
        ends, names = NAME_ARRAYS["ends"], NAME_ARRAYS["names"]

        def check_ends(chunk: int, content: Bytes, _: bytes) -> None:
            expect_ends(path, chunk, content, layout.samples, total)

        chunks = -(-layout.samples // ends.chunk_length)
        yield from _faults(group, ends, chunks, threads, locate, check_ends)
        there = end_of_names(path, layout.samples) if total is None else total
        yield from _faults(group, names, -(-there // names.chunk_length), threads, locate)


def _read_documents(path: str, layout: StoreLayout) -> tuple[dict[str, int], list[str]]:
    """Read all metadata anew: returns the lengths of the reserved arrays, and what is wrong."""
    exact = {"ends": layout.samples, "checksums": layout.chunks}
    reserved = reserved_arrays(layout)
    least = [(array, exact.get(array.name, 0)) for array in reserved]
    lengths, problems = read_reserved(path, least) if reserved else ({}, [])
    root = root_document(path)
    if is_sealed(root):
        own = [RESERVED_GROUP, *(f"{RESERVED_GROUP}/{array.name}" for array in reserved)]
        fields = [field.name for field in layout.fields]
        problems += rewritten_documents(path, ["", *fields, *(own if reserved else ())])
        if appending(root) is None:
            problems += [
                f"{RESERVED_GROUP}/{name}/{METADATA}: shape: expected {exact[name]} rows, found {length}"
                for name, length in lengths.items()
                if length != exact.get(name, length)
            ]
    return lengths, problems


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


def _in_order(
    fault: Callable[[int], ChunkError | None], chunks: Iterable[int], threads: int
) -> Iterator[ChunkError | None]:
    """Call a function for each chunk, in threads; yield what it returns in the order of the chunks."""
    ahead: deque[Future[ChunkError | None]] = deque()
    with ThreadPoolExecutor(threads, "mmapload-verify") as pool:
        for chunk in chunks:
            ahead.append(pool.submit(fault, chunk))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
