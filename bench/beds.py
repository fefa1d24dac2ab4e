"""The beds of bench/accuracy.py: kinds of targets with their sources, in cells that are drawn.

A cell is one target, of which little is labelled, and the checkpoints that come in for it, all
fine-tuned from one ancestor. Which domains they are of, and in which order they come, is drawn by
the cell's number. Nothing here chose anything in the product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import budget, yearbook_settings
from grasp_cli.demo.digits import DECADES
from grasp_cli.demo.experiment import SPEC, Experiment, train
from grasp_core import CheckpointInfo, ModelSpec, Task, open_task, write_checkpoint

TASKS = ("gender", "decade_label")
PERIODS = range(4)
YEARBOOK_LABELS = (100, 300)
MIXTURE, ANCESTOR_EPOCHS = 1200, 6  # for the small network
SOURCE_EPOCHS = 2  # for both
SPLITS = ("train", "val", "test")
FEWEST_VAL = 20


class Files(NamedTuple):
    """What all rows of a cell are given."""

    spec: ModelSpec
    ancestor: Path
    sources: tuple[Path, ...]  # in the order in which they come
    task: Task
    refine: Mapping[str, Any]  # what this target asks of every refinement


@dataclass(frozen=True)
class Cell:
    """A target with its sources, which are made when they are needed."""

    bed: str
    number: int
    definition: Mapping[str, Any]  # with the bed and the number, all that the files depend on
    prepare: Callable[[Path], Files]

    def __str__(self) -> str:
        return f"{self.bed} {self.number}, {self.definition['labels']} labels"


@dataclass(frozen=True)
class Size:
    """How much of everything there is."""

    cells: Mapping[str, int]
    test: int | None  # examples of a target's test split, at most
    side: int  # of a portrait, in pixels
    imagenet: bool  # whether portraits have the large network with its weights, or the small one


LONG = Size({"digits": 12, "clothes": 20, "yearbook": 16}, None, 48, imagenet=True)
QUICK = Size({"digits": 3, "clothes": 3, "yearbook": 2}, 600, 32, imagenet=False)


def list_cells(bed: str, data: Path, shared: Path, size: Size, count: int | None) -> list[Cell]:
    """The first cells of a bed. What several of them have in common is put into `shared`."""
    numbers = range(size.cells[bed])[:count]
    if bed == "digits":
        return [_digits(number) for number in numbers]
    if bed == "clothes":
        archive = data / "fashion_mnist.npz"
        clothes = budget.Clothes.load(archive)
        return [_clothes(number, clothes, _digest(archive), size.test) for number in numbers]
    names = ["yearbook64.npz", *(["tf_efficientnet_lite0_in1k.pth"] if size.imagenet else [])]
    digest = "-".join(_digest(data / name) for name in names)
    return [_yearbook(number, size, data, shared, digest) for number in numbers]


def shuffle(sources: list[Path], bed: str, number: int) -> tuple[Path, ...]:
    """In the order of a cell."""
    order = np.random.default_rng([number, *bed.encode()]).permutation(len(sources))
    return tuple(sources[place] for place in order)


def _digits(number: int) -> Cell:
    return Cell("digits", number, {"labels": 60}, partial(_prepare_digits, number=number))


def _prepare_digits(folder: Path, number: int) -> Files:
    experiment = Experiment(folder, folder, seed=100 + number)  # seeds that chose nothing
    ancestor = experiment.train_ancestor()
    sources = [experiment.train_source(decade, ancestor) for decade in DECADES]
    task = open_task(experiment.target, SPEC, cache_dir=folder)
    refine = {"augmentation": experiment.merge["refine"]["augmentation"]}
    return Files(SPEC, ancestor, shuffle(sources, "digits", number), task, refine)


def _clothes(number: int, clothes: budget.Clothes, digest: str, test: int | None) -> Cell:
    labels = budget.LABELLED[number % len(budget.LABELLED)]
    definition = {"labels": labels, "test": test, "data": digest}

    def prepare(folder: Path) -> Files:
        files = clothes.prepare(folder, number, labels)
        with np.load(folder / "target.npz") as file:
            short = write_some(folder / "short.npz", dict(file), test=test)
        task = open_task(short, files.spec, cache_dir=folder)
        sources = shuffle(list(files.sources), "clothes", number)
        return Files(files.spec, folder / "ancestor", sources, task, {})

    return Cell("clothes", number, definition, prepare)


def _yearbook(number: int, size: Size, data: Path, shared: Path, digest: str) -> Cell:
    """One period is the target, the other three are the sources."""
    label, target = TASKS[number % 2], PERIODS[number // 2 % 4]
    labels, periods = YEARBOOK_LABELS[number // 8], [each for each in PERIODS if each != target]
    choice = {"labels": labels, "label": label, "target": target}
    spec = ModelSpec(
        architecture="tf_efficientnet_lite0" if size.imagenet else "test_efficientnet",
        classes=yearbook_settings.CLASSES[label],
        preprocessing={"image_size": size.side, "crop_pct": 1.0},
    )

    def prepare(folder: Path) -> Files:
        portraits = Portraits(data, spec, label)
        if size.imagenet:
            ancestor, sources = portraits.train_from_imagenet(folder, shared, periods)
        else:
            ancestor, sources = portraits.train_from_scratch(folder, periods)
        val = max(FEWEST_VAL, labels // 3)
        task = portraits.open(folder, [target], train=labels, val=val, test=size.test)
        return Files(spec, ancestor, shuffle(sources, "yearbook", number), task, {})

    definition = {**choice, "test": size.test, "side": size.side, "data": digest}
    return Cell("yearbook", number, definition, prepare)


@dataclass(frozen=True)
class Portraits:
    """The yearbook, as one of its tasks."""

    data: Path
    spec: ModelSpec
    label: str

    def open(self, folder: Path, periods: list[int], **most: int | None) -> Task:
        with np.load(self.data / "yearbook64.npz") as file:
            chosen = np.isin(file["period"], periods)
            columns = {name: file[name][chosen] for name in ("images", "split")}
            columns["labels"] = file[self.label][chosen].astype(np.int64)
        columns["split"] = columns["split"].astype(np.int64)
        columns["classes"] = np.array(self.spec.classes)
        path = folder / f"{'-'.join(map(str, periods))}.npz"
        return open_task(write_some(path, columns, **most), self.spec, cache_dir=folder)

    def train_from_imagenet(
        self, folder: Path, shared: Path, periods: list[int]
    ) -> tuple[Path, list[Path]]:
        """Sources depend on no target: those that other cells have trained are used again."""
        ancestor = folder / "ancestor.safetensors"
        model = yearbook_settings.imagenet_model(self.data, self.spec)
        write_checkpoint(ancestor, model.state_dict(), CheckpointInfo(classes=self.spec.classes))
        shared.mkdir(parents=True, exist_ok=True)
        source = partial(yearbook_settings.train_source, self.data, shared, self.spec, self.label)
        return ancestor, [source(period, SOURCE_EPOCHS) for period in periods]

    def train_from_scratch(self, folder: Path, periods: list[int]) -> tuple[Path, list[Path]]:
        """The ancestor has seen some of each period but the target's."""
        mixture, ancestor = self.open(folder, periods, train=MIXTURE), folder / "ancestor"
        train(self.spec, mixture, ancestor, epochs=ANCESTOR_EPOCHS, lr=2e-3, ancestor=None)
        sources = [folder / f"source{period}" for period in periods]
        for period, path in zip(periods, sources, strict=True):
            task = self.open(folder, [period])
            train(self.spec, task, path, epochs=SOURCE_EPOCHS, lr=2e-3, ancestor=ancestor)
        return ancestor, sources


def write_some(path: Path, columns: Mapping[str, Any], **most: int | None) -> Path:
    """A target file with at most so many drawn examples of some splits."""
    split, rng = columns["split"], np.random.default_rng(0)
    rows = np.ones(len(split), bool)
    for name, count in most.items():
        drawn = rng.permutation(np.flatnonzero(split == SPLITS.index(name)))
        rows[drawn[len(drawn) if count is None else count :]] = False
    some: dict[str, Any] = {n: c if n == "classes" else c[rows] for n, c in columns.items()}
    np.savez(path, **some)
    return path


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]
