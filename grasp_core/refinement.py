"""Fine-tune on the target, keep the best of some looks at validation, survive any interruption.

Each learning rate that is tried is a trial in a folder of its own. All of them begin with the same
weights, and one that was interrupted goes on at its last look.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import count, islice
from pathlib import Path
from typing import Protocol

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from grasp_core.checkpoints import Checkpoint, digest_tensors, open_sealed, write_sealed
from grasp_core.config import LEARNING_RATES, Frozen, RefineConfig
from grasp_core.errors import CheckpointError
from grasp_core.evaluation import evaluate
from grasp_core.gradients import micro_batches
from grasp_core.report import LearningRate, Look, MergeReport, ProbedRate, StageRecord
from grasp_core.schedule import Schedule
from grasp_core.seeds import derive_seed
from grasp_core.state import require_kept
from grasp_core.tasks import Batch
from grasp_core.workbench import Workbench

START_FILE = "start.safetensors"
STATE_FILE = "state.safetensors"
BEST_FILE = "best.safetensors"
TRIAL = "trial"  # and its number: its folder
TICK_STEPS = 10  # reading the loss waits for the device, so not at every step
MODEL, MOMENTS = "model/", ("exp_avg", "exp_avg_sq")  # prefixes of what a state holds


class Start(Frozen):
    """What a method merged. The weights with which every trial begins lie in the same file."""

    fold_id: str
    weights: str  # a digest of them
    merge: MergeReport
    stages: tuple[StageRecord, ...] = ()

    @classmethod
    def load(cls, bench: Workbench) -> Start | None:
        """What an earlier attempt at the very same fold has left, if it came so far."""
        try:
            saved = open_sealed(bench.work_dir / START_FILE)
            start = cls.model_validate_json(saved.metadata.get("start", ""))
            require_kept(bench.work_dir, start.merge.files)
        except (CheckpointError, ValidationError):
            return None  # nothing there, or nothing that could be gone on with
        return start if start.fold_id == bench.fold_id else None

    @classmethod
    def save(cls, bench: Workbench, merge: MergeReport) -> Start:
        """With the weights that the module has."""
        weights = bench.model.state_dict()
        start = cls(
            fold_id=bench.fold_id,
            weights=digest_tensors(weights),
            merge=merge,
            stages=bench.recorder.stages_of(bench.candidate),
        )
        write_sealed(bench.work_dir / START_FILE, weights, {"start": start.model_dump_json()})
        return start


class TrialState(Frozen):
    """How far a trial is: all that its next step depends on besides the tensors, which lie in the
    same file."""

    fold_id: str
    rate: float
    history: tuple[Look, ...] = ()
    scaler: dict[str, float] = {}  # of float16 losses; empty for other formats


class Refined(Frozen):
    """How a refinement went."""

    history: tuple[Look, ...] = ()
    best: Look | None = None
    resumed_from: Look | None = None
    learning_rate: LearningRate | None = None

    def best_until(self, step: int) -> float:
        """The best mean log-likelihood that was seen up to a step."""
        looks = (look.val_log_likelihood for look in self.history if look.step <= step)
        return max(map(_or_worst, looks), default=-math.inf)


class Refinement:
    """Of what the module was merged to, and from where an earlier attempt was."""

    def __init__(self, bench: Workbench, rates: Sequence[float]) -> None:
        """With several rates, the best of them is found out."""
        config = bench.config.refine
        self._bench = bench
        self._schedule = Schedule(config, bench.task.training_steps(config.batch_size))
        tries = rates if self._schedule.steps else ()
        self._trials = [
            Trial(bench, self._schedule, n, len(tries), rate) for n, rate in enumerate(tries, 1)
        ]

    def run(self, share: float = 1.0) -> None:
        """Up to the first look beyond that share of the budget; a probe, always to its end."""
        if not self._trials:
            return
        probing = len(self._trials) > 1
        until = self._schedule.steps if probing else self._schedule.look_after(share)
        with self._bench.recorder.stage("refine"):
            for trial in self._trials:
                trial.run(until)

    @property
    def best_file(self) -> str:
        """With the weights of the best look, below the work folder."""
        if self._winner is None:
            return START_FILE
        return self._winner.best_file.relative_to(self._bench.work_dir).as_posix()

    def describe(self) -> Refined:
        """Wherever it was cut off: trials without a look say nothing, nor does half a probe."""
        winner = self._winner
        if winner is None:
            return Refined()
        whole = len(self._trials) > 1 and all(trial.is_over() for trial in self._trials)
        probe = [trial.describe() for trial in self._trials] if whole else []
        resumed = (trial.resumed_from for trial in self._trials if trial.resumed_from)
        return Refined(
            history=winner.history,
            best=winner.best,
            resumed_from=next(resumed, None),
            learning_rate=LearningRate(rate=winner.rate, probe=tuple(probe)),
        )

    @property
    def _winner(self) -> Trial | None:
        begun = (trial for trial in self._trials if trial.history)
        return max(begun, key=lambda trial: _or_worst(trial.best.val_log_likelihood), default=None)


def choose_rates(config: RefineConfig, known: float | None) -> tuple[float, ...]:
    """What to refine with: several, where it is `auto` and none is known."""
    if config.lr != "auto":
        return (config.lr,)
    return LEARNING_RATES if known is None else (known,)


def _or_worst(value: float | None) -> float:
    return -math.inf if value is None else value


class Trial:
    """Refinement with one learning rate."""

    def __init__(
        self, bench: Workbench, schedule: Schedule, number: int, count: int, rate: float
    ) -> None:
        self.rate = rate
        self.folder = bench.work_dir / f"{TRIAL}{number}"
        self.resumed_from: Look | None = None
        self._bench, self._schedule = bench, schedule
        self._start_file = bench.work_dir / START_FILE
        self._number, self._count = number, count
        self._until, self._begun = schedule.steps, False
        self._state = TrialState(fold_id=bench.fold_id, rate=rate)

    @property
    def history(self) -> tuple[Look, ...]:
        return self._state.history

    @property
    def best(self) -> Look:
        """The first of the best looks."""
        field = self._schedule.criterion
        return max(self.history, key=lambda look: _or_worst(getattr(look, field)))

    @property
    def best_file(self) -> Path:
        return self._start_file if self.best.step == 0 else self.folder / BEST_FILE

    def is_over(self) -> bool:
        if not self.history:
            return False
        patience = self._bench.config.refine.patience
        since_best = len(self.history) - 1 - self.history.index(self.best)
        out_of_patience = patience is not None and since_best >= patience
        return out_of_patience or self.history[-1].step == self._schedule.steps

    def describe(self) -> ProbedRate:
        return ProbedRate(
            rate=self.rate,
            step=self.best.step,
            val_accuracy=self.best.val_accuracy,
            val_log_likelihood=self.best.val_log_likelihood,
        )

    def run(self, until: int) -> None:
        """To so many steps, from where an earlier attempt was, if there was one."""
        self.folder.mkdir(exist_ok=True)
        self._recall()
        self._until = until
        if self.is_over() or (self.history and self.history[-1].step >= until):
            return
        if self.history and self.resumed_from is None and not self._begun:
            self.resumed_from = self.history[-1]
        self._begun = True
        trainer = Trainer(self._bench, self._schedule, self._state, self._saved(), self._tick)
        for step in self._schedule.looks[len(self.history) :]:
            look = trainer.advance(step)
            update = {"history": (*self.history, look), "scaler": trainer.scaler.state_dict()}
            self._state = self._state.model_copy(update=update)
            if self.best is look and step > 0:
                write_sealed(self.folder / BEST_FILE, trainer.model.state_dict(), {})
            # At both ends there is nothing to go on from that does not lie beside it.
            tensors = {} if step == 0 or self.is_over() else trainer.tensors()
            metadata = {"trial": self._state.model_dump_json()}
            write_sealed(self.folder / STATE_FILE, tensors, metadata)
            if self.is_over() or step >= until:
                break

    def _saved(self) -> Checkpoint:
        """Where the tensors of the newest look lie."""
        begun = bool(self.history) and self.history[-1].step > 0
        return Checkpoint(self.folder / STATE_FILE if begun else self._start_file)

    def _recall(self) -> None:
        """What an earlier attempt at the very same trial has left, if it is whole."""
        before = self._state
        try:
            saved = open_sealed(self.folder / STATE_FILE)
            state = TrialState.model_validate_json(saved.metadata.get("trial", ""))
            if (state.fold_id, state.rate) == (before.fold_id, before.rate):
                self._state = state
                open_sealed(self.best_file)
        except (CheckpointError, ValidationError):
            self._state = before

    def _tick(self, step: int, **metrics: float) -> None:
        if self._count > 1:
            metrics |= {"trial": self._number, "trials": self._count}
        share = (self._number - 1 + step / max(self._until, 1)) / self._count
        steps = self._schedule.steps
        metrics |= {"epochs": math.ceil(steps / self._schedule.steps_per_epoch)}
        self._bench.recorder.tick(share, step=step, steps=steps, **metrics)


class Tick(Protocol):
    """Hears of steps that were made."""

    def __call__(self, step: int, **metrics: float) -> None: ...


class Trainer:
    """AdamW on the module, from look to look, each of which has a seed of its own."""

    def __init__(
        self, bench: Workbench, schedule: Schedule, state: TrialState, saved: Checkpoint, tick: Tick
    ) -> None:
        """As it was when it had come as far as `state`, whose tensors are `saved`."""
        self.bench, self.schedule, self.tick = bench, schedule, tick
        self.steps = state.history[-1].step if state.history else 0
        self.rate = state.rate
        prefix = MODEL if self.steps > 0 else ""
        bench.load({name: saved[prefix + name].clone() for name in bench.model.state_dict()})
        self.model = bench.runtime.lay_out(bench.model)
        self.frozen = _freeze(self.model, bench.config.refine.freeze)
        self.forward = bench.runtime.compiled(self.model)
        device = bench.runtime.device.type
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=state.rate,
            weight_decay=bench.config.refine.weight_decay,
            fused=device in ("cpu", "cuda"),
        )
        # Half the range of bfloat16 needs no scaling; float16 does.
        self.scaler = torch.amp.GradScaler(
            device, enabled=bench.runtime.autocast_dtype == torch.float16
        )
        if self.steps > 0:
            self._restore_optimizer(state, saved)
        self.batches = _training_batches(bench, schedule, self.steps)

    def advance(self, step: int) -> Look:
        """Train until so many steps are done, and look at validation."""
        bench, config = self.bench, self.bench.config.refine
        loss = self._train(step) if step > self.steps else None
        metrics = evaluate(self.forward, bench.task, "val", bench.runtime, config.batch_size)
        self.tick(self.steps, val_accuracy=metrics.accuracy)
        return Look(
            step=step,
            epoch=step / self.schedule.steps_per_epoch,
            lr=self.rate * self.schedule.factor(max(step - 1, 0)),
            train_loss=loss,
            val_accuracy=metrics.accuracy,
            val_log_likelihood=metrics.log_likelihood,
        )

    def _train(self, look: int) -> float:
        """Up to the next look; returns the mean loss."""
        torch.manual_seed(derive_seed(self.bench.seed, "refine", self.schedule.part(look)))
        _train_mode(self.model, self.frozen)
        total = torch.zeros((), device=self.bench.runtime.device)
        steps = look - self.steps
        for done, batch in enumerate(islice(self.batches, steps), 1):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * self.schedule.factor(self.steps)
            total += self._step(self.bench.runtime.place(batch))
            if (done - 1) % TICK_STEPS == 0:
                epoch = 1 + (self.steps - 1) // self.schedule.steps_per_epoch
                self.tick(self.steps, epoch=epoch, loss=float(total) / done)
        return float(total) / steps

    def _step(self, batch: Batch) -> Tensor:
        loss = torch.zeros((), device=self.bench.runtime.device)
        self.optimizer.zero_grad(set_to_none=True)
        for part, weight in micro_batches(batch, self.bench.config.micro_batch):
            with self.bench.runtime.autocast():
                part_loss = self.bench.task.loss(self.forward, part) * weight
            self.scaler.scale(part_loss).backward()
            loss += part_loss.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.steps += 1
        return loss

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments."""
        tensors = {f"{MODEL}{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment in MOMENTS:
                if parameter in self.optimizer.state:
                    tensors[f"{moment}/{name}"] = self.optimizer.state[parameter][moment]
        return tensors

    def _restore_optimizer(self, state: TrialState, saved: Checkpoint) -> None:
        self.scaler.load_state_dict(state.scaler)
        for name, parameter in self.model.named_parameters():
            if f"{MOMENTS[0]}/{name}" in saved:
                self.optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.steps), device=parameter.device),
                    **{m: _like(parameter, saved[f"{m}/{name}"]) for m in MOMENTS},
                }


def _training_batches(bench: Workbench, schedule: Schedule, step: int) -> Iterator[Batch]:
    """From a step on, epoch after epoch, without end. (It does not know the trainer, which would
    then stay in memory, with all its moments, until the garbage collector comes by.)"""
    config, length = bench.config.refine, schedule.steps_per_epoch
    epochs, skipped = divmod(step, length)
    for epoch in count(epochs + 1):
        seed = derive_seed(bench.seed, "refine", epoch)
        batches = bench.task.training_batches(config.batch_size, seed, config.augmentation)
        yield from islice(batches, skipped, length)
        skipped = 0


def _like(parameter: Tensor, saved: Tensor) -> Tensor:
    return torch.empty_like(parameter).copy_(saved)


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> list[nn.Module]:
    """Stop the gradients of what matches; returns the modules that are frozen as a whole."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(fnmatch(name, pattern) for pattern in patterns))
    return [module for module in model.modules() if _is_frozen(module)]


def _is_frozen(module: nn.Module) -> bool:
    parameters = list(module.parameters())
    return bool(parameters) and not any(p.requires_grad for p in parameters)


def _train_mode(model: nn.Module, frozen: list[nn.Module]) -> None:
    """Train mode, but for frozen layers, whose statistics stay as they are too."""
    model.train()
    for module in frozen:
        module.eval()
