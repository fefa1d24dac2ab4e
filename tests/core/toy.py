"""A task without picture files: random tensors in memory. Tiny models to match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core import (
    Batch,
    CheckpointInfo,
    FoldConfig,
    FoldReport,
    ModelSpec,
    Task,
    fold,
    parse_config,
    write_checkpoint,
)
from grasp_core.data import SplitName
from grasp_core.tasks import Augmentation

CLASSES = ("cat", "dog", "fox")
TINY = ModelSpec(architecture="test_efficientnet", classes=CLASSES)  # 100,000 parameters, 13 norms
ALL_BUT_EQUAL = 1e-3  # scales of norms that nobody has trained, but for their rounding


class ToyTask:
    """Three classes that differ in brightness; the splits are disjoint parts of one tensor."""

    fingerprint = "toy"

    def __init__(
        self,
        count: int = 64,
        side: int = 32,
        classes: tuple[str, ...] = CLASSES,
        scale: float = 1.0,
    ) -> None:
        random = torch.Generator().manual_seed(0)
        labels = torch.arange(2 * count) % len(classes)
        inputs = torch.randn(2 * count, 3, side, side, generator=random)
        inputs += labels.view(-1, 1, 1, 1) - 1.0
        self.classes = classes
        self.scale = scale
        self.splits = {
            "train": _batch(inputs[:count], labels[:count]),
            "val": _batch(inputs[count : count + count // 2], labels[count : count + count // 2]),
            "test": _batch(inputs[count + count // 2 :], labels[count + count // 2 :]),
        }

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        train = self.splits["train"]
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
        for rows in order[: size * count].split(size):
            yield train[rows]

    def training_batches(self, size: int, seed: int, augmentation: Augmentation) -> Iterator[Batch]:
        yield from self.alignment_batches(size, self.training_steps(size), seed)

    def training_steps(self, size: int) -> int:
        return max(1, len(self.splits["train"]) // size)

    def evaluation_batches(self, split: SplitName, size: int) -> Iterator[Batch]:
        whole = self.splits[split]
        for start in range(0, len(whole), size):
            yield whole[slice(start, start + size)]

    def loss(self, model: nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        logits = model(**batch.inputs)
        if known is not None:
            logits = logits.masked_fill(~known, -torch.inf)
        return F.cross_entropy(logits, batch.labels) * self.scale

    def log_probabilities(self, model: nn.Module, batch: Batch) -> Tensor:
        return F.log_softmax(model(**batch.inputs).float(), dim=-1)


def _batch(images: Tensor, labels: Tensor) -> Batch:
    return Batch({"x": images}, labels)


def tiny_weights(seed: int, spec: ModelSpec = TINY) -> dict[str, Tensor]:
    """Freshly initialised weights, with the batch-norm statistics of some data."""
    torch.manual_seed(seed)
    model = timm.create_model(spec.architecture, num_classes=len(spec.classes))
    model.train()
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(8, 3, 32, 32))
    return dict(model.state_dict())


def nudged(weights: Mapping[str, Tensor], amount: float, seed: int) -> dict[str, Tensor]:
    """Other weights nearby: what training a little further elsewhere would give."""
    random = torch.Generator().manual_seed(seed)

    def nudge(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.clone()
        spread = float(tensor.std(unbiased=False))
        if spread < ALL_BUT_EQUAL:
            spread = 0.1
        return tensor + amount * spread * torch.randn(tensor.shape, generator=random)

    return {name: nudge(tensor) for name, tensor in weights.items()}


def save(
    path: Path, weights: Mapping[str, Tensor], classes: tuple[str, ...] | None = CLASSES
) -> Path:
    write_checkpoint(path, weights, CheckpointInfo(classes=classes))
    return path


def quick(**values: object) -> FoldConfig:
    """A fold of a second: GRASP alone, two batches to align on, no refinement unless asked for."""
    defaults: dict[str, object] = {
        "alignment_batches": 2,
        "alignment_batch_size": 16,
        "refine": {"epochs": 0},
    }
    method = {} if "candidates" in values else {"method": "grasp"}
    return parse_config(method | defaults | values)


def refold(
    source: Path, merged: Path | None, output: Path, task: Task | None = None, **values: object
) -> FoldReport:
    """Fold quickly, whatever the gate says of weights that were never trained."""
    return fold(
        TINY, source, task or ToyTask(), output, merged=merged, config=quick(**values), force=True
    )
