"""Who trains, who validates, who tests: as given, and otherwise drawn per class with a seed.

And what examples must fulfil before a fold relies on them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from grasp_core.data.contents import SPLITS, IndexArray
from grasp_core.errors import BrokenExamples, ConfigError, TargetError

if TYPE_CHECKING:
    from grasp_core.data.cache import Index

UNGIVEN = -1  # otherwise an index into SPLITS
TRAIN = SPLITS.index("train")
Fractions = tuple[float, float, float]
SplitArray = NDArray[np.int8]
LEAST_VAL, MOST_VAL = 20, 0.3  # examples that validate; the share that must not be passed for it
NAMED = 10  # broken examples that the error lists


def choose_fractions(counts: Sequence[int]) -> Fractions:
    """Of so many examples of each class: 70 % train, 10 % validate, 20 % test. Of few, more
    validate: 20 examples or, where that would be more than 30 %, as many as are 30 %; a few more
    where classes are so small that they can only be parted so."""
    wanted = min(LEAST_VAL, math.floor(MOST_VAL * sum(counts)))
    percent = 10
    while percent < 40 and sum(round(n * percent / 100) for n in counts) < wanted:
        percent += 1
    return (round(0.8 - percent / 100, 2), percent / 100, 0.2)


def assign_splits(
    given: SplitArray,
    labels: IndexArray,
    names: Sequence[str],
    seed: int,
    fractions: Fractions,
) -> SplitArray:
    """An index into SPLITS for each of the n examples, all arguments being of that length.

    Splits that nobody gave are cut from the rest, stratified by class; a class of three or more
    examples gets into each of them. The order of the examples does not matter, their names do.
    Raises TargetError for examples with and without a split, or none for training.
    """
    check_fractions(fractions)
    splits = np.where(given == UNGIVEN, TRAIN, given).astype(np.int8)
    if 0 < np.count_nonzero(given == UNGIVEN) < len(given):
        raise TargetError("some examples name their split and some do not")
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
    """How many of a class's examples go to each missing split; one at least stays for training."""
    whole = fractions[TRAIN] + sum(fractions[split] for split in missing)
    sizes: dict[int, int] = {}
    if count <= len(missing):
        return sizes
    for after, split in enumerate(reversed(missing)):
        room = count - sum(sizes.values()) - (len(missing) - after)  # one for each still to come
        sizes[split] = min(max(1, round(count * fractions[split] / whole)), room)
    return sizes


def check_broken(index: Index, max_broken: float) -> None:
    """At most the share `max_broken` of all examples is broken; otherwise BrokenExamples."""
    broken, total = len(index.broken), len(index.broken) + len(index.names)
    if broken <= max_broken * total:
        return
    listed = "; ".join(f"{found.name}: {found.reason}" for found in index.broken[:NAMED])
    more = f"; and {broken - NAMED} more" if broken > NAMED else ""
    raise BrokenExamples(
        f"{broken} of {total} examples are broken: {listed}{more}",
        hint=f"repair or remove them; up to {max_broken:.1%} are skipped",
    )


def check_classes(index: Index) -> None:
    """There are examples, of at least two classes, and of every class."""
    if not index.names:
        raise TargetError("the data holds no examples")
    if len(index.classes) < 2:
        raise TargetError(f"the data has a single class, {index.classes[0]!r}")
    if empty := _absent(index, index.labels):
        raise TargetError(f"no example can be used of the classes: {', '.join(empty)}")


def check_splits(index: Index, splits: SplitArray, fractions: Fractions) -> None:
    """Every class is trained on, and no split that was asked for is empty."""
    if untrained := _absent(index, index.labels[splits == TRAIN]):
        raise TargetError(f"the train split lacks the classes: {', '.join(untrained)}")
    for split, name in enumerate(SPLITS):
        if fractions[split] > 0 and not np.any(splits == split):
            raise TargetError(
                f"no example is left for the {name} split",
                hint="give a class at least three examples",
            )


def _absent(index: Index, labels: IndexArray) -> list[str]:
    counts = np.bincount(labels, minlength=len(index.classes))
    return [name for name, count in zip(index.classes, counts, strict=True) if count == 0]
