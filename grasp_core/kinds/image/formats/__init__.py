"""Target data of images, in any of the layouts that they may come in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grasp_core.data import Format, Limits, TargetData, Unreadable, fetch
from grasp_core.data.parquet import parquet_format
from grasp_core.data.target import DEFAULT_LIMITS
from grasp_core.kinds.image.config import Preprocessing
from grasp_core.kinds.image.decode import Content, decoder
from grasp_core.kinds.image.formats import folders, npz, webdataset


def read_cell(cell: Any, limits: Limits) -> tuple[str | None, Content | Unreadable]:
    """Name and bytes of a cell that the Hugging Face library wrote."""
    # A path without bytes points to somebody's disk: never followed.
    name, data = (cell.get("path"), cell.get("bytes")) if isinstance(cell, dict) else (None, cell)
    if not isinstance(data, bytes):
        return name, Unreadable("no bytes are stored")
    return name, fetch(len(data), lambda: data, limits)


# The first that matches is taken: the special before the general.
FORMATS: tuple[Format[Content], ...] = (
    parquet_format(
        "Hugging Face .parquet files with the columns image and label, one or a folder of them",
        ("image", "img"),
        read_cell,
    ),
    npz.FORMAT,
    webdataset.FORMAT,
    folders.ARCHIVE,
    folders.FOLDER,
)


def open_images(
    path: str | Path,
    preprocessing: Preprocessing,
    *,
    limits: Limits = DEFAULT_LIMITS,
    **options: Any,
) -> TargetData:
    """The images at a path as squares; `options` are those of `TargetData.open`."""
    images = decoder(preprocessing, limits)
    return TargetData.open(path, FORMATS, images, limits=limits, **options)
