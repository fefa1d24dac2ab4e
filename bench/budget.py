"""What the default budget of refinement is worth: the last release's against the present one.

    python bench/budget.py --data FOLDER [--cells 6]

Beds are scikit-learn's digits, as the demo scans them, and the clothes of Fashion-MNIST, of which
FOLDER holds fashion_mnist.npz: so many cells of each, every one with its own domains. In a cell an
ancestor is trained, from it some sources, each on another domain, and these are folded in turn into
a model for one more domain, of which little is labelled. Both budgets fold the same files in the
same order; nothing else differs. Figures are of the last version, on the target's test split.

The release before refined for three epochs at 5e-5, and left the statistics of the first source as
they came.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from grasp_cli.demo.digits import DECADES
from grasp_cli.demo.experiment import BATCH, SPEC, Experiment, train
from grasp_core import ModelSpec, Task, fold, open_task
from grasp_core.parameters import parse_config
from grasp_core.report import FoldReport

SIDE = 28
CLASSES = tuple("0123456789")
CLOTHES = ModelSpec(
    architecture="test_efficientnet",
    classes=CLASSES,
    preprocessing={"image_size": 32, "crop_pct": 1.0},
)
LABELLED = (60, 150, 400)  # of a target, in turn; validation has a third as many
TEST = 2000
MILD_DOMAINS, OF_EACH, PER_SOURCE, SOURCES = 6, 700, 2000, 3
ANCESTOR_STEPS, SOURCE_STEPS = 400, 200

BEFORE: Mapping[str, Any] = {
    "method": "grasp",
    "refine": {"schedule": "epoch", "epochs": 3, "lr": 5e-5},
}
BUDGETS: dict[str, Mapping[str, Any]] = {"before": BEFORE, "now": {"method": "grasp"}}

Images = NDArray[np.uint8]


class Figures(NamedTuple):
    """Of the last version, on test."""

    accuracy: float
    log_likelihood: float


class Files(NamedTuple):
    """What both budgets are given."""

    spec: ModelSpec
    sources: Sequence[Path]
    task: Task
    augmentation: Mapping[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="holds fashion_mnist.npz")
    parser.add_argument("--cells", type=int, default=6, help="of each bed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    clothes = Clothes.load(args.data / "fashion_mnist.npz")
    gains: dict[str, list[Figures]] = {}
    print(f"{'cell':22}{'before':>18}{'now':>18}{'gain':>18}{'seconds':>9}", flush=True)
    for bed in ("digits", "clothes"):
        for number in range(args.cells):
            began = time.monotonic()
            with TemporaryDirectory() as folder:
                name, files = prepare(bed, number, clothes, Path(folder))
                before, now = (run(files, values, Path(folder)) for values in BUDGETS.values())
            gain = Figures(*np.subtract(now, before))
            gains.setdefault(bed, []).append(gain)
            seconds = time.monotonic() - began
            print(f"{name:22}{show(before)}{show(now)}{show(gain)}{seconds:9.0f}", flush=True)
    for bed, found in [*gains.items(), ("all", [gain for each in gains.values() for gain in each])]:
        report_mean(bed, found)


def prepare(bed: str, number: int, clothes: Clothes, folder: Path) -> tuple[str, Files]:
    if bed == "clothes":
        labelled = LABELLED[number % len(LABELLED)]
        return f"clothes {number}, {labelled} labels", clothes.prepare(folder, number, labelled)
    experiment = Experiment(folder, folder, seed=100 + number)  # seeds that chose nothing
    ancestor = experiment.train_ancestor()
    sources = [experiment.train_source(decade, ancestor) for decade in DECADES]
    augmentation = experiment.merge["refine"]["augmentation"]
    task = open_task(experiment.target, SPEC, cache_dir=folder)
    return f"digits {number}, 60 labels", Files(SPEC, sources, task, augmentation)


def run(files: Files, values: Mapping[str, Any], folder: Path) -> Figures:
    """Fold the sources in turn."""
    merged: Path | None = None
    rate: float | None = None
    report: FoldReport | None = None
    for number, source in enumerate(files.sources, 1):
        refine = {**values.get("refine", {}), "augmentation": files.augmentation}
        keeps_statistics = values is BEFORE and number == 1
        norm_stats = {"norm_stats": "keep"} if keeps_statistics else {}
        output = folder / f"v{number}.safetensors"
        report = fold(
            files.spec,
            source,
            files.task,
            output,
            merged=merged,
            config=parse_config({**values, **norm_stats, "refine": refine}),
            learning_rate=rate,
        )
        rate = report.learning_rate.rate if report.learning_rate else rate
        merged = output if report.accepted else merged
    assert report is not None
    metrics = report.metrics.after if report.accepted else report.metrics.before
    assert metrics is not None
    return Figures(metrics.test.accuracy, metrics.test.log_likelihood or -math.inf)


@dataclass(frozen=True)
class Clothes:
    """Fashion-MNIST, in domains that are drawn for every cell."""

    images: Images
    labels: NDArray[np.int64]

    @classmethod
    def load(cls, path: Path) -> Clothes:
        with np.load(path) as file:
            return cls(file["x_train"], file["y_train"].astype(np.int64))

    def prepare(self, folder: Path, seed: int, labelled: int) -> Files:
        """An ancestor of mild domains, sources of wild ones, and a target of one more."""
        rng = np.random.default_rng(1000 + seed)
        rows = iter(rng.permutation(len(self.labels)))
        mild = [self._domain(rng, rows, OF_EACH, 0.3) for _ in range(MILD_DOMAINS)]
        images, labels = (np.concatenate(parts) for parts in zip(*mild, strict=True))
        first = self._write(folder / "ancestor.npz", images, labels)
        ancestor = self._train(first, folder / "ancestor", ANCESTOR_STEPS, None)
        sources = []
        for number in range(SOURCES):
            data = self._write(folder / f"{number}.npz", *self._domain(rng, rows, PER_SOURCE, 1.0))
            path = folder / f"source{number}.safetensors"
            sources.append(self._train(data, path, SOURCE_STEPS, ancestor))
        val = max(20, labelled // 3)
        target = self._domain(rng, rows, labelled + val + TEST, 1.0)
        split = np.repeat([0, 1, 2], [labelled, val, TEST])
        data = self._write(folder / "target.npz", *target, split)
        task = open_task(data, CLOTHES, cache_dir=folder)
        return Files(CLOTHES, sources, task, {})

    def _domain(
        self, rng: np.random.Generator, rows: Iterator[int], count: int, strength: float
    ) -> tuple[Images, NDArray[np.int64]]:
        """Images that nobody else has, all seen in the same way."""
        chosen = np.fromiter((next(rows) for _ in range(count)), int, count)
        tilt, zoom = strength * rng.uniform(-45, 45), 1 + strength * rng.uniform(-0.3, 0.3)
        blur, noise = strength * rng.uniform(0, 1.5), strength * rng.uniform(0, 0.25)
        contrast = 1 - strength * rng.uniform(0, 0.6)
        inverted = rng.random() < 0.3 * strength

        def look(image: Images) -> NDArray[np.float64]:
            side = round(SIDE * zoom)
            seen = Image.new("L", (SIDE, SIDE))
            seen.paste(Image.fromarray(image).resize((side, side)), 2 * ((SIDE - side) // 2,))
            seen = seen.rotate(tilt, Image.Resampling.BILINEAR)
            return np.asarray(seen.filter(ImageFilter.GaussianBlur(blur))) / 255

        seen = contrast * np.stack([look(self.images[row]) for row in chosen])
        seen = seen + rng.normal(0, noise, seen.shape)
        seen = 1 - seen if inverted else seen
        return (255 * np.clip(seen, 0, 1)).astype(np.uint8), self.labels[chosen]

    def _write(
        self, path: Path, images: Images, labels: NDArray[np.int64], split: Any = None
    ) -> Path:
        columns = {"images": images, "labels": labels, "classes": np.array(CLASSES)}
        np.savez(path, **columns if split is None else {**columns, "split": split})
        return path

    def _train(self, data: Path, path: Path, steps: int, ancestor: Path | None) -> Path:
        task = open_task(data, CLOTHES, cache_dir=data.parent)
        epochs = max(1, round(steps / task.training_steps(BATCH)))
        return train(CLOTHES, task, path, epochs=epochs, lr=2e-3, ancestor=ancestor)


def show(figures: Figures) -> str:
    return f"{100 * figures.accuracy:9.1f} /{figures.log_likelihood:7.3f}"


def report_mean(bed: str, gains: Sequence[Figures]) -> None:
    """The mean of paired differences, with its standard error."""
    means, errors = np.mean(gains, axis=0), np.std(gains, axis=0, ddof=1) / math.sqrt(len(gains))
    print(
        f"{bed}, {len(gains)} cells: accuracy {100 * means[0]:+.1f} ± {100 * errors[0]:.1f} points,"
        f" log-likelihood {means[1]:+.3f} ± {errors[1]:.3f}"
    )


if __name__ == "__main__":
    main()
