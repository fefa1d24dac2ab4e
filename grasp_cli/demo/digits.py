"""Handwritten digits, as the scanners of four decades and of today have seen them.

The digits are scikit-learn's: 1,797 of 8 x 8 pixels, by real hands. Everybody sees other ones: the
model that all sources began from, each source, and the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits

Array = NDArray[np.float64]
CLASSES = tuple("0123456789")
SIDE = 32
GREY = 0.6  # what ink and paper fade to


@dataclass(frozen=True)
class Scanner:
    """What a scanner does to a page."""

    tilt: float = 0.0  # degrees
    blur: float = 0.0  # pixels
    fade: float = 0.0  # share of the way to grey
    grain: float = 0.08  # standard deviation

    def scan(self, ink: Array, rng: np.random.Generator) -> NDArray[np.uint8]:
        """Digits (n, 8, 8), with ink from 0 to 1, as images (n, 32, 32)."""
        seen = np.stack([self._look(digit) for digit in ink])
        faded = seen + self.fade * (GREY - seen)
        return (255 * np.clip(faded + rng.normal(0, self.grain, seen.shape), 0, 1)).astype(np.uint8)

    def _look(self, digit: Array) -> Array:
        image = Image.fromarray((255 * digit).astype(np.uint8))
        image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        image = image.rotate(self.tilt, Image.Resampling.BILINEAR)
        return np.asarray(image.filter(ImageFilter.GaussianBlur(self.blur))) / 255


ANCESTOR = Scanner()
DECADES = {
    "1970s": Scanner(tilt=14, blur=1.6),
    "1980s": Scanner(tilt=20, fade=0.55),
    "1990s": Scanner(tilt=27, grain=0.3),
    "2000s": Scanner(tilt=34),
}
TODAY = Scanner(tilt=36, blur=0.9, fade=0.3, grain=0.17)


@dataclass(frozen=True)
class Digits:
    """A row of digits: ink (n, 8, 8), and what they are (n,)."""

    ink: Array
    labels: NDArray[np.int64]

    @classmethod
    def shuffled(cls, seed: int) -> Digits:
        digits = load_digits()
        order = np.random.default_rng(seed).permutation(len(digits.target))
        return cls(digits.images[order] / 16, digits.target[order].astype(np.int64))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice) -> Digits:
        return Digits(self.ink[rows], self.labels[rows])

    def write(
        self, path: Path, scanner: Scanner, seed: int, split: NDArray[np.int64] | None = None
    ) -> Path:
        """As a .npz; without `split`, splits are left to be drawn."""
        images = scanner.scan(self.ink, np.random.default_rng(seed))
        columns = {"images": images, "labels": self.labels, "classes": np.array(CLASSES)}
        given: dict[str, Any] = columns if split is None else {**columns, "split": split}
        np.savez(path, **given)
        return path

    def split(self, train: int, val: int) -> NDArray[np.int64]:
        """0, 1, 2: so many of each class to train and to validate with, and the rest to test."""
        earlier = [np.count_nonzero(self.labels[:i] == x) for i, x in enumerate(self.labels)]
        return np.digitize(earlier, [train, train + val])
