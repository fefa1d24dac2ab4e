"""What every format yields: a stream of named, labelled examples, within limits."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from lzma import LZMAError
from typing import Any, Generic, Literal, NamedTuple, NoReturn, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from grasp_core.config import require_names
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
    max_total_values: int = 10**12  # of all examples as they are sent: hours of a core
    max_blank_values: int = 10**9  # those beyond max_ratio per encoded byte: ten seconds of a core
    max_decoded_bytes: int = 2**40  # of all examples as they are kept
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

    def check_values(self, total: int, blank: int, unit: str = "values") -> None:
        """Raise TargetError if decoding all examples takes too long, or suspiciously long for what
        was sent."""
        hint = "scale the examples down before they are sent"
        if total > self.max_total_values:
            self._refuse("max_total_values", f"{total} {unit} or more", hint)
        if blank > self.max_blank_values:
            beyond = f"{blank} of them beyond {self.max_ratio:g} per byte sent"
            self._refuse("max_blank_values", f"{total} {unit} or more, {beyond}", hint)

    def check_decoded(self, count: int, size: int, remedy: str) -> None:
        """Raise TargetError if so many examples decode to more than `max_decoded_bytes`."""
        if size > self.max_decoded_bytes:
            self._refuse(
                "max_decoded_bytes",
                f"{count} examples that decode to {size} bytes",
                f"{remedy}, or raise GRASP_DECODED_TARGET_BYTES of the service,"
                " or this limit in the library",
            )

    def _refuse(self, name: str, found: str, hint: str | None = None) -> NoReturn:
        raise TargetError(
            f"the data holds {found}, over the limit {name} = {getattr(self, name)}",
            hint=hint or f"if the data is trusted, raise Limits.{name}",
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
    Raises TargetError for a label outside of the declared classes, for too many of them, and for a
    name that is too long or that no line can show.
    """
    if declared is None:
        return _from_labels(set(labels))
    _require_names(declared)
    positions: dict[Label, int] = {name: index for index, name in enumerate(declared)}
    if len(positions) < len(declared):
        raise TargetError("the data declares a class name twice", hint=", ".join(declared))
    positions |= {index: index for index in range(len(declared))}
    if unknown := {label for label in labels if label not in positions}:
        raise TargetError(
            f"the label {min(unknown, key=str)!r} is none of the {len(declared)} declared classes"
        )
    return declared, positions


def _require_names(names: Collection[str]) -> None:
    try:
        require_names(names)
    except ValueError as error:
        hint = "give the class, or its folder, another name, or take fewer classes"
        raise TargetError(f"the data cannot be used: {error}", hint=hint) from error


def _from_labels(labels: set[Label]) -> tuple[tuple[str, ...], dict[Label, int]]:
    numeric = all(isinstance(label, int) for label in labels)
    names = sorted({str(label) for label in labels}, key=int if numeric else str)
    _require_names(names)
    positions = {name: index for index, name in enumerate(names)}
    return tuple(names), {label: positions[str(label)] for label in labels}
