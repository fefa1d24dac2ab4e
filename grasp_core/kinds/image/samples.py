"""A few small images of a target, for people to look at."""

from __future__ import annotations

from base64 import b64encode
from io import BytesIO

import numpy as np
from PIL import Image

from grasp_core.data import IndexArray, Split, TargetData
from grasp_core.kinds.image.decode import UInt8Array

PER_CLASS = 4
MAX_IMAGES = 48
MAX_BYTES = 256 * 1024  # of all of them as text, which is a column of the target's row
SEED = 0


def show_samples(target: TargetData) -> tuple[dict[str, str], ...]:
    """PNGs in base64 of the train split, class by class; of the same target always the same.

    Where there is no room for all, every class has its first before any has its second.
    """
    chosen: list[tuple[int, dict[str, str]]] = []
    room = MAX_BYTES
    for position in _in_turn(target.train)[:MAX_IMAGES].tolist():
        label = int(target.train.labels[position])
        png = _png(target.train.read(np.array([position]))[0])
        if len(png) <= room:
            room -= len(png)
            image = {"class": target.classes[label], "split": target.train.name, "png": png}
            chosen.append((label, image))
    return tuple(image for _, image in sorted(chosen, key=lambda pair: pair[0]))


def _in_turn(split: Split) -> IndexArray:
    """Positions in the split: one of every class, another of every class, up to PER_CLASS."""
    shuffled = np.random.default_rng(SEED).permutation(len(split))
    by_class = shuffled[np.argsort(split.labels[shuffled], kind="stable")]
    labels = split.labels[by_class]
    turn = np.arange(len(labels)) - np.searchsorted(labels, labels)  # how many of its class precede
    order = np.lexsort((labels, turn))
    return by_class[order[turn[order] < PER_CLASS]]


def _png(pixels: UInt8Array) -> str:
    content = BytesIO()
    Image.fromarray(pixels).save(content, "PNG", optimize=True)
    return b64encode(content.getvalue()).decode()
