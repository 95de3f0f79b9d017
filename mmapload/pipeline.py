"""Threads that prepare batches ahead of their use, and hand them over in order.

Work goes to the threads in groups of batches: small batches are read several at a time, since for those the
calls cost more than the bytes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections import deque
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from mmapload.errors import WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]

__all__ = ["Group", "Prepared", "group_size", "prepared_in_threads", "thread_count"]

THREADS: Final = 2
"""Threads that put batches together, at most; each prepares one group at a time."""

GROUP_BYTES: Final = 2**20 - 1
"""Batches are grouped up to this size: bytes cost more than calls then; larger pieces are mapped, too."""

RAGGED_BYTES: Final = 2**22
"""Of samples that differ in shape: finding out where they lie takes longer than copying them."""

MOST_GROUPED: Final = 32
"""Batches in a group, however small they are."""


def group_size(batch_nbytes: int, global_batch: int, chunk_length: int, *, ragged: bool = False) -> int:
    """Return how many batches to read at a time.

    Parameters
    ----------
    batch_nbytes : int
        Of one batch.
    global_batch, chunk_length : int
        Samples of all ranks in a step, and of a chunk. Groups that reach over more than a quarter of a
        chunk would keep chunks in memory longer than their window needs them.
    ragged : bool
        Whether samples differ in shape.

    Examples
    --------
    >>> group_size(2**18, 256, 65536), group_size(2**20, 32, 65536), group_size(1024, 32, 256)
    (3, 1, 2)
    >>> group_size(2**20, 32, 65536, ragged=True)
    4
    """
    most = (RAGGED_BYTES if ragged else GROUP_BYTES) // max(1, batch_nbytes)
    return max(1, min(MOST_GROUPED, most, chunk_length // (4 * global_batch)))


def thread_count(grouped: int, ahead: int) -> int:
    """Return how many threads prepare groups of so many batches, so many groups ahead.

    Where a group is full before it has its bytes, copying takes less time than Python does, of which one
    thread runs at a time: a second one would only wait for the first, and take time to wake up.

    Examples
    --------
    >>> thread_count(3, 2), thread_count(MOST_GROUPED, 2), thread_count(3, 0)
    (2, 1, 1)
    """
    return 1 if grouped == MOST_GROUPED else min(THREADS, ahead + 1)


class Prepared:
    """One batch that is ready, or the error that took its place.

    Attributes
    ----------
    batch : Any
        What is handed over.
    samples : int
        Number of its samples.
    ready : float
        When it was ready, by `time.monotonic`.
    error : BaseException or None
        With the traceback of the thread.
    """

    __slots__ = ("batch", "error", "ready", "samples")

    def __init__(self, batch: Any, samples: int, error: BaseException | None = None) -> None:
        self.batch = batch
        self.samples = samples
        self.error = error
        self.ready = time.monotonic()


class Group:
    """Batches that one thread prepares together.

    Attributes
    ----------
    indices : sequence of int64 ndarrays
        The samples of each batch.
    prepared : deque of Prepared
        Once the group is done: as many, or fewer with an error as the last.
    thread : int or None
        Which thread is at it.
    """

    __slots__ = ("_done", "indices", "prepared", "thread")

    def __init__(self, indices: Sequence[Indices]) -> None:
        self.indices = indices
        self.prepared: deque[Prepared] = deque()
        self.thread: int | None = None
        self._done = threading.Lock()  # the cheapest thing that can be waited for
        self._done.acquire()

    def prepare(self, work: Callable[[Sequence[Indices]], Iterator[Prepared]]) -> None:
        """Do the work, in the thread that calls."""
        self.thread = threading.get_ident()
        try:
            self.prepared.extend(work(self.indices))
        except BaseException as error:  # noqa: BLE001 - surfaces where the batch is asked for
            self.prepared.append(Prepared(None, 0, error))
        finally:
            self.thread = None
            self._done.release()

    def wait(self, timeout: float) -> None:
        """Wait until the group is done.

        Raises
        ------
        WorkerError
            If that takes more than `timeout` seconds, where it is above 0. The message says where the
            thread is.
        """
        if not self._done.acquire(timeout=timeout if timeout > 0 else -1):
            frame = sys._current_frames().get(self.thread or 0)  # noqa: SLF001 - public but for its underscore
            where = "".join(traceback.format_stack(frame)) if frame else "no thread has begun with it\n"
            raise WorkerError(
                f"a batch was not ready after timeout={timeout:g} seconds; its thread is here:\n{where}"
            )


def prepared_in_threads(
    indices: Iterator[Indices],
    work: Callable[[Sequence[Indices]], Iterator[Prepared]],
    *,
    grouped: int,
    ahead: int,
    timeout: float = 0,
) -> Iterator[Prepared]:
    """Yield batches in order while threads prepare those that follow.

    Closing the iterator ends the threads, once each is done with the group in work; threads that did not
    come to an end within the timeout are left behind.

    Parameters
    ----------
    indices : iterator of int64 ndarrays
        The samples of each batch; advanced in the thread that iterates.
    work : callable
        Prepares a group; is called in several threads at once.
    grouped : int
        Batches in a group.
    ahead : int
        Groups in preparation beyond the one that is handed over.
    timeout : float
        Seconds that a group may take once it is waited for; 0: any.

    Raises
    ------
    WorkerError
        If it takes longer, or if a forked child goes on with it: no threads are there.
    """
    pid = os.getpid()
    waiting: SimpleQueue[Group | None] = SimpleQueue()
    threads = [
        threading.Thread(
            target=_prepare_groups, args=(waiting, work), name=f"mmapload-batch_{i}", daemon=True
        )
        for i in range(thread_count(grouped, ahead))
    ]
    coming: deque[Group] = deque()
    stalled = False
    try:
        for thread in threads:
            thread.start()
        while group := list(islice(indices, grouped)):
            coming.append(Group(group))
            waiting.put(coming[-1])
            if len(coming) > ahead:
                coming[0].wait(timeout)
                yield from _handed_over(coming.popleft().prepared, pid)
        while coming:
            coming[0].wait(timeout)
            yield from _handed_over(coming.popleft().prepared, pid)
    except WorkerError:
        stalled = True
        raise
    finally:
        _discard(waiting)
        for _ in threads:
            waiting.put(None)
        for thread in threads:
            if thread.is_alive() and not stalled and thread is not threading.current_thread():
                thread.join()


def _handed_over(prepared: deque[Prepared], pid: int) -> Iterator[Prepared]:
    """Yield each batch without keeping it: its memory may be used again when the caller drops it."""
    while prepared:
        yield prepared.popleft()
        if os.getpid() != pid:
            raise WorkerError(
                f"process {os.getpid()} was forked while process {pid} iterated over a loader, and goes on "
                "with that iterator, whose threads it does not have: iterate over the loader anew in it"
            )


def _prepare_groups(
    waiting: SimpleQueue[Group | None], work: Callable[[Sequence[Indices]], Iterator[Prepared]]
) -> None:
    while group := waiting.get():
        group.prepare(work)
        del group  # what it holds must not wait for the next


def _discard(waiting: SimpleQueue[Group | None]) -> None:
    while not waiting.empty():
        waiting.get()
