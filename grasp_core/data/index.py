"""What a cache knows of its images: names, labels, given splits, and which were broken."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from grasp_core.data.sample import DAMAGE, IndexArray, UInt8Array
from grasp_core.data.splits import SplitArray


class BrokenImage(NamedTuple):
    name: str
    reason: str


@dataclass(frozen=True)
class Index:
    """Rows 0…n-1 of the images that decode, and the names of the others."""

    classes: tuple[str, ...]
    names: Sequence[str]  # n
    labels: IndexArray  # (n,), into classes
    splits: SplitArray  # (n,), as given
    broken: tuple[BrokenImage, ...]

    def save(self, file: BinaryIO) -> None:
        texts = {"classes": self.classes, "names": list(self.names), "broken": self.broken}
        np.savez(file, labels=self.labels, splits=self.splits, texts=_pack(json.dumps(texts)))

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
                    tuple(BrokenImage(*pair) for pair in texts["broken"]),
                )
        except (*DAMAGE, ValueError, KeyError, TypeError):
            return None
        return index if index._agrees() else None

    def _agrees(self) -> bool:
        return len(self.names) == len(self.labels) == len(self.splits)


def _pack(text: str) -> UInt8Array:
    return np.frombuffer(text.encode(), np.uint8)
