"""One process of `compare_ceiling.py`: joins its memory cgroup before large imports, then runs epochs.

Told what to do by JSON, the only argument; tells each epoch as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

LOOKS = 0.1
"""Seconds between two looks at the memory in use."""


def main() -> None:
    """Run the epochs of one contender."""
    told = json.loads(sys.argv[1])
    if told["cgroup"]:
        Path(told["cgroup"], "cgroup.procs").write_text(str(os.getpid()))
    # Only now: what imports take has to fit in the limit too.
    from mmapload.measures import bytes_read, memory_in_use

    epoch, about = (_loading if told["mode"] else _reading)(told)
    most = {"anonymous": 0, "shared": 0}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(LOOKS):
            now = memory_in_use()
            most.update({kind: max(known, getattr(now, kind)) for kind, known in most.items()})

    threading.Thread(target=look, daemon=True).start()
    for number in range(told["epochs"]):
        before = bytes_read()
        seconds = epoch(told["first"] + number)
        found = {"epoch": number, "seconds": seconds, "bytes_read": bytes_read() - before}
        print(json.dumps(found | most | about), flush=True)
    ended.set()


def _reading(told: dict[str, Any]) -> tuple[Callable[[int], float], dict[str, Any]]:
    """Read all chunk files in random order, and do nothing with them."""
    import mmapload
    from mmapload.bench.ceilings import chunk_files, reading

    store = mmapload.open_store(told["store"])
    files = chunk_files(store, store.layout.chunks)
    named = {each.name: each for each in reading(files, store.layout.samples, 0)}
    return lambda number: named[told["name"]].prepare(number)(), {}


def _loading(told: dict[str, Any]) -> tuple[Callable[[int], float], dict[str, Any]]:
    """Deliver every sample once, each batch copied once into a fixed buffer."""
    import numpy as np
    import torch

    import mmapload

    dataset = mmapload.ChunkDataset(told["store"], memory=told["memory"], with_index=True)
    layout = dataset.store.layout
    batch_size, mode = layout.batch_size, told["mode"]
    options = {"window": told["window"]} if mode == "window" else {}
    loader = mmapload.ChunkDataLoader(dataset, batch_size, mode, seed=told["first"], **options)
    buffers = {
        field.name: torch.from_numpy(np.ones((batch_size, *field.shape), field.dtype))
        for field in layout.fields
    }

    def epoch(_: int) -> float:
        seen = np.zeros(layout.samples, np.int64)
        start = time.perf_counter()
        for batch in loader:
            for name, buffer in buffers.items():
                buffer[: len(batch["index"])].copy_(batch[name])
            np.add.at(seen, batch["index"].numpy(), 1)
        seconds = time.perf_counter() - start
        if (seen != 1).any():
            raise SystemExit(f"{(seen != 1).sum()} samples did not come once")
        return seconds

    return epoch, {"budget": dataset.memory, "window": loader.sampler.window}


if __name__ == "__main__":
    main()
