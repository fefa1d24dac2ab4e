"""End to end on real images: sources from other domains, folded into a model that timm loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from grasp_core import (
    Checkpoint,
    CheckpointInfo,
    FoldReport,
    ModelSpec,
    Task,
    export_folder,
    fold,
    open_task,
    write_checkpoint,
)
from grasp_core.kinds.image.config import PreprocessingOverrides
from grasp_core.parameters import parse_config

CLASSES = tuple("0123")
SPEC = ModelSpec(
    architecture="test_efficientnet",
    classes=CLASSES,
    preprocessing=PreprocessingOverrides(image_size=32, crop_pct=1.0),
)
CONFIG = parse_config(
    {
        "method": "grasp",
        "alignment_batches": 4,
        "refine": {"epochs": 2, "lr": 1e-3},
        "gate": {"max_drop": 0.1, "max_class_drop": 0.5},  # a class has 18 images to validate with
    }
)
GOOD = 0.7  # guessing among four gets 0.25; other roundings got 0.85 and more


def write_domain(path: Path, shade: float) -> Path:
    """The digits 0 to 3, darkened and inverted by degrees: 0 is as they are, 1 the negative."""
    digits = load_digits()
    chosen = np.isin(digits.target, range(4))
    ink: NDArray[np.float64] = digits.images[chosen] / 16
    pixels = 255 * ((1 - shade) * ink + shade * (1 - ink))
    np.savez(
        path,
        images=pixels.astype(np.uint8),
        labels=digits.target[chosen].astype(np.int64),
        classes=np.array(CLASSES),
    )
    return path


def train(path: Path, task: Task, epochs: int, ancestor: Path | None = None) -> Path:
    """A model from scratch, or an ancestor trained further, as sources that merge well are."""
    torch.manual_seed(0)
    model = timm.create_model(SPEC.architecture, num_classes=len(CLASSES)).train()
    if ancestor is not None:
        model.load_state_dict(dict(Checkpoint(ancestor)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 if ancestor else 3e-3)
    for epoch in range(epochs):
        for batch in task.training_batches(32, epoch, CONFIG.refine.augmentation):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
    write_checkpoint(path, model.state_dict(), CheckpointInfo(classes=CLASSES))
    return path


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[FoldReport]]:
    """A folder with v1 and v2, and their reports."""
    folder = tmp_path_factory.mktemp("chain")
    tasks = {
        name: open_task(
            write_domain(folder / f"{name}.npz", shade), SPEC, cache_dir=folder / "cache"
        )
        for name, shade in (("plain", 0.0), ("gray", 0.3), ("target", 0.15))
    }
    ancestor = train(folder / "ancestor.safetensors", tasks["plain"], epochs=4)
    reports, merged = [], None
    for number, name in enumerate(("plain", "gray"), start=1):
        source = train(folder / f"{name}.safetensors", tasks[name], 2, ancestor)
        output = folder / f"v{number}.safetensors"
        reports.append(fold(SPEC, source, tasks["target"], output, merged=merged, config=CONFIG))
        merged = output
    return folder, reports


def test_every_fold_is_accepted_and_the_model_is_good(
    chain: tuple[Path, list[FoldReport]],
) -> None:
    folder, reports = chain

    assert [(r.outcome, r.version) for r in reports] == [("accepted", 1), ("accepted", 2)]
    assert reports[1].parent == reports[0].sha256
    assert reports[1].metrics.after is not None
    assert reports[1].metrics.after.test.accuracy > GOOD
    assert reports[1].metrics.before == reports[0].metrics.after
    assert Checkpoint(folder / "v2.safetensors").sha256 == reports[1].sha256


def test_the_second_source_really_gave_something(chain: tuple[Path, list[FoldReport]]) -> None:
    report = chain[1][1]
    assert report.transferred_share is not None

    sizes = {p.name: p.size for p in report.parameters}
    assert 0 < report.transferred_share < 1
    assert report.provenance.totals(sizes)[report.source] == pytest.approx(report.transferred_share)


def test_timm_loads_the_merged_model(chain: tuple[Path, list[FoldReport]], tmp_path: Path) -> None:
    folder, reports = chain

    export_folder(folder / "v2.safetensors", tmp_path / "export", report=reports[1])

    model = timm.create_model(f"local-dir:{tmp_path / 'export'}", pretrained=True).eval()
    version = Checkpoint(folder / "v2.safetensors")
    assert all(torch.equal(t, version[n]) for n, t in model.state_dict().items())
    assert model(torch.zeros(1, 3, 32, 32)).shape == (1, 4)
