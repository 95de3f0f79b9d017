"""Members of a WebDataset sample: what their suffixes mean, and the arrays that they hold."""

from __future__ import annotations

import contextlib
import io
import json
import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from mmapload.errors import SourceError, shown
from mmapload.sources.images import IMAGE_SUFFIXES, decode_image
from mmapload.sources.listing import Listing
from mmapload.sources.npy import header_length, parse_header
from mmapload.sources.npz import NpzSource
from mmapload.sources.signatures import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

__all__ = ["arrays_of", "decode_member", "is_image"]

_IMAGES: Final = frozenset(suffix[1:] for suffix in IMAGE_SUFFIXES)
_OTHERS: Final = "leave it out by naming the others: --fields a,b"


def is_image(extension: str) -> bool:
    """Whether a member holds an image, by the end of its name.

    Examples
    --------
    >>> is_image("left.JPG"), is_image("cls")
    (True, False)
    """
    return _last(extension) in _IMAGES


def decode_member(extension: str, data: bytes, path: str, member: str) -> Any:
    """Return what a member other than an `.npz` file holds: an array, a number, a text, or nested lists.

    Parameters
    ----------
    extension : str
        All that follows the first dot in the member's name: "cls", "left.npy".
    data : bytes
        Its contents.
    path, member : str
        For messages.

    Raises
    ------
    SourceError
        If its kind is unknown, or it is damaged.
    """
    decode = _DECODERS.get(_last(extension))
    if decode is None and _last(extension) in _IMAGES:
        return decode_image(io.BytesIO(data), path, member)
    if decode is None:
        known = ", ".join(sorted({*_DECODERS, "npz"}))
        raise SourceError(
            path, member, f"of a kind that is not read ({known} and images are): convert it, or {_OTHERS}"
        )
    return decode(data, path, member)


def _last(extension: str) -> str:
    return extension.rpartition(".")[2].lower()


def _npy(data: bytes, path: str, member: str) -> npt.NDArray[Any]:
    length = header_length(data[:12], path, member)
    header = parse_header(data[:length], path, member)
    if len(data) - length != header.spec.nbytes:
        what = f"{header.spec} takes {header.spec.nbytes} bytes, and {len(data) - length} are there"
        raise SourceError(path, member, f"{what}: write the file again")
    dtype = header.spec.dtype.newbyteorder("S") if header.swapped else header.spec.dtype
    found = np.frombuffer(data[length:], dtype) if header.spec.nbytes else np.empty(0, dtype)
    return found.reshape(header.spec.shape, order="F" if header.fortran else "C")


def _number(data: bytes, path: str, member: str) -> int:
    text = _text(data, path, member).strip()
    with contextlib.suppress(ValueError):
        return int(text)
    raise SourceError(path, member, f"should hold a whole number, and holds {shown(text)}")


def _text(data: bytes, path: str, member: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SourceError(path, member, f"should hold text in UTF-8, and holds {kind_of(data)[0]}") from None


def _json(data: bytes, path: str, member: str) -> Any:
    try:
        return json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise SourceError(path, member, f"should hold JSON, and does not ({error})") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice in one object")
    return found


_DECODERS: Final[Mapping[str, Callable[[bytes, str, str], Any]]] = {
    "npy": _npy,
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), _number),
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("json", "jsn"), _json),
}
"""By the last part of a member's name, as the library webdataset has it; pickles are not among them."""


def arrays_of(extension: str, data: bytes, path: str, member: str) -> dict[str, Any] | None:
    """Return the named arrays in a member that holds several: an `.npz` file, or an object of JSON.

    They go by their own names, after what stands before the member's suffix: `x` of "left.npz" is "left.x".

    Returns
    -------
    dict of str to array or value, or None
        None if it is a member of another kind, or no object.

    Raises
    ------
    SourceError
        If it is damaged, or one of its arrays cannot be read.
    """
    last = _last(extension)
    found = _of_npz(data, path, member) if last == "npz" else None
    if last in {"json", "jsn"}:
        found = _json(data, path, member)
    if not isinstance(found, dict):
        return None
    before = extension[: -len(last)]
    return {before + name: value for name, value in found.items()}


def _of_npz(data: bytes, path: str, member: str) -> dict[str, npt.NDArray[Any]]:
    """Read all arrays of an `.npz` file, through one that lies in memory only."""
    fd = os.memfd_create("npz", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        source = NpzSource(Listing("/proc/self/fd", (str(fd),), 0, 0))
        arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in source.schema(0).items()}
        source.read(0, arrays)
    except SourceError as error:
        inside = f"{member}, member {error.member}" if error.member else member
        raise SourceError(path, inside, error.cause) from None
    finally:
        os.close(fd)
    return arrays
