"""How many inputs the fuzz tests try: few enough for every run of the suite, or as many as are asked for."""

from __future__ import annotations

import os

__all__ = ["inputs"]


def inputs(default: int) -> int:
    """Return how many inputs a file of fuzz tests tries in all: MMAPLOAD_FUZZ, or its own default."""
    return int(os.environ.get("MMAPLOAD_FUZZ", default))
