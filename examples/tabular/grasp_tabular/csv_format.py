"""CSV with a header: a column `label`, maybe one called `split`, and numbers in all others.

Whoever sends such a file may be a stranger: it is read line by line, limits come before memory, and
a row that cannot be used counts as broken.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from grasp_core.data import Array, Contents, Decoder, Format, Limits, Sample, Unreadable
from grasp_core.data.layout import split_named
from grasp_core.errors import TargetError

LABEL, SPLIT = "label", "split"
PEEK = 65536  # characters: more than any header has
Cells = list[str]


def _matches(path: Path, _limits: Limits) -> bool:
    return path.is_file() and LABEL in _header(path)


def _header(path: Path) -> Cells:
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        return next(csv.reader([file.readline(PEEK)]), [])


def count_columns(path: Path) -> int:
    """How many numbers a row has; at least one, so that what is no CSV comes to be refused."""
    return max(1, sum(name not in (LABEL, SPLIT) for name in _header(path)))


def _read(path: Path, limits: Limits) -> Contents[Cells]:
    limits.check_bytes(path.stat().st_size)
    total = 0
    for _ in _samples(path, limits):
        total += 1
        limits.check_examples(total)
    return Contents(total, None, _samples(path, limits))


def _samples(path: Path, limits: Limits) -> Iterator[Sample[Cells]]:
    header = _header(path)
    for number, cells in enumerate(_rows(path, limits), start=2):
        name = f"line {number:09}"
        named = dict(zip(header, cells, strict=False))
        label, split = named.get(LABEL), named.get(SPLIT)
        if not label:
            raise TargetError(f"{name} has no label")
        numbers = [cell for column, cell in named.items() if column not in (LABEL, SPLIT)]
        whole = len(cells) == len(header)
        yield Sample(
            name,
            split_named(split) if split else None,
            int(label) if label.isdecimal() else label,
            numbers if whole else Unreadable(f"{len(cells)} cells, where the header has others"),
        )


def _rows(path: Path, limits: Limits) -> Iterator[Cells]:
    """All but the header."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.reader(_lines(file, limits))
            next(rows, None)
            yield from filter(None, rows)
    except (csv.Error, UnicodeDecodeError) as error:
        raise TargetError(f"{path.name} is no sound CSV: {error}") from error


def _lines(file: TextIO, limits: Limits) -> Iterator[str]:
    most = limits.max_example_bytes
    while line := file.readline(most + 1):
        if len(line) > most:
            raise TargetError(f"a line is longer than Limits.max_example_bytes = {most}")
        yield line


CSV: Format[Cells] = Format(
    "a .csv with a header, a column label, and numbers in all others but split",
    _matches,
    lambda path, _: [path],
    _read,
)


def decoder(columns: int) -> Decoder[Cells]:
    """Rows of so many numbers, as float32."""

    def decode(
        samples: Iterable[Sample[Cells]],
    ) -> Iterator[tuple[Sample[Cells], Array | Unreadable]]:
        for sample in samples:
            yield sample, _numbers(sample.content, columns)

    return Decoder("rows.f32", (columns,), "float32", {"columns": columns}, decode)


def _numbers(cells: Cells | Unreadable, columns: int) -> Array | Unreadable:
    if isinstance(cells, Unreadable):
        return cells
    if len(cells) != columns:
        return Unreadable(f"{len(cells)} numbers, not {columns}")
    try:
        row = np.array(cells, np.float32)
    except ValueError as error:
        return Unreadable(str(error))
    return row if np.isfinite(row).all() else Unreadable("a number is not finite")
