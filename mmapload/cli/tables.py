"""Text in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[str]], left: int) -> str:
    """Align rows in columns, the first `left` of them at their left edge and the others at their right.

    Examples
    --------
    >>> print(table([("field", "size"), ("image", "9 B"), ("flow", "120 B")], left=1))
    field   size
    image    9 B
    flow   120 B
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
