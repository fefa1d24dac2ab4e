"""What the algorithm needs to know about a problem: batches in, loss and log-probabilities out.

Nothing else in the package knows that it is looking at pictures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core.architectures import resolve_preprocessing
from grasp_core.config import Augmentation, ModelSpec, Preprocessing
from grasp_core.data import TargetData
from grasp_core.data.augment import centre_crop, random_crop, random_flip
from grasp_core.errors import TargetError

SplitName = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Batch:
    """Inputs with their labels, both along the first axis."""

    inputs: Tensor
    labels: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        return Batch(self.inputs[rows], self.labels[rows])

    def to(self, device: torch.device, layout: torch.memory_format) -> Batch:
        fits = layout if self.inputs.ndim == 4 else torch.contiguous_format
        return Batch(self.inputs.to(device, memory_format=fits), self.labels.to(device))


class Task(Protocol):
    """A problem that can be folded. Batches depend on their seed alone and may be drawn again."""

    classes: tuple[str, ...]
    fingerprint: str  # of everything that the batches depend on besides their seed

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        """Up to `count` batches of the train split, as they look in evaluation."""

    def training_batches(self, size: int, seed: int, augmentation: Augmentation) -> Iterator[Batch]:
        """An epoch of the train split, shuffled and augmented; a smaller last batch is left out."""

    def training_steps(self, size: int) -> int:
        """How many batches such an epoch has."""

    def evaluation_batches(self, split: SplitName, size: int) -> Iterator[Batch]:
        """A whole split in its own order."""

    def loss(self, model: nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        """Mean loss over the batch; `known` (C,) masks classes that the model does not have."""

    def log_probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        """(B, C) in float32."""


class ImageClassification:
    """Images of a target, each with one of the model's classes."""

    def __init__(
        self, target: TargetData, classes: tuple[str, ...], preprocessing: Preprocessing
    ) -> None:
        unknown = [name for name in target.classes if name not in classes]
        if unknown:
            raise TargetError(
                f"the target has classes that the model lacks: {', '.join(unknown)}",
                hint=f"the model has {', '.join(classes)}",
            )
        self.classes = classes
        self.fingerprint = _fingerprint(target, preprocessing)
        self._target = target
        self._preprocessing = preprocessing
        self._labels = np.array([classes.index(name) for name in target.classes])
        self._mean = torch.tensor(preprocessing.mean).view(3, 1, 1) * 255
        self._std = torch.tensor(preprocessing.std).view(3, 1, 1) * 255

    @classmethod
    def open(
        cls,
        path: str | Path,
        spec: ModelSpec,
        *,
        cache_dir: str | Path | None = None,
        fingerprint: str | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> ImageClassification:
        """The target data at `path`, prepared as the architecture wants its images.

        With a known `fingerprint`, data that is cached is not touched, and other data must have it.
        `progress` hears which share of it is decoded; what it raises ends the decoding.
        """
        preprocessing = resolve_preprocessing(spec)
        target = TargetData.open(
            path, preprocessing, cache_dir=cache_dir, fingerprint=fingerprint, progress=progress
        )
        return cls(target, spec.classes, preprocessing)

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        order = np.random.default_rng(seed).permutation(len(self._target.train))
        for rows in _chunks(order[: size * count], size):
            yield self._centred("train", rows)

    def training_batches(self, size: int, seed: int, augmentation: Augmentation) -> Iterator[Batch]:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self._target.train))
        side = self._preprocessing.image_size
        padding = side // 8 if augmentation.padding is None else augmentation.padding
        for rows in _chunks(order, size)[: self.training_steps(size)]:
            images = random_crop(self._target.train.read(rows), side, padding, rng)
            if augmentation.flip:
                images = random_flip(images, rng)
            yield self._batch("train", rows, images)

    def training_steps(self, size: int) -> int:
        return max(1, len(self._target.train) // size)

    def evaluation_batches(self, split: SplitName, size: int) -> Iterator[Batch]:
        for rows in _chunks(np.arange(len(self._target.split(split))), size):
            yield self._centred(split, rows)

    def loss(self, model: nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        logits = model(batch.inputs)  # (B, C)
        if known is not None:
            logits = logits.masked_fill(~known, -torch.inf)
        return F.cross_entropy(logits, batch.labels)

    def log_probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.log_softmax(model(batch.inputs).float(), dim=-1)

    def _centred(self, split: SplitName, rows: NDArray[np.int64]) -> Batch:
        images = self._target.split(split).read(rows)
        return self._batch(split, rows, centre_crop(images, self._preprocessing.image_size))

    def _batch(self, split: SplitName, rows: NDArray[np.int64], images: NDArray[np.uint8]) -> Batch:
        pixels = torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2)  # (B, 3, S, S)
        labels = self._labels[self._target.split(split).labels[rows]]
        inputs = (pixels.float() - self._mean) / self._std
        return Batch(inputs.contiguous(), torch.from_numpy(labels))


def _chunks(rows: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _fingerprint(target: TargetData, preprocessing: Preprocessing) -> str:
    """What the batches depend on: the images, how they are split, and how they are prepared."""
    digest = hashlib.sha256(f"{target.fingerprint} {preprocessing!r}".encode())
    for split in (target.train, target.val, target.test):
        digest.update(split.rows.tobytes() + split.labels.tobytes())
    return digest.hexdigest()
