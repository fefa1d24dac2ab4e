"""Decoded examples on disk: <root>/<fingerprint>-<key>/ with all rows in one file, memory-mapped,
its sha256, and index.npz.

A cache is built in a sibling folder and renamed, so that it is there as a whole or not at all;
who finds it damaged, and be it by a bit, builds it again. Reading it through costs little beside
what is done with the examples then.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Generic, NamedTuple

import numpy as np

from grasp_core.cache_folders import make_aside, mark_used, sweep_aside
from grasp_core.data.contents import (
    DAMAGE,
    SPLITS,
    Array,
    C,
    Contents,
    IndexArray,
    Label,
    Sample,
    Unreadable,
    class_indices,
)
from grasp_core.data.splits import UNGIVEN, SplitArray
from grasp_core.files import sha256_file, sync_folder

VERSION = 2  # of the files; how rows are made of samples is a matter of each decoder's key
REPORT_EVERY = 64  # examples: often enough to be stopped by, too seldom to cost anything
INDEX = "index.npz"
Progress = Callable[[float], None]


@dataclass(frozen=True)
class Decoder(Generic[C]):
    """How a kind makes rows of samples: numbers that all have one shape and one type."""

    file: str  # that the rows are cached in
    shape: tuple[int, ...]  # of one row
    dtype: str
    key: Mapping[str, object]  # all that a row depends on, beside the data
    decode: Callable[[Iterable[Sample[C]]], Iterable[tuple[Sample[C], Array | Unreadable]]]
    remedy: str = "take fewer examples"  # where the rows would take too much room

    @property
    def checksum(self) -> str:
        return str(Path(self.file).with_suffix(".sha256"))

    def cache_key(self, fingerprint: str) -> str:
        """Begins with whose rows they are, so that they can be deleted with the data."""
        parts = {"version": VERSION, "fingerprint": fingerprint, **self.key}
        recipe = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
        return f"{fingerprint}-{recipe}"

    def map(self, folder: Path, count: int) -> Array:
        """(count, *shape), mapped from the file in a folder."""
        shape = (count, *self.shape)
        if count == 0:
            return np.empty(shape, self.dtype)  # an empty file cannot be mapped
        return np.asarray(np.memmap(folder / self.file, self.dtype, "r", shape=shape))

    def size(self, count: int) -> int:
        """Bytes of so many rows."""
        return count * math.prod(self.shape) * np.dtype(self.dtype).itemsize


class Broken(NamedTuple):
    """An example that cannot be used."""

    name: str
    reason: str


@dataclass(frozen=True)
class Index:
    """Rows 0…n-1 of the examples that decode, and the names of the others."""

    classes: tuple[str, ...]
    names: Sequence[str]  # n
    labels: IndexArray  # (n,), into classes
    splits: SplitArray  # (n,), as given
    broken: tuple[Broken, ...]

    def save(self, file: BinaryIO) -> None:
        texts = {"classes": self.classes, "names": list(self.names), "broken": self.broken}
        packed = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        np.savez(file, labels=self.labels, splits=self.splits, texts=packed)

    @classmethod
    def load(cls, path: Path) -> Index | None:
        """None if there is no index, or it is damaged."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                texts = json.loads(arrays["texts"].tobytes())
                index = cls(
                    tuple(texts["classes"]),
                    texts["names"],
                    arrays["labels"],
                    arrays["splits"],
                    tuple(Broken(*pair) for pair in texts["broken"]),
                )
        except (*DAMAGE, ValueError, KeyError, TypeError):
            return None
        return index if index._agrees() else None

    def _agrees(self) -> bool:
        return len(self.names) == len(self.labels) == len(self.splits)


@dataclass(frozen=True)
class Stored:
    """What a cache holds; rows are (n, *shape), mapped from disk."""

    index: Index
    rows: Array


def load(folder: Path, decoder: Decoder[C]) -> Stored | None:
    """The cache in a folder; None if there is none, or it is damaged."""
    index = Index.load(folder / INDEX)
    if index is None:
        return None
    mark_used(folder)
    count, file = len(index.labels), folder / decoder.file
    try:
        if file.stat().st_size != decoder.size(count):
            return None
        if sha256_file(file) != (folder / decoder.checksum).read_text(errors="replace"):
            return None
        return Stored(index, decoder.map(folder, count))
    except FileNotFoundError:
        return None


def build(folder: Path, decoder: Decoder[C], contents: Contents[C], progress: Progress) -> Stored:
    """Decode the contents, then publish rows and index under the folder.

    Several processes may do so at once: all succeed, one of the results is kept. Raises
    TargetError where the data turns out to be damaged or over a limit on the way.
    """
    sweep_aside(folder.parent)
    with make_aside(folder.parent, folder.name) as temporary:
        with (temporary / decoder.file).open("wb") as file:
            index = _decode_into(file, decoder, contents, progress)
            _sync(file)
        with (temporary / decoder.checksum).open("wb") as file:
            file.write(sha256_file(temporary / decoder.file).encode())
            _sync(file)
        with (temporary / INDEX).open("wb") as file:
            index.save(file)
            _sync(file)
        sync_folder(temporary)
        return _publish(temporary, folder, index, decoder)


def _decode_into(
    file: BinaryIO, decoder: Decoder[C], contents: Contents[C], progress: Progress
) -> Index:
    """Write every row that decodes, one after the other."""
    names: list[str] = []
    labels: list[Label] = []
    splits: list[int] = []
    broken: list[Broken] = []
    seen: set[Label] = set()  # with those of broken examples: no class vanishes unnoticed
    for done, (sample, row) in enumerate(decoder.decode(contents.samples)):
        seen.add(sample.label)
        if isinstance(row, Unreadable):
            broken.append(Broken(sample.name, row.reason))
        else:
            file.write(np.asarray(row, decoder.dtype, order="C").reshape(decoder.shape).data)
            names.append(sample.name)
            labels.append(sample.label)
            splits.append(UNGIVEN if sample.split is None else SPLITS.index(sample.split))
        if done % REPORT_EVERY == 0:
            progress(done / contents.total)
    classes, positions = class_indices(seen, contents.classes)
    rows = np.array([positions[label] for label in labels], np.int64)
    return Index(classes, names, rows, np.array(splits, np.int8), tuple(broken))


def _publish(built: Path, folder: Path, index: Index, decoder: Decoder[C]) -> Stored:
    # A map outlives its file's name: whatever others do meanwhile, it stays whole.
    ours = Stored(index, decoder.map(built, len(index.labels)))
    while True:
        try:
            built.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            sync_folder(folder.parent)
            return ours
        if theirs := load(folder, decoder):
            return theirs
        _remove(folder)


def _remove(folder: Path) -> None:
    """Take a damaged cache out of the way at once, then delete it at leisure."""
    with (
        make_aside(folder.parent, folder.name) as aside,
        suppress(FileNotFoundError),  # someone else was faster
    ):
        folder.rename(aside)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
