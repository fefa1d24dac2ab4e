"""NumPy archives: images, labels, optionally split and classes; or train_images, train_labels …

Arrays are read header first and data in chunks; pickled objects are refused.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from grasp_core.data import SPLITS, Contents, Format, Limits, Sample, SplitName
from grasp_core.data.archives import is_zip, zip_members
from grasp_core.data.contents import DAMAGE
from grasp_core.data.layout import split_named
from grasp_core.errors import TargetError, shorten
from grasp_core.kinds.image.decode import Content

CHUNK_BYTES = 8 * 2**20
SUFFIX = ".npy"  # of each array in the archive
MOST, LONGEST = 12, 40  # names in a message, and characters of each
LAYOUT = (
    "write it with np.savez(path, images=…, labels=…): images (n, h, w[, 1|3]) uint8, labels (n,)"
)
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
PREFIXES: dict[str, SplitName | None] = {"": None} | {f"{split}_": split for split in SPLITS}


class _Part(NamedTuple):
    """Arrays that belong together: all of the file, or one split of it."""

    prefix: str
    labels: list[str | int]
    splits: list[SplitName | None]


def _matches(path: Path, limits: Limits) -> bool:
    if not path.is_file() or not is_zip(path):
        return False
    names = [member.name for member in zip_members(path, limits) if not member.is_folder]
    return bool(names) and all(name.endswith(SUFFIX) for name in names)


def _read(path: Path, limits: Limits) -> Contents[Content]:
    """The images in order, read in chunks. Raises TargetError where the arrays make no sense."""
    with zipfile.ZipFile(path) as archive:
        found = [prefix for prefix in PREFIXES if _has(archive, f"{prefix}images")]
        if not found:
            raise TargetError(f"the .npz holds {_list_arrays(archive)}, and no images", hint=LAYOUT)
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


def _samples(path: Path, parts: list[_Part]) -> Iterator[Sample[Content]]:
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
    limits.check_examples(shape[0])
    if math.prod(shape[1:3]) > limits.max_values:
        raise TargetError(
            f"{images.name} holds images of {shape[1]}x{shape[2]}",
            hint=f"over Limits.max_values = {limits.max_values}",
        )


def _column(archive: zipfile.ZipFile, name: str, length: int | None = None) -> list[str | int]:
    """A one-dimensional array of numbers or strings, also where it is stored as (n, 1)."""
    if not _has(archive, name):
        raise TargetError(f"there is no {name} among {_list_arrays(archive)}", hint=LAYOUT)
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


def _list_arrays(archive: zipfile.ZipFile) -> str:
    names = sorted(name.removesuffix(SUFFIX) for name in archive.namelist())
    shown = ", ".join(shorten(name, LONGEST) for name in names[:MOST])
    return f"{shown} and {len(names) - MOST} more" if len(names) > MOST else shown


def _has(archive: zipfile.ZipFile, name: str) -> bool:
    return f"{name}{SUFFIX}" in archive.NameToInfo


class StoredArray:
    """An array inside a .npz, whose header is known and agrees with the space its data takes.

    Raises TargetError if the array is damaged, holds objects, or is not in C order.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __init__(self, archive: zipfile.ZipFile, name: str) -> None:
        self._archive = archive
        self.name = name
        with self._open() as file:
            self.shape, fortran, self.dtype = _header(file)
            self._offset = file.tell()
        if self.dtype.hasobject:
            raise TargetError(
                f"{name} holds pickled Python objects, which are never loaded",
                hint="save numbers or strings with a fixed type",
            )
        if fortran and len(self.shape) > 1:
            raise TargetError(f"{name} is in Fortran order", hint="use np.ascontiguousarray")
        self._check_size()

    def __len__(self) -> int:
        return self.shape[0]

    def load(self) -> NDArray[Any]:
        return np.concatenate(list(self.chunks()))

    def chunks(self) -> Iterator[NDArray[Any]]:
        """Slices along the first axis, of about CHUNK_BYTES."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        with self._open() as file:
            file.read(self._offset)
            while data := file.read(max(1, CHUNK_BYTES // row) * row):
                yield np.frombuffer(data, self.dtype).reshape(-1, *self.shape[1:])

    def _check_size(self) -> None:
        stored = self._archive.getinfo(f"{self.name}.npy").file_size - self._offset
        if min(self.shape, default=0) < 1 or math.prod(self.shape) * self.dtype.itemsize != stored:
            raise TargetError(f"{self.name} has the shape {self.shape} and {stored} bytes")

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        try:
            with self._archive.open(f"{self.name}.npy") as file:
                yield file
        except (*DAMAGE, ValueError, RuntimeError) as error:
            raise TargetError(f"the array {self.name} is damaged: {error}") from error


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in _HEADERS:
        raise ValueError(f"unknown version {version}")
    return _HEADERS[version](file)


FORMAT: Format[Content] = Format(
    "a .npz with images (n, h, w[, 1|3]) uint8, labels (n,), optionally split and classes",
    _matches,
    lambda path, _: [path],
    _read,
)
