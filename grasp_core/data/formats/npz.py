"""NumPy archives: images, labels, optionally split and classes; or train_images, train_labels …"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from grasp_core.data.formats.members import is_zip, zip_members
from grasp_core.data.formats.npy import StoredArray
from grasp_core.data.layout import split_named
from grasp_core.data.limits import Limits
from grasp_core.data.sample import SPLITS, Contents, Sample, SplitName
from grasp_core.errors import TargetError

LAYOUT = "a .npz with images (n, h, w[, 1|3]) uint8, labels (n,), optionally split and classes"
PREFIXES: dict[str, SplitName | None] = {"": None} | {f"{split}_": split for split in SPLITS}


class _Part(NamedTuple):
    """Arrays that belong together: all of the file, or one split of it."""

    prefix: str
    labels: list[str | int]
    splits: list[SplitName | None]


def matches(path: Path, limits: Limits) -> bool:
    if not path.is_file() or not is_zip(path):
        return False
    images = {f"{prefix}images.npy" for prefix in PREFIXES}
    return any(member.name in images for member in zip_members(path, limits))


def files(path: Path, _limits: Limits) -> list[Path]:
    return [path]


def read(path: Path, limits: Limits) -> Contents:
    """The images in order, read in chunks. Raises TargetError where the arrays make no sense."""
    with zipfile.ZipFile(path) as archive:
        found = [prefix for prefix in PREFIXES if _has(archive, f"{prefix}images")]
        parts = [_part(archive, prefix, limits) for prefix in found]
        classes = tuple(map(str, _column(archive, "classes"))) if _has(archive, "classes") else None
    return Contents(sum(len(part.labels) for part in parts), classes, _samples(path, parts))


def _part(archive: zipfile.ZipFile, prefix: str, limits: Limits) -> _Part:
    images = StoredArray(archive, f"{prefix}images")
    _check_images(images, limits)
    labels = _column(archive, f"{prefix}labels", len(images))
    if prefix or not _has(archive, "split"):
        return _Part(prefix, labels, [PREFIXES[prefix]] * len(images))
    return _Part(
        prefix, labels, [_split(value) for value in _column(archive, "split", len(images))]
    )


def _samples(path: Path, parts: list[_Part]) -> Iterator[Sample]:
    with zipfile.ZipFile(path) as archive:
        for part in parts:
            chunks = StoredArray(archive, f"{part.prefix}images").chunks()
            images = (image for chunk in chunks for image in chunk)
            rows = zip(images, part.labels, part.splits, strict=True)
            for row, (image, label, split) in enumerate(rows):
                yield Sample(f"{part.prefix}{row:09}", split, label, image)


def _check_images(images: StoredArray, limits: Limits) -> None:
    shape = images.shape
    if images.dtype != np.uint8 or not (
        len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3))
    ):
        raise TargetError(
            f"{images.name} has the shape {shape} and the type {images.dtype}",
            hint="expected (n, h, w) or (n, h, w, 1 | 3) of uint8",
        )
    limits.check_images(shape[0])
    if math.prod(shape[1:3]) > limits.max_pixels:
        raise TargetError(
            f"{images.name} holds images of {shape[1]}x{shape[2]}",
            hint=f"over Limits.max_pixels = {limits.max_pixels}",
        )


def _column(archive: zipfile.ZipFile, name: str, length: int | None = None) -> list[str | int]:
    """A one-dimensional array of numbers or strings, also where it is stored as (n, 1)."""
    if not _has(archive, name):
        raise TargetError(f"there is no {name} among {', '.join(sorted(archive.namelist()))}")
    array = StoredArray(archive, name)
    if array.dtype.kind not in "iuUS" or array.shape not in ((len(array),), (len(array), 1)):
        raise TargetError(f"{name} has the shape {array.shape} and the type {array.dtype}")
    if length not in (None, len(array)):
        raise TargetError(f"{name} has {len(array)} entries for {length} images")
    values = array.load().ravel()
    return list((np.char.decode(values, "utf-8") if array.dtype.kind == "S" else values).tolist())


def _split(value: str | int) -> SplitName:
    if isinstance(value, int) and 0 <= value < len(SPLITS):
        return SPLITS[value]
    if isinstance(value, str) and (split := split_named(value)):
        return split
    raise TargetError(f"the split {value!r} is none of 0, 1, 2 or train, val, test")


def _has(archive: zipfile.ZipFile, name: str) -> bool:
    return f"{name}.npy" in archive.NameToInfo
