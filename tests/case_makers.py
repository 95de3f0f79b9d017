"""Makers of what people bring: small folders of samples of one kind each, with what is in them."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.npz_files import npy_bytes, npz_bytes, put

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["expect_tests_of", "list_of_arrays", "numbered", "put_npy", "put_npz", "put_sound"]


def numbered(number: int, shape: tuple[int, ...] = (3, 4), dtype: str = "f4") -> np.ndarray:
    """Values by which a sample can be told, all different within it."""
    return (np.arange(np.prod(shape)) + 100 * number).astype(dtype).reshape(shape)


def put_npz(folder: Path, name: str, /, **arrays: Any) -> Path:
    put(folder / name, npz_bytes(arrays))
    return folder / name


def put_npy(folder: Path, name: str, array: np.ndarray) -> Path:
    put(folder / name, npy_bytes(array))
    return folder / name


def put_sound(folder: Path, numbers: Sequence[int]) -> None:
    """Samples s0.npz, s1.npz and so on, each with its number."""
    for number in numbers:
        put_npz(folder, f"s{number}.npz", x=numbered(number), id=np.int64(number))


def list_of_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """What `np.array(arrays, dtype=object)` makes of arrays that differ in shape."""
    found = np.empty(len(arrays), object)
    for number, array in enumerate(arrays):
        found[number] = array
    return found


def expect_tests_of(table: str, file: str) -> None:
    """Expect a test behind every row of a table: of this file, or of the one beside it that is named."""
    named = re.findall(r"\| (?:(test_\w+\.py)::)?(test_\w+) \|$", table, re.MULTILINE)
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(named) == len(rows) - 2
    for other, test in named:
        text = (Path(file).parent / (other or Path(file).name)).read_text(encoding="utf-8")
        functions = {each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)}
        assert test in functions, f"{other}::{test}"
