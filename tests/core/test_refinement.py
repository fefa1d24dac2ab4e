"""Refinement against a plain training loop, and its switches."""

from __future__ import annotations

import gc
import math
import weakref
from itertools import count
from pathlib import Path
from typing import Literal, NoReturn

import pytest
import torch
from torch import Tensor, nn

from grasp_core import Checkpoint, FoldConfig, Runtime, Task, build_model, load_weights
from grasp_core.config import LEARNING_RATES, RefineConfig
from grasp_core.heads import MatchedSource, match_classes
from grasp_core.progress import Recorder
from grasp_core.refinement import (
    START_FILE,
    Refined,
    Refinement,
    Start,
    Trainer,
    TrialState,
    choose_rates,
)
from grasp_core.report import LearningRate, Look, MergeReport
from grasp_core.schedule import Schedule
from grasp_core.seeds import derive_seed
from grasp_core.workbench import Workbench
from tests.core.toy import CLASSES, TINY, ToyTask, quick

CPU, SEED = torch.device("cpu"), 7


def make_bench(weights: dict[str, Tensor], work_dir: Path, config: FoldConfig) -> Workbench:
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
        recorder=Recorder(CPU, plan=[(None, "load"), (None, "refine")]),
        seed=SEED,
        work_dir=work_dir,
        fold_id="test",
        source_sha256="",
    )


def begin(bench: Workbench) -> None:
    """As after a merge that left in the module what is there."""
    Start.save(bench, MergeReport())


def refine(bench: Workbench, known: float | None = None) -> Refined:
    """What is in the module, and leave the best of it there."""
    begin(bench)
    refinement = Refinement(bench, choose_rates(bench.config.refine, known))
    refinement.run()
    bench.load(Checkpoint(bench.work_dir / refinement.best_file))
    return refinement.describe()


def train(
    weights: dict[str, Tensor], task: Task, rates: list[float], decay: float
) -> list[dict[str, Tensor]]:
    """A plain loop, with a rate for every step; the weights after each of them."""
    model = build_model(TINY)
    load_weights(model, {n: t.clone() for n, t in weights.items()}, CPU)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=decay, fused=True)
    model.train()
    states: list[dict[str, Tensor]] = []
    for epoch in count(1):
        for batch in task.training_batches(16, derive_seed(SEED, "refine", epoch), {}):
            if len(states) == len(rates):
                return states
            optimizer.param_groups[0]["lr"] = rates[len(states)]
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            optimizer.step()
            states.append({n: t.clone() for n, t in model.state_dict().items()})
    raise AssertionError


def assert_holds(bench: Workbench, weights: dict[str, Tensor]) -> None:
    for name, tensor in bench.model.state_dict().items():
        assert torch.allclose(weights[name], tensor, atol=1e-6), name


def test_by_step_it_warms_up_and_falls_and_keeps_the_likeliest_of_eleven_looks(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(
        merged_weights, tmp_path, quick(refine={"steps": 30, "lr": 3e-3, "batch_size": 16})
    )

    refined = refine(bench)

    peak = 3e-3
    rates = [peak / 3, peak * 2 / 3, peak]
    rates += [peak * (1 + math.cos(math.pi * step / 27)) / 2 for step in range(27)]
    states = train(merged_weights, bench.task, rates, bench.config.refine.weight_decay)
    looks = refined.history
    assert [look.step for look in looks] == [0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30]
    assert [look.epoch for look in looks] == [look.step / 4 for look in looks]
    assert [look.lr for look in looks[1:]] == pytest.approx([rates[i - 1] for i in range(3, 31, 3)])
    likeliest = max(looks, key=lambda look: look.val_log_likelihood or -math.inf)
    assert refined.best == likeliest
    assert likeliest.step > 0
    assert_holds(bench, states[likeliest.step - 1])


def test_by_epoch_it_is_fine_tuning_with_a_cosine_as_torch_has_it(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(
        merged_weights, tmp_path, quick(preset="paper", refine={"epochs": 3, "batch_size": 16})
    )

    refined = refine(bench)

    peak = bench_rate(bench)
    falling = [peak * ((1 + math.cos(math.pi * epoch / 3)) / 2) for epoch in range(3)]
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=peak)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=3)
    for rate in falling:
        assert schedule.get_last_lr() == pytest.approx([rate])
        optimizer.step()
        schedule.step()
    rates = [rate for rate in falling for _ in range(4)]
    states = train(merged_weights, bench.task, rates, bench.config.refine.weight_decay)
    assert [look.epoch for look in refined.history] == [1, 2, 3]
    assert [look.lr for look in refined.history] == pytest.approx(rates[::4])
    best = max(refined.history, key=lambda look: look.val_accuracy)
    assert refined.best == best
    for name, tensor in bench.model.state_dict().items():
        assert torch.equal(states[best.step - 1][name], tensor), name


def bench_rate(bench: Workbench) -> float:
    rate = bench.config.refine.lr
    assert rate == 5e-5
    return float(rate)


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({}, 100),
        ({"batch_size": 1}, 3 * 64),
        ({"steps": 7}, 7),
        ({"epochs": 2, "batch_size": 16}, 8),
        ({"steps": 9, "epochs": 2, "batch_size": 16}, 9),
        ({"steps": 5, "epochs": 2, "batch_size": 16}, 8),
        ({"epochs": 0}, 0),
        ({"steps": 0}, 0),
    ],
    ids=str,
)
def test_steps_and_epochs_alone_mean_just_that_and_together_the_larger(
    values: dict[str, int], steps: int
) -> None:
    config = RefineConfig.model_validate(values)

    assert Schedule(config, 64 // config.batch_size).steps == steps
    again = RefineConfig.model_validate_json(config.model_dump_json())
    assert again == config


def test_a_refinement_has_an_end() -> None:
    with pytest.raises(ValueError, match="needs steps or epochs"):
        RefineConfig(steps=None, epochs=None)


@pytest.mark.parametrize("steps", [1, 3, 10, 99, 1234])
@pytest.mark.parametrize("by", ["step", "epoch"])
def test_every_schedule_ends_with_a_look(steps: int, by: Literal["step", "epoch"]) -> None:
    schedule = Schedule(RefineConfig(steps=steps, schedule=by), 7)

    assert schedule.looks[-1] == steps
    assert list(schedule.looks) == sorted(set(schedule.looks))
    assert all(0 < schedule.factor(step) <= 1 for step in range(steps))
    assert [schedule.part(look) for look in schedule.looks if look] == [
        *range(1, 1 + sum(look > 0 for look in schedule.looks))
    ]


def look(step: int, likelihood: float | None, accuracy: float = 0.5) -> Look:
    return Look(
        step=step,
        epoch=step,
        lr=0.1,
        train_loss=1.0,
        val_accuracy=accuracy,
        val_log_likelihood=likelihood,
    )


def pretend(monkeypatch: pytest.MonkeyPatch, looks: list[Look]) -> list[Tensor]:
    """Looks that find this; the first weights at each of them."""
    snapshots: list[Tensor] = []

    def advance(self: Trainer, step: int) -> Look:
        with torch.no_grad():
            next(self.model.parameters()).add_(1.0)
        snapshots.append(next(self.model.parameters()).clone())
        return looks[len(snapshots) - 1]

    monkeypatch.setattr(Trainer, "advance", advance)
    return snapshots


@pytest.mark.parametrize(
    ("likelihoods", "best"),
    [
        ([-3.0, -2.0, -1.0, -1.0], 2),
        ([-1.0, -2.0, -1.0, -1.0], 0),
        ([None, -9.0, None, None], 1),
        ([None, None, None, None], 0),
    ],
    ids=["of two the earlier", "the start", "what is not finite is worst", "nothing is finite"],
)
def test_the_first_of_the_best_looks_is_kept(
    merged_weights: dict[str, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    likelihoods: list[float | None],
    best: int,
) -> None:
    snapshots = pretend(monkeypatch, [look(step, value) for step, value in enumerate(likelihoods)])
    bench = make_bench(merged_weights, tmp_path, quick(refine={"steps": 3, "lr": 0.1}))

    refined = refine(bench)

    assert refined.best is not None
    assert refined.best.step == best
    first = next(iter(merged_weights.values()))
    assert torch.equal(next(bench.model.parameters()), snapshots[best] if best else first)


def test_patience_stops_early(
    merged_weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, [look(step, value) for step, value in enumerate([-3, -2, -2, -3, -1])])
    bench = make_bench(
        merged_weights, tmp_path, quick(refine={"steps": 5, "patience": 2, "lr": 0.1})
    )

    refined = refine(bench)

    assert [look.step for look in refined.history] == [0, 1, 2, 3]


def test_a_trial_leaves_no_trainer_behind(
    merged_weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its moments it is thrice the model, and five of them may come in a row."""
    alive: list[weakref.ref[Trainer]] = []
    advance = Trainer.advance

    def note(self: Trainer, step: int) -> Look:
        alive.append(weakref.ref(self))
        return advance(self, step)

    monkeypatch.setattr(Trainer, "advance", note)
    bench = make_bench(
        merged_weights, tmp_path, quick(refine={"steps": 6, "lr": "auto", "batch_size": 16})
    )
    gc.collect()
    gc.disable()
    try:
        refine(bench)
        assert [trainer() for trainer in alive] == [None] * len(alive)
    finally:
        gc.enable()


def test_auto_tries_each_rate_from_the_same_start_and_keeps_the_best(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    def run(name: str, lr: object, known: float | None = None) -> tuple[Refined, Workbench]:
        config = quick(refine={"steps": 6, "lr": lr, "batch_size": 16})
        (tmp_path / name).mkdir()
        bench = make_bench(merged_weights, tmp_path / name, config)
        return refine(bench, known), bench

    probed, bench = run("auto", "auto")
    alone = {rate: run(str(rate), rate) for rate in LEARNING_RATES}

    assert probed.learning_rate is not None
    table = {each.rate: each for each in probed.learning_rate.probe}
    assert list(table) == list(LEARNING_RATES)
    for rate, (refined, _) in alone.items():
        assert refined.best is not None
        assert refined.learning_rate == LearningRate(rate=rate)
        assert table[rate].val_log_likelihood == refined.best.val_log_likelihood
        assert table[rate].step == refined.best.step
    best = max(table.values(), key=lambda each: each.val_log_likelihood or -math.inf)
    assert probed.learning_rate.rate == best.rate
    chosen, chosen_bench = alone[best.rate]
    assert probed.history == chosen.history
    for name, tensor in chosen_bench.model.state_dict().items():
        assert torch.equal(bench.model.state_dict()[name], tensor), name
    known, _ = run("known", "auto", known=5e-4)
    assert known.learning_rate == LearningRate(rate=5e-4)


def test_frozen_layers_change_neither_weights_nor_statistics(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    frozen = ("conv_stem.*", "bn1.*", "blocks.0.*")
    config = quick(refine={"epochs": 1, "lr": 1e-2, "freeze": frozen, "batch_size": 16})
    bench = make_bench(merged_weights, tmp_path, config)

    refine(bench)

    changed = {
        name
        for name, tensor in bench.model.state_dict().items()
        if not torch.equal(tensor, merged_weights[name])
    }
    assert not any(name.startswith(("conv_stem.", "bn1.", "blocks.0.")) for name in changed)
    assert {"classifier.weight", "blocks.1.0.bn1.running_mean"} <= changed


def make_trainer(bench: Workbench) -> Trainer:
    begin(bench)
    schedule = Schedule(bench.config.refine, 4)
    state = TrialState(fold_id=bench.fold_id, rate=1e-3)
    return Trainer(bench, schedule, state, Checkpoint(bench.work_dir / START_FILE), silent)


def silent(step: int, **metrics: float) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("size", [1, 5, 16])
def test_micro_batches_give_the_gradient_of_the_whole_batch(
    merged_weights: dict[str, Tensor], tmp_path: Path, size: int
) -> None:
    def gradient(micro_batch: int | None) -> Tensor:
        bench = make_bench(merged_weights, tmp_path, quick(micro_batch=micro_batch))
        trainer = make_trainer(bench)
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

    refined = refine(bench)

    losses = [look.train_loss for look in refined.history if look.train_loss is not None]
    assert losses[-1] < losses[0]
    assert all(math.isfinite(loss) for loss in losses)
    best = Checkpoint(tmp_path / "trial1" / "best.safetensors")
    assert best["conv_stem.weight"].dtype == torch.float32


def test_half_precision_state_survives_an_interruption(
    merged_weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """float16 has a loss scale, which is part of the state."""
    config = quick(precision="float16", refine={"steps": 10, "batch_size": 16, "lr": 1e-3})
    bench = make_bench(merged_weights, tmp_path, config)
    advance = Trainer.advance

    def change_scale(self: Trainer, step: int) -> Look:
        if step == 1:
            self.scaler.scale(torch.zeros(()))  # it begins with its first loss
            self.scaler.update(1024.0)
            return look(1, -1.0)
        if step == 2:
            raise KeyboardInterrupt
        return advance(self, step)

    monkeypatch.setattr(Trainer, "advance", change_scale)
    with pytest.raises(KeyboardInterrupt):
        refine(bench)

    monkeypatch.setattr(Trainer, "advance", lambda self, step: stop_with(self.scaler.state_dict()))
    with pytest.raises(Stopped) as stopped:
        refine(make_bench(merged_weights, tmp_path, config))
    assert stopped.value.args[0]["scale"] == 1024


class Stopped(Exception):
    """With what there was to see."""


def stop_with(seen: object) -> NoReturn:
    raise Stopped(seen)


def test_no_epochs_leave_the_module_as_it_is(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick())

    refined = refine(bench)

    assert refined.history == ()
    assert refined.best is None
    for name, tensor in bench.model.state_dict().items():
        assert torch.equal(tensor, merged_weights[name])


def test_a_layout_is_kept_through_training(
    merged_weights: dict[str, Tensor], tmp_path: Path
) -> None:
    bench = make_bench(merged_weights, tmp_path, quick(channels_last=True))

    trainer = make_trainer(bench)

    convolution = next(m for m in trainer.model.modules() if isinstance(m, nn.Conv2d))
    assert convolution.weight.is_contiguous(memory_format=torch.channels_last)
