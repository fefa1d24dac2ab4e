"""How good a model is on a split of the target."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from grasp_core.data import SplitName
from grasp_core.report import CHANCE, Difference, Differences, Metrics, PairedCounts
from grasp_core.runtime import Runtime
from grasp_core.significance import upper_tail
from grasp_core.tasks import Task

SAME = 1e-6  # probabilities this near to each other differ by rounding only


@dataclass(frozen=True)
class Predictions:
    """What a model says of a split, example by example, so that two models can be compared."""

    TENSORS: ClassVar = ("labels", "right", "log_likelihood")

    metrics: Metrics
    labels: NDArray[np.int64]  # (N,)
    right: NDArray[np.bool_]  # (N,): whether the true class is the most probable
    log_likelihood: NDArray[np.float64]  # (N,): log-probability of the true class
    constant: bool  # every example gets the same answer: the model does not see its inputs

    @property
    def mean_log_likelihood(self) -> float:
        """By which candidates are judged; what is not finite is worse than anything."""
        value = self.metrics.log_likelihood
        return -math.inf if value is None else value

    @property
    def log_likelihood_error(self) -> float | None:
        """The standard error of its mean."""
        measured = Difference.measure(self.log_likelihood)
        return measured.error if measured else None

    def tensors(self) -> dict[str, Tensor]:
        """What lies beside the rest in a sealed file."""
        return {name: torch.from_numpy(getattr(self, name)) for name in self.TENSORS}

    def describe(self) -> str:
        """The rest, as JSON."""
        return json.dumps({"metrics": self.metrics.model_dump(), "constant": self.constant})

    @classmethod
    def read(cls, described: str, tensors: Mapping[str, Tensor]) -> Predictions:
        rest = json.loads(described)
        return cls(
            metrics=Metrics.model_validate(rest["metrics"]),
            constant=rest["constant"],
            **{name: tensors[name].numpy() for name in cls.TENSORS},
        )

    @property
    def beats_guessing(self) -> bool:
        """By more than chance explains."""
        guess = 1 / max(len(self.metrics.per_class_count), 1)
        return upper_tail(len(self.right), int(self.right.sum()), guess) <= CHANCE


def evaluate(
    model: nn.Module, task: Task, split: SplitName, runtime: Runtime, batch_size: int
) -> Metrics:
    """Metrics of `model`, put into eval mode, on a whole split."""
    return predict(model, task, split, runtime, batch_size).metrics


def compare(before: Predictions, after: Predictions) -> PairedCounts:
    """Of the same split."""
    return PairedCounts(
        count=len(before.right),
        lost=int((before.right & ~after.right).sum()),
        gained=int((~before.right & after.right).sum()),
    )


def differ(before: Predictions, after: Predictions) -> Differences:
    """How much better `after` is, example by example on the same split."""
    return Differences(
        accuracy=Difference.measure(after.right.astype(float) - before.right),
        log_likelihood=Difference.measure(after.log_likelihood - before.log_likelihood),
    )


@torch.inference_mode()
def predict(
    model: nn.Module,
    task: Task,
    split: SplitName,
    runtime: Runtime,
    batch_size: int,
    known: Tensor | None = None,
) -> Predictions:
    """What `model`, put into eval mode, says of a whole split, in the split's own order.

    `known` (C,) are the classes that it can say; without it, all.
    """
    model.eval()
    scores: list[Tensor] = []
    labels: list[Tensor] = []
    for batch in task.evaluation_batches(split, batch_size):
        placed = runtime.place(batch)
        with runtime.autocast():
            scores.append(task.log_probabilities(model, placed).cpu())
        labels.append(batch.labels)
    found = torch.cat(scores)
    if known is not None:
        found = found.masked_fill(~known, -torch.inf)
    return read_predictions(found.numpy(), torch.cat(labels).numpy(), task.classes)


def read_predictions(
    log_probabilities: NDArray[np.float32], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> Predictions:
    """From log-probabilities (N, C) and true labels (N,)."""
    spread = np.ptp(np.exp(log_probabilities), axis=0).max()
    return Predictions(
        metrics=score_predictions(log_probabilities, labels, classes),
        labels=labels,
        right=log_probabilities.argmax(axis=1) == labels,
        log_likelihood=log_probabilities[np.arange(len(labels)), labels].astype(float),
        constant=len(labels) > 1 and len(classes) > 1 and bool(spread <= SAME),
    )


def score_predictions(
    log_probabilities: NDArray[np.float32], labels: NDArray[np.int64], classes: tuple[str, ...]
) -> Metrics:
    """Metrics from log-probabilities (N, C) and true labels (N,)."""
    confusion = np.zeros((len(classes), len(classes)), dtype=np.int64)
    np.add.at(confusion, (labels, log_probabilities.argmax(axis=1)), 1)
    hits = confusion.diagonal()
    truths, predictions = confusion.sum(axis=1), confusion.sum(axis=0)
    present = truths > 0
    recall = _ratio(hits, truths)
    precision = _ratio(hits, predictions)
    return Metrics(
        count=len(labels),
        accuracy=float(hits.sum() / len(labels)),
        per_class_accuracy={
            name: float(recall[i]) if present[i] else None for i, name in enumerate(classes)
        },
        per_class_count=dict(zip(classes, truths.tolist(), strict=True)),
        precision=float(precision[present].mean()),
        recall=float(recall[present].mean()),
        f1=float(_ratio(2 * hits, truths + predictions)[present].mean()),
        auroc=_auroc(np.exp(log_probabilities), labels, present),
        log_likelihood=_finite(log_probabilities[np.arange(len(labels)), labels].mean(dtype=float)),
        confusion_matrix=confusion.tolist(),
    )


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _ratio(hits: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.float64]:
    return hits / np.maximum(total, 1)


def _auroc(
    probabilities: NDArray[np.float32], labels: NDArray[np.int64], present: NDArray[np.bool_]
) -> float | None:
    """Mean over the present classes; None if there is nothing to rank against, or NaN to rank."""
    if present.sum() < 2 or not np.isfinite(probabilities).all():
        return None
    areas = [_area(labels == c, probabilities[:, c]) for c in np.flatnonzero(present)]
    return float(np.mean(areas))


def _area(truth: NDArray[np.bool_], scores: NDArray[np.float32]) -> float:
    """Chance that a positive scores above a negative, ties counting half (Mann-Whitney's U)."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]  # equal scores share their mean rank
    positives = int(truth.sum())
    above = ranks[truth].sum() - positives * (positives + 1) / 2
    return float(above / (positives * (len(truth) - positives)))
