"""Parquet files as the Hugging Face hub lays them out: a column of examples, and one of labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Generic

from grasp_core.data.contents import C, Contents, Limits, Sample, Unreadable
from grasp_core.data.formats import Format
from grasp_core.data.layout import shard_split, shards
from grasp_core.errors import TargetError

SUFFIXES = (".parquet",)
LABEL_COLUMNS = ("label", "labels", "fine_label")
ROWS = 64  # held in memory at a time
# Of a cell: the example's own name, if it has one, and its content.
ReadCell = Callable[[Any, Limits], tuple[str | None, C | Unreadable]]


def parquet_format(layout: str, columns: tuple[str, ...], read_cell: ReadCell[C]) -> Format[C]:
    """Files whose examples are in the first of `columns` that there is."""
    return Format(layout, _matches, _files, partial(_read, columns, read_cell))


def _matches(path: Path, limits: Limits) -> bool:
    if path.is_dir():
        return bool(_files(path, limits))
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _files(path: Path, limits: Limits) -> list[Path]:
    return shards(path, SUFFIXES, limits)


def _read(
    columns: tuple[str, ...], read_cell: ReadCell[C], path: Path, limits: Limits
) -> Contents[C]:
    """The rows, file by file. Raises TargetError for damaged files or missing columns."""
    tables = [_Table(file, path, columns, read_cell) for file in _files(path, limits)]
    for table in tables:
        table.check(limits)
    declared = {table.classes for table in tables}
    if len(declared) > 1:
        raise TargetError(f"the files of {path.name} declare different class names")
    samples = (sample for table in tables for sample in table.samples(limits))
    return Contents(sum(table.rows for table in tables), declared.pop(), samples)


class _Table(Generic[C]):
    """One Parquet file: where its examples and labels are, and what the labels mean."""

    def __init__(
        self, file: Path, root: Path, columns: tuple[str, ...], read_cell: ReadCell[C]
    ) -> None:
        self.file = file
        self.split = shard_split(file, root)
        self._read_cell = read_cell
        with _open(file) as opened:
            schema = opened.schema_arrow
            self.example = _column(schema.names, columns, file)
            self.label = _column(schema.names, LABEL_COLUMNS, file)
            self.classes = _class_names(schema.metadata or {}, self.label)
            self.rows: int = opened.metadata.num_rows
            groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
            self.unpacked = sum(group.total_byte_size for group in groups)

    def check(self, limits: Limits) -> None:
        limits.check_examples(self.rows)
        limits.check_bytes(self.unpacked, self.file.stat().st_size)

    def samples(self, limits: Limits) -> Iterator[Sample[C]]:
        for row, (cell, label) in enumerate(self._cells()):
            name = f"{self.file.name}#{row:09}"
            if not isinstance(label, str | int):
                raise TargetError(f"{name} has the label {label!r}, neither a number nor a name")
            own, content = self._read_cell(cell, limits)
            yield Sample(own or name, self.split, label, content)

    def _cells(self) -> Iterator[tuple[Any, Any]]:
        with _open(self.file) as opened:
            batches = opened.iter_batches(ROWS, columns=[self.example, self.label])
            while (batch := _next(batches, self.file)) is not None:
                yield from zip(
                    batch.column(self.example).to_pylist(),
                    batch.column(self.label).to_pylist(),
                    strict=True,
                )


def _open(file: Path) -> Any:
    # Imported here: pyarrow takes 50 MB of memory that only this format needs.
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise TargetError(f"{file.name} is no sound Parquet file: {error}") from error


def _next(batches: Iterator[Any], file: Path) -> Any:
    import pyarrow as pa

    try:
        return next(batches, None)
    except (pa.ArrowException, OSError) as error:
        raise TargetError(f"{file.name} is no sound Parquet file: {error}") from error


def _column(names: list[str], wanted: tuple[str, ...], file: Path) -> str:
    for name in wanted:
        if name in names:
            return name
    raise TargetError(
        f"{file.name} has the columns {', '.join(names)}",
        hint=f"one must be called {' or '.join(wanted)}",
    )


def _class_names(metadata: dict[bytes, bytes], column: str) -> tuple[str, ...] | None:
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        return tuple(map(str, features[column]["names"]))
    except (KeyError, TypeError, ValueError):
        return None  # not written by Hugging Face, or the labels are plain numbers or strings
