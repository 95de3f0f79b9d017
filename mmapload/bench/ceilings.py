"""What this machine can do at best: read the chunk files, decompress them, copy batches."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import torch

from mmapload.bench.rounds import Contender, timed
from mmapload.budget import available_memory
from mmapload.chunkfile import open_chunk_file
from mmapload.dataset import ChunkDataset
from mmapload.errors import ChunkError
from mmapload.mappings import map_anonymous, map_private, populate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from mmapload.codecs import Bytes
    from mmapload.layout import FieldLayout
    from mmapload.store import Store

__all__ = ["THREADS", "chunk_files", "copying", "decoding", "reading", "side_by_side"]

THREADS: Final = (1, 2, 4)
"""How many threads read at once, each number a contender."""

DECODING_THREADS: Final = 2
"""As many as load ahead for a loader."""

MOST_AT_ONCE: Final = 2**26
"""Bytes read by one call, at most: a chunk of the usual size."""

ChunkFile: TypeAlias = "tuple[FieldLayout, int, str]"
"""Field, number of the chunk, and path of its file."""

Do: TypeAlias = "Callable[[ChunkFile], None]"


def chunk_files(store: Store, chunks: int) -> list[ChunkFile]:
    """List the files of the first `chunks` chunks, as (field, chunk, path); they all have to be there."""
    fields = [field for field in store.layout.fields if field.sample_nbytes]
    claimed = chunks if fields else 0  # a store of empty arrays may claim 2**53 chunks without a file
    return [(field, chunk, store.chunk_path(field, chunk)) for chunk in range(claimed) for field in fields]


def reading(files: Sequence[ChunkFile], samples: int, nbytes: int) -> Iterator[Contender]:
    """Read whole chunk files in random order, by `preadv` and by `MADV_POPULATE_READ`.

    Each thread takes the next file when it is done with one. A file is read in pieces of at most 64 MiB, and
    of a sixteenth of the available memory: into one buffer a thread, or into the page cache alone.

    Parameters
    ----------
    samples : int
        How many the files hold.
    nbytes : int
        Their size.
    """
    paths = tuple(path for _, _, path in files)
    largest = max((os.stat(path).st_size for path in paths), default=0)
    piece = max(2**16, min(MOST_AT_ONCE, available_memory() // 16, largest))
    for threads in THREADS:
        name = f"{threads} thread{'s' * (threads > 1)}"
        prepare = partial(_read_all, files, partial(_preaders, threads, piece))
        yield Contender(f"pread, {name}", "pread", samples, nbytes, paths, prepare)
    for threads in THREADS:
        name = f"{threads} thread{'s' * (threads > 1)}"
        prepare = partial(_read_all, files, partial(_populaters, threads, piece))
        yield Contender(f"populate, {name}", "populate", samples, nbytes, paths, prepare)


def largest_chunk_nbytes(store: Store) -> int:
    """Return the decoded bytes of the chunk that has the most; all have as many where no field is ragged."""
    layout = store.layout
    return int(store.chunk_nbytes(layout.fields).max()) if layout.ragged else layout.chunk_nbytes


def decoding(store: Store, files: Sequence[ChunkFile], samples: int, nbytes: int) -> Contender:
    """Read and decompress the same files into recycled buffers, as a loader does in the background."""
    paths = tuple(path for _, _, path in files)
    chunks = sorted({chunk for _, chunk, _ in files})
    largest = largest_chunk_nbytes(store)
    reader = ChunkDataset(store.path, memory=largest, verify="never").residency.reader

    def prepare(number: int) -> Callable[[], float]:
        order = np.random.default_rng(number).permutation(chunks).tolist()
        return partial(timed, partial(side_by_side, order, [reader.load] * DECODING_THREADS))

    return Contender(f"decode, {DECODING_THREADS} threads", "decode", samples, nbytes, paths, prepare)


def copying(
    buffers: Mapping[str, torch.Tensor], batch: int, samples: int, nbytes: int
) -> Iterator[Contender]:
    """Copy one and the same batch into a fixed buffer, over and over: alone, and beside another who does.

    The second is what the memory of a machine sees of a loader that copies samples together to a batch while
    the batch before is copied out. A rate counts each batch once.

    Parameters
    ----------
    buffers : mapping of str to Tensor
        The fixed buffer of each field, shape (batch, *field shape).
    """
    sizes = [min(batch, samples - start) for start in range(0, samples, batch)]

    def copy_out(sources: Mapping[str, torch.Tensor]) -> None:
        for size in sizes:
            for name, source in sources.items():
                buffers[name][:size].copy_(source[:size])

    def copy_together(pairs: Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> None:
        for size in sizes:
            for source, target in pairs:
                np.copyto(target[:size], source[:size])

    def once(_: int) -> Callable[[], float]:
        sources = {name: torch.ones_like(buffer) for name, buffer in buffers.items()}
        return partial(timed, partial(copy_out, sources))

    def twice(_: int) -> Callable[[], float]:
        sources = {name: torch.ones_like(buffer) for name, buffer in buffers.items()}
        arrays = [_as_numpy(each) for each in buffers.values()]
        pairs = [(np.ones_like(each), np.ones_like(each)) for each in arrays]

        def both() -> None:
            thread = threading.Thread(target=copy_together, args=(pairs,), name="mmapload-copy")
            thread.start()
            copy_out(sources)
            thread.join()

        return partial(timed, both)

    yield Contender("memory copy", "copy", samples, nbytes, (), once)
    yield Contender("memory copy, twice at once", "copy", samples, nbytes, (), twice)


def _as_numpy(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """See a tensor as an array, which lacks bfloat16."""
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _read_all(
    files: Sequence[ChunkFile], readers: Callable[[], Sequence[Do]], number: int
) -> Callable[[], float]:
    """Read the files in an order drawn for the round, with as many threads as there are readers."""
    order = np.random.default_rng(number).permutation(len(files)).tolist()
    return partial(timed, partial(side_by_side, [files[i] for i in order], readers()))


def side_by_side(work: Sequence[Any], threads: Sequence[Callable[[Any], object]]) -> None:
    """Do all of it, a thread for each of `threads`, which take what comes next; an error stops them all."""
    coming, lock, stop = iter(work), threading.Lock(), threading.Event()

    def take(do: Callable[[Any], object]) -> None:
        while not stop.is_set():
            with lock:
                each = next(coming, None)
            if each is None:
                return
            do(each)

    with ThreadPoolExecutor(len(threads), "mmapload-bench") as pool:
        futures = [pool.submit(take, do) for do in threads]
        try:
            for future in as_completed(futures):
                future.result()
        finally:
            stop.set()


def _preaders(threads: int, nbytes: int) -> list[Do]:
    """Make as many readers, each with memory that was used before: fresh memory is several times slower."""
    buffers = [map_anonymous(nbytes) for _ in range(threads)]
    for buffer in buffers:
        buffer.fill(1)
    return [partial(_pread, buffer) for buffer in buffers]


def _populaters(threads: int, piece: int) -> list[Do]:
    return [partial(_populate, piece)] * threads


def _pread(buffer: Bytes, file: ChunkFile) -> None:
    field, chunk, path = file
    with _opened(file) as (fd, size):
        start = 0
        while start < size:
            count = os.preadv(fd, [buffer[: size - start]], start)
            if count == 0:
                raise ChunkError(field.name, chunk, path, f"{size} bytes", f"{start}: it shrank")
            start += count


def _populate(piece: int, file: ChunkFile) -> None:
    with _opened(file) as (fd, size):
        for start in range(0, size, piece):
            populate(map_private(fd, start, min(start + piece, size)))


@contextlib.contextmanager
def _opened(file: ChunkFile) -> Iterator[tuple[int, int]]:
    """Open a chunk file; gives its descriptor and size, and says which file it was if it cannot be read."""
    field, chunk, path = file
    fd, size = open_chunk_file(field, chunk, path)
    try:
        yield fd, size
    except ChunkError:
        raise
    except OSError as error:
        raise ChunkError(field.name, chunk, path, "a readable file", str(error)) from error
    finally:
        os.close(fd)
