"""The target data of a fold: decoded once, then read from a memory map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grasp_core.data import cache
from grasp_core.data.cache import Broken, Decoder, Progress, Stored
from grasp_core.data.contents import SPLITS, Array, C, IndexArray, Limits, SplitName
from grasp_core.data.formats import Format, fingerprint_of, recognise
from grasp_core.data.splits import (
    Fractions,
    SplitArray,
    assign_splits,
    check_broken,
    check_classes,
    check_fractions,
    check_splits,
    choose_fractions,
)
from grasp_core.errors import TargetError

DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Split:
    """Some rows of the decoded examples."""

    name: SplitName
    labels: IndexArray  # (n,), into the target's classes
    rows: IndexArray  # (n,), into the mapped rows
    mapped: Array  # (all, *shape), of all splits

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: IndexArray) -> Array:
        """Copies (b, *shape) of the examples at these positions of the split, and no more."""
        rows: Array = self.mapped[self.rows[indices]]
        return rows


@dataclass(frozen=True)
class TargetData:
    """Labelled examples in three splits; `fingerprint` is the identity of what was opened."""

    classes: tuple[str, ...]
    fingerprint: str
    broken: tuple[Broken, ...]
    fractions: Fractions  # by which splits were drawn that the data does not give
    train: Split
    val: Split
    test: Split

    @classmethod
    def open(
        cls,
        path: str | Path,
        formats: Sequence[Format[C]],
        decoder: Decoder[C],
        *,
        cache_dir: str | Path | None = None,
        split_seed: int = 0,
        fractions: Fractions | None = None,
        max_broken: float = 0.01,
        fingerprint: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        progress: Progress | None = None,
    ) -> TargetData:
        """Data in any of the formats, decoded into the cache unless it is there already.

        With a known `fingerprint`, data that is cached is not touched, and other data must have it.
        Splits that the data does not give are drawn with `split_seed`, `fractions` of each class;
        without them, as `choose_fractions` says.
        Raises TargetError if the data cannot be used or has changed, BrokenExamples if more than
        the share `max_broken` of it does not decode, and ConfigError for impossible fractions.
        """
        if fractions is not None:
            check_fractions(fractions)
        path = Path(path)
        found = fingerprint or _fingerprint(path, formats, limits)
        root = Path(cache_dir) if cache_dir else Path.home() / ".cache" / "grasp"
        folder = root / decoder.cache_key(found)
        stored = cache.load(folder, decoder)
        if stored is None:
            if fingerprint is not None:
                _require_unchanged(path, fingerprint, formats, limits)
            contents = recognise(path, formats, limits).read(path, limits)
            limits.check_examples(contents.total)
            size = decoder.size(contents.total)
            limits.check_decoded(contents.total, size, decoder.remedy)
            stored = cache.build(folder, decoder, contents, progress or _ignore)
        index = stored.index
        if progress is not None:
            progress(1.0)
        check_broken(index, max_broken)
        check_classes(index)
        if fractions is None:
            fractions = choose_fractions(np.bincount(index.labels).tolist())
        splits = assign_splits(index.splits, index.labels, index.names, split_seed, fractions)
        check_splits(index, splits, fractions)
        train, val, test = (_split(stored, splits, name) for name in SPLITS)
        return cls(index.classes, found, index.broken, fractions, train, val, test)

    def split(self, name: SplitName) -> Split:
        return {"train": self.train, "val": self.val, "test": self.test}[name]

    def counts(self) -> dict[SplitName, dict[str, int]]:
        """How many examples of each class are in each split."""
        return {name: self._counts(self.split(name)) for name in SPLITS}

    def _counts(self, split: Split) -> dict[str, int]:
        counts = np.bincount(split.labels, minlength=len(self.classes))
        return dict(zip(self.classes, counts.tolist(), strict=True))


def _fingerprint(path: Path, formats: Sequence[Format[C]], limits: Limits) -> str:
    return fingerprint_of(path, recognise(path, formats, limits).files(path, limits))


def _require_unchanged(
    path: Path, fingerprint: str, formats: Sequence[Format[C]], limits: Limits
) -> None:
    """Hashing is quick beside decoding, which follows."""
    if _fingerprint(path, formats, limits) != fingerprint:
        raise TargetError(
            f"the data at {path.name!r} is not what it was when it was validated",
            hint="put it back as it was, or register it as a new target",
        )


def _split(stored: Stored, splits: SplitArray, name: SplitName) -> Split:
    rows = np.flatnonzero(splits == SPLITS.index(name))
    return Split(name, stored.index.labels[rows], rows, stored.rows)


def _ignore(fraction: float) -> None:
    pass
