"""Where samples come from: one module a kind of source, all behind two small protocols."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mmapload.notes import note_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    import numpy as np
    import numpy.typing as npt

__all__ = ["ArraySpec", "IndexedSource", "StreamSource"]


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """One array of a sample, as it will be stored.

    Attributes
    ----------
    dtype : numpy.dtype
        In native byte order; `notes.BFLOAT16` for bfloat16.
    shape : tuple of int
        Shape of one sample's array, C order; `()` for a scalar.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's array."""
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return count

    @property
    def is_text(self) -> bool:
        """Whether the elements are text or byte strings, of a fixed length that differs between samples."""
        return self.dtype.kind in "US"

    def holds(self, other: ArraySpec) -> bool:
        """Say whether an array of this kind takes one of the other kind, each bit of it.

        Examples
        --------
        >>> import numpy as np
        >>> wide, narrow, number = (ArraySpec(np.dtype(each), (2,)) for each in ("<U7", "<U3", "f4"))
        >>> wide.holds(narrow), narrow.holds(wide), wide.holds(number)
        (True, False, False)
        """
        return self == other or (
            self.is_text
            and (self.shape, self.dtype.kind) == (other.shape, other.dtype.kind)
            and self.dtype.itemsize >= other.dtype.itemsize
        )

    def __str__(self) -> str:
        return f"{note_of(self.dtype) or self.dtype.name} {self.shape}"


class IndexedSource(Protocol):
    """Samples that can be read by number, in any order, and more than once.

    Attributes
    ----------
    kind : str
        The name kept in the store, "npz" for instance.
    parallel : bool
        Whether `read` may be called from several threads at once.
    """

    kind: str
    parallel: bool

    def __len__(self) -> int:
        """Count the samples."""

    def name(self, index: int) -> str | None:
        """Name the sample: its path relative to the source's root, or None where it has none."""

    def describe(self, index: int) -> str:
        """Say which sample this is in an error message: its whole path, or "sample 7"."""

    def schema(self, index: int) -> dict[str, ArraySpec]:
        """Read what arrays sample `index` has, from its headers alone where possible.

        Raises
        ------
        SourceError
            Naming file, member and cause.
        """

    def read(self, index: int, into: Mapping[str, npt.NDArray[Any]]) -> Collection[str] | None:
        """Read the arrays of sample `index` into the C-contiguous arrays given.

        Returns
        -------
        collection of str, or None
            The fields that the sample lacks, if the source knows them for optional: `into` is left as it is
            there. None, or empty, if it lacks none.

        Raises
        ------
        SourceError
            If the sample cannot be read, or its fields, dtypes or shapes are not those of `into`; the
            message names both sides. What `into` then holds is undefined.
        """

    def fingerprint(self, index: int) -> bytes:
        """Summarise the contents of sample `index`, cheaply, so that a change between two runs is seen."""


class StreamSource(Protocol):
    """Samples that come one after the other, once, and of which nobody knows how many there are.

    Attributes
    ----------
    kind : str
        The name kept in the store.
    """

    kind: str

    def __iter__(self) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """Yield every sample once, as a mapping of field name to array."""
