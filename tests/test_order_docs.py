"""The page that defines the order is true: its reference implementation and its tables equal the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import random
from pathlib import Path

import pytest

import mmapload.order
from mmapload.order import ORDER_VERSION, Geometry, epoch_order
from tests.order_cases import make_case

PAGE = (Path(__file__).parent.parent / "docs" / "order.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def reference():
    names = {}
    exec(
        PAGE.partition("## Reference implementation")[2].partition("```python")[2].partition("```")[0], names
    )
    return names


def test_the_page_names_the_version():
    assert f"**order version {ORDER_VERSION}**" in PAGE


def test_the_reference_implementation_gives_the_same_batches(reference):
    generator = random.Random(21)
    for _ in range(150):
        case = make_case(generator.choice)
        order = case.order
        geometry = order.geometry
        for step in {0, order.steps // 2, order.steps - 1} & set(range(order.steps)):
            rank = generator.randrange(case.ranks)
            assert order.rank_batch(step, rank, case.ranks).tolist() == reference["rank_batch"](
                geometry.samples,
                geometry.chunk_length,
                geometry.unit,
                order.seed,
                order.epoch,
                order.mode,
                order.window,
                order.lanes,
                order.global_batch,
                order.remainder,
                step,
                rank,
                case.ranks,
            )


@pytest.mark.parametrize("size", [1, 2, 3, 4095, 4096, 4097, 71**2, 10**8, 2**40 + 1, 2**48])
def test_the_reference_implementation_gives_the_same_permutations(reference, size):
    import numpy as np

    from mmapload.order.bijection import bijection

    positions = sorted({0, size // 3, size - 1})
    for key, index in (((1, 2), 0), ((2**32 - 1, 7), 2**33 + 5)):
        expected = [reference["permuted"](size, key, index, position) for position in positions]
        assert bijection(size, key, index).forward(np.array(positions)).tolist() == expected


def test_the_tables_of_the_example_are_what_the_package_gives():
    def text(batch):
        return " ".join(str(sample) for sample in batch)

    geometry = Geometry(21, 4, 2)
    for remainder in ("keep", "pad"):
        order = epoch_order(geometry, global_batch=8, window=12, lanes=2, seed=9, remainder=remainder)
        rows = zip(order.rank_batches(0, 2), order.rank_batches(1, 2), strict=True)
        for step, (left, right) in enumerate(rows):
            name = f"{step}, `{remainder}`" if step == 2 else f"{step}"
            assert f"| {name} | {text(left)} | {text(right)} |" in PAGE
    for mode, size in (("batch", 4), ("full", 8)):
        order = epoch_order(geometry, global_batch=size, mode=mode, seed=9)
        batches = " | ".join(text(order.step_batch(step)) for step in range(order.steps))
        assert f"**Mode `{mode}`, G = {size}**: {batches}." in PAGE


def test_the_first_example_shows_the_right_numbers():
    order = epoch_order(Geometry(51312, 160, 32), global_batch=128, seed=1, epoch=0)
    assert order.steps == 401
    assert order.rank_batch(step=7, rank=2, world_size=4).size == 32


@pytest.mark.parametrize("module", [each.name for each in pkgutil.iter_modules(mmapload.order.__path__)])
def test_examples_in_docstrings_run(module):
    found = doctest.testmod(importlib.import_module(f"mmapload.order.{module}"))
    assert found.failed == 0
