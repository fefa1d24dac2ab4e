"""Batch-norm statistics after a transfer, against what each choice says in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from grasp_core import Checkpoint, ModelSpec, build_model, fold, load_weights
from grasp_core.refinement import Trainer
from grasp_core.report import Look
from grasp_core.seeds import derive_seed
from tests.core.toy import CLASSES, TINY, ToyTask, quick, refold, save, tiny_weights

STATISTICS = ("running_mean", "running_var")


def statistics(weights: Checkpoint) -> dict[str, Tensor]:
    return {name: weights[name] for name in weights if name.endswith(STATISTICS)}


def test_keep_leaves_the_merged_ones(merged: Path, source: Path, tmp_path: Path) -> None:
    refold(source, merged, tmp_path / "out", norm_stats="keep")

    old, new = statistics(Checkpoint(merged)), statistics(Checkpoint(tmp_path / "out"))
    assert all(torch.equal(new[name], old[name]) for name in old)


def test_in_train_mode_they_drift_over_the_alignment_batches(
    merged: Path, source: Path, tmp_path: Path
) -> None:
    report = refold(source, merged, tmp_path / "out", norm_stats="keep", merged_mode="train")

    model = build_model(TINY)
    load_weights(model, Checkpoint(merged), torch.device("cpu"), exact=True)
    model.train()
    batches = ToyTask().alignment_batches(16, 2, derive_seed(report.seed, "batches"))
    for batch in batches:
        model(**batch.inputs)
    new = statistics(Checkpoint(tmp_path / "out"))
    assert all(torch.equal(new[name], model.state_dict()[name]) for name in new)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "element"])
def test_follow_takes_them_with_their_layers_weight(
    merged: Path, source: Path, tmp_path: Path, granularity: str
) -> None:
    refold(
        source, merged, tmp_path / "out", norm_stats="follow", granularity=granularity, tau="auto"
    )

    old, new, result = (Checkpoint(path) for path in (merged, source, tmp_path / "out"))
    followed = 0
    for name in statistics(result):
        weight = name.rpartition(".")[0] + ".weight"
        taken = result[weight] != old[weight]
        assert torch.equal(result[name], torch.where(taken, new[name], old[name])), name
        followed += int(taken.sum())
    assert followed > 0


def test_recalibrate_measures_them_on_the_alignment_batches(
    merged: Path, source: Path, tmp_path: Path
) -> None:
    report = refold(source, merged, tmp_path / "out", norm_stats="recalibrate", tau=0.0)

    result = Checkpoint(tmp_path / "out")
    model = build_model(TINY)
    load_weights(model, {name: result[name].clone() for name in result}, torch.device("cpu"))
    means: list[Tensor] = []
    stem = model.get_submodule("conv_stem")
    stem.register_forward_hook(lambda module, inputs, output: means.append(output.mean((0, 2, 3))))
    with torch.no_grad():
        for batch in ToyTask().alignment_batches(16, 2, derive_seed(report.seed, "batches")):
            model(**batch.inputs)
    measured = torch.stack(means).mean(0)
    assert torch.allclose(result["bn1.running_mean"], measured, atol=1e-5)
    assert not torch.allclose(Checkpoint(merged)["bn1.running_mean"], measured, atol=1e-3)


def test_recalibration_gives_every_layer_its_momentum_back(
    merged: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float | None] = []

    def advance(trainer: Trainer, step: int) -> Look:
        norms = [m for m in trainer.model.modules() if isinstance(m, nn.BatchNorm2d)]
        seen.extend(norm.momentum for norm in norms)
        return Look(step=step, epoch=0, lr=0, train_loss=0, val_accuracy=0, val_log_likelihood=None)

    monkeypatch.setattr(Trainer, "advance", advance)

    refold(source, merged, tmp_path / "out", tau=0.0, refine={"steps": 1, "lr": 1e-3})

    assert set(seen) == {0.1}


def test_a_model_without_batch_norm_has_nothing_to_recalibrate(tmp_path: Path) -> None:
    spec = ModelSpec(architecture="test_efficientnet_ln", classes=CLASSES)
    merged = save(tmp_path / "merged", tiny_weights(1, spec))

    report = fold(
        spec, merged, ToyTask(), tmp_path / "out", merged=merged, config=quick(), force=True
    )

    assert report.transferred_share == 1
    assert all(
        torch.equal(t, Checkpoint(merged)[n]) for n, t in Checkpoint(tmp_path / "out").items()
    )
