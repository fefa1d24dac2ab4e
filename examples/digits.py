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
import torch
from PIL import Image
from sklearn.datasets import load_digits

from grasp_cli.demo.experiment import train
from grasp_core import ModelSpec, Task, open_task

SITES = {"site-a": 0.0, "site-b": 0.3, "site-c": 0.2}  # name: how far towards the negative
TARGET_SHADE = 0.15
CLASSES = ("0", "1", "2", "3")
ARCHITECTURE = "test_efficientnet"
SPEC = ModelSpec(
    architecture=ARCHITECTURE,
    classes=CLASSES,
    preprocessing={"image_size": 32, "crop_pct": 1.0},
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
        first = next(iter(tasks.values()))
        ancestor = train(SPEC, first, Path(scratch) / "ancestor", epochs=4, lr=3e-3)
        for name, task in tasks.items():
            path = folder / f"{name}.safetensors"
            yield train(SPEC, task, path, epochs=2, lr=1e-3, ancestor=ancestor)


def open_site(scratch: Path, name: str, shade: float) -> Task:
    archive = write_domain(scratch / f"{name}.zip", shade)
    return open_task(archive, SPEC, cache_dir=scratch)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "demo"))
