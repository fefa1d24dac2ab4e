"""Fine-tune on the target, keep the best epoch, survive an interruption anywhere."""

from __future__ import annotations

import math
from fnmatch import fnmatch
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import Tensor, nn

from grasp_core.checkpoints import Checkpoint, open_sealed, write_sealed
from grasp_core.config import Frozen
from grasp_core.errors import CheckpointError
from grasp_core.evaluation import evaluate
from grasp_core.gradients import micro_batches
from grasp_core.report import EpochRecord, MergeReport, StageRecord
from grasp_core.seeds import derive_seed
from grasp_core.state import kept_state
from grasp_core.tasks import Batch
from grasp_core.workbench import Workbench

STATE_FILE = "state.safetensors"
BEST_FILE = "best.safetensors"
TICK_STEPS = 10  # reading the loss waits for the device, so not at every step
MOMENTS = ("exp_avg", "exp_avg_sq")


class RefineState(Frozen):
    """All that the next epoch depends on besides the tensors, which lie in the same file."""

    fold_id: str
    merge: MergeReport
    stages: tuple[StageRecord, ...] = ()
    history: tuple[EpochRecord, ...] = ()
    steps: int = 0
    scaler: dict[str, float] = {}  # of float16 losses; empty for other formats

    @property
    def best(self) -> EpochRecord | None:
        """The first epoch with the highest validation accuracy."""
        return max(self.history, key=lambda e: e.val_accuracy, default=None)

    @classmethod
    def load(cls, bench: Workbench) -> RefineState | None:
        """What an earlier attempt at the very same fold has left, if it finished an epoch."""
        try:
            saved = open_sealed(bench.work_dir / STATE_FILE)
            open_sealed(bench.work_dir / BEST_FILE)
            state = cls.model_validate_json(saved.metadata.get("state", ""))
            kept_state(bench.work_dir, state.merge.state_sha256)
        except (CheckpointError, ValidationError):
            return None  # nothing there, or nothing that could be gone on with
        return state if state.fold_id == bench.fold_id else None


class Refined(Frozen):
    """What was merged, and how its refinement went."""

    merge: MergeReport
    history: tuple[EpochRecord, ...] = ()
    best_epoch: int | None = None
    resumed_from_epoch: int | None = None


def refine(bench: Workbench, merge: MergeReport, interrupted: RefineState | None = None) -> Refined:
    """Fine-tune the module and leave it with the weights of its best epoch, as a mapped file."""
    state = interrupted or RefineState(
        fold_id=bench.fold_id, merge=merge, stages=tuple(bench.recorder.stages)
    )
    if bench.config.refine.epochs > 0:
        with bench.recorder.stage("refine"):
            state = _run_epochs(bench, state)
            bench.load(Checkpoint(bench.work_dir / BEST_FILE))
    return Refined(
        merge=merge,
        history=state.history,
        best_epoch=state.best.epoch if state.best else None,
        resumed_from_epoch=len(interrupted.history) if interrupted else None,
    )


def _run_epochs(bench: Workbench, state: RefineState) -> RefineState:
    trainer = Trainer.restored(bench, state) if state.history else Trainer(bench)
    while not _finished(bench, state):
        record = trainer.run_epoch(len(state.history) + 1)
        state = trainer.advanced(state, record)
        if state.best is record:
            write_sealed(bench.work_dir / BEST_FILE, bench.model.state_dict(), {})
        trainer.save(bench.work_dir / STATE_FILE, state)
    return state


def _finished(bench: Workbench, state: RefineState) -> bool:
    config, done = bench.config.refine, len(state.history)
    if done >= config.epochs:
        return True
    if config.patience is None or state.best is None:
        return False
    return done - state.best.epoch >= config.patience


class Trainer:
    """AdamW on the module, one epoch at a time; every epoch has a seed of its own."""

    def __init__(self, bench: Workbench) -> None:
        self.bench = bench
        self.model = bench.runtime.lay_out(bench.model)
        self.frozen = _freeze(self.model, bench.config.refine.freeze)
        self.forward = bench.runtime.compiled(self.model)
        device = bench.runtime.device.type
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=bench.config.refine.lr,
            weight_decay=bench.config.refine.weight_decay,
            fused=device in ("cpu", "cuda"),
        )
        # Half the range of bfloat16 needs no scaling; float16 does.
        self.scaler = torch.amp.GradScaler(
            device, enabled=bench.runtime.autocast_dtype == torch.float16
        )
        self.steps = 0

    def run_epoch(self, epoch: int) -> EpochRecord:
        bench, config = self.bench, self.bench.config.refine
        lr = config.lr * (1 + math.cos(math.pi * (epoch - 1) / config.epochs)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss = self._train(epoch)
        metrics = evaluate(self.forward, bench.task, "val", bench.runtime, config.batch_size)
        bench.recorder.tick(epoch / config.epochs, val_accuracy=metrics.accuracy)
        return EpochRecord(
            epoch=epoch,
            lr=lr,
            train_loss=loss,
            val_accuracy=metrics.accuracy,
            val_log_likelihood=metrics.log_likelihood,
        )

    def _train(self, epoch: int) -> float:
        """One pass over the train split; returns its mean loss."""
        bench, config = self.bench, self.bench.config.refine
        seed = derive_seed(bench.seed, "refine", epoch)
        torch.manual_seed(seed)
        _train_mode(self.model, self.frozen)
        total = torch.zeros((), device=bench.runtime.device)
        steps = bench.task.training_steps(config.batch_size)
        batches = bench.task.training_batches(config.batch_size, seed, config.augmentation)
        for step, batch in enumerate(batches):
            total += self._step(bench.runtime.place(batch))
            if step % TICK_STEPS == 0:
                fraction = (epoch - 1 + step / steps) / config.epochs
                bench.recorder.tick(fraction, epoch=epoch, loss=float(total) / (step + 1))
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

    def advanced(self, state: RefineState, record: EpochRecord) -> RefineState:
        """The state after one more epoch."""
        return state.model_copy(
            update={
                "history": (*state.history, record),
                "steps": self.steps,
                "scaler": self.scaler.state_dict(),
            }
        )

    def save(self, path: Path, state: RefineState) -> None:
        """Weights, moments and state in one file, replaced atomically."""
        tensors = {f"model/{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for moment in MOMENTS:
                if parameter in self.optimizer.state:
                    tensors[f"{moment}/{name}"] = self.optimizer.state[parameter][moment]
        write_sealed(path, tensors, {"state": state.model_dump_json()})

    @classmethod
    def restored(cls, bench: Workbench, state: RefineState) -> Trainer:
        """A trainer as it was when it saved `state`."""
        saved = Checkpoint(bench.work_dir / STATE_FILE)
        own = {name: saved[f"model/{name}"].clone() for name in bench.model.state_dict()}
        bench.load(own)
        trainer = cls(bench)
        trainer.steps = state.steps
        trainer.scaler.load_state_dict(state.scaler)
        for name, parameter in trainer.model.named_parameters():
            if f"{MOMENTS[0]}/{name}" in saved:
                trainer.optimizer.state[parameter] = {
                    "step": torch.tensor(float(state.steps), device=parameter.device),
                    **{m: _like(parameter, saved[f"{m}/{name}"]) for m in MOMENTS},
                }
        return trainer


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
