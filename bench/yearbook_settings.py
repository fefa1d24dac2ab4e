"""Which settings make the best default? Real portraits, real ImageNet weights, sources per period.

Three sources are trained on three periods of the Yearbook portraits, from one set of ImageNet
weights; the fourth period, of which only a little is labelled, is the target. Every row folds the
same sources in the same order under other settings. `merge only` is the validation accuracy right
after the last transfer, without its refinement.

    python bench/yearbook_settings.py --data FOLDER [--task gender|decade] [--target 0..3]

FOLDER holds yearbook64.npz and tf_efficientnet_lite0_in1k.pth.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn

from grasp_core import (
    CheckpointInfo,
    FoldConfig,
    FoldReport,
    ModelSpec,
    Task,
    build_model,
    fold,
    load_weights,
    open_task,
    parse_config,
    write_checkpoint,
)

CLASSES = {"gender": ("F", "M"), "decade_label": ("earlier", "later")}
SETTINGS: dict[str, dict[str, Any]] = {
    "fine-tuning only": {"tau": 1.0},
    "paper": {"preset": "paper"},
    "tau 0.3": {"tau": 0.3},
    "auto": {},
    "auto, keep": {"norm_stats": "keep"},
    "auto, follow": {"norm_stats": "follow"},
    "auto, blend 0.5": {"blend": 0.5},
    "tau 0": {"tau": 0.0},
    "tau 0, blend 0.5": {"tau": 0.0, "blend": 0.5},
    "element": {"granularity": "element"},
    "element, blend 0.5": {"granularity": "element", "blend": 0.5},
    "channel": {"granularity": "channel"},
    "channel, blend 0.5": {"granularity": "channel", "blend": 0.5},
    "auto, 1 batch": {"alignment_batches": 1},
    "auto, all batches": {"alignment_batches": 1000},
}
# The paper's budget for all rows: they differ in what is transferred.
BASE: dict[str, Any] = {
    "tau": "auto",
    "norm_stats": "recalibrate",
    "refine": {"schedule": "epoch", "epochs": 3, "lr": 5e-5},
}


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(1)
    label = "decade_label" if args.task == "decade" else "gender"
    spec = ModelSpec(
        architecture="tf_efficientnet_lite0",
        classes=CLASSES[label],
        preprocessing={"image_size": 64, "crop_pct": 1.0},
    )
    with TemporaryDirectory() as temporary:
        work = Path(args.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        periods = [period for period in range(4) if period != args.target]
        sources = [train_source(args.data, work, spec, label, p, args.epochs) for p in periods]
        target = write_period(args.data, work, label, args.target, args.examples)
        task = open_task(target, spec, cache_dir=work / "cache")
        compare_settings(spec, sources, task, work, args.only)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", choices=("gender", "decade"), default="gender")
    parser.add_argument("--target", type=int, choices=range(4), default=3, help="period")
    parser.add_argument("--examples", type=int, default=640, help="labelled target images")
    parser.add_argument("--epochs", type=int, default=2, help="to train a source")
    parser.add_argument("--work", help="folder to keep sources in, for another run")
    parser.add_argument("--only", nargs="*", help="settings whose names contain one of these")
    return parser.parse_args()


def write_period(
    data: Path, work: Path, label: str, period: int, examples: int | None = None
) -> Path:
    """One period as a target file; at most `examples` training images of it."""
    path = work / f"{label}-{period}-{examples}.npz"
    with np.load(data / "yearbook64.npz") as yearbook:
        split, chosen = yearbook["split"], yearbook["period"] == period
        training = np.flatnonzero(chosen & (split == 0))
        left_out = np.random.default_rng(0).permutation(training)[examples or len(training) :]
        chosen[left_out] = False
        np.savez(
            path,
            images=yearbook["images"][chosen],
            labels=yearbook[label][chosen].astype(np.int64),
            split=split[chosen].astype(np.int64),
            classes=np.array(CLASSES[label]),
        )
    return path


def train_source(
    data: Path, work: Path, spec: ModelSpec, label: str, period: int, epochs: int
) -> Path:
    """ImageNet weights fine-tuned on a whole period, as another site would have done."""
    path = work / f"{label}-{period}-{epochs}.safetensors"
    if path.exists():
        return path
    task = open_task(write_period(data, work, label, period), spec, cache_dir=work / "cache")
    model = imagenet_model(data, spec).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.01)
    for epoch in range(epochs):
        for step, batch in enumerate(task.training_batches(32, epoch, {})):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
            print(
                f"\rsource {period}: epoch {epoch} step {step} {loss:.3f}  ",
                end="",
                file=sys.stderr,
            )
    write_checkpoint(path, model.state_dict(), CheckpointInfo(classes=spec.classes))
    return path


def imagenet_model(data: Path, spec: ModelSpec) -> nn.Module:
    weights = torch.load(data / "tf_efficientnet_lite0_in1k.pth", weights_only=True)
    random = torch.Generator().manual_seed(0)
    weights["classifier.weight"] = 0.01 * torch.randn(len(spec.classes), 1280, generator=random)
    weights["classifier.bias"] = torch.zeros(len(spec.classes))
    model = build_model(spec)
    load_weights(model, {n: t.clone() for n, t in weights.items()}, torch.device("cpu"))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # the architecture's 0.01 lags far behind in so short a training
    return model


def compare_settings(
    spec: ModelSpec,
    sources: list[Path],
    task: Task,
    work: Path,
    only: list[str] | None,
) -> None:
    first = fold(
        spec,
        sources[0],
        task,
        work / "first.safetensors",
        config=parse_config(BASE),
        force=True,
    )
    print(f"first source alone, refined: {describe(first)}")
    print(f"{'settings':34}  {'transferred':15}  {'merge only':10}  {'val':13}  test")
    for name, values in SETTINGS.items():
        if only and not any(part in name for part in only):
            continue
        config = parse_config(values if "preset" in values else BASE | values)
        reports = fold_all(spec, sources[1:], task, work, config)
        shares = " ".join(f"{r.transferred_share or 0:6.1%}" for r in reports)
        merge_only = accuracy_of_merge(spec, sources[-1], task, work, config, len(sources) - 1)
        val = " ".join(f"{accuracy(r, 'val'):.3f}" for r in reports)
        test = " ".join(f"{accuracy(r, 'test'):.3f}" for r in reports)
        print(f"{name:34}  {shares:15}  {merge_only:10.3f}  {val:13}  {test}", flush=True)


def fold_all(
    spec: ModelSpec, sources: list[Path], task: Task, work: Path, config: FoldConfig
) -> list[FoldReport]:
    reports, merged = [], work / "first.safetensors"
    for number, source in enumerate(sources, start=2):
        output = work / f"version-{number}.safetensors"
        reports.append(fold(spec, source, task, output, merged=merged, config=config, force=True))
        merged = output
    return reports


def accuracy_of_merge(
    spec: ModelSpec, source: Path, task: Task, work: Path, config: FoldConfig, n: int
) -> float:
    """Validation accuracy after the last transfer, before its refinement."""
    unrefined = config.model_copy(
        update={"refine": config.refine.model_copy(update={"epochs": 0, "steps": None})}
    )
    merged = work / f"version-{n}.safetensors"
    output = work / "unrefined.safetensors"
    return accuracy(
        fold(spec, source, task, output, merged=merged, config=unrefined, force=True), "val"
    )


def accuracy(report: FoldReport, split: str) -> float:
    assert report.metrics.after is not None
    return (
        report.metrics.after.val.accuracy if split == "val" else report.metrics.after.test.accuracy
    )


def describe(report: FoldReport) -> str:
    return f"val {accuracy(report, 'val'):.3f} test {accuracy(report, 'test'):.3f}"


if __name__ == "__main__":
    main()
