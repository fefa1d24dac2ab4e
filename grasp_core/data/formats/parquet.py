"""Parquet files as the Hugging Face hub lays them out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grasp_core.data.layout import shard_split, shards
from grasp_core.data.limits import Limits
from grasp_core.data.sample import Contents, Sample, Unreadable, fetch
from grasp_core.errors import TargetError

LAYOUT = "Hugging Face .parquet files with the columns image and label, one or a folder of them"
SUFFIXES = (".parquet",)
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")
ROWS = 64  # held in memory at a time


def matches(path: Path, limits: Limits) -> bool:
    if path.is_dir():
        return bool(files(path, limits))
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def files(path: Path, limits: Limits) -> list[Path]:
    return shards(path, SUFFIXES, limits)


def read(path: Path, limits: Limits) -> Contents:
    """The rows, file by file. Raises TargetError for damaged files or missing columns."""
    tables = [_Table(file, path) for file in files(path, limits)]
    for table in tables:
        table.check(limits)
    declared = {table.classes for table in tables}
    if len(declared) > 1:
        raise TargetError(f"the files of {path.name} declare different class names")
    samples = (sample for table in tables for sample in table.samples(limits))
    return Contents(sum(table.rows for table in tables), declared.pop(), samples)


class _Table:
    """One Parquet file: where its images and labels are, and what the labels mean."""

    def __init__(self, file: Path, root: Path) -> None:
        self.file = file
        self.split = shard_split(file, root)
        with _open(file) as opened:
            schema = opened.schema_arrow
            self.image = _column(schema.names, IMAGE_COLUMNS, file)
            self.label = _column(schema.names, LABEL_COLUMNS, file)
            self.classes = _class_names(schema.metadata or {}, self.label)
            self.rows: int = opened.metadata.num_rows
            groups = map(opened.metadata.row_group, range(opened.metadata.num_row_groups))
            self.unpacked = sum(group.total_byte_size for group in groups)

    def check(self, limits: Limits) -> None:
        limits.check_images(self.rows)
        limits.check_bytes(self.unpacked, self.file.stat().st_size)

    def samples(self, limits: Limits) -> Iterator[Sample]:
        for row, (image, label) in enumerate(self._cells()):
            name = f"{self.file.name}#{row:09}"
            if not isinstance(label, str | int):
                raise TargetError(f"{name} has the label {label!r}, neither a number nor a name")
            yield Sample(_path(image) or name, self.split, label, _content(image, limits))

    def _cells(self) -> Iterator[tuple[Any, Any]]:
        with _open(self.file) as opened:
            batches = opened.iter_batches(ROWS, columns=[self.image, self.label])
            while (batch := _next(batches, self.file)) is not None:
                yield from zip(
                    batch.column(self.image).to_pylist(),
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


def _path(image: Any) -> str | None:
    return image.get("path") if isinstance(image, dict) else None


def _content(image: Any, limits: Limits) -> bytes | Unreadable:
    # A path without bytes points to somebody's disk: never followed.
    data = image.get("bytes") if isinstance(image, dict) else image
    if not isinstance(data, bytes):
        return Unreadable("no bytes are stored")
    return fetch(len(data), lambda: data, limits)
