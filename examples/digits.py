"""Something to try the service with: a target, and three sources trained elsewhere.

    python examples/digits.py demo

writes demo/target.zip and demo/site-{a,b,c}.safetensors, in about half a minute. The images are
scikit-learn's handwritten digits 0 to 3; each site sees them in another light. The sources share an
ancestor, as checkpoints that merge well do.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

import numpy as np
import timm
import torch
from PIL import Image
from sklearn.datasets import load_digits

from grasp_core import (
    Augmentation,
    Checkpoint,
    CheckpointInfo,
    ImageClassification,
    ModelSpec,
    PreprocessingOverrides,
    write_checkpoint,
)

SITES = {"site-a": 0.0, "site-b": 0.3, "site-c": 0.2}  # name: how far towards the negative
TARGET_SHADE = 0.15
CLASSES = ("0", "1", "2", "3")
ARCHITECTURE = "test_efficientnet"
SPEC = ModelSpec(
    architecture=ARCHITECTURE,
    classes=CLASSES,
    preprocessing=PreprocessingOverrides(image_size=32, crop_pct=1.0),
)


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # so small a model is slower with more
    folder.mkdir(parents=True, exist_ok=True)
    print(write_domain(folder / "target.zip", TARGET_SHADE))
    for path in write_sources(folder):
        print(path)


def write_domain(path: Path, shade: float) -> Path:
    """A zip of PNGs, darkened and inverted by degrees: 0 is as they are, 1 the negative."""
    digits = load_digits()
    with ZipFile(path, "w") as archive:
        for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            if str(label) in CLASSES:
                ink = image / 16
                pixels = 255 * ((1 - shade) * ink + shade * (1 - ink))
                encoded = io.BytesIO()
                Image.fromarray(pixels.astype(np.uint8)).save(encoded, "PNG")
                archive.writestr(f"{label}/{number}.png", encoded.getvalue())
    return path


def write_sources(folder: Path) -> Iterator[Path]:
    """One checkpoint for each site, all trained on from one ancestor."""
    with TemporaryDirectory() as scratch:
        tasks = {name: open_site(Path(scratch), name, shade) for name, shade in SITES.items()}
        ancestor = train(Path(scratch) / "ancestor", next(iter(tasks.values())), epochs=4)
        for name, task in tasks.items():
            yield train(folder / f"{name}.safetensors", task, epochs=2, ancestor=ancestor)


def open_site(scratch: Path, name: str, shade: float) -> ImageClassification:
    archive = write_domain(scratch / f"{name}.zip", shade)
    return ImageClassification.open(archive, SPEC, cache_dir=scratch)


def train(path: Path, task: ImageClassification, epochs: int, ancestor: Path | None = None) -> Path:
    torch.manual_seed(0)
    model = timm.create_model(ARCHITECTURE, num_classes=len(CLASSES)).train()
    if ancestor is not None:
        model.load_state_dict(dict(Checkpoint(ancestor)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if ancestor else 3e-3)
    for epoch in range(epochs):
        for batch in task.training_batches(32, epoch, Augmentation()):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
    write_checkpoint(path, model.state_dict(), CheckpointInfo(classes=CLASSES))
    return path


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
