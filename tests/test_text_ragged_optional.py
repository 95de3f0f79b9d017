"""Text, shapes that differ and fields that samples lack, all in one store from `.npz` files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import mmapload
from tests.preprocessing_cases import tree, write_npz

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 13


def values(number: int) -> dict[str, np.ndarray]:
    """A sample: two ragged fields, two of text, an optional one that is ragged, of text, and neither."""
    rng = np.random.default_rng(number)
    words = rng.standard_normal(number % 4).astype("f4")
    words[:1] = -0.0
    found: dict[str, np.ndarray] = {
        "words": words,
        "boxes": rng.integers(-9, 9, (number % 3, 4)).astype("i2"),
        "name": np.array("né\U0001f600" * (number % 3)),
        "tags": np.array([b"a" * number, b"\xff"]),
        "label": np.array(number),
    }
    if number % 2:
        found["mask"] = rng.integers(0, 2, (1 + number % 3, 2)).astype(bool)
    if number % 5 == 1:
        found["note"] = np.array("ü" * number)
    if number % 3:
        found["flow"] = np.full((2, 2), np.nan, "f8")
    return found


def test_they_go_into_a_store_into_batches_and_out_again_bit_by_bit(tmp_path: Path) -> None:
    options: dict[str, Any] = {"ragged": "auto", "optional": ["mask", "note", "flow"]}
    source = write_npz(tmp_path / "in", [values(number) for number in range(COUNT)])
    store = mmapload.preprocess(source, tmp_path / "store", 4, chunk_bytes=1, **options)
    assert [field.name for field in store.layout.ragged] == ["words", "boxes", "mask"]
    for form in ("list", "pad"):
        dataset = mmapload.ChunkDataset(store.path, ragged=form)
        numbers: list[int] = []
        for batch in mmapload.ChunkDataLoader(dataset, 4, shuffle=True):
            for place, number in enumerate(batch["label"].tolist()):
                compare(batch, place, values(number), form)
                numbers.append(number)
        assert sorted(numbers) == list(range(COUNT))
    mmapload.export(store, tmp_path / "out")
    for number in range(COUNT):
        with np.load(tmp_path / "out" / f"s{number}.npz") as found:
            wanted = values(number)
            assert set(found.files) == wanted.keys()
            for name, array in wanted.items():
                assert found[name].shape == array.shape
                exact = array.astype(found[name].dtype) if array.dtype.kind in "US" else array
                assert found[name].dtype.kind == array.dtype.kind
                assert found[name].tobytes() == exact.tobytes()
    again = mmapload.preprocess(tmp_path / "out", tmp_path / "again", 4, chunk_bytes=1, **options)
    assert again.fingerprint == store.fingerprint
    both = tree(tmp_path / "again"), tree(tmp_path / "store")
    for each in both:
        del each["zarr.json"]  # it has a sum of the source's files, in which texts are longer now
    assert both[0] == both[1]


def compare(batch: Any, place: int, wanted: dict[str, np.ndarray], form: str) -> None:
    """Compare what a batch has at a place with a sample."""
    for name in ("mask", "note", "flow"):
        assert bool(batch[f"{name}_present"][place]) == (name in wanted)
    for name in ("words", "boxes", "mask"):
        array = wanted.get(name, np.empty((0, 2), bool))
        found = batch[name][place]
        if form == "pad":
            lengths = batch[f"{name}_lengths"][place].reshape(-1).tolist()
            assert lengths[0] == array.shape[0]
            held = batch[f"{name}_mask"][place]
            assert not found[~held].any()
            found = found[held].reshape(array.shape)
        assert found.numpy().tobytes() == array.tobytes()
        assert len(found) == len(array)
    assert batch["name"][place] == str(wanted["name"])
    assert list(batch["tags"][place]) == wanted["tags"].tolist()
    assert batch["note"][place] == str(wanted.get("note", ""))
    flow = torch.from_numpy(wanted.get("flow", np.zeros((2, 2))))
    assert batch["flow"][place].numpy().tobytes() == flow.numpy().tobytes()
