"""What a store looks like, as frozen values, and the arithmetic of its chunks.

A store is a Zarr v3 group with one array a field; `docs/format.md` has the whole profile. `metadata`
reads these values from its documents and `writer` writes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES
from mmapload.notes import FieldNote

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from mmapload.codecs import Codec
    from mmapload.notes import DtypeNote

__all__ = [
    "CONTENTS",
    "CORE_DTYPES",
    "FORMAT_VERSION",
    "RESERVED_GROUP",
    "FieldLayout",
    "StoreLayout",
    "chunk_length_for",
]

FORMAT_VERSION: Final = 1
RESERVED_GROUP: Final = "__mmapload__"
"""Group beside the fields that keeps the samples' source names and the chunk files' checksums."""

_REAL = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
CORE_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    name: np.dtype(name) for name in ("bool", *_REAL, "complex64", "complex128")
}
"""The data types of the Zarr v3 core specification, by their names there (and in numpy)."""


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """One field: an array of shape (samples, *shape) in chunks of `chunk_length` samples.

    A ragged field's samples differ in shape. Its array has a row for each chunk, with the values of the
    chunk's samples one after the other, in pieces of `piece_length`; a second array says where each ends.

    Attributes
    ----------
    name : str
        Folder of the array in the store, and key in every sample.
    dtype : numpy.dtype
        Little-endian.
    shape : tuple of int
        Of one sample; `()` for a scalar. Of a ragged field -1 for each axis.
    chunk_length : int
        Samples in a chunk; the same for all fields.
    codec : Codec
        What a chunk file holds before its checksum.
    piece_length : int
        Values in each file of a ragged field; 0 of any other.
    meaning : DtypeNote or None
        What the values are, if `dtype` is only what they are stored as; `shape` is the stored one.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunk_length: int
    codec: Codec
    piece_length: int = 0
    meaning: DtypeNote | None = None

    @property
    def values_dtype(self) -> np.dtype[Any]:
        """The dtype of the values in numpy; uint16 for bfloat16, which numpy lacks."""
        return self.meaning.numpy if self.meaning else self.dtype

    @property
    def source_dtype(self) -> np.dtype[Any]:
        """The same, but for bfloat16, which is told from uint16: what samples are read as."""
        return self.meaning.carrier if self.meaning else self.dtype

    @property
    def values_shape(self) -> tuple[int, ...]:
        """The shape of one sample's values: without the bytes of a text, which are stored as an axis."""
        return self.shape[: len(self.shape) - len(self.meaning.axes)] if self.meaning else self.shape

    @property
    def values_name(self) -> str:
        """What to call the dtype of the values: "float32", "bfloat16", "datetime64[ms]", "<U7"."""
        return str(self.meaning) if self.meaning else self.dtype.name

    def values(self, stored: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See a stored array, with any axes before those of a sample, as what it means."""
        return self.meaning.view(stored) if self.meaning else stored

    @property
    def note(self) -> FieldNote:
        """What the root says of the field."""
        return FieldNote(len(self.shape) if self.is_ragged else 0, self.meaning)

    @property
    def is_ragged(self) -> bool:
        """Whether samples differ in shape."""
        return self.piece_length > 0

    @property
    def sample_nbytes(self) -> int:
        """Bytes that every sample has, decoded: 0 of a ragged field."""
        return 0 if self.is_ragged else self.dtype.itemsize * math.prod(self.shape)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk, decoded; the last chunk is as long as the others."""
        return self.sample_nbytes * self.chunk_length

    @property
    def raw_file_nbytes(self) -> int | None:
        """The size that every chunk file has, or None where the codec compresses."""
        return self.chunk_nbytes + CHECKSUM_BYTES if self.codec.is_raw else None

    def chunk_key(self, chunk: int) -> str:
        """Name of the chunk's file in the field's folder.

        Examples
        --------
        >>> from mmapload.codecs import RawCodec
        >>> FieldLayout("flow", np.dtype("f4"), (2, 64, 64), 32, RawCodec()).chunk_key(3)
        'c.3.0.0.0'
        """
        return f"c.{chunk}" + ".0" * len(self.shape)

    @property
    def zarr_chunk_shape(self) -> tuple[int, ...]:
        """`chunk_shape` in `zarr.json`: the other axes whole, and 1 where they are empty."""
        return (self.chunk_length, *(max(1, length) for length in self.shape))


CONTENTS: Final = ("contents", "files")
"""What `StoreLayout.source` may say of the contents of samples, which is no part of the layout."""


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """A whole store.

    Attributes
    ----------
    samples : int
        Number of samples that readers see.
    batch_size : int
        Chunk boundaries are multiples of this.
    chunk_length : int
        Samples in a chunk: a multiple of `batch_size`.
    fields : tuple of FieldLayout
        In the order in which they were written.
    has_names : bool
        Whether the source's name of every sample is kept.
    source : mapping
        How the store was made: kind of source, number of samples skipped, shuffle seed.
    has_checksums : bool
        Whether the checksum of every chunk file is listed.
    """

    samples: int
    batch_size: int
    chunk_length: int
    fields: tuple[FieldLayout, ...]
    has_names: bool = False
    source: Mapping[str, Any] = field(default_factory=dict)
    has_checksums: bool = False

    @property
    def chunks(self) -> int:
        """Number of chunks in every field."""
        return -(-self.samples // self.chunk_length)

    def chunk_samples(self, chunk: int) -> int:
        """Count the samples in a chunk: `chunk_length`, or fewer in the last one."""
        return min(self.chunk_length, self.samples - chunk * self.chunk_length)

    @property
    def ragged(self) -> tuple[FieldLayout, ...]:
        """The fields whose samples differ in shape."""
        return tuple(each for each in self.fields if each.is_ragged)

    @property
    def sample_nbytes(self) -> int:
        """Bytes that every sample has over all fields, decoded; those of ragged fields are not among them."""
        return sum(each.sample_nbytes for each in self.fields)

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of one chunk over all fields, decoded."""
        return self.sample_nbytes * self.chunk_length

    def root_attributes(self) -> dict[str, Any]:
        """Return the object under `attributes` in the root's `zarr.json`; `parse_root` reads it."""
        return {
            "mmapload": {
                "format_version": FORMAT_VERSION,
                "samples": self.samples,
                "batch_size": self.batch_size,
                "fields": {each.name: each.note.to_json() for each in self.fields},
                "names": self.has_names,
                **({"checksums": True} if self.has_checksums else {}),
                "source": dict(self.source),
            }
        }


def chunk_length_for(
    samples: int | None, batch_size: int, largest_sample_nbytes: int, chunk_bytes: int
) -> int:
    """Choose the number of samples in a chunk.

    The largest multiple of `batch_size` whose chunk of the largest field stays within `chunk_bytes`; at
    least one batch; and no more than `samples` rounded up to a whole batch, where their number is known.

    Examples
    --------
    >>> chunk_length_for(1_000_000, batch_size=32, largest_sample_nbytes=4096, chunk_bytes=2**20)
    256
    >>> chunk_length_for(100, batch_size=32, largest_sample_nbytes=4096, chunk_bytes=2**30)
    128
    >>> chunk_length_for(1_000_000, batch_size=32, largest_sample_nbytes=2**20, chunk_bytes=2**20)
    32
    """
    batches = max(1, chunk_bytes // max(1, largest_sample_nbytes * batch_size))
    if samples is not None:
        batches = min(batches, max(1, -(-samples // batch_size)))
    return batches * batch_size
