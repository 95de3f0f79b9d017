"""Load arrays for PyTorch from batch-aligned Zarr chunks, ahead of use and inside a memory budget.

Importing this package imports neither torch nor zarr nor numcodecs: each comes with the first name that
needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mmapload.batchsampler import ChunkBatchSampler
    from mmapload.checking import CheckReport, check
    from mmapload.dataset import ChunkDataset
    from mmapload.errors import (
        ChunkError,
        LayoutError,
        MmaploadError,
        SourceError,
        StateMismatchError,
        StoreNotFoundError,
        WorkerError,
    )
    from mmapload.exporting import ExportResult, export
    from mmapload.loader import ChunkDataLoader
    from mmapload.mixed import MixedDataset
    from mmapload.mixing import MixedBatchSampler
    from mmapload.plans import LoaderPlan
    from mmapload.preprocessing import preprocess
    from mmapload.quality import ShuffleQuality, shuffle_quality
    from mmapload.samplers import ChunkSampler
    from mmapload.stats import LoaderStats
    from mmapload.store import Store, open_store

__all__ = [
    "CheckReport",
    "ChunkBatchSampler",
    "ChunkDataLoader",
    "ChunkDataset",
    "ChunkError",
    "ChunkSampler",
    "ExportResult",
    "LayoutError",
    "LoaderPlan",
    "LoaderStats",
    "MixedBatchSampler",
    "MixedDataset",
    "MmaploadError",
    "ShuffleQuality",
    "SourceError",
    "StateMismatchError",
    "Store",
    "StoreNotFoundError",
    "WorkerError",
    "check",
    "export",
    "open_store",
    "preprocess",
    "shuffle_quality",
]

__version__ = "0.1.0"

_HOME: Final = {
    "CheckReport": "checking",
    "ChunkBatchSampler": "batchsampler",
    "ChunkDataLoader": "loader",
    "ChunkDataset": "dataset",
    "ChunkSampler": "samplers",
    "ExportResult": "exporting",
    "LoaderPlan": "plans",
    "LoaderStats": "stats",
    "MixedBatchSampler": "mixing",
    "MixedDataset": "mixed",
    "ShuffleQuality": "quality",
    "Store": "store",
    "check": "checking",
    "export": "exporting",
    "open_store": "store",
    "preprocess": "preprocessing",
    "shuffle_quality": "quality",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME.get(name, 'errors')}")
    found = getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
