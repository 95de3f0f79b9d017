"""The projects that mmapload is compared with: one small module each, whose `PEER` says how it is used.

Every setting is what the project's own pages advise for shuffled training from a local disk; the comment
beside it names the page.
"""

from __future__ import annotations

from peers import (
    ffcv_beton,
    grain_arrayrecord,
    h5py_file,
    hf_datasets,
    lance_columns,
    litdata_chunks,
    mosaic_streaming,
    npy_memmap,
    spdl_npz,
    tensordict_memmap,
    tensorstore_chunks,
    webdataset_shards,
    zarr_chunks,
)

PEERS = tuple(
    module.PEER
    for module in (
        npy_memmap,
        tensordict_memmap,
        ffcv_beton,
        mosaic_streaming,
        litdata_chunks,
        webdataset_shards,
        hf_datasets,
        lance_columns,
        grain_arrayrecord,
        tensorstore_chunks,
        zarr_chunks,
        h5py_file,
        spdl_npz,
    )
)
"""All of them, in the order of the tables."""
