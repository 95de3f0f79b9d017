"""Samples of formats whose libraries hand out arrays, behind the protocol of `sources`.

A format says how many samples there are, what they are called, and which arrays each has; `ArraysSource`
does what is the same for all: selection, comparison, copying, and noticing changes.
"""

from __future__ import annotations

import errno
import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
from isal import isal_zlib

from mmapload.errors import MmaploadError, SourceError
from mmapload.sources.values import as_array, select, specs_of, store_sample

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    import numpy.typing as npt

    from mmapload.sources import ArraySpec

__all__ = ["ArraySamples", "ArraysSource", "explained_read"]

_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this process or the machine lacks for the moment; it says nothing against the file."""


class ArraySamples(Protocol):
    """Samples by number, each a mapping that loads an array when it is asked for it.

    Attributes
    ----------
    kind : str
        The name kept in the store, "hdf5" for instance.
    parallel : bool
        Whether `arrays` may be called from several threads at once.
    classes : mapping of str to sequence of str
        For arrays that hold class numbers, the names of the classes.
    """

    kind: str
    parallel: bool
    classes: Mapping[str, Sequence[str]]

    def __len__(self) -> int:
        """Count the samples."""

    def name(self, index: int) -> str:
        """Name a sample: the path of its file relative to the source's root, and its place in that."""

    def describe(self, index: int) -> str:
        """Say which sample this is in an error message: as `name`, with the whole path."""

    def arrays(self, index: int) -> AbstractContextManager[Mapping[str, Any]]:
        """Open a sample: its arrays by name; getting one may raise SourceError, or what its library does."""


class ArraysSource:
    """An indexed source over the samples of a format.

    The contents of a sample are compared when an interrupted run goes on, so that a change is seen which
    keeps size and time of modification.

    Parameters
    ----------
    samples : ArraySamples
        What the format's module gives.
    fields : mapping of str to str, optional
        Which arrays to take, and the field that each becomes. None: all, under their own names.
    optional : collection of str
        Fields that a sample may lack.

    Examples
    --------
    >>> import numpy as np
    >>> from contextlib import nullcontext
    >>> class Squares:
    ...     kind, parallel, classes = "squares", True, {}
    ...     __len__ = lambda self: 4
    ...     name = describe = lambda self, index: f"square {index}"
    ...     arrays = lambda self, index: nullcontext({"root": np.int8(index), "square": np.int16(index**2)})
    >>> source = ArraysSource(Squares(), {"square": "y"})
    >>> {field: str(spec) for field, spec in source.schema(0).items()}
    {'y': 'int16 ()'}
    >>> y = np.empty((), np.int16)
    >>> absent = source.read(3, {"y": y})
    >>> int(y)
    9
    """

    def __init__(
        self,
        samples: ArraySamples,
        fields: Mapping[str, str] | None = None,
        optional: Collection[str] = (),
    ) -> None:
        self.kind = samples.kind
        self.parallel = samples.parallel
        self._samples = samples
        self._fields = None if fields is None else dict(fields)
        self._optional = frozenset(optional)
        self._kept = threading.local()

    def __len__(self) -> int:
        """Count the samples."""
        return len(self._samples)

    @property
    def notes(self) -> dict[str, Any]:
        """What the store is to keep about the source: the names of classes, by the field of their numbers."""
        classes = {
            field: list(self._samples.classes[array])
            for array, field in self._named(self._samples.classes).items()
        }
        return {"classes": classes} if classes else {}

    def _named(self, arrays: Collection[str]) -> dict[str, str]:
        """Return those of the arrays that are taken, and their fields."""
        if self._fields is None:
            return {array: array for array in arrays}
        return {array: field for array, field in self._fields.items() if array in arrays}

    def name(self, index: int) -> str:
        """Name sample `index`."""
        return self._samples.name(index)

    def describe(self, index: int) -> str:
        """Say where sample `index` lies."""
        return self._samples.describe(index)

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Load sample `index` and return dtype and shape of its arrays.

        Raises
        ------
        SourceError
            If it cannot be read, lacks a selected array that is not optional, or holds what a store cannot.
        """
        return specs_of(self._take(index), self.describe(index), self._optional)

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> tuple[str, ...]:
        """Load sample `index` and copy its arrays.

        Returns
        -------
        tuple of str
            The optional fields that it lacks; their arrays are left as they are.

        Raises
        ------
        SourceError
            If it cannot be read, or differs from `into`.
        """
        return store_sample(self._take(index, again=True), into, self.describe(index), self._optional)

    def fingerprint(self, index: int) -> bytes:
        """Summarise names, dtypes, shapes and contents of sample `index`; what is read next is read once."""
        sample = self._take(index)
        self._kept.sample = index, sample
        facts: list[Any] = [self.name(index)]
        for name, value in sample.items():
            try:
                array = as_array(value)
            except (TypeError, ValueError, RuntimeError):
                continue  # `read` will say so
            facts.append((name, array.dtype.str, array.shape, _checksum(array)))
        return hashlib.blake2b(repr(facts).encode("utf-8", "surrogateescape"), digest_size=16).digest()

    def _take(self, index: int, *, again: bool = False) -> dict[str, Any]:
        """Load the selected arrays of a sample; `again` takes those that this thread loaded last."""
        kept, self._kept.sample = getattr(self._kept, "sample", None), None
        if again and kept is not None and kept[0] == index:
            found: dict[str, Any] = kept[1]
            return found
        where = self.describe(index)
        member = None
        try:
            with self._samples.arrays(index) as arrays:
                chosen = select({name: name for name in arrays}, self._fields, where, self._optional)
                sample = {}
                for field, member in chosen.items():
                    sample[field] = arrays[member]
        except Exception as error:
            raise explained_read(error, where, member) from error
        return sample


def _checksum(array: npt.NDArray[Any]) -> int:
    if array.dtype.hasobject:
        return isal_zlib.crc32(repr(array.tolist()).encode("utf-8", "surrogateescape"))
    data = np.ascontiguousarray(array).reshape(-1)
    return isal_zlib.crc32(data.view(np.uint8)) if data.nbytes else 0


def explained_read(error: Exception, file: str, member: str | None = None) -> Exception:
    """Return what to raise where a library failed to read: a SourceError, if the fault is the file's."""
    if isinstance(error, (MmaploadError, MemoryError)) or getattr(error, "errno", None) in _SCARCE:
        return error
    return SourceError(file, member, f"cannot be read: {type(error).__name__}: {error}")
