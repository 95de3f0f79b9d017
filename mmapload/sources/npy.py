"""The header of a `.npy` array: dtype, shape and order.

Written from the format's description in `numpy.lib.format` (versions 1.0, 2.0 and 3.0).
"""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources import ArraySpec
from mmapload.sources.literal import parse_literal
from mmapload.sources.signatures import kind_of

__all__ = ["MAGIC", "MAX_HEADER", "Header", "header_length", "parse_header"]

MAGIC = b"\x93NUMPY"

MAX_HEADER = 10_000
"""Characters a header may have, as in numpy: beyond it parsing gets slow, and could be made to crash."""

# Kind and bytes of the dtypes that every store holds bit by bit.
_DTYPES = frozenset(
    [("b", 1)]
    + [(kind, size) for kind in "iu" for size in (1, 2, 4, 8)]
    + [("f", 2), ("f", 4), ("f", 8), ("c", 8), ("c", 16)]
)
_MAX_DIMENSIONS = 32  # what every numpy supported here allows
_MOST_NAMED = 12
# The old name of bytes, of which numpy warns; and what makes a structured dtype: a number before a dtype,
# as in "3f4", or several with commas.
_BYTES = re.compile(r"([<>=|]?)a(?=[0-9]*\Z)")
_STRUCTURED = re.compile("[0-9(]|.*,")


class _HeaderError(Exception):
    """The cause of a `SourceError`, found where file and member are not known."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a `.npy` header says.

    Attributes
    ----------
    spec : ArraySpec
        Dtype in native byte order, and shape.
    fortran : bool
        Whether the payload's first axis varies fastest, in an array where that makes a difference.
    swapped : bool
        Whether the payload's byte order is not the machine's.
    """

    spec: ArraySpec
    fortran: bool
    swapped: bool


def header_length(first: bytes, file: str, member: str | None) -> int:
    """Count the bytes before the payload, magic included.

    Parameters
    ----------
    first : bytes
        The array's first bytes; 12 are enough.
    file, member : str, str or None
        For messages.

    Raises
    ------
    SourceError
        If this is no `.npy` array, its version is unknown, or its header is longer than `MAX_HEADER`.
    """
    if not first.startswith(MAGIC):
        raise SourceError(
            file,
            member,
            f"not a .npy array but {kind_of(first)[0]}; leave it out by naming the others: --fields a,b",
        )
    version = first[6:8]
    if version == b"\x01\x00":
        start, length = 10, int.from_bytes(first[8:10], "little")
    elif version in {b"\x02\x00", b"\x03\x00"}:
        start, length = 12, int.from_bytes(first[8:12], "little")
    elif len(version) == 2:
        raise SourceError(
            file,
            member,
            f".npy format version {version[0]}.{version[1]} is unknown; 1.0, 2.0 and 3.0 are read",
        )
    else:
        start, length = 12, 0
    if len(first) < start:
        raise SourceError(file, member, f"a .npy array cut short: {len(first)} bytes of its header are there")
    if length > MAX_HEADER:
        raise SourceError(
            file,
            member,
            f"its .npy header has {length} characters, beyond the limit of {MAX_HEADER} in numpy and here",
        )
    return start + length


def parse_header(header: bytes, file: str, member: str | None) -> Header:
    """Parse a header of which `header_length` gave the length.

    Parameters
    ----------
    header : bytes
        Everything before the payload, magic included.
    file, member : str, str or None
        For messages.

    Raises
    ------
    SourceError
        If it is damaged, or the dtype is none that a store can hold bit by bit.

    Examples
    --------
    >>> text = b"{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }"
    >>> header = parse_header(MAGIC + bytes([1, 0, len(text), 0]) + text, "a.npz", "x.npy")
    >>> str(header.spec), header.fortran, header.swapped
    ('float32 (2, 3)', False, True)
    """
    try:
        return _parse(header)
    except _HeaderError as error:
        raise SourceError(file, member, str(error)) from None


# All samples of a data set share their headers, so nearly every one is found here.
@lru_cache(maxsize=256)
def _parse(header: bytes) -> Header:
    version = header[6]
    text = header[10 if version == 1 else 12 :].decode("utf-8" if version == 3 else "latin-1", "replace")
    try:
        fields = parse_literal(text, longs=version < 3)
    except ValueError:
        fields = None
    if not isinstance(fields, dict) or fields.keys() != {"descr", "fortran_order", "shape"}:
        raise _HeaderError(f"its .npy header is damaged: {text[:80]!r}; fetch or write the file again")
    shape, fortran = _lengths(fields["shape"]), fields["fortran_order"]
    if type(fortran) is not bool:
        raise _HeaderError(f"its .npy header has fortran_order {shown(fortran)}, which is not True or False")
    dtype = _plain_dtype(fields["descr"], shape)
    if (
        len(shape) > _MAX_DIMENSIONS
        or math.prod(length or 1 for length in shape) > sys.maxsize // dtype.itemsize
    ):
        raise _HeaderError(f"its .npy header has the shape {shown(shape)}, more than an array can have")
    return Header(
        ArraySpec(dtype.newbyteorder("="), shape),
        fortran=fortran and sum(length != 1 for length in shape) > 1,
        swapped=not dtype.isnative,
    )


def _lengths(shape: object) -> tuple[int, ...]:
    found = shape if isinstance(shape, tuple) else (None,)
    lengths = tuple(length for length in found if type(length) is int and length >= 0)
    if len(lengths) < len(found):
        raise _HeaderError(f"its .npy header has the shape {shown(shape)}, which is not a tuple of lengths")
    return lengths


def _plain_dtype(descr: object, shape: tuple[int, ...]) -> np.dtype[Any]:
    """Make the dtype, or say by name why it is none that can be stored and what to do."""
    if isinstance(descr, list) or (isinstance(descr, str) and _STRUCTURED.match(descr)):
        advice = f"save each of its fields{_named_fields(descr)} as an array of its own"
        raise _HeaderError(_refusal("a structured dtype", advice))
    if not isinstance(descr, str):
        raise _HeaderError(f"its .npy header has the dtype {shown(descr)}, which is unknown")
    try:
        dtype = np.dtype(_BYTES.sub(r"\1S", descr))
    except Exception:  # noqa: BLE001 - numpy parses it, and raises TypeError, ValueError, SyntaxError and more
        raise _HeaderError(f"its .npy header has the dtype {shown(descr)}, which is unknown") from None
    if (dtype.kind, dtype.itemsize) in _DTYPES or (dtype.kind in "USMm" and dtype.itemsize):
        return dtype
    raise _HeaderError(_refusal(*_reason(dtype, shape)))


def _named_fields(descr: object) -> str:
    """Return the names of a structured dtype's fields, in brackets, as far as a header has any."""
    found = [each[0] for each in descr if isinstance(each, tuple) and each] if isinstance(descr, list) else []
    names = [shown(name) for name in found if isinstance(name, str) and name]  # those of padding are empty
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f" ({', '.join(names[:_MOST_NAMED])}{more})" if names else ""


def _refusal(what: str, advice: str) -> str:
    return f"holds {what}, which a store cannot: {advice}, or leave it out by naming the others: --fields a,b"


def _reason(dtype: np.dtype[Any], shape: tuple[int, ...]) -> tuple[str, str]:
    if dtype.kind in "UST":
        return f"text of another kind (dtype {dtype.str})", "save it as array.astype(str)"
    if dtype.hasobject:
        advice = "save plain arrays of numbers, one under each key, and texts with np.array(..., dtype=str)"
        if shape == ():
            advice = "save plain arrays of numbers, one under each key: a dict with np.savez(path, **dict)"
        advice += "; --allow-pickle takes regular ones from files that you trust"
        return f"an object array, Python objects in a pickle (dtype object, shape {shown(shape)})", advice
    if dtype.kind in "fc":
        return f"{dtype.name}, which differs from machine to machine", "save it as float64 or complex128"
    if dtype.itemsize == 2:
        advice = "save bfloat16, which numpy writes so, as array.view('uint16') or array.astype('float32')"
        return f"raw bytes (dtype {dtype.str})", advice
    return f"raw bytes (dtype {dtype.str})", "save them as uint8"
