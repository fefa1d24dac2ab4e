"""Who trains, who validates, who tests: as given, and otherwise drawn per class with a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from grasp_core.data.sample import SPLITS, IndexArray
from grasp_core.errors import ConfigError, TargetError

UNGIVEN = -1  # otherwise an index into SPLITS
TRAIN = SPLITS.index("train")
Fractions = tuple[float, float, float]
SplitArray = NDArray[np.int8]


def assign_splits(
    given: SplitArray,
    labels: IndexArray,
    names: Sequence[str],
    seed: int,
    fractions: Fractions,
) -> SplitArray:
    """An index into SPLITS for each of the n images, all arguments being of that length.

    Splits that nobody gave are cut from the rest, stratified by class; a class of three or more
    images gets into each of them. The order of the images does not matter, their names do.
    Raises TargetError for images with and without a split, or none for training.
    """
    check_fractions(fractions)
    splits = np.where(given == UNGIVEN, TRAIN, given).astype(np.int8)
    if 0 < np.count_nonzero(given == UNGIVEN) < len(given):
        raise TargetError("some images name their split and some do not")
    if not np.any(splits == TRAIN):
        raise TargetError("the data has no train split", hint="add one, or give no splits at all")
    missing = [s for s in range(len(SPLITS)) if fractions[s] > 0 and not np.any(splits == s)]
    order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    pool = order[splits[order] == TRAIN]
    for label in np.unique(labels[pool]).tolist():
        rng = np.random.default_rng([seed, label])
        rows = rng.permutation(pool[labels[pool] == label])
        for split, size in _sizes(len(rows), missing, fractions).items():
            splits[rows[:size]] = split
            rows = rows[size:]
    return splits


def check_fractions(fractions: Fractions) -> None:
    """Raises ConfigError unless they are shares of one whole, with something to train on."""
    if len(fractions) != len(SPLITS) or min(fractions) < 0 or fractions[TRAIN] <= 0:
        raise ConfigError(f"fractions {fractions} must be shares of {', '.join(SPLITS)}")
    if not np.isclose(sum(fractions), 1.0):
        raise ConfigError(f"fractions {fractions} must add up to 1")


def _sizes(count: int, missing: list[int], fractions: Fractions) -> dict[int, int]:
    """How many of a class's images go to each missing split; one at least stays for training."""
    whole = fractions[TRAIN] + sum(fractions[split] for split in missing)
    sizes: dict[int, int] = {}
    if count <= len(missing):
        return sizes
    for after, split in enumerate(reversed(missing)):
        room = count - sum(sizes.values()) - (len(missing) - after)  # one for each still to come
        sizes[split] = min(max(1, round(count * fractions[split] / whole)), room)
    return sizes
