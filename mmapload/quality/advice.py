"""One plain sentence on an order: what it mixes, what that costs, and what would mix better."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mmapload.quality.values import ShuffleQuality

__all__ = ["advice_on", "percent"]

_AS_GOOD: Final = 0.02
"""Labels whose entropy is within this of a full shuffle's count as mixed."""

_AS_OFTEN: Final = 0.05


def percent(share: float) -> str:
    """Write a share in two digits, and never as 0 % or 100 % what is not.

    Examples
    --------
    >>> percent(0.03), percent(0.1549), percent(0.0000004), percent(0.999), percent(1.0), percent(0.0)
    ('3 %', '15 %', 'below 0.01 %', '99.9 %', '100 %', '0 %')
    """
    if share in {0.0, 1.0}:
        return f"{share:.0%}".replace("%", " %")
    if share < 0.0001:
        return "below 0.01 %"
    if share > 0.99:
        return f"{min(100 * share, 99.99):.4g} %" if share < 1 else f"{100 * share:.4g} %"
    return f"{100 * share:.2g} %"


def advice_on(quality: ShuffleQuality) -> str:
    """Write the sentence."""
    if quality.batching.mode == "full":
        return "shuffle full draws every batch from the whole store: nothing mixes samples better"
    if quality.label_entropy is None:
        return f"{_head(quality)}: {_on_chunks(quality)}"
    return f"{_head(quality)}: {_on_labels(quality, quality.label_entropy.ratio)}"


def _head(quality: ShuffleQuality) -> str:
    """Say what is done to which store."""
    batching = quality.batching
    written = "a store written with --shuffle" if quality.written_shuffled else "a store written in order"
    if batching.mode == "sequential":
        return f"no shuffling over {written} mixes nothing"
    if batching.mode == "batch":
        return f"shuffle batch over {written} keeps the batches that it was written in"
    window, samples = batching.window or 1, batching.geometry.samples
    if window >= samples:
        return f"window {window:,} over {written} mixes all of the stored data"
    share = percent(window / samples)
    return f"window {window:,} over {written} mixes samples within {share} of the stored data"


def _on_labels(quality: ShuffleQuality, ratio: float) -> str:
    if isnan(ratio):
        return "a batch has one label, as in a full shuffle"
    found = f"the labels of a batch have {percent(ratio)} of the entropy that a full shuffle gives them"
    return f"{found}, so nothing needs to change" if ratio >= 1 - _AS_GOOD else f"{found}; {_cure(quality)}"


def _on_chunks(quality: ShuffleQuality) -> str:
    same = quality.same_chunk
    expected = same.found if same.expected is None else same.expected  # what was counted has noise
    ratio = expected / same.uniform if same.uniform else 0.0
    if ratio <= 1 + _AS_OFTEN:
        return "samples of one chunk meet no more often than in a full shuffle, so nothing needs to change"
    often = f"two samples of one chunk meet in a batch {ratio:,.3g} times as often as in a full shuffle"
    if quality.written_shuffled:
        return f"{often}, which is harmless as far as chunks hold samples drawn at random{_halving(quality)}"
    return f"{often}; where neighbours in the store are alike (--label FIELD measures it), {_cure(quality)}"


def _cure(quality: ShuffleQuality) -> str:
    wider = quality.halving_window
    if wider is None:
        widen = "use shuffle full if the data fit in memory"
    elif quality.batching.mode == "window":
        widen = f"widen the window to {wider:,}, which halves how often samples of one chunk meet"
    else:
        widen = f"shuffle in windows of {wider:,}, which halves how often samples of one chunk meet"
    return widen if quality.written_shuffled else f"preprocess with --shuffle, or {widen}"


def _halving(quality: ShuffleQuality) -> str:
    if quality.halving_window is None:
        return ""
    return f"; a window of {quality.halving_window:,} would halve that"
