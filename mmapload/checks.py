"""Which chunk files still have to be checked against their checksums."""

from __future__ import annotations

import mmap
from typing import Final, Literal, TypeAlias

__all__ = ["VERIFY", "Checks", "Verify"]

Verify: TypeAlias = Literal["first", "never", "always"]
VERIFY: Final = ("first", "never", "always")


class Checks:
    """Which chunk files still have to be checked against their checksum.

    The marks lie in memory that forked processes share, so a chunk checked by one is checked for all.
    """

    def __init__(self, verify: Verify, fields: int, chunks: int) -> None:
        self.verify = verify
        self._chunks = chunks
        self._marks = mmap.mmap(-1, max(1, fields * chunks))

    def due(self, field: int, chunk: int) -> bool:
        """Say whether loading this chunk must compute its checksum."""
        return self.verify == "always" or (
            self.verify == "first" and not self._marks[field * self._chunks + chunk]
        )

    def passed(self, field: int, chunk: int) -> None:
        """Note that the checksum was right."""
        self._marks[field * self._chunks + chunk] = 1
