"""A plot for a terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

WIDTH = 10  # of a column
STEP = 0.05  # of a row


def chart(columns: Sequence[str], series: Mapping[str, Sequence[float]], level: float) -> str:
    """Marks over columns: `series` has a value per column for each mark, the last one on top.

    `level` is drawn as a line across. The axis spans what there is, in whole tenths.
    """
    values = [level, *(value for points in series.values() for value in points)]
    low, high = math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10
    height = round((high - low) / STEP)
    rows = [[" "] * (WIDTH * len(columns)) for _ in range(height + 1)]  # the lowest first

    def row(value: float) -> list[str]:
        return rows[round((value - low) / STEP)]

    row(level)[:] = "┄" * (WIDTH * len(columns))
    for mark, points in series.items():
        for number, value in enumerate(points):
            row(value)[number * WIDTH + WIDTH // 2] = mark
    drawn = [f"{low + STEP * i:5.2f} ┤{''.join(cells)}".rstrip() for i, cells in enumerate(rows)]
    names = "".join(name.center(WIDTH) for name in columns).rstrip()
    return "\n".join([*reversed(drawn), f"{'':6}└{'─' * WIDTH * len(columns)}", f"{'':7}{names}"])
