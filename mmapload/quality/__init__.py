"""How far an order is from a true permutation, as numbers, and what to do about it.

Needs numpy only, and matplotlib for the chart. `docs/order.md` has the formulas.
"""

from mmapload.quality.report import shuffle_quality
from mmapload.quality.values import Comparison, ShuffleQuality

__all__ = ["Comparison", "ShuffleQuality", "shuffle_quality"]
