"""Values that orders are made from and give out, and the default window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["MAX_SAMPLES", "Geometry", "Mode", "Remainder", "Use", "auto_window"]

Mode: TypeAlias = Literal["window", "batch", "full", "sequential"]
"""How samples are shuffled."""

Remainder: TypeAlias = Literal["drop", "pad", "keep"]
"""What becomes of the samples that do not fill a last global batch."""

MAX_SAMPLES = 2**48
"""The largest number of samples that an order is defined for."""

_AUTO_SAMPLES = 1024
_AUTO_CHUNKS = 16


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a store is cut: all that an order needs to know of it.

    Parameters
    ----------
    samples : int
        Number of samples N, 1 to 2**48.
    chunk_length : int
        Samples in a chunk C, 1 to 2**48; the last chunk may be short.
    unit : int
        Batch size B that the store was aligned to; divides `chunk_length`.

    Raises
    ------
    ValueError
        A number is out of range, or the unit does not divide the chunk.

    Examples
    --------
    >>> Geometry(samples=10, chunk_length=4, unit=2).chunks
    3
    """

    samples: int
    chunk_length: int
    unit: int

    def __post_init__(self) -> None:
        if not 1 <= self.samples <= MAX_SAMPLES:
            raise ValueError(f"an order needs 1 to 2**48 samples, found {self.samples}")
        if not 1 <= self.chunk_length <= MAX_SAMPLES:
            raise ValueError(f"a chunk holds 1 to 2**48 samples, found chunk length {self.chunk_length}")
        if self.unit < 1 or self.chunk_length % self.unit:
            raise ValueError(
                f"a store's batch size divides its chunk length, found {self.unit} and {self.chunk_length}"
            )

    @property
    def chunks(self) -> int:
        """Number of chunks, the short last one included."""
        return -(-self.samples // self.chunk_length)


@dataclass(frozen=True, slots=True)
class Use:
    """Rows of one chunk that a rank needs, and during which steps.

    Parameters
    ----------
    chunk : int
        Which chunk.
    start, stop : int
        Rows inside the chunk, half open.
    first_step, last_step : int
        Steps of the epoch, both included, between which the rows are read.
    """

    chunk: int
    start: int
    stop: int
    first_step: int
    last_step: int


def auto_window(samples: int, chunk_length: int, lanes: int = 1) -> int:
    """Choose a window from the store alone: the larger of 1,024 samples and 16 chunks.

    A window beyond the store changes nothing, so it is cut to the number of samples; then it is
    rounded up to a multiple of `lanes`.

    Parameters
    ----------
    samples, chunk_length : int
        Number of samples in the store, and in a chunk.
    lanes : int
        Number of lanes that share the window.

    Returns
    -------
    int
        Window in samples, a multiple of `lanes`.

    Examples
    --------
    >>> auto_window(51312, 160)
    2560
    >>> auto_window(51312, 32)
    1024
    >>> auto_window(100, 32), auto_window(100, 32, lanes=3)
    (100, 102)
    """
    window = min(max(_AUTO_SAMPLES, _AUTO_CHUNKS * chunk_length), samples)
    return -(-window // lanes) * lanes
