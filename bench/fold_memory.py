"""Peak private memory of a fold, beside plain fine-tuning and the naive fold.

    python bench/fold_memory.py [--quick] [--data PATH]

Each figure is the largest anonymous memory (RssAnon, sampled) that one fresh process reached while
it did one thing, from loading the files to writing the result, on the same images. Files that are
mapped into memory do not count: the kernel can drop their pages at any time. What Python and its
imports had taken before is part of every figure; the tables also give it, and, in brackets, the
ratios of what lies above it.

Between the blocks that it hands out, malloc keeps memory that was freed, as much as chance will
have it: where activations dominate, the same work varies by several per cent. So every process here
has a malloc that gives freed memory back at once, which is slower, and shows what is really held.

    plain        fine-tuning one timm model with AdamW
    fold         this fold, whole: gradients, transfer, refinement, evaluation, publication
    race         the same with the four candidates that are the default
    naive        two models with two sets of gradients; best epoch kept by deepcopy
    … 1-4        the same without refinement
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from bench.common import (
    CASES,
    MB,
    Case,
    InMemory,
    Ordinary,
    Promise,
    Setting,
    in_fresh_process,
    initial_weights,
    prepare,
    print_table,
    return_freed_memory,
    say,
    settle,
    write_source,
)
from grasp_core.config import FoldConfig, RefineConfig
from grasp_core.folding import fold
from grasp_core.memory import PeakMemory, private_bytes
from grasp_core.methods.grasp import GraspConfig
from grasp_core.parameters import parse_config

SAMPLE_S = 0.001
STEPS, EPOCHS = 3, 2  # the peak is reached in the second step, when AdamW has its moments
SEVERAL = 2  # alignment batches: more of them take longer, but no more memory
SOURCES = 16
MICRO_BATCH = 8

WHOLE_LIMIT = 1.05  # fold / plain
STAGES_LIMIT = 0.6  # fold 1-4 / naive 1-4, where weights dominate
FLAT_LIMIT = 1.02  # largest / smallest fold of the sequence


@dataclass(frozen=True)
class Usage:
    """Bytes of private memory: before the work, and at its peak."""

    imports: int
    peak: int

    @property
    def own(self) -> int:
        return self.peak - self.imports

    def __str__(self) -> str:
        return f"{self.peak / MB:.0f}"


def measure(work: Callable[[], object]) -> Usage:
    return_freed_memory()
    imports = private_bytes()
    with PeakMemory(torch.device("cpu"), SAMPLE_S) as peak:
        work()
    return Usage(imports, peak.bytes)


def config_for(
    case: Case, *, epochs: int = EPOCHS, batches: int = 1, micro_batch: int | None = None
) -> FoldConfig:
    return FoldConfig(
        candidates=(GraspConfig(),),
        alignment_batches=batches,
        alignment_batch_size=case.batch_size,
        micro_batch=micro_batch,
        refine=RefineConfig(epochs=epochs, lr=5e-5, batch_size=case.batch_size),
    )


def race_for(case: Case, *, epochs: int = EPOCHS) -> FoldConfig:
    common = config_for(case, epochs=epochs, batches=SEVERAL)
    return common.model_copy(update={"candidates": parse_config({}).candidates})


def measure_plain(setting: Setting) -> Usage:
    return measure(Ordinary(setting, EPOCHS).fine_tune)


def measure_naive(setting: Setting, batches: int) -> Usage:
    return measure(Ordinary(setting, EPOCHS, batches).fold)


def measure_naive_stages(setting: Setting, batches: int) -> Usage:
    return measure(Ordinary(setting, 0, batches).fold)


def measure_fold(setting: Setting, config: FoldConfig) -> Usage:
    return measure(lambda: setting.fold(config, files_output=setting.folder / "files"))


def measure_sequence(setting: Setting, sources: int) -> list[int]:
    """Peaks of one race after another, each into the version before, with what methods remember of
    it."""
    task = InMemory.load(setting.images, setting.spec.classes)
    config = race_for(setting.case, epochs=1)
    peaks = []
    files: dict[str, Path] = {}
    for number in range(1, sources + 1):
        return_freed_memory()
        with PeakMemory(torch.device("cpu"), SAMPLE_S) as peak:
            report = fold(
                setting.spec,
                numbered(setting, "source", number),
                task,
                numbered(setting, "version", number),
                merged=numbered(setting, "version", number - 1) if number > 1 else None,
                files=files,
                files_output=setting.folder / str(number),
                config=config,
                learning_rate=5e-5,
                force=True,
            )
        files = {file.name: setting.folder / str(number) / file.name for file in report.files}
        peaks.append(peak.bytes)
    return peaks


def numbered(setting: Setting, what: str, number: int) -> Path:
    return setting.folder / f"{what}-{number}.safetensors"


@dataclass(frozen=True)
class Comparison:
    """All ways of one case."""

    case: Case
    plain: Usage
    fold: Usage
    race: Usage
    naive: Usage
    fold_stages: dict[int, Usage]  # by number of alignment batches
    naive_stages: dict[int, Usage]


def compare(setting: Setting) -> Comparison:
    case = setting.case

    def fresh(name: str, function: Callable[..., Usage], *args: object) -> Usage:
        say(f"{case}: {name}")
        return in_fresh_process(function, setting, *args)

    def stages(batches: int) -> tuple[Usage, Usage]:
        config = config_for(case, epochs=0, batches=batches)
        return (
            fresh(f"fold, stages 1-4, {batches} batches", measure_fold, config),
            fresh(f"naive, stages 1-4, {batches} batches", measure_naive_stages, batches),
        )

    one, several = stages(1), stages(SEVERAL)
    return Comparison(
        case,
        plain=fresh("plain fine-tuning", measure_plain),
        fold=fresh("fold", measure_fold, config_for(case, batches=SEVERAL)),
        race=fresh("race", measure_fold, race_for(case)),
        naive=fresh("naive fold", measure_naive, SEVERAL),
        fold_stages={1: one[0], SEVERAL: several[0]},
        naive_stages={1: one[1], SEVERAL: several[1]},
    )


def ratio(a: Usage, b: Usage) -> str:
    return f"{a.peak / b.peak:.2f} ({a.own / b.own:.2f})"


def print_whole(results: list[Comparison]) -> None:
    rows = []
    for r in results:
        peaks = (r.plain, r.fold, r.race, r.naive)
        ratios = (ratio(usage, r.plain) for usage in peaks[1:])
        rows.append((r.case, f"{r.plain.imports / MB:.0f}", *peaks, *ratios))
    names = ("fold", "race", "naive")
    print_table(
        "Whole work: peak MB; ratios, and in brackets those above the imports",
        ("", "imports", "plain", *names, *(f"{name} / plain" for name in names)),
        rows,
    )


def print_stages(results: list[Comparison]) -> None:
    print_table(
        "Stages 1-4: peak MB",
        ("", "batches", "imports", "fold", "naive", "fold / naive"),
        [
            (r.case, batches, f"{ours.imports / MB:.0f}", ours, naive, ratio(ours, naive))
            for r in results
            for (batches, ours), naive in zip(
                r.fold_stages.items(), r.naive_stages.values(), strict=True
            )
        ],
    )


def print_micro_batches(setting: Setting) -> None:
    """What a micro-batch saves where activations dominate."""
    rows = []
    for size in (None, MICRO_BATCH):
        say(f"{setting.case}: micro_batch {size}")
        config = config_for(setting.case, batches=SEVERAL, micro_batch=size)
        usage = in_fresh_process(measure_fold, setting, config)
        rows.append((size or "none", usage, f"{usage.own / MB:.0f}"))
    print_table(
        f"Whole fold by micro_batch, {setting.case}: peak MB",
        ("micro_batch", "peak", "above imports"),
        rows,
    )


def print_sequence(setting: Setting, sources: int) -> Promise:
    """Fold many sources, one after another, each in all ways."""
    numbers = range(1, sources + 1)
    weights = initial_weights(setting.spec)
    for number in numbers:
        write_source(numbered(setting, "source", number), weights, setting.spec, seed=number)
    say(f"{setting.case}: {sources} sources in sequence")
    peaks = in_fresh_process(measure_sequence, setting, sources)
    print_table(
        f"Fold number K of a sequence in one process, {setting.case}: peak MB of each",
        ("K", *map(str, numbers), "largest / smallest"),
        [("", *(f"{peak / MB:.0f}" for peak in peaks), f"{max(peaks) / min(peaks):.3f}")],
    )
    text = f"{setting.case}: largest / smallest of {sources} folds"
    return Promise(text, FLAT_LIMIT, max(peaks) / min(peaks))


def promises_of(result: Comparison) -> list[Promise]:
    case = result.case
    whole = [
        Promise(f"{case}: {name} / plain", WHOLE_LIMIT, usage.peak / result.plain.peak)
        for name, usage in (("fold", result.fold), ("race", result.race))
    ]
    if not case.architecture.startswith("vit"):
        return whole
    share = result.fold_stages[1].peak / result.naive_stages[1].peak
    return [*whole, Promise(f"{case}: stages 1-4, fold / naive", STAGES_LIMIT, share)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="mobilevit_xs only, four sources")
    parser.add_argument("--data", type=Path, help="your own images instead of noise")
    args = parser.parse_args()
    cases = CASES[:1] if args.quick else CASES
    with TemporaryDirectory(prefix="grasp-bench-") as folder:
        settings = [prepare(c, Path(folder, c.architecture), args.data, STEPS) for c in cases]
        results = [compare(setting) for setting in settings]
        print_whole(results)
        print_stages(results)
        print_micro_batches(settings[0])
        flat = print_sequence(settings[0], 4 if args.quick else SOURCES)
    return settle([*(p for r in results for p in promises_of(r)), flat])


if __name__ == "__main__":
    raise SystemExit(main())
