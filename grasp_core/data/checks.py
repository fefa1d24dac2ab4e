"""What decoded data must fulfil before a fold relies on it; each check raises TargetError."""

from __future__ import annotations

import numpy as np

from grasp_core.data.index import Index
from grasp_core.data.sample import SPLITS, IndexArray
from grasp_core.data.splits import TRAIN, Fractions, SplitArray
from grasp_core.errors import BrokenImages, TargetError

NAMED = 10  # broken images that the error lists


def check_broken(index: Index, max_broken: float) -> None:
    """At most the share `max_broken` of all images is broken; otherwise BrokenImages."""
    broken, total = len(index.broken), len(index.broken) + len(index.names)
    if broken <= max_broken * total:
        return
    listed = "; ".join(f"{image.name}: {image.reason}" for image in index.broken[:NAMED])
    more = f"; and {broken - NAMED} more" if broken > NAMED else ""
    raise BrokenImages(
        f"{broken} of {total} images are broken: {listed}{more}",
        hint=f"repair or remove them; up to {max_broken:.1%} are skipped",
    )


def check_classes(index: Index) -> None:
    """There are images, of at least two classes, and of every class."""
    if not index.names:
        raise TargetError("the data holds no images")
    if len(index.classes) < 2:
        raise TargetError(f"the data has a single class, {index.classes[0]!r}")
    if empty := _absent(index, index.labels):
        raise TargetError(f"no image can be used of the classes: {', '.join(empty)}")


def check_splits(index: Index, splits: SplitArray, fractions: Fractions) -> None:
    """Every class is trained on, and no split that was asked for is empty."""
    if untrained := _absent(index, index.labels[splits == TRAIN]):
        raise TargetError(f"the train split lacks the classes: {', '.join(untrained)}")
    for split, name in enumerate(SPLITS):
        if fractions[split] > 0 and not np.any(splits == split):
            raise TargetError(
                f"no image is left for the {name} split",
                hint="give a class at least three images",
            )


def _absent(index: Index, labels: IndexArray) -> list[str]:
    counts = np.bincount(labels, minlength=len(index.classes))
    return [name for name, count in zip(index.classes, counts, strict=True) if count == 0]
