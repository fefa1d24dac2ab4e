"""Time of a fold's stages 1-4 beside the passes that they cannot do without, and of a whole fold.

    python bench/fold_speed.py [--quick] [--repeats N] [--data PATH]

Stages 1-4 are what the report calls target_gradients, source_gradients and transfer. The floor
under them is two forward and backward passes (one per model, plain timm models in eval mode, on
batches of the same size) and one read of both files. The default `norm_stats` measures batch-norm
statistics anew after the transfer: one more forward pass, which is not among the paper's stages.
Models with batch norm are therefore timed with and without it; the promise is about those without.

The whole fold stands beside the naive one: two models, two sets of gradients, deepcopy of the best
epoch, and neither a gate, nor a baseline, nor a state to go on from after a crash.

One thread, warmed up, in turns; ratios are medians over the turns. Stages 1-4 and their floor are
measured in processor time, which other processes disturb less; they wait for nothing. A whole fold
also waits for the disk, so there it is the clock's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bench.common import (
    CASES,
    Ordinary,
    Promise,
    Setting,
    prepare,
    print_table,
    say,
    settle,
)
from grasp_core.config import FoldConfig, NormStats, RefineConfig
from grasp_core.progress import Progress
from grasp_core.report import FoldReport

LIMIT = 1.2  # stages 1-4 / (two passes + one read)
STAGES = ("target_gradients", "source_gradients", "transfer")
BATCHES = 2  # for alignment
STEPS, EPOCHS = 4, 2

Stages = dict[str, float]  # seconds, by name


def processor_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def clock_seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def stages_1_to_4(setting: Setting, config: FoldConfig) -> float:
    """Processor time of stages 1-4 of a fold, which tells its progress as each begins and ends."""
    marks: dict[str, list[float]] = {}

    def mark(progress: Progress) -> None:
        marks.setdefault(progress.stage, []).append(time.process_time())

    setting.fold(config, mark)
    return sum(marks[stage][-1] - marks[stage][0] for stage in STAGES)


def config_for(setting: Setting, norm_stats: NormStats, epochs: int) -> FoldConfig:
    size = setting.case.batch_size
    return FoldConfig(
        alignment_batches=BATCHES,
        alignment_batch_size=size,
        norm_stats=norm_stats,
        refine=RefineConfig(epochs=epochs, batch_size=size),
    )


class Floor:
    """Two forward and backward passes and one read of both files, with models that are there."""

    def __init__(self, setting: Setting) -> None:
        self.files = (setting.merged, setting.source)
        self.models = [setting.model(file) for file in self.files]
        self.ordinary = Ordinary(setting, 0, BATCHES)

    def __call__(self) -> None:
        for file, model in zip(self.files, self.models, strict=True):
            file.read_bytes()
            self.ordinary.gradients(model)
            model.zero_grad()


def stages_over_floor(setting: Setting, norm_stats: NormStats, repeats: int) -> list[list[float]]:
    """Per turn: seconds of the floor, seconds of stages 1-4, and their ratio."""
    floor, config = Floor(setting), config_for(setting, norm_stats, epochs=0)
    turns = []
    for turn in range(-1, repeats):  # the first one warms up
        say(f"{setting.case}: stages 1-4, {norm_stats}, turn {turn + 1} of {repeats}")
        least = processor_seconds(floor)
        ours = stages_1_to_4(setting, config)
        turns.append([least, ours, ours / least])
    return turns[1:]


def whole_over_naive(setting: Setting, repeats: int) -> tuple[list[list[float]], Stages]:
    """Per turn: seconds of the naive fold, of this fold, their ratio; and this fold's stages."""
    naive, config = Ordinary(setting, EPOCHS, BATCHES), config_for(setting, "recalibrate", EPOCHS)
    turns, reports = [], []
    for turn in range(-1, repeats):
        say(f"{setting.case}: whole fold, turn {turn + 1} of {repeats}")
        theirs = clock_seconds(naive.fold)
        ours = clock_seconds(lambda: reports.append(setting.fold(config)))
        turns.append([theirs, ours, ours / theirs])
    return turns[1:], median_stages(reports[1:])


def median_stages(reports: list[FoldReport]) -> Stages:
    seconds = [{stage.name: stage.seconds for stage in report.stages} for report in reports]
    return {name: median(s[name] for s in seconds) for name in seconds[0]}


def has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def medians(turns: list[list[float]]) -> list[float]:
    return [median(column) for column in zip(*turns, strict=True)]


def print_stages_1_to_4(settings: list[Setting], repeats: int) -> list[Promise]:
    rows, promises = [], []
    for setting in settings:
        recalibrates = has_batch_norm(setting.model(setting.merged))
        ways: tuple[NormStats, ...] = ("keep", "recalibrate") if recalibrates else ("recalibrate",)
        for norm_stats in ways:
            floor, ours, ratio = medians(stages_over_floor(setting, norm_stats, repeats))
            label = norm_stats if recalibrates else "no batch norm"
            rows.append((setting.case, label, f"{floor:.2f}", f"{ours:.2f}", f"{ratio:.2f}"))
            if label != "recalibrate":
                promises.append(Promise(f"{setting.case}: stages 1-4 / floor", LIMIT, ratio))
    heads = ("", "norm_stats", "two passes + read", "stages 1-4", "ratio")
    print_table(f"Stages 1-4, {BATCHES} alignment batches: processor seconds", heads, rows)
    return promises


def print_whole(settings: list[Setting], repeats: int) -> None:
    rows, columns = [], {}
    for setting in settings:
        turns, columns[setting.case.architecture] = whole_over_naive(setting, repeats)
        theirs, ours, ratio = medians(turns)
        rows.append((setting.case, f"{theirs:.2f}", f"{ours:.2f}", f"{ratio:.2f}"))
    print_table(
        f"Whole fold, {EPOCHS} epochs of {STEPS} steps: seconds",
        ("", "naive fold", "this fold", "ratio"),
        rows,
    )
    names = list(next(iter(columns.values())))
    print_table(
        "Where this fold's time goes: seconds",
        ("stage", *columns),
        [(name, *(f"{stages[name]:.2f}" for stages in columns.values())) for name in names],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="mobilevit_xs only")
    parser.add_argument("--repeats", type=int, default=3, help="turns that count (default 3)")
    parser.add_argument("--data", type=Path, help="your own images instead of noise")
    args = parser.parse_args()
    cases = CASES[:1] if args.quick else CASES
    with TemporaryDirectory(prefix="grasp-bench-") as folder:
        settings = [prepare(c, Path(folder, c.architecture), args.data, STEPS) for c in cases]
        promises = print_stages_1_to_4(settings, args.repeats)
        print_whole(settings, args.repeats)
    return settle(promises)


if __name__ == "__main__":
    raise SystemExit(main())
