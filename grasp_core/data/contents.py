"""What every format yields: a stream of named, labelled examples, within limits."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from grasp_core.config import require_text
from grasp_core.errors import TargetError

Array = NDArray[Any]
IndexArray = NDArray[np.int64]
Label = str | int  # a class name, or its index
SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")
# What zipfile, tarfile and the decompressors below them raise on damaged archives.
DAMAGE = (tarfile.TarError, BadZipFile, zlib.error, LZMAError, EOFError, OSError)
RATIO_GRACE = 16 * 2**20  # small archives of blank data compress well, and harm nobody
C = TypeVar("C")  # what a kind's formats yield of an example, before it is decoded


@dataclass(frozen=True)
class Limits:
    """What target data may cost, for a stranger may have made it.

    A single example over its cap counts as broken, not as an error.
    """

    max_examples: int = 10_000_000
    max_values: int = 89_478_485  # per decoded example: a third of a gigabyte as float32
    max_bytes: int = 2**40  # of all files, unpacked
    max_example_bytes: int = 256 * 2**20  # per encoded example
    max_ratio: float = 200.0  # unpacked to packed; deflate cannot reach 1100
    follow_links: bool = False  # may symbolic links lead out of the target's folder?

    def check_examples(self, count: int) -> None:
        """Raise TargetError if there are more than `max_examples`."""
        if count > self.max_examples:
            self._refuse("max_examples", f"{count} examples")

    def check_bytes(self, unpacked: int, packed: int | None = None) -> None:
        """Raise TargetError if the data grows beyond `max_bytes`, or suspiciously on unpacking."""
        if unpacked > self.max_bytes:
            self._refuse("max_bytes", f"{unpacked} bytes")
        if packed and unpacked > RATIO_GRACE and unpacked / packed > self.max_ratio:
            self._refuse("max_ratio", f"{packed} bytes that unpack to {unpacked}")

    def _refuse(self, name: str, found: str) -> NoReturn:
        raise TargetError(
            f"the data holds {found}, over the limit {name} = {getattr(self, name)}",
            hint=f"if the data is trusted, raise Limits.{name}",
        )


class Unreadable(NamedTuple):
    """Stands for an example that cannot be had."""

    reason: str


class Sample(NamedTuple, Generic[C]):
    """One example as it lies in the target, not decoded yet."""

    name: str
    split: SplitName | None
    label: Label
    content: C | Unreadable


@dataclass(frozen=True)
class Contents(Generic[C]):
    """All samples of a target, to be read once and in order."""

    total: int
    classes: tuple[str, ...] | None  # in declared order; None: whatever the samples name
    samples: Iterator[Sample[C]]


def fetch(size: int, read: Callable[[], bytes], limits: Limits) -> bytes | Unreadable:
    """The encoded example that `read` returns, unless it is too large or damaged where it lies."""
    if size > limits.max_example_bytes:
        most = limits.max_example_bytes
        return Unreadable(f"{size} bytes, over Limits.max_example_bytes = {most}")
    try:
        return read()
    except (*DAMAGE, NotImplementedError) as error:  # also an unknown compression
        return Unreadable(str(error))


def class_indices(
    labels: Iterable[Label], declared: tuple[str, ...] | None
) -> tuple[tuple[str, ...], dict[Label, int]]:
    """The class names in order, and the index of the class that each label means.

    Numbers are indices into declared names; without those they are names, in numeric order.
    Raises TargetError for a label outside of the declared classes, and for a name that no line
    can show.
    """
    if declared is None:
        return _from_labels(set(labels))
    _require_text(declared)
    positions: dict[Label, int] = {name: index for index, name in enumerate(declared)}
    if len(positions) < len(declared):
        raise TargetError("the data declares a class name twice", hint=", ".join(declared))
    positions |= {index: index for index in range(len(declared))}
    if unknown := {label for label in labels if label not in positions}:
        raise TargetError(
            f"the label {min(unknown, key=str)!r} is none of the {len(declared)} declared classes"
        )
    return declared, positions


def _require_text(names: Iterable[str]) -> None:
    for name in names:
        try:
            require_text(name)
        except ValueError as error:
            raise TargetError(str(error), hint="give the class, or its folder, a name") from error


def _from_labels(labels: set[Label]) -> tuple[tuple[str, ...], dict[Label, int]]:
    numeric = all(isinstance(label, int) for label in labels)
    names = sorted({str(label) for label in labels}, key=int if numeric else str)
    _require_text(names)
    positions = {name: index for index, name in enumerate(names)}
    return tuple(names), {label: positions[str(label)] for label in labels}
