"""What a reader of chunks does, and what readers have in common."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mmapload.errors import ChunkError, StateMismatchError, StoreNotFoundError
from mmapload.opening import identity_of
from mmapload.readers.ragged import RaggedReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

    from mmapload.checks import Checks
    from mmapload.layout import FieldLayout
    from mmapload.spans import Span
    from mmapload.store import Store

__all__ = ["ChunkArrays", "ChunkReader", "PlacedArrays", "Reader"]

ChunkArrays: TypeAlias = "dict[str, Any]"
"""The samples of one chunk: field name -> array of shape (samples, *field shape), writable, private; of a
ragged field a `RaggedArray`."""


class PlacedArrays(dict[str, Any]):
    """The samples of one chunk, of which can be copied with one call for each field.

    Fields of one shape lie at the chunk's place in the reader's spans.

    Attributes
    ----------
    addresses : dict of str to int
        Of ragged fields: where in memory the values of the chunk begin.
    """

    __slots__ = ("addresses",)

    def __init__(self, arrays: ChunkArrays, ragged: Iterable[str]) -> None:
        super().__init__(arrays)
        self.addresses: dict[str, int] = {name: arrays[name].address for name in ragged}


class ChunkReader(Protocol):
    """Loads chunks. Thread-safe; every array that it gives out is the caller's alone.

    Attributes
    ----------
    chunks_loaded, bytes_loaded : int
        How often `load` has given out rows of a chunk, and the bytes of files that were mapped or read for
        that and for `read_rows`.
    row_bytes_loaded : int
        Those of them that `read_rows` read.
    places_chunks : bool
        Whether whole chunks are loaded as `PlacedArrays`, as a rule.
    spans : dict of str to Span
        Of each field of one shape, an array in which all chunks have a place; empty if they have none.
    """

    places_chunks: bool
    spans: Mapping[str, Span]
    chunks_loaded: int
    bytes_loaded: int
    row_bytes_loaded: int

    @property
    def maps(self) -> bool:
        """Whether loading maps files, so that the page cache holds what was loaded."""

    def load(
        self, chunk: int, start: int = 0, stop: int | None = None, *, in_memory: bool = False
    ) -> ChunkArrays:
        """Load rows [start, stop) of a chunk, all of them by default.

        Parameters
        ----------
        in_memory : bool
            Whether the files' pages are known to be in memory, so that nothing has to be brought in.

        Returns
        -------
        dict of str to ndarray
            `PlacedArrays` if no rows are named and the chunk's place was free.

        Raises
        ------
        ChunkError
            If a file is missing, of the wrong size, or damaged.
        StateMismatchError
            If another store has taken this one's place since it was first read.
        StoreNotFoundError
            If it was moved or removed since.
        """

    def warm(self, chunk: int, start: int = 0, stop: int | None = None) -> None:
        """Bring the bytes of these rows' files into the page cache."""

    def places(
        self, field: str, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where samples of a ragged field begin in the values of their chunks, and their shapes."""

    def read_rows(
        self,
        chunk: int,
        rows: npt.NDArray[np.int64],
        into: Mapping[str, Any],
        places: npt.NDArray[np.int64],
    ) -> bool:
        """Read single rows of a chunk into `into[field][places]` without loading the chunk.

        Returns
        -------
        bool
            False if that cannot be done: the chunk has to be decoded, or checked, as a whole.
        """


class Reader:
    """What readers have in common: the files of the chosen fields, counts, and what errors say."""

    def __init__(
        self, store: Store, fields: tuple[FieldLayout, ...], checks: Checks, *, drop_behind: bool
    ) -> None:
        self.store = store
        self.fields = fields
        self.checks = checks
        self.drop_behind = drop_behind
        self.spans: Mapping[str, Span] = {}
        self.ragged = {
            field.name: RaggedReader(store, field, i, checks, drop_behind=drop_behind)
            for i, field in enumerate(fields)
            if field.is_ragged
        }
        self.places_chunks = bool(self.ragged) and not any(field.sample_nbytes for field in fields)
        self.chunks_loaded = 0
        self.bytes_loaded = 0
        self.row_bytes_loaded = 0
        self._root = identity_of(store.path)
        self._counting = threading.Lock()

    def places(
        self, field: str, samples: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return where samples of a ragged field begin in the values of their chunks, and their shapes.

        Raises
        ------
        ChunkError
            If a file that says so is missing or damaged.
        """
        with self.reading():
            return self.ragged[field].places(samples)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Say in errors which samples they concern; but of a store that was replaced or moved, just that."""
        try:
            yield
        except ChunkError as error:
            self._refuse_replaced()
            raise self.store.located(error) from error.__cause__

    def finish(self, chunks: int, nbytes: int) -> None:
        """Count what was read, and refuse it if the store was replaced meanwhile: old and new would mix."""
        self._refuse_replaced()
        with self._counting:
            self.chunks_loaded += chunks
            self.bytes_loaded += nbytes
            self.row_bytes_loaded += 0 if chunks else nbytes

    def _refuse_replaced(self) -> None:
        root = identity_of(self.store.path)
        if root is None and self._root is not None:
            raise StoreNotFoundError(
                f"{self.store.path} is not there any more: the store was moved or removed, or its file "
                "system unmounted, while it was in use; put it back, or open it where it is now"
            )
        if root != self._root:
            raise StateMismatchError(
                f"{self.store.path} is not the folder that was opened: it was replaced by another store "
                "while it was in use; open it again, also if this is a copy",
                f"folder {self._root}",
                f"{root}",
            )

    def paths(self, chunk: int) -> list[tuple[int, FieldLayout, str]]:
        """Return number, layout and file of each field."""
        return [(i, field, self.store.chunk_path(field, chunk)) for i, field in enumerate(self.fields)]

    def end_of(self, chunk: int, stop: int | None) -> int:
        """Return the end of the rows asked for: by default that of the chunk."""
        return self.store.layout.chunk_samples(chunk) if stop is None else stop
