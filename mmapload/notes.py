"""What a field is where its Zarr data type does not say: the notes on fields in a store's root.

A note is an object of JSON, empty for most fields. Its key `ragged` says that samples differ in shape,
`dtype` what the values are that are stored in a type which every Zarr tool knows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["BFLOAT16", "DtypeNote", "FieldNote", "bytes_of", "note_of", "parse_note"]

BFLOAT16: Final = np.dtype([("bfloat16", "<u2")])
"""Stands for bfloat16, which numpy lacks, while samples are read: its 16 bits, told from an integer's."""

_MAX_AXES: Final = 31
"""Of a sample, the axis of a text's bytes included."""
_MOST_BYTES: Final = 2**31 - 1
"""Of a text: what numpy can address in one element."""
_TIME = re.compile(r"(?:datetime64|timedelta64)(?:\[(?:[1-9][0-9]*)?[a-zA-Z]{1,2}\])?")
_TEXT = re.compile(r"(<U|\|S)([1-9][0-9]{0,9})")


@dataclass(frozen=True, slots=True)
class DtypeNote:
    """What the values of a field are, if that is no core Zarr type.

    Attributes
    ----------
    dtype : str
        "bfloat16", stored as uint16; "datetime64[ms]", "timedelta64[D]" and their like, stored as int64;
        "<U7" (text of up to 7 characters, four bytes each) or "|S5" (up to 5 bytes), stored as uint8 with one
        more axis.

    Examples
    --------
    >>> note = DtypeNote("<U2")
    >>> note.stored, note.axes
    (dtype('uint8'), (8,))
    >>> note.view(np.array([[72, 0, 0, 0, 105, 0, 0, 0]], np.uint8))
    array(['Hi'], dtype='<U2')
    """

    dtype: str

    @property
    def numpy(self) -> np.dtype[Any]:
        """The dtype that values have in numpy: uint16 for bfloat16, which numpy lacks."""
        return np.dtype("<u2" if self.dtype == "bfloat16" else self.dtype)

    @property
    def carrier(self) -> np.dtype[Any]:
        """The same, but for bfloat16, which is told from uint16."""
        return BFLOAT16 if self.dtype == "bfloat16" else self.numpy

    @property
    def stored(self) -> np.dtype[Any]:
        """The core type of the array."""
        return np.dtype({"b": "<u2", "d": "<i8", "t": "<i8"}.get(self.dtype[0], "u1"))

    @property
    def is_text(self) -> bool:
        """Whether values are text or byte strings."""
        return self.dtype[0] in "<|"

    @property
    def axes(self) -> tuple[int, ...]:
        """What the shape of a stored sample has behind that of its values: the bytes of a text."""
        return (self.numpy.itemsize,) if self.is_text else ()

    def view(self, stored: npt.NDArray[Any], *, carrier: bool = False) -> npt.NDArray[Any]:
        """See a stored array, in C order, as what it means; no byte is copied.

        Parameters
        ----------
        stored : ndarray
            Shape (..., *axes).
        carrier : bool
            Whether bfloat16 is to be told from uint16.
        """
        dtype = self.carrier if carrier else self.numpy
        return stored.view(dtype)[..., 0] if self.is_text else stored.view(dtype)

    def __str__(self) -> str:
        return self.dtype


@dataclass(frozen=True, slots=True)
class FieldNote:
    """All that is noted on a field.

    Attributes
    ----------
    ragged : int
        Axes of its samples, as they are stored, if they differ in shape; else 0.
    dtype : DtypeNote or None
        What its values are, if that is no core type.
    """

    ragged: int = 0
    dtype: DtypeNote | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the object that stands in the root.

        Examples
        --------
        >>> FieldNote(dtype=DtypeNote("datetime64[ms]")).to_json()
        {'dtype': 'datetime64[ms]'}
        """
        ragged: dict[str, Any] = {"ragged": self.ragged} if self.ragged else {}
        return ragged | ({"dtype": self.dtype.dtype} if self.dtype else {})


def bytes_of(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """See an array in C order as bytes; numpy gives no buffer of times, but a view.

    Examples
    --------
    >>> bytes_of(np.array(1, "m8[s]")).tolist()
    [1, 0, 0, 0, 0, 0, 0, 0]
    """
    if not array.flags.c_contiguous:
        raise ValueError("the bytes of an array that is not in C order")
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def note_of(dtype: np.dtype[Any]) -> DtypeNote | None:
    """Return the note on values of this dtype, which is no core type; None if there is none.

    Examples
    --------
    >>> [str(note_of(np.dtype(each))) for each in (">U3", "S", "m8[25s]", "V2")]
    ['<U3', '|S1', 'timedelta64[25s]', 'None']
    """
    if dtype == BFLOAT16:
        return DtypeNote("bfloat16")
    if dtype.kind in "US":
        size = max(1, dtype.itemsize // 4 if dtype.kind == "U" else dtype.itemsize)
        return DtypeNote(f"<U{size}" if dtype.kind == "U" else f"|S{size}")
    return DtypeNote(dtype.name) if dtype.kind in "mM" else None


def parse_note(note: object) -> FieldNote | None:
    """Read what the root says of a field; None if it is nothing that this version knows.

    Examples
    --------
    >>> parse_note({"dtype": "<U7"})
    FieldNote(ragged=0, dtype=DtypeNote(dtype='<U7'))
    >>> parse_note({"ragged": 99}), parse_note({"dtype": "float8"}), parse_note({"mask": 1})
    (None, None, None)
    """
    if not isinstance(note, dict) or note.keys() - {"ragged", "dtype"}:
        return None
    ragged, dtype = note.get("ragged", 1), note.get("dtype", "bfloat16")
    if not _is_count(ragged) or not _is_dtype(dtype):
        return None
    found = FieldNote(
        ragged if "ragged" in note else 0,
        DtypeNote(dtype) if "dtype" in note else None,
    )
    return None if found.ragged and found.dtype and found.dtype.is_text else found


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_AXES


def _is_dtype(value: object) -> TypeGuard[str]:
    """Whether it is a name of the closed table; numpy parses those of times, whose form is checked before."""
    if not isinstance(value, str):
        return False
    if text := _TEXT.fullmatch(value):
        return int(text[2]) * (4 if text[1] == "<U" else 1) <= _MOST_BYTES
    try:
        return value == "bfloat16" or bool(_TIME.fullmatch(value) and np.dtype(value).name == value)
    except (TypeError, ValueError, OverflowError):
        return False
