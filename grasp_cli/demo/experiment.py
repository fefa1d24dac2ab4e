"""The demo's side of the story: sources are trained, and models are measured on the target.

No digit of the target is in anybody's training data, and of the target itself only the train split
is learned from: validation chooses, and test is what is shown. Each source sees one of the ways in
which today's scans differ from clean digits (blur, fading, grain, or how far they are turned), and
none sees all; they were chosen for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import timm
import torch

from grasp_cli.demo.digits import ANCESTOR, CLASSES, DECADES, SIDE, TODAY, Digits, Scanner
from grasp_core import (
    Checkpoint,
    CheckpointInfo,
    FoldReport,
    ModelSpec,
    Progress,
    Task,
    fold,
    open_task,
    parse_config,
    write_checkpoint,
)
from grasp_core.config import LEARNING_RATES
from grasp_core.report import SplitMetrics
from grasp_core.tasks import Augmentation

SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=CLASSES,
    preprocessing={"image_size": SIDE},
)
BATCH = 32
CPU = parse_config({"device": "cpu"})  # so small a model is not faster elsewhere
UPRIGHT: Augmentation = {"flip": False}  # a mirrored digit is none
OnBatch = Callable[[float, float], None]  # the share that is done, and the loss


@dataclass(frozen=True)
class Sizes:
    """How many digits everybody sees, and how often."""

    ancestor: int = 240
    source: int = 260
    target: int = 517
    train: int = 6  # labelled digits of each class that the target has
    val: int = 10
    ancestor_epochs: int = 20
    source_epochs: int = 12
    steps: int | None = None  # of a refinement; None: as many as are usual


QUICK = Sizes(60, 60, 220, ancestor_epochs=1, source_epochs=1, steps=5)


@dataclass(frozen=True)
class Controls:
    """What one would do instead; accuracies on the target's test split."""

    ancestor: float  # fine-tuned
    best_source: str  # of all sources fine-tuned, by validation
    best: float


@dataclass(frozen=True)
class Comparison:
    """The merged model beside them."""

    merged: float
    controls: Controls


@dataclass(frozen=True)
class Experiment:
    """Makes the target's data and the sources in a folder, and everything else aside."""

    folder: Path
    aside: Path
    seed: int = 0
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        torch.set_num_threads(1)  # so small a model is slower with more

    @property
    def merge(self) -> dict[str, Any]:
        """The parameters of all folds: the defaults, but for what digits do not bear."""
        budget = {} if self.sizes.steps is None else {"steps": self.sizes.steps}
        return {"refine": {"augmentation": dict(UPRIGHT), **budget}}

    @cached_property
    def target(self) -> Path:
        """Today's digits: those that nobody else has seen."""
        sizes, first = self.sizes, self._first(len(DECADES))
        digits = self._digits[first : first + sizes.target]
        split = digits.split(sizes.train, sizes.val)
        return digits.write(self.folder / "target.npz", TODAY, self.seed, split)

    def counts(self) -> dict[str, int]:
        """The target's digits, by split."""
        train, val = (each * len(CLASSES) for each in (self.sizes.train, self.sizes.val))
        return {"train": train, "val": val, "test": self.sizes.target - train - val}

    def train_ancestor(self, progress: OnBatch | None = None) -> Path:
        """What all sources begin from: it has only seen clean digits."""
        task = self._task("ancestor", self._digits[: self.sizes.ancestor], ANCESTOR, self.seed)
        epochs = self.sizes.ancestor_epochs
        return self._train("ancestor", task, epochs, 3e-3, None, self.seed, progress)

    def train_source(self, decade: str, ancestor: Path, progress: OnBatch | None = None) -> Path:
        """The ancestor, trained on with the digits and the scanner of a decade."""
        number = list(DECADES).index(decade)
        own = self._digits[self._first(number) : self._first(number + 1)]
        seed = self.seed + 1 + number
        task = self._task(decade, own, DECADES[decade], seed)
        epochs = self.sizes.source_epochs
        return self._train(decade, task, epochs, 2e-3, ancestor, seed, progress)

    def train_controls(
        self, ancestor: Path, sources: Mapping[str, Path], rate: float, progress: OnBatch
    ) -> Controls:
        """What the target alone makes of the ancestor and of each source: each with the steps that
        a candidate of a fold has, at the same learning rate."""
        models = {"ancestor": ancestor, **sources}
        tuned = {}
        for number, (name, weights) in enumerate(models.items()):

            def show(share: float, loss: float, begin: int = number) -> None:
                progress((begin + share) / len(models), loss)

            tuned[name] = self._fine_tune(weights, rate, show)
        best = max(sources, key=lambda name: tuned[name].val.log_likelihood or -math.inf)
        return Controls(tuned["ancestor"].test.accuracy, best, tuned[best].test.accuracy)

    def replay(self, progress: OnBatch) -> Comparison:
        """All of it without a server."""
        ancestor = self.train_ancestor()
        sources = {decade: self.train_source(decade, ancestor) for decade in DECADES}
        config = parse_config(self.merge)
        merged, rate, version = None, LEARNING_RATES[0], 0
        files: dict[str, Path] = {}
        report: FoldReport | None = None
        parts = len(sources) + 1
        for number, source in enumerate(sources.values()):

            def show(step: Progress, begin: int = number) -> None:
                progress((begin + step.fraction) / parts, step.metrics.get("loss", 0.0))

            folder = self.aside / f"v{number + 1}"
            output = folder / "weights"
            folder.mkdir()
            report = fold(
                SPEC,
                source,
                self._target_task,
                output,
                merged=merged,
                files=files,
                files_output=folder,
                config=config,
                learning_rate=rate if merged else None,
                version=version + 1,
                progress=show,
            )
            if report.accepted:
                version = report.version
                rate = report.learning_rate.rate if report.learning_rate else rate
                merged, files = output, {file.name: folder / file.name for file in report.files}
        controls = self.train_controls(
            ancestor,
            sources,
            rate,
            lambda share, loss: progress((parts - 1 + share) / parts, loss),
        )
        assert report is not None  # noqa: S101 - there are sources
        moment = report.metrics.after if report.accepted else report.metrics.before
        return Comparison(moment.test.accuracy if moment else 0.0, controls)

    def _fine_tune(self, weights: Path, rate: float, progress: OnBatch) -> SplitMetrics:
        config = parse_config({**self.merge, "candidates": ["source"]})
        refine = config.refine.model_copy(update={"lr": rate})
        report = fold(
            SPEC,
            weights,
            self._target_task,
            self.aside / "fine-tuned.safetensors",
            config=config.model_copy(update={"refine": refine}),
            progress=lambda step: progress(step.fraction, step.metrics.get("loss", 0.0)),
            force=True,
        )
        assert report.metrics.after is not None  # noqa: S101 - it is forced
        return report.metrics.after

    @cached_property
    def _digits(self) -> Digits:
        return Digits.shuffled(self.seed)

    @cached_property
    def _target_task(self) -> Task:
        return open_task(self.target, SPEC, cache_dir=self.aside)

    def _first(self, number: int) -> int:
        """Where the digits of a source begin."""
        return self.sizes.ancestor + number * self.sizes.source

    def _task(self, name: str, digits: Digits, scanner: Scanner, seed: int) -> Task:
        archive = digits.write(self.aside / f"{name}.npz", scanner, seed)
        return open_task(archive, SPEC, cache_dir=self.aside)

    def _train(
        self,
        name: str,
        task: Task,
        epochs: int,
        lr: float,
        ancestor: Path | None,
        seed: int,
        progress: OnBatch | None,
    ) -> Path:
        return train(
            SPEC,
            task,
            self.folder / f"{name}.safetensors",
            epochs=epochs,
            lr=lr,
            ancestor=ancestor,
            augmentation=UPRIGHT,
            seed=seed,
            progress=progress,
        )


def train(
    spec: ModelSpec,
    task: Task,
    path: Path,
    *,
    epochs: int,
    lr: float,
    ancestor: Path | None = None,
    augmentation: Augmentation = MappingProxyType({}),  # the kind's own
    seed: int = 0,
    progress: OnBatch | None = None,
) -> Path:
    """Write a model trained on the task, from scratch or on from an `ancestor`.

    `progress` is called after every batch, with the share that is done, and the loss.
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
