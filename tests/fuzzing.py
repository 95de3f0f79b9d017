"""What the fuzz tests share: how many inputs they try, what stops one that hangs, how one is made again.

An input is made from a seed and a number alone. Hypothesis draws the seeds; for each, a test tries a hundred
inputs, for drawing takes longer than most of them.
"""

from __future__ import annotations

import base64
import os
import resource
import signal
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["PER_SEED", "HangError", "inputs", "limited_memory", "reproducible", "seeds", "watched"]

PER_SEED = 100
SECONDS_PER_SEED = 30  # of processor time; a hundred inputs take less than one


def inputs(default: int) -> int:
    """Return how many inputs a file of fuzz tests tries in all: MMAPLOAD_FUZZ, or its own default."""
    return int(os.environ.get("MMAPLOAD_FUZZ", default))


def seeds(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for as many seeds as make so many inputs. What fails is not made smaller: it is small."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        chosen: Any = settings(
            max_examples=-(-count // PER_SEED),
            phases=[Phase.generate],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
            deadline=None,
        )
        return chosen(given(seed=st.integers(0, 2**48))(test))

    return decorate


class HangError(BaseException):
    """Of no class that anyone catches on the way."""


@contextmanager
def watched() -> Iterator[None]:
    """Give up when so much processor time has been used; the clock on the wall is pytest's to watch."""

    def stop(*_: object) -> None:
        raise HangError

    old = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_PER_SEED)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, old)


@contextmanager
def reproducible(told: str, data: bytes) -> Iterator[None]:
    """Add to a failure how the input is made again, and its bytes."""
    try:
        yield
    except (Exception, HangError) as error:
        packed = base64.b64encode(zlib.compress(data)).decode()
        raise AssertionError(
            f"{told}: {type(error).__name__}: {error}\nzlib.decompress(base64.b64decode({packed!r}))"
        ) from error


@contextmanager
def limited_memory(more: int) -> Iterator[None]:
    """Let this process map so many bytes more than it has mapped, whatever is in them."""
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
