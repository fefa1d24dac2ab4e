"""A small target of real images, tiny checkpoints, and operations on them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import timm
import torch
from PIL import Image
from sklearn.datasets import load_digits

from grasp_core import CheckpointInfo, ModelSpec
from grasp_core import write_checkpoint as write
from grasp_core.data.formats import fingerprint_of, recognise
from grasp_core.data.target import DEFAULT_LIMITS
from grasp_core.files import sha256_file
from grasp_core.kinds.image.config import PreprocessingOverrides
from grasp_core.kinds.image.formats import FORMATS
from grasp_core.operations import FoldSource, Live, PrepareModel
from grasp_core.parameters import parse_config

torch.set_num_threads(1)  # as in the children that must end in the same bytes

CLASSES = ("one", "two", "zero")
PER_CLASS = 40
SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=CLASSES,
    preprocessing=PreprocessingOverrides(image_size=32, crop_pct=1.0),
)
EPOCHS = 4
CONFIG = parse_config(
    {
        "method": "grasp",
        "alignment_batches": 2,
        "refine": {"epochs": EPOCHS, "lr": 1e-3, "batch_size": 16},
        "gate": {"max_drop": 1.0},  # weights that were never trained: nothing to lose
        "device": "cpu",
    }
)


class Heard:
    """A callback that keeps what is reported to it."""

    def __init__(self) -> None:
        self.reported: list[tuple[str, float, Live]] = []

    def __call__(self, stage: str, fraction: float, metrics: Live) -> None:
        self.reported.append((stage, fraction, metrics))

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys(stage for stage, _, _ in self.reported))


def write_target(root: Path, per_class: int = PER_CLASS) -> Path:
    digits = load_digits()
    for label, name in enumerate(("zero", "one", "two")):
        (root / name).mkdir(parents=True)
        for number, image in enumerate(digits.images[digits.target == label][:per_class]):
            pixels = Image.fromarray((image * 15).astype(np.uint8))
            pixels.save(root / name / f"{number:03}.png")
    return root


def write_weights(path: Path, seed: int, spec: ModelSpec = SPEC) -> Path:
    torch.manual_seed(seed)
    model = timm.create_model(spec.architecture, num_classes=len(spec.classes))
    write(path, model.state_dict(), CheckpointInfo(classes=spec.classes))
    return path


class Bench:
    """A folder with everything that a fold needs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.target = write_target(root / "target")
        found = recognise(self.target, FORMATS, DEFAULT_LIMITS)
        self.fingerprint = fingerprint_of(self.target, found.files(self.target, DEFAULT_LIMITS))
        self.cache = root / "cache"
        self.merged = write_weights(root / "merged.safetensors", seed=1)
        self.source = write_weights(root / "source.safetensors", seed=2)

    def fold(self, name: str) -> FoldSource:
        """Fold the source into the merged model, in a folder of that name."""
        return FoldSource(
            spec=SPEC,
            config=CONFIG,
            version=5,
            source_sha256=sha256_file(self.source),
            source_classes=None,
            target_fingerprint=self.fingerprint,
            cache_dir=self.cache,
            work_dir=self.root / name / "work",
            output=self.root / name / "out",
            files={"target": self.target, "source": self.source, "weights": self.merged},
        )


AnyOperation = TypeVar("AnyOperation", FoldSource, PrepareModel)


def reading(operation: AnyOperation, **files: Path | None) -> AnyOperation:
    """The same operation on other files; None: without."""
    changed = {**operation.files, **files}
    return replace(operation, files={n: path for n, path in changed.items() if path is not None})
