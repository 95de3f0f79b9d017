"""Epoch orders for property tests: any arguments that fit each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import strategies as st

from mmapload.order import Chosen, EpochOrder, Geometry, epoch_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MODES = ("window", "batch", "full", "sequential")
REMAINDERS = ("drop", "pad", "keep")
PRIMES = (2, 3, 5, 7, 11, 13, 31, 61, 97, 127)


@dataclass(frozen=True, slots=True)
class Case:
    """An order and the number of ranks that share it."""

    order: EpochOrder
    ranks: int


def make_case(choose: Callable[[Sequence], object]) -> Case:
    """Build a case from choices: `choose` picks one element of a sequence."""
    unit = choose((1, 2, 3, 4, 8))
    chunk = unit * choose((1, 2, 3, 5))
    samples = choose(
        (1, max(chunk - 1, 1), chunk, chunk + 1, 2 * chunk, choose(PRIMES), choose(range(1, 131)))
    )
    ranks = choose(range(1, 9))
    mode = choose(("window", "window", *MODES[1:]))
    lanes = choose([lanes for lanes in (1, 1, 2, 3, 4) if lanes <= samples]) if mode == "window" else 1
    batches = [size for size in range(ranks, 65, ranks) if size % lanes == 0]
    if mode == "batch":
        batches = [size for size in batches if size % unit == 0 or unit % size == 0]
    return Case(
        epoch_order(
            Geometry(samples, chunk, unit),
            global_batch=choose(batches),
            mode=mode,
            seed=choose((0, 1, 2**64 - 1)),
            epoch=choose((0, 1, 7, 2**40)),
            window=choose((None, *range(lanes, 48 * lanes, lanes))) if mode == "window" else None,
            lanes=lanes,
            remainder=choose(REMAINDERS),
            allow_empty=True,
        ),
        ranks,
    )


def make_chosen_case(choose: Callable[[Sequence], object]) -> Case:
    """Build a case whose order is over some samples of a store, or over some that come several times."""
    case = make_case(choose)
    whole = case.order
    length, samples = whole.geometry.chunk_length, whole.geometry.samples
    store = samples * choose((1, 2, 5)) + choose((0, 1, 7))
    kind = choose(("slice", "any", "any", "step", "repeats") if whole.mode == "window" else ("slice", "any"))
    start = choose(range(store - samples + 1))
    numbers = np.arange(start, start + samples)
    if kind == "any":
        seed = choose(range(1000))
        numbers = np.sort(np.random.default_rng(seed).permutation(store)[:samples])
    elif kind == "step":
        numbers = np.arange(samples) * (store // samples)
    elif kind == "repeats":
        most = choose((1, 2, 5))
        numbers = np.sort(np.random.default_rng(choose(range(1000))).integers(0, -(-store // most), samples))
    chosen = Chosen.of(numbers, length, repeats=kind == "repeats")
    return Case(
        epoch_order(
            whole.geometry,
            global_batch=whole.global_batch,
            mode=whole.mode,
            seed=whole.seed,
            epoch=whole.epoch,
            window=whole.window,
            lanes=whole.lanes,
            remainder=whole.remainder,
            allow_empty=True,
            chosen=chosen,
        ),
        case.ranks,
    )


@st.composite
def chosen_cases(draw: st.DrawFn) -> Case:
    """Draw any case of chosen samples."""
    return make_chosen_case(lambda options: draw(st.sampled_from(list(options))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw any case."""
    return make_case(lambda options: draw(st.sampled_from(list(options))))
