"""Text in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmapload.errors import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[str]], left: int) -> str:
    """Align rows in columns, the first `left` of them at their left edge and the others at their right.

    What is in a cell cannot break or overwrite a line: see `printable`.

    Examples
    --------
    >>> print(table([("field", "size"), ("image", "9 B"), ("flow", "120 B")], left=1))
    field   size
    image    9 B
    flow   120 B
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*shown, strict=True)]
    lines = []
    for row in shown:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
