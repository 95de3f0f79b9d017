"""The report as a small picture; needs matplotlib, which the `bench` extra brings."""

from __future__ import annotations

from dataclasses import replace
from math import log2
from typing import TYPE_CHECKING, Final

import numpy as np

from mmapload.quality.counts import chosen_steps
from mmapload.quality.expected import expected_pairs, pairs_of, short_slot
from mmapload.quality.report import order_of

if TYPE_CHECKING:
    import os

    from matplotlib.axes import Axes

    from mmapload.quality.values import ShuffleQuality

__all__ = ["draw"]

_POINTS: Final = 4000
_WINDOWS: Final = 40
_STEPS: Final = 500


def draw(quality: ShuffleQuality, target: str | os.PathLike[str]) -> None:
    """Draw where samples go in the first epoch, and how often chunk mates meet by window, as a PNG.

    Parameters
    ----------
    quality : ShuffleQuality
        The report.
    target : path
        The file; one that is there is replaced.

    Raises
    ------
    ImportError
        If matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_places(left, quality)
    _draw_pairs(right, quality)
    figure.savefig(target, dpi=100, format="png")


def _draw_places(axes: Axes, quality: ShuffleQuality) -> None:
    """Draw the samples of evenly spread batches: their places in the store over those in the epoch."""
    batching = quality.batching
    order = order_of(batching, quality.seed, 0)
    steps = chosen_steps(order.steps, max(1, _POINTS // batching.global_batch))
    batches = [order.step_batch(int(step))[:_POINTS] for step in steps]
    positions = [
        step * batching.global_batch + np.arange(len(batch))
        for step, batch in zip(steps, batches, strict=True)
    ]
    axes.plot(np.concatenate(positions), np.concatenate(batches), ",", color="tab:blue")
    axes.locator_params(nbins=5)
    axes.set_xlabel("place in the epoch", fontsize="small")
    axes.set_ylabel("place in the store", fontsize="small")
    axes.set_title("where samples go, first epoch", fontsize="medium")


def _draw_pairs(axes: Axes, quality: ShuffleQuality) -> None:
    """Draw the closed form over all windows, and what was measured in this one."""
    batching, same = quality.batching, quality.same_chunk
    length, samples = batching.geometry.chunk_length, batching.geometry.samples
    short = short_slot(batching.geometry, quality.seed, 0)
    steps = chosen_steps(batching.steps, _STEPS)
    pairs = pairs_of(batching, steps)
    if not pairs or not same.uniform:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "no two samples of one chunk\ncan meet in a batch", ha="center", va="center")
        return
    lanes = batching.lanes
    sizes = np.unique(
        np.logspace(log2(min(length, samples)), log2(samples), _WINDOWS, base=2).astype(np.int64)
    )
    windows = sorted({-(-int(size) // lanes) * lanes for size in sizes})
    rates = [
        expected_pairs(replace(batching, mode="window", window=window), steps, short) / pairs
        for window in windows
    ]
    axes.loglog(windows, rates, color="tab:blue", label="windows, closed form")
    axes.axhline(same.uniform, color="tab:gray", linestyle=":", label="full shuffle")
    if batching.window is None:
        axes.axhline(
            max(same.found, 1e-12), color="tab:orange", linestyle="--", label=f"{batching.mode}, measured"
        )
    else:
        axes.plot(min(batching.window, samples), same.found, "o", color="tab:orange", label="measured")
    if quality.halving_window is not None:
        axes.axvline(
            quality.halving_window, color="tab:green", linewidth=1, label="the window that halves it"
        )
    axes.set_xlabel("window, samples", fontsize="small")
    axes.set_title("pairs of a batch from one chunk", fontsize="medium")
    axes.legend(fontsize="x-small")
