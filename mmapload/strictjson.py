"""Read one metadata document, strictly: a JSON object of bounded size and depth in which no key is twice.

What such a file may be instead (a web page, a pointer to a file that was not fetched) is named. Sources:
RFC 8259 (no byte order mark, no NaN), the Git LFS pointer specification.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, Final, NoReturn

from mmapload.errors import shown

__all__ = ["MAX_DEPTH", "MAX_DOCUMENT_BYTES", "is_deeper", "parse_document"]

MAX_DOCUMENT_BYTES: Final = 4 * 2**20
MAX_DEPTH: Final = 64
"""Deepest nesting of a document; deeper ones only exhaust the stack of whoever walks them."""
MAX_DIGITS: Final = 640
"""Longest integer, in digits: what every setting of Python turns into a number, and back into text."""

_INSTEAD: Final = (
    (
        b"version https://git-lfs",
        "a Git LFS pointer, which stands for a file not fetched yet: run git lfs pull",
    ),
    (b"<", "an HTML or XML page, saved in place of the file: fetch the store again"),
    (b"\x1f\x8b", "gzip data: unpack it"),
    (b"\x28\xb5\x2f\xfd", "zstd data: unpack it"),
    (b"PK\x03\x04", "a zip file: unpack it"),
    (b"\xff\xfe", "text in UTF-16: write it in UTF-8"),
    (b"\xfe\xff", "text in UTF-16: write it in UTF-8"),
)
"""First bytes of what lies in a document's place, and what to do about it."""


def parse_document(text: bytes, where: str) -> tuple[dict[str, Any], list[str]]:
    """Parse one `zarr.json` into an object; the list says what is wrong, and is empty if nothing is.

    Examples
    --------
    >>> parse_document(b'{"shape": [10]}', "zarr.json")
    ({'shape': [10]}, [])
    >>> parse_document(b"<!DOCTYPE html>", "zarr.json")[1]
    ['zarr.json: not JSON but an HTML or XML page, saved in place of the file: fetch the store again']
    """
    if len(text) > MAX_DOCUMENT_BYTES:
        return {}, [f"{where}: more than the {MAX_DOCUMENT_BYTES:,} bytes that metadata may have"]
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend(
                f"the key {shown(key)} is there {'twice' if count == 2 else f'{count:,} times'}"
                for key, count in counts.items()
                if count > 1
            )
        return found

    try:
        document = json.loads(
            text.decode("utf-8"),
            object_pairs_hook=collect,
            parse_int=_integer,
            parse_constant=_refuse_constant,
        )
    except (ValueError, RecursionError) as error:
        instead = _instead(text)
        return {}, [f"{where}: not JSON but {instead}" if instead else f"{where}: not JSON ({_cause(error)})"]
    if not isinstance(document, dict):
        return {}, [f"{where}: expected an object, found {type(document).__name__}"]
    if is_deeper(document, MAX_DEPTH):
        return {}, [f"{where}: nested deeper than the {MAX_DEPTH} levels that metadata may have"]
    return document, [f"{where}: {problem}" for problem in repeated]


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits):,} digits")
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _instead(text: bytes) -> str | None:
    """Say what lies in a document's place, if that can be told by its first bytes."""
    if not text:
        return "an empty file: fetch the store again"
    if text.startswith(b"\xef\xbb\xbf{"):
        return "an object after a byte order mark, which JSON has none of: write it in UTF-8 without one"
    if not text.strip(b"\0"):
        return "zero bytes only, as an unfinished copy leaves them: fetch the store again"
    first = text.removeprefix(b"\xef\xbb\xbf").lstrip()
    return next((kind for prefix, kind in _INSTEAD if first.startswith(prefix)), None)


def _cause(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.object[error.start]:#04x} at {error.start} is not UTF-8"
    return "nested too deep" if isinstance(error, RecursionError) else str(error)


def is_deeper(document: object, levels: int) -> bool:
    """Whether something lies deeper in lists and objects than so many levels; the document is the first.

    Examples
    --------
    >>> is_deeper([[1]], 3), is_deeper([[1]], 2)
    (False, True)
    """
    level = [document]
    for _ in range(levels):
        level = [
            child
            for node in level
            if isinstance(node, (dict, list))
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True
