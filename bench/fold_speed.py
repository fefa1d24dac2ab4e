"""Time of a fold's stages 1-4 beside the passes that they cannot do without, and of a whole fold.

    python bench/fold_speed.py [--quick] [--repeats N] [--data PATH]

Stages 1-4 are what the report calls target_gradients, source_gradients and transfer. The floor
under them is two forward and backward passes (one per model, plain timm models in eval mode, on
batches of the same size) and one read of both files. Measuring batch-norm statistics anew, one more
forward pass that the paper does not have, is a stage of its own and stands beside them.

Refinement for as many steps as are usual, with its eleven looks at validation and all that it
keeps to go on from, stands beside plain fine-tuning for as many steps, which never looks and saves
once.

The whole fold stands beside the naive one: two models, two sets of gradients, deepcopy of the best
epoch, and neither a gate, nor a baseline, nor a state to go on from after a crash.

Folds of several candidates, whole, stand beside plain fine-tuning with the budget of one of them:
one alone, the four that are the default, and those with a heat of a quarter.

One thread, warmed up, in turns; ratios are medians over the turns. Stages 1-4 and their floor are
measured in processor time, which other processes disturb less; so are refinement and races. The
fold beside the naive one also waits for the disk, so there it is the clock's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

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
from grasp_core.config import FoldConfig, RefineConfig
from grasp_core.methods.grasp import GraspConfig
from grasp_core.parameters import parse_config
from grasp_core.progress import Progress
from grasp_core.report import FoldReport

LIMIT = 1.2  # stages 1-4 / (two passes + one read)
STAGES = ("target_gradients", "source_gradients", "transfer")
BATCHES = 2  # for alignment
STEPS, EPOCHS = 4, 2
REFINE_STEPS = 100
REFINE_LIMIT = 1.05  # refinement / plain fine-tuning for as many steps
RACES: dict[str, dict[str, object]] = {
    "source alone": {"candidates": ["source"]},
    "keep, source, mean, grasp": {},
    "… heat 0.25": {"heat": 0.25},
}
AROUND = 0.3  # of plain fine-tuning: what a fold does beside refining its candidates

Stages = dict[str, float]  # seconds, by name


def processor_seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def clock_seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def stage_processor_seconds(setting: Setting, config: FoldConfig) -> Stages:
    """From the fold's progress, which it reports as every stage begins and ends."""
    marks: dict[str, list[float]] = {}

    def mark(progress: Progress) -> None:
        marks.setdefault(progress.stage, []).append(time.process_time())

    setting.fold(config, mark)
    return {stage: times[-1] - times[0] for stage, times in marks.items()}


def config_for(setting: Setting, epochs: int) -> FoldConfig:
    size = setting.case.batch_size
    return FoldConfig(
        candidates=(GraspConfig(),),
        alignment_batches=BATCHES,
        alignment_batch_size=size,
        refine=RefineConfig(epochs=epochs, lr=5e-5, batch_size=size, schedule="epoch"),
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


def stages_over_floor(setting: Setting, repeats: int) -> list[list[float]]:
    """Per turn: seconds of the floor, of stages 1-4 and of recalibration; stages 1-4 / floor."""
    floor, config = Floor(setting), config_for(setting, epochs=0)
    turns = []
    for turn in range(-1, repeats):  # the first one warms up
        say(f"{setting.case}: stages 1-4, turn {turn + 1} of {repeats}")
        least = processor_seconds(floor)
        stages = stage_processor_seconds(setting, config)
        ours = sum(stages[name] for name in STAGES)
        turns.append([least, ours, stages.get("recalibrate", 0.0), ours / least])
    return turns[1:]


def whole_over_naive(setting: Setting, repeats: int) -> tuple[list[list[float]], Stages]:
    """Per turn: seconds of the naive fold, of this fold, their ratio; and this fold's stages."""
    naive, config = Ordinary(setting, EPOCHS, BATCHES), config_for(setting, EPOCHS)
    turns, reports = [], []
    for turn in range(-1, repeats):
        say(f"{setting.case}: whole fold, turn {turn + 1} of {repeats}")
        theirs = clock_seconds(naive.fold)
        ours = clock_seconds(lambda: reports.append(setting.fold(config)))
        turns.append([theirs, ours, ours / theirs])
    return turns[1:], median_stages(reports[1:])


def refinement_over_plain(setting: Setting, repeats: int) -> list[list[float]]:
    """Per turn: seconds of plain fine-tuning, of refinement, and their ratio."""
    plain = Ordinary(setting, REFINE_STEPS // STEPS)
    refine = RefineConfig(steps=REFINE_STEPS, lr=5e-5, batch_size=setting.case.batch_size)
    config = config_for(setting, epochs=0).model_copy(update={"refine": refine})
    turns = []
    for turn in range(-1, repeats):
        say(f"{setting.case}: refinement, turn {turn + 1} of {repeats}")
        theirs = processor_seconds(plain.train)
        ours = stage_processor_seconds(setting, config)["refine"]
        turns.append([theirs, ours, ours / theirs])
    return turns[1:]


def races_over_plain(setting: Setting, repeats: int) -> dict[str, list[list[float]]]:
    """By race, per turn: processor seconds of plain fine-tuning, just before and after, and of the
    race; their ratio; how many refinements it was."""
    plain = Ordinary(setting, REFINE_STEPS // STEPS)
    turns: dict[str, list[list[float]]] = {name: [] for name in RACES}
    for turn in range(repeats):
        before = processor_seconds(plain.train)
        for name, race in RACES.items():
            say(f"{setting.case}: {name}, turn {turn + 1} of {repeats}")
            reports: list[FoldReport] = []
            config = race_config(setting, race)
            ours = processor_seconds(partial(run_race, setting, config, reports))
            after = processor_seconds(plain.train)
            theirs, before = (before + after) / 2, after
            turns[name].append([theirs, ours, ours / theirs, refinements(reports[0])])
    return turns


def run_race(setting: Setting, config: FoldConfig, reports: list[FoldReport]) -> None:
    with TemporaryDirectory(dir=setting.folder) as folder:
        reports.append(setting.fold(config, files_output=Path(folder)))


def race_config(setting: Setting, race: dict[str, object]) -> FoldConfig:
    size = setting.case.batch_size
    refine = {"steps": REFINE_STEPS, "lr": 5e-5, "batch_size": size}
    batches = {"alignment_batches": BATCHES, "alignment_batch_size": size}
    return parse_config({"refine": refine, **batches, **race})


def refinements(report: FoldReport) -> float:
    """How many whole budgets its candidates used."""
    return sum(candidate.history[-1].step / REFINE_STEPS for candidate in report.candidates)


def median_stages(reports: list[FoldReport]) -> Stages:
    seconds = [{stage.name: stage.seconds for stage in report.stages} for report in reports]
    return {name: median(s[name] for s in seconds) for name in seconds[0]}


def medians(turns: list[list[float]]) -> list[float]:
    return [median(column) for column in zip(*turns, strict=True)]


def print_stages_1_to_4(settings: list[Setting], repeats: int) -> list[Promise]:
    rows, promises = [], []
    for setting in settings:
        *parts, ratio = medians(stages_over_floor(setting, repeats))
        rows.append((setting.case, *(f"{part:.2f}" for part in parts), f"{ratio:.2f}"))
        promises.append(Promise(f"{setting.case}: stages 1-4 / floor", LIMIT, ratio))
    print_table(
        f"Stages 1-4, {BATCHES} alignment batches: processor seconds",
        ("", "two passes + read", "stages 1-4", "recalibrate", "stages 1-4 / floor"),
        rows,
    )
    return promises


def print_refinement(settings: list[Setting], repeats: int) -> list[Promise]:
    rows, promises = [], []
    for setting in settings:
        theirs, ours, ratio = medians(refinement_over_plain(setting, repeats))
        rows.append((setting.case, f"{theirs:.2f}", f"{ours:.2f}", f"{ratio:.2f}"))
        promises.append(Promise(f"{setting.case}: refinement / plain", REFINE_LIMIT, ratio))
    print_table(
        f"Refinement, {REFINE_STEPS} steps: processor seconds",
        ("", "plain fine-tuning", "refinement", "ratio"),
        rows,
    )
    return promises


def print_races(settings: list[Setting], repeats: int) -> list[Promise]:
    rows, promises = [], []
    for setting in settings:
        for name, turns in races_over_plain(setting, repeats).items():
            theirs, ours, ratio, budgets = medians(turns)
            figures = (f"{theirs:.2f}", f"{ours:.2f}", f"{budgets:.2f}", f"{ratio:.2f}")
            rows.append((setting.case, name, *figures))
            text = f"{setting.case}: {name} / plain"
            promises.append(Promise(text, budgets + AROUND, ratio))
    print_table(
        f"Whole folds of {REFINE_STEPS} steps for each candidate: processor seconds",
        ("", "candidates", "plain fine-tuning", "fold", "budgets used", "fold / plain"),
        rows,
    )
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
    names = list(next(iter(columns.values())))  # the first case recalibrates, so it has all stages
    print_table(
        "Where this fold's time goes: seconds",
        ("stage", *columns),
        [
            (name, *(f"{stages.get(name, 0.0):.2f}" for stages in columns.values()))
            for name in names
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="mobilevit_xs only")
    parser.add_argument("--repeats", type=int, default=5, help="turns that count (default 5)")
    parser.add_argument("--data", type=Path, help="your own images instead of noise")
    args = parser.parse_args()
    cases = CASES[:1] if args.quick else CASES
    with TemporaryDirectory(prefix="grasp-bench-") as folder:
        settings = [prepare(c, Path(folder, c.architecture), args.data, STEPS) for c in cases]
        promises = print_stages_1_to_4(settings, args.repeats)
        promises += print_refinement(settings, max(1, args.repeats // 2))
        promises += print_races(settings[:1], max(1, args.repeats // 2))
        print_whole(settings, max(1, args.repeats // 2))  # long, and promises nothing
    return settle(promises)


if __name__ == "__main__":
    raise SystemExit(main())
