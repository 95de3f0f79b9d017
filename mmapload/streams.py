"""A random generator of its own for every sample of every epoch, for transforms that ask for one.

Nothing is drawn from a generator that anyone shares: not by workers, nor by the run before a restart.
"""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "EPOCH_UNKNOWN",
    "PLAIN",
    "DrawnNumber",
    "EndingNoLoop",
    "Stream",
    "rng_passing",
    "streams_of",
    "with_rngs",
]

Passing: TypeAlias = Literal["by name", "by place"]


@dataclass(frozen=True, slots=True)
class Stream:
    """The random numbers of an epoch.

    Attributes
    ----------
    seed, epoch : int
        Each in [0, 2**64).
    copy : int
        Which time a sample comes that comes several times in the epoch, by its place in the order that they
        were drawn in: 0 is the first.

    Examples
    --------
    >>> Stream(seed=1, epoch=0).rng(5).random() == Stream(seed=1, epoch=0).rng(5).random()
    True
    >>> Stream(seed=1, epoch=0).rng(5).random() == Stream(seed=1, epoch=1).rng(5).random()
    False
    """

    seed: int
    epoch: int
    copy: int = 0

    def rng(self, sample: int) -> np.random.Generator:
        """Return a sample's generator: Philox4x64-10, key (seed, epoch), from (0, 0, copy, sample) on."""
        key = np.array([self.seed, self.epoch], np.uint64)
        counter = np.array([0, 0, self.copy, sample], np.uint64)
        return np.random.Generator(np.random.Philox(counter=counter, key=key))

    def numbers(self, numbers: Iterable[int]) -> list[int]:
        """Return the numbers of samples such that a dataset, here or in a worker, knows this stream."""
        return [DrawnNumber(number, self) for number in numbers]

    def copies(self, numbers: Iterable[int], copies: Iterable[int]) -> list[int]:
        """Return numbers alike, each with the copy that it is."""
        return [
            DrawnNumber(number, replace(self, copy=copy))
            for number, copy in zip(numbers, copies, strict=True)
        ]


PLAIN: Final = Stream(0, 0)
"""For samples that are asked for by bare numbers."""


EPOCH_UNKNOWN: Final = (
    "the transform takes a random generator, and the sampler does not say which epoch this is, so a sample "
    "gets the same random numbers in every epoch: use ChunkDataLoader without a sampler, or ChunkSampler"
)
"""Warns of samplers that are not mmapload's."""


class DrawnNumber(int):
    """The number of a sample that knows its stream, also in another process.

    Examples
    --------
    >>> number = DrawnNumber(7, Stream(seed=1, epoch=2))
    >>> number, streams_of([number]), streams_of([3])
    (7, [Stream(seed=1, epoch=2, copy=0)], None)
    """

    stream: Stream

    def __new__(cls, number: int, stream: Stream) -> Self:
        """Make it of a bare number."""
        made = super().__new__(cls, number)
        made.stream = stream
        return made

    def __reduce__(self) -> tuple[type[DrawnNumber], tuple[int, Stream]]:
        return DrawnNumber, (int(self), self.stream)


def streams_of(numbers: Sequence[int]) -> list[Stream] | None:
    """Return the streams that numbers of samples know, None if they are bare."""
    if not any(isinstance(number, DrawnNumber) for number in numbers):
        return None
    return [number.stream if isinstance(number, DrawnNumber) else PLAIN for number in numbers]


def rng_passing(transform: Callable[..., Any] | None) -> Passing | None:
    """Say how a transform wants to be given a generator, None if it does not.

    It does if it has a parameter named `rng`, or exactly two positional parameters without default. Of a
    torch Module, `forward` is looked at.

    Examples
    --------
    >>> rng_passing(lambda sample, rng: sample), rng_passing(lambda sample, noise: sample)
    ('by name', 'by place')
    >>> rng_passing(lambda sample: sample), rng_passing(lambda sample, scale=2: sample)
    (None, None)
    """
    if transform is None:
        return None
    try:
        parameters = inspect.signature(transform).parameters
        if any(each.kind is each.VAR_POSITIONAL for each in parameters.values()):
            parameters = inspect.signature(getattr(transform, "forward", transform)).parameters
    except (TypeError, ValueError):  # of what is written in C, say, nothing is known
        return None
    required = [
        each
        for each in parameters.values()
        if each.kind in {each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD} and each.default is each.empty
    ]
    named = parameters.get("rng")
    if named is not None and named.kind in {named.POSITIONAL_OR_KEYWORD, named.KEYWORD_ONLY}:
        given = isinstance(transform, functools.partial) and "rng" in transform.keywords
        return None if given else "by name"
    return "by place" if len(required) == 2 else None


def with_rngs(
    transform: Callable[..., Any],
    passing: Passing,
    samples: Iterable[Any],
    rngs: Iterable[np.random.Generator],
) -> list[Any]:
    """Transform samples, each with its generator."""
    if passing == "by name":
        return [transform(sample, rng=rng) for sample, rng in zip(samples, rngs, strict=True)]
    return [transform(sample, rng) for sample, rng in zip(samples, rngs, strict=True)]


class EndingNoLoop:
    """Within it, errors that Python takes for the end of a loop are raised as a RuntimeError.

    `for` over anything with `__getitem__`, such as torch's Subset, ends in silence at an IndexError, and over
    a loader at a StopIteration: data would seem to be shorter than they are.
    """

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Raise a RuntimeError if that is what this is for."""
        if kind is not None and issubclass(kind, IndexError | StopIteration):
            told = ": ".join(filter(None, [kind.__name__, str(error)]))
            raise RuntimeError(f"the transform of a sample raised {told}") from error
