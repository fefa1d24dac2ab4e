"""Continual arrival: a training pipeline that offers a checkpoint every month.

    python examples/pipeline.py

Each month brings digits from another scanner. A model is trained on them, from the ancestor that
all share, and offered; the log says whether it was accepted. In March the learning rate is wrong,
and the service keeps the result out. The pipeline may be stopped and started at any time: the model
is created once, and a checkpoint that was offered before is not folded again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from grasp_cli.demo.digits import ANCESTOR, CLASSES, TODAY, Digits, Scanner
from grasp_cli.demo.experiment import train
from grasp_client import Grasp, JobFailed, NotFound
from grasp_core import ModelSpec, open_task

NAME = "monthly"
SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=CLASSES,
    preprocessing={"image_size": 32},
)
MONTHS = {
    "january": Scanner(tilt=20, blur=1.5),
    "february": Scanner(tilt=28, fade=0.5),
    "march": Scanner(tilt=32),
    "april": Scanner(tilt=36, grain=0.2),
}
MONTHLY = 250  # digits
EPOCHS = 6
log = logging.getLogger("pipeline")


def main(folder: Path) -> None:
    torch.set_num_threads(1)  # so small a model is slower with more
    digits = Digits.shuffled(seed=0)
    with Grasp() as g:
        require_model(g, digits[: 2 * MONTHLY], folder)
        ancestor = train_on(digits[-MONTHLY:], ANCESTOR, folder / "ancestor", lr=3e-3)
        for number, (month, scanner) in enumerate(MONTHS.items(), start=2):
            new = digits[number * MONTHLY : (number + 1) * MONTHLY]
            lr = 1e3 if month == "march" else 1e-3
            offer(g, train_on(new, scanner, folder / month, lr, ancestor), month)


def require_model(g: Grasp, digits: Digits, folder: Path) -> None:
    """The model that everything is folded into; created when the pipeline runs first."""
    try:
        g.models.get(NAME)
    except NotFound:
        g.targets.create(NAME, digits.write(folder / "target.npz", TODAY, seed=0))
        g.models.create(NAME, architecture=SPEC.architecture, target=NAME, image_size=32).wait()


def train_on(
    digits: Digits, scanner: Scanner, path: Path, lr: float, ancestor: Path | None = None
) -> Path:
    archive = digits.write(path.with_suffix(".npz"), scanner, seed=0)
    task = open_task(archive, SPEC, cache_dir=path.parent)
    return train(
        SPEC, task, path.with_suffix(".safetensors"), epochs=EPOCHS, lr=lr, ancestor=ancestor
    )


def offer(g: Grasp, checkpoint: Path, month: str) -> None:
    source = g.sources.push(checkpoint, model=NAME, name=month)
    try:
        job = source.wait()
    except JobFailed as failure:
        log.warning("%s was %s: %s", month, failure.job.status, failure.message)
    else:
        accuracy = job.metrics["after"]["val"]["accuracy"]
        log.info("%s is in version %d, validation accuracy %.3f", month, job.version, accuracy)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
