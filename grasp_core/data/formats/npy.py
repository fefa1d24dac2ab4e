"""Arrays inside a .npz, header first and data in chunks; pickled objects are refused."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from grasp_core.data.sample import DAMAGE
from grasp_core.errors import TargetError

CHUNK_BYTES = 8 * 2**20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class StoredArray:
    """An array whose header is known and agrees with the space its data takes.

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
