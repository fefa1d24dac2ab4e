"""What the kind computes."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from grasp_core.checkpoints import CheckpointInfo
from grasp_core.data import Array, Fractions, Limits, TargetData
from grasp_core.errors import ArchitectureError
from grasp_core.kinds.declaration import Export, Progress
from grasp_core.spec import ModelSpec
from grasp_core.tasks import Augmentation as GivenAugmentation
from grasp_core.tasks import Classification, Inputs
from grasp_tabular import Augmentation, Overrides, Preprocessing
from grasp_tabular.csv_format import CSV, count_columns, decoder

MAX_UNITS = 4096
SHOWN = 3  # rows of a class


class Mlp(nn.Module):
    """Linear layers with ReLUs between them; the last has a row for every class."""

    def __init__(self, sizes: list[int], classes: int) -> None:
        super().__init__()
        self.hidden = nn.ModuleList(nn.Linear(n, m) for n, m in pairwise(sizes))
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, rows: Tensor) -> Tensor:  # (B, columns)
        for layer in self.hidden:
            rows = torch.relu(layer(rows))
        logits: Tensor = self.head(rows)
        return logits  # (B, classes)


def create(spec: ModelSpec) -> nn.Module:
    return Mlp(_sizes(spec.architecture), len(spec.classes))


def head(_spec: ModelSpec) -> tuple[str, ...]:
    return ("head",)


def resolve_preprocessing(spec: ModelSpec) -> Preprocessing:
    given = Overrides.model_validate(spec.preprocessing)
    return Preprocessing(columns=_sizes(spec.architecture)[0], log=given.log)


def _sizes(architecture: str) -> list[int]:
    """[16, 8] of mlp-16-8."""
    if not re.fullmatch(r"mlp(-[1-9][0-9]{0,3}){2,9}", architecture):
        raise ArchitectureError(
            f"there is no {architecture!r}", hint="mlp-16-8 takes 16 numbers and has 8 hidden units"
        )
    sizes = [int(size) for size in architecture.split("-")[1:]]
    if max(sizes) > MAX_UNITS:
        raise ArchitectureError(f"{architecture} is too large", hint=f"up to {MAX_UNITS} units")
    return sizes


class Rows(Classification):
    """Rows of a target, each with one of the model's classes."""

    def __init__(
        self, target: TargetData, classes: tuple[str, ...], preprocessing: Preprocessing
    ) -> None:
        super().__init__(target, classes, preprocessing)
        self._log = preprocessing.log

    def evaluation_inputs(self, rows: Array) -> Inputs:
        numbers = np.sign(rows) * np.log1p(np.abs(rows)) if self._log else rows
        return {"rows": torch.from_numpy(numbers)}

    def training_inputs(
        self, rows: Array, augmentation: GivenAugmentation, rng: np.random.Generator
    ) -> Inputs:
        noise = Augmentation.model_validate(augmentation).noise
        changed = rows + noise * rng.standard_normal(rows.shape)
        return self.evaluation_inputs(changed.astype(np.float32))


def open_task(
    path: Path,
    spec: ModelSpec,
    *,
    cache_dir: Path | None,
    limits: Limits,
    fractions: Fractions | None,
    fingerprint: str | None,
    progress: Progress | None,
) -> Rows:
    preprocessing = resolve_preprocessing(spec)
    target = TargetData.open(
        path,
        [CSV],
        decoder(preprocessing.columns),
        cache_dir=cache_dir,
        limits=limits,
        fractions=fractions,
        fingerprint=fingerprint,
        progress=progress,
    )
    return Rows(target, spec.classes, preprocessing)


def open_target(
    path: Path, *, cache_dir: Path, limits: Limits, progress: Progress | None
) -> TargetData:
    numbers = decoder(count_columns(path))
    return TargetData.open(
        path, [CSV], numbers, cache_dir=cache_dir, limits=limits, progress=progress
    )


def show_samples(target: TargetData) -> tuple[dict[str, str], ...]:
    train, shown = target.train, []
    for label, name in enumerate(target.classes):
        for row in train.read(np.flatnonzero(train.labels == label)[:SHOWN]):
            text = ", ".join(f"{number:g}" for number in row)
            shown.append({"class": name, "split": train.name, "text": text[:200]})
    return tuple(shown)


def describe_export(info: CheckpointInfo) -> Export:
    spec = ModelSpec(
        kind="tabular", architecture=info.architecture or "", classes=info.classes or ()
    )
    seen = Preprocessing.model_validate(info.preprocessing or resolve_preprocessing(spec))
    config = {"sizes": _sizes(spec.architecture), "classes": spec.classes, **seen.model_dump()}
    return Export(
        spec=spec,
        files={"config.json": json.dumps(config, indent=2) + "\n"},
        metadata="---\npipeline_tag: tabular-classification\n---\n",
        title=f"A classifier of rows of {seen.columns} numbers, `{spec.architecture}`",
        usage="Build `grasp_tabular.implementation.Mlp` with the sizes of `config.json`.\n",
        preprocessing="sign(x) · log(1 + |x|) of every number\n" if seen.log else "none\n",
    )
