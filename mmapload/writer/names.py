"""Write the reserved arrays that keep every sample's source name, in little memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mmapload.codecs import CHECKSUM_BYTES
from mmapload.reserved import NAME_ARRAYS
from mmapload.writer.reserved import ReservedArray

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["name_nbytes", "names_nbytes", "write_names"]


def name_nbytes(name: str) -> int:
    """Return how many bytes a name takes."""
    return len(name) if name.isascii() else len(name.encode("utf-8", "surrogateescape"))


def names_nbytes(samples: int, text_nbytes: int) -> int:
    """Return the size of all files that keep so many names of so many bytes in all."""
    lengths = {"names": text_nbytes, "ends": samples}
    return sum(
        -(-length // NAME_ARRAYS[name].chunk_length) * (NAME_ARRAYS[name].chunk_nbytes + CHECKSUM_BYTES)
        for name, length in lengths.items()
    )


def write_names(folder: str, names: Iterable[str]) -> None:
    """Write the names of all samples, in the store's order.

    Parameters
    ----------
    folder : str
        The store.
    names : iterable of str
        Bytes that are no UTF-8 stand as surrogates, as the file system encoding of Python has them.
    """
    texts, ends = (ReservedArray(folder, array) for array in NAME_ARRAYS.values())
    end = 0
    for name in names:
        text = np.frombuffer(name.encode("utf-8", "surrogateescape"), np.uint8)
        end += text.size
        texts.extend(text)
        ends.extend(np.array([end], "<i8"))
    texts.close()
    ends.close()
