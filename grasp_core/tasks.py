"""What the algorithm needs to know about a problem: batches in, loss and log-probabilities out.

Nothing else in the package knows what its examples are.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core.config import Frozen
from grasp_core.data import Array, Fractions, IndexArray, Limits, SplitName, TargetData
from grasp_core.data.target import DEFAULT_LIMITS
from grasp_core.errors import TargetError
from grasp_core.kinds import find_kind
from grasp_core.spec import ModelSpec

Augmentation = Mapping[str, JsonValue]  # as the fold's parameters say it; what it means is a kind's
Inputs = dict[str, Tensor]  # by the names of the arguments of the model's forward


@dataclass(frozen=True)
class Batch:
    """Inputs with their labels, all along the first axis."""

    inputs: Inputs
    labels: Tensor  # (B,)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: slice | Tensor) -> Batch:
        return Batch({name: t[rows] for name, t in self.inputs.items()}, self.labels[rows])

    def to(self, device: torch.device, layout: torch.memory_format) -> Batch:
        inputs = {name: _placed(tensor, device, layout) for name, tensor in self.inputs.items()}
        return Batch(inputs, self.labels.to(device))


def _placed(tensor: Tensor, device: torch.device, layout: torch.memory_format) -> Tensor:
    fits = layout if tensor.ndim == 4 else torch.contiguous_format
    return tensor.to(device, memory_format=fits)


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


def open_task(
    path: str | Path,
    spec: ModelSpec,
    *,
    cache_dir: str | Path | None = None,
    limits: Limits = DEFAULT_LIMITS,
    fractions: Fractions | None = None,
    fingerprint: str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Task:
    """The target data at `path`, prepared as the architecture wants its inputs.

    With a known `fingerprint`, data that is cached is not touched, and other data must have it.
    `progress` hears which share of it is decoded; what it raises ends the decoding.
    """
    return (
        find_kind(spec.kind)
        .load()
        .open_task(
            Path(path),
            spec,
            cache_dir=Path(cache_dir) if cache_dir else None,
            limits=limits,
            fractions=fractions,
            fingerprint=fingerprint,
            progress=progress,
        )
    )


class Classification(ABC):
    """Examples of a target, each with one of the model's classes; a kind makes inputs of them."""

    def __init__(self, target: TargetData, classes: tuple[str, ...], preprocessing: Frozen) -> None:
        unknown = [name for name in target.classes if name not in classes]
        if unknown:
            raise TargetError(
                f"the target has classes that the model lacks: {', '.join(unknown)}",
                hint=f"the model has {', '.join(classes)}",
            )
        self.classes = classes
        self.fingerprint = _fingerprint(target, preprocessing)
        self._target = target
        self._labels = np.array([classes.index(name) for name in target.classes])

    @abstractmethod
    def evaluation_inputs(self, rows: Array) -> Inputs:
        """What the model sees of decoded rows (B, …) when it is compared or judged."""

    @abstractmethod
    def training_inputs(
        self, rows: Array, augmentation: Augmentation, rng: np.random.Generator
    ) -> Inputs:
        """What it sees of them when it learns, changed at random."""

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        order = np.random.default_rng(seed).permutation(len(self._target.train))
        for rows in _chunks(order[: size * count], size):
            yield self._unchanged("train", rows)

    def training_batches(self, size: int, seed: int, augmentation: Augmentation) -> Iterator[Batch]:
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(self._target.train))
        for rows in _chunks(order, size)[: self.training_steps(size)]:
            inputs = self.training_inputs(self._target.train.read(rows), augmentation, rng)
            yield self._batch("train", rows, inputs)

    def training_steps(self, size: int) -> int:
        return max(1, len(self._target.train) // size)

    def evaluation_batches(self, split: SplitName, size: int) -> Iterator[Batch]:
        for rows in _chunks(np.arange(len(self._target.split(split))), size):
            yield self._unchanged(split, rows)

    def loss(self, model: nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        logits = model(**batch.inputs)  # (B, C)
        if known is not None:
            logits = logits.masked_fill(~known, -torch.inf)
        return F.cross_entropy(logits, batch.labels)

    def log_probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.log_softmax(model(**batch.inputs).float(), dim=-1)

    def _unchanged(self, split: SplitName, rows: IndexArray) -> Batch:
        return self._batch(
            split, rows, self.evaluation_inputs(self._target.split(split).read(rows))
        )

    def _batch(self, split: SplitName, rows: IndexArray, inputs: Inputs) -> Batch:
        labels = self._labels[self._target.split(split).labels[rows]]
        return Batch(inputs, torch.from_numpy(labels))


def _chunks(rows: IndexArray, size: int) -> list[IndexArray]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _fingerprint(target: TargetData, preprocessing: Frozen) -> str:
    """What the batches depend on: the examples, how they are split, and how they are prepared."""
    digest = hashlib.sha256(f"{target.fingerprint} {preprocessing!r}".encode())
    for split in (target.train, target.val, target.test):
        digest.update(split.rows.tobytes() + split.labels.tobytes())
    return digest.hexdigest()
