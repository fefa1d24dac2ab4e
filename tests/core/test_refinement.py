"""Refinement against a plain training loop, and its switches."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from grasp_core import Checkpoint, GraspConfig, Runtime, build_model, load_weights
from grasp_core.heads import MatchedSource, match_classes
from grasp_core.progress import Recorder
from grasp_core.refinement import RefineState, Trainer, refine
from grasp_core.report import EpochRecord, MergeReport
from grasp_core.seeds import derive_seed
from grasp_core.workbench import Workbench
from tests.core.toy import CLASSES, TINY, ToyTask, quick

CPU = torch.device("cpu")
NOTHING = MergeReport()


def make_bench(weights: dict[str, Tensor], work_dir: Path, config: GraspConfig) -> Workbench:
    model = build_model(TINY)
    load_weights(model, {name: tensor.clone() for name, tensor in weights.items()}, CPU)
    match = match_classes(CLASSES, CLASSES)
    return Workbench(
        model=model,
        merged=weights,
        source=MatchedSource(weights, weights, frozenset(), match),
        base=None,
        task=ToyTask(),
        config=config,
        runtime=Runtime.choose(config),
        recorder=Recorder(CPU),
        seed=7,
        work_dir=work_dir,
        fold_id="test",
    )


def test_it_is_plain_fine_tuning_with_adamw_and_a_cosine_schedule(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick(refine={"epochs": 3, "batch_size": 16}))
    config = bench.config.refine

    refined = refine(bench, NOTHING)

    model = build_model(TINY)
    load_weights(model, {n: t.clone() for n, t in merged_weights.items()}, CPU)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=config.epochs)
    states, rates = [], []
    for epoch in (1, 2, 3):
        model.train()
        rates.append(schedule.get_last_lr()[0])
        for batch in bench.task.training_batches(16, derive_seed(bench.seed, "refine", epoch), {}):
            optimizer.zero_grad()
            bench.task.loss(model, batch).backward()
            optimizer.step()
        schedule.step()
        states.append({n: t.clone() for n, t in model.state_dict().items()})
    assert [epoch.lr for epoch in refined.history] == pytest.approx(rates)
    assert refined.best_epoch is not None
    for name, tensor in states[refined.best_epoch - 1].items():
        assert torch.allclose(bench.model.state_dict()[name], tensor, atol=1e-7), name


def test_the_first_epoch_with_the_best_accuracy_is_kept(
    merged_weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = [0.5, 0.9, 0.9, 0.7]
    snapshots: list[Tensor] = []

    def run_epoch(self: Trainer, epoch: int) -> EpochRecord:
        with torch.no_grad():
            next(self.model.parameters()).add_(1.0)
        snapshots.append(next(self.model.parameters()).clone())
        return record(epoch, accuracies[epoch - 1])

    monkeypatch.setattr(Trainer, "run_epoch", run_epoch)
    bench = make_bench(merged_weights, tmp_path, quick(refine={"epochs": 4}))

    refined = refine(bench, NOTHING)

    assert refined.best_epoch == 2
    assert torch.equal(next(bench.model.parameters()), snapshots[1])


def test_patience_stops_early(
    merged_weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = [0.5, 0.6, 0.6, 0.5, 0.9]
    monkeypatch.setattr(
        Trainer, "run_epoch", lambda self, epoch: record(epoch, accuracies[epoch - 1])
    )
    bench = make_bench(merged_weights, tmp_path, quick(refine={"epochs": 5, "patience": 2}))

    refined = refine(bench, NOTHING)

    assert [epoch.epoch for epoch in refined.history] == [1, 2, 3, 4]


def record(epoch: int, accuracy: float) -> EpochRecord:
    return EpochRecord(
        epoch=epoch, lr=0.1, train_loss=1.0, val_accuracy=accuracy, val_log_likelihood=-1.0
    )


def test_frozen_layers_change_neither_weights_nor_statistics(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    frozen = ("conv_stem.*", "bn1.*", "blocks.0.*")
    config = quick(refine={"epochs": 1, "lr": 1e-2, "freeze": frozen, "batch_size": 16})
    bench = make_bench(merged_weights, tmp_path, config)

    refine(bench, NOTHING)

    changed = {
        name
        for name, tensor in bench.model.state_dict().items()
        if not torch.equal(tensor, merged_weights[name])
    }
    assert not any(name.startswith(("conv_stem.", "bn1.", "blocks.0.")) for name in changed)
    assert {"classifier.weight", "blocks.1.0.bn1.running_mean"} <= changed


@pytest.mark.parametrize("size", [1, 5, 16])
def test_micro_batches_give_the_gradient_of_the_whole_batch(
    merged_weights: dict[str, Tensor], tmp_path: Path, size: int
) -> None:
    def gradient(micro_batch: int | None) -> Tensor:
        bench = make_bench(merged_weights, tmp_path, quick(micro_batch=micro_batch))
        trainer = Trainer(bench)
        trainer.model.eval()  # batch norm in train mode depends on its batch by nature
        trainer._step(next(bench.task.training_batches(16, 0, {})))
        return torch.cat(
            [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
        )

    assert torch.allclose(gradient(size), gradient(None), atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        {"precision": "bfloat16"},
        {"precision": "float16"},
        {"channels_last": True},
        {"compile": "eager"},
    ],
    ids=str,
)
def test_other_formats_layouts_and_compilers_learn_too(
    merged_weights: dict[str, Tensor], tmp_path: Path, values: dict[str, object]
) -> None:
    config = quick(refine={"epochs": 2, "lr": 3e-3, "batch_size": 16}, **values)
    bench = make_bench(merged_weights, tmp_path, config)

    refined = refine(bench, NOTHING)

    assert refined.history[-1].train_loss < refined.history[0].train_loss
    assert all(math.isfinite(epoch.train_loss) for epoch in refined.history)
    assert Checkpoint(tmp_path / "best.safetensors")["conv_stem.weight"].dtype == torch.float32


def test_half_precision_state_survives_an_interruption(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    """float16 has a loss scale, which is part of the state."""
    config = quick(precision="float16", refine={"epochs": 1, "batch_size": 16})
    trainer = Trainer(make_bench(merged_weights, tmp_path, config))
    trainer.scaler.scale(torch.zeros(()))  # it begins with its first loss
    trainer.scaler.update(1024.0)
    state = trainer.advanced(RefineState(fold_id="test", merge=NOTHING), record(1, 0.5))
    trainer.save(tmp_path / "state.safetensors", state)

    again = Trainer.restored(make_bench(merged_weights, tmp_path, config), state)

    assert state.scaler["scale"] == 1024
    assert again.scaler.state_dict() == state.scaler


def test_no_epochs_leave_the_module_as_it_is(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick())

    refined = refine(bench, NOTHING)

    assert refined.history == ()
    assert refined.best_epoch is None
    for name, tensor in bench.model.state_dict().items():
        assert torch.equal(tensor, merged_weights[name])


def test_a_layout_is_kept_through_training(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick(channels_last=True))

    trainer = Trainer(bench)

    convolution = next(m for m in trainer.model.modules() if isinstance(m, nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
