"""What every format yields: a stream of named, labelled images that are not decoded yet."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from typing import Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from grasp_core.data.limits import Limits

UInt8Array = NDArray[np.uint8]
IndexArray = NDArray[np.int64]
SplitName = Literal["train", "val", "test"]
# What zipfile, tarfile and the decompressors below them raise on damaged archives.
DAMAGE = (tarfile.TarError, BadZipFile, zlib.error, LZMAError, EOFError, OSError)
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")


class Unreadable(NamedTuple):
    """Stands for an image that cannot be had."""

    reason: str


class Sample(NamedTuple):
    """One image: encoded, or as an array (h, w) or (h, w, 1 | 3)."""

    name: str
    split: SplitName | None
    label: str | int  # a class name, or its index
    content: bytes | UInt8Array | Unreadable


@dataclass(frozen=True)
class Contents:
    """All samples of a target, to be read once and in order."""

    total: int
    classes: tuple[str, ...] | None  # in declared order; None: whatever the samples name
    samples: Iterator[Sample]


def fetch(size: int, read: Callable[[], bytes], limits: Limits) -> bytes | Unreadable:
    """The encoded image that `read` returns, unless it is too large or damaged where it lies."""
    if size > limits.max_image_bytes:
        return Unreadable(f"{size} bytes, over Limits.max_image_bytes = {limits.max_image_bytes}")
    try:
        return read()
    except (*DAMAGE, NotImplementedError) as error:  # also an unknown compression
        return Unreadable(str(error))
