"""The order of samples: pure functions of a store's geometry, a seed and an epoch.

Nothing here keeps state, reads a file or draws from a global generator. `docs/order.md` spells out
the algorithm so that another implementation can reproduce it.
"""

from mmapload.order.build import epoch_order
from mmapload.order.chosen import Chosen
from mmapload.order.epoch import EpochOrder
from mmapload.order.geometry import Geometry, Mode, Remainder, Use, auto_window
from mmapload.order.grouped import GroupedOrder, Groups

__all__ = [
    "ORDER_VERSION",
    "Chosen",
    "EpochOrder",
    "Geometry",
    "GroupedOrder",
    "Groups",
    "Mode",
    "Remainder",
    "Use",
    "auto_window",
    "epoch_order",
]

ORDER_VERSION = 1
"""Changes whenever any order changes; belongs into every saved state."""
