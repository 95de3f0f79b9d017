"""Time the order alone: nothing is read, and there is no store.

For each kind of order: a first batch, a first batch at other steps (the median), and the processor time of
a sample while batches of 256 follow each other (the median of several stretches of the epoch). A process
of its own for each.

Examples
--------
chrt -r 1 python benchmarks/order_cost.py
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mmapload.order import Chosen, Geometry, epoch_order
from mmapload.order.mixture import MixedOrder, MixedPart
from mmapload.order.turns import Turns
from mmapload.weights import checked_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = 256


@dataclass(frozen=True, slots=True)
class Timed:
    """An order: its steps, and what gives its batches from a step on."""

    steps: int
    batches: Callable[[int], Iterator[Any]]


def plain(samples: int, chunk: int, **arguments: Any) -> Timed:
    """Return the order of a whole store."""
    order = epoch_order(Geometry(samples, chunk, BATCH), global_batch=BATCH, seed=1, **arguments)
    return Timed(order.steps, lambda start: order.rank_batches(0, 1, start))


def chosen(samples: int, chunk: int, **arguments: Any) -> Timed:
    """Return the order of four fifths of a store, drawn at random."""
    numbers = np.flatnonzero(np.random.default_rng(0).random(samples) < 0.8)
    return plain(len(numbers), chunk, chosen=Chosen.of(numbers, chunk), **arguments)


def weighted(samples: int, chunk: int, **arguments: Any) -> Timed:
    """Return the order by weights that make a rare class of a twentieth a half."""
    weights = np.where(np.arange(samples) % 20 == 3, 0.5 / 0.05, 0.5 / 0.95)
    made = checked_weights(weights, samples, samples)
    begun = time.thread_time()
    drawn = made.drawn(1, 0)
    print(f"  drawn: {(time.thread_time() - begun) / samples * 1e9:.0f} ns a sample")
    order = plain(samples, chunk, chosen=Chosen.of(drawn, chunk, repeats=True), **arguments)
    return Timed(order.steps, lambda start: (drawn[batch] for batch in order.batches(start)))


def mixed(samples: int, chunk: int, **arguments: Any) -> Timed:
    """Return the order of a mix with a smaller store, one to four."""
    parts = MixedPart(Geometry(51312, 160, 32)), MixedPart(Geometry(samples, chunk, BATCH))
    order = MixedOrder(parts, Turns([1, 4]), "window", 1, (2560, arguments["window"]), BATCH)
    steps = samples // BATCH
    return Timed(steps, lambda start: order.batches(start, steps))


KINDS: dict[str, tuple[Callable[..., Timed], int, int, dict[str, Any]]] = {
    f"{name}, {'large' if samples == 10**8 else 'small'}": (make, samples, chunk, arguments)
    for samples, chunk in ((10**6, 4096), (10**8, 65536))
    for name, make, arguments in (
        ("window", plain, {}),
        ("window 16384", plain, {"window": 16384}),
        ("batch", plain, {"mode": "batch"}),
        ("full", plain, {"mode": "full"}),
        ("sequential", plain, {"mode": "sequential"}),
        ("subset", chosen, {}),
        ("weights, window 16384", weighted, {"window": 16384}),
        ("mix", mixed, {"window": 16384}),
    )
    if samples == 10**6 or make in {plain, mixed}
}


def measure(kind: str, stretches: int, steps: int) -> None:
    """Print the figures of one kind."""
    make, samples, chunk, arguments = KINDS[kind]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begun = time.perf_counter()
    order = make(samples, chunk, **arguments)
    next(order.batches(0))
    first = time.perf_counter() - begun
    seeks, costs = [], []
    for stretch in range(stretches):
        begun = time.perf_counter()
        batches = order.batches(stretch * order.steps // stretches)
        next(batches)
        seeks.append(time.perf_counter() - begun)
        begun = time.thread_time()
        count = sum(1 for _ in islice(batches, steps))
        costs.append((time.thread_time() - begun) / (count * BATCH))
    memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"{kind:30} first {first * 1e3:6.1f} ms, seek {statistics.median(seeks) * 1e3:5.1f} ms, "
        f"{statistics.median(costs) * 1e9:5.0f} ns a sample, {memory:5.1f} MiB more"
    )


def main() -> None:
    """Measure every kind in a process of its own, or one in this."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, help="in this process; by default all, each in its own")
    parser.add_argument("--stretches", type=int, default=7)
    parser.add_argument("--steps", type=int, default=1024, help="batches of a stretch")
    chosen_arguments = parser.parse_args()
    if chosen_arguments.kind:
        measure(chosen_arguments.kind, chosen_arguments.stretches, chosen_arguments.steps)
        return
    for kind in KINDS:
        subprocess.run([sys.executable, *sys.argv, "--kind", kind], check=True)


if __name__ == "__main__":
    main()
