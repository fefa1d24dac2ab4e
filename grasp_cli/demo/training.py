"""Training and measuring small models, on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import timm
import torch

from grasp_core import (
    Augmentation,
    Checkpoint,
    CheckpointInfo,
    FoldConfig,
    ImageClassification,
    ModelSpec,
    Runtime,
    build_model,
    evaluate,
    load_weights,
    write_checkpoint,
)

BATCH = 32
CPU = FoldConfig(device="cpu")  # so small a model is not faster elsewhere


def train(
    spec: ModelSpec,
    task: ImageClassification,
    path: Path,
    *,
    epochs: int,
    lr: float,
    ancestor: Path | None = None,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 - immutable
    seed: int = 0,
    progress: Callable[[float, float], None] | None = None,
) -> Path:
    """Write a model trained on the task, from scratch or on from an `ancestor`.

    `progress` hears, after every batch, which share is done, and the loss.
    """
    torch.manual_seed(seed)
    model = timm.create_model(spec.architecture, num_classes=len(spec.classes)).train()
    if ancestor is not None:
        model.load_state_dict(dict(Checkpoint(ancestor)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    steps, done = epochs * task.training_steps(BATCH), 0
    for epoch in range(epochs):
        for batch in task.training_batches(BATCH, seed + epoch, augmentation):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            done += 1
            if progress is not None:
                progress(done / steps, float(loss.detach()))
    write_checkpoint(path, model.state_dict(), CheckpointInfo(classes=spec.classes))
    return path


def test_accuracy(spec: ModelSpec, weights: Path, task: ImageClassification) -> float:
    """How often a model is right on the task's test split, as it is."""
    runtime = Runtime.choose(CPU)
    model = build_model(spec)
    load_weights(model, Checkpoint(weights), runtime.device)
    return evaluate(model, task, "test", runtime, BATCH).accuracy
