"""Decode the contents of a target into a cache's files."""

from __future__ import annotations

from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from grasp_core.data.classes import Label, class_indices
from grasp_core.data.decode import Recipe, decode_in_order
from grasp_core.data.index import BrokenImage, Index
from grasp_core.data.sample import SPLITS, Contents, Unreadable
from grasp_core.data.splits import UNGIVEN

Progress = Callable[[float], None]
REPORT_EVERY = 64  # images: often enough to be stopped by, too seldom to cost anything


def decode_into(file: BinaryIO, contents: Contents, recipe: Recipe, progress: Progress) -> Index:
    """Write every image that decodes, as (size, size, 3) bytes one after the other.

    Raises TargetError where the data turns out to be damaged or over a limit on the way.
    """
    names: list[str] = []
    labels: list[Label] = []
    splits: list[int] = []
    broken: list[BrokenImage] = []
    seen: set[Label] = set()  # with those of broken images: no class vanishes unnoticed
    for done, (sample, pixels) in enumerate(decode_in_order(contents.samples, recipe)):
        seen.add(sample.label)
        if isinstance(pixels, Unreadable):
            broken.append(BrokenImage(sample.name, pixels.reason))
        else:
            file.write(pixels.data)
            names.append(sample.name)
            labels.append(sample.label)
            splits.append(UNGIVEN if sample.split is None else SPLITS.index(sample.split))
        if done % REPORT_EVERY == 0:
            progress(done / contents.total)
    classes, positions = class_indices(seen, contents.classes)
    rows = np.array([positions[label] for label in labels], np.int64)
    return Index(classes, names, rows, np.array(splits, np.int8), tuple(broken))
