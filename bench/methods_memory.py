"""Private memory and processor seconds of each method's 1st, 2nd … 16th fold.

    python bench/methods_memory.py [--quick] [--methods mean ties …]

Every method folds sixteen sources of ViT-B/16 (343 MB), one after another, in a process of its
own, with what it remembers of those before and without refinement. Figures are the largest
anonymous memory (RssAnon, sampled) above what Python and its imports take, and the seconds of the
whole fold: reading and checking files, the method, the evaluations, publication. Mapped files do
not count, as in bench/fold_memory.py. `--quick`: four sources of ViT-Ti/16 (22 MB), five minutes.

Promised and checked: memory is flat in the number of sources, within 5 % of what the process holds,
and `mean` needs at most 150 MB for a model of 343 MB. `wudi` takes 10 of its 300 steps here: more
need more time, and no more memory.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from bench.common import (
    MB,
    Case,
    InMemory,
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
from grasp_core.folding import fold
from grasp_core.memory import PeakMemory, private_bytes
from grasp_core.methods import METHODS
from grasp_core.parameters import parse_config

SAMPLE_S = 0.002
LONG, QUICK = Case("vit_base_patch16_224", 224, 2), Case("vit_tiny_patch16_224", 224, 2)
SOURCES, FEW = 16, 4
FLAT_LIMIT, MEAN_LIMIT = 1.05, 150.0
FASTER: dict[str, dict[str, Any]] = {"wudi": {"steps": 10}}


@dataclass(frozen=True)
class Cost:
    """Of one fold."""

    peak: int  # bytes of private memory
    seconds: float  # of the processor
    state: int  # bytes on disk


def measure(setting: Setting, method: str, sources: int) -> tuple[int, list[Cost]]:
    """What imports take, and each fold in turn."""
    return_freed_memory()
    task = InMemory.load(setting.images, setting.spec.classes)
    values = {"method": method, "refine": {"steps": 0}, "alignment_batches": 1}
    values["alignment_batch_size"] = setting.case.batch_size
    config = parse_config(values | FASTER.get(method, {}))
    weights = initial_weights(setting.spec)
    write_source(setting.folder / "first.safetensors", weights, setting.spec, seed=0)
    del weights
    imports, costs, files, merged = private_bytes(), [], {"base": setting.merged}, None
    for number in range(1, sources + 1):
        _write_source(setting, number)
        return_freed_memory()
        folder = setting.folder / f"{method}-{number}"
        began = time.process_time()
        with PeakMemory(torch.device("cpu"), SAMPLE_S) as peak:
            report = fold(
                setting.spec,
                setting.source,
                task,
                folder / "weights.safetensors",
                merged=merged,
                files=files,
                files_output=folder,
                config=config,
                force=True,
            )
        state = sum(file.size for file in report.files)
        costs.append(Cost(peak.bytes, time.process_time() - began, state))
        if merged is not None:
            _delete(merged.parent)
        merged = folder / "weights.safetensors"
        made = {file.name: folder / file.name for file in report.files}
        files = {"base": setting.merged} | made
    return imports, costs


def _write_source(setting: Setting, number: int) -> None:
    write_source(setting.source, initial_weights(setting.spec), setting.spec, seed=number)


def _delete(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, four sources")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    args = parser.parse_args()
    case, sources = (QUICK, FEW) if args.quick else (LONG, SOURCES)
    rows, promises = [], []
    with TemporaryDirectory(prefix="methods-") as folder:
        for method in args.methods:
            say(method)
            setting = prepare(case, Path(folder, method), None, steps=1)
            imports, costs = in_fresh_process(measure, setting, method, sources)
            _delete(setting.folder)
            later = [cost.peak for cost in costs[1:]]  # the first has no version before it
            above = (max(later) - imports) / MB
            flat = max(later) / min(later)
            seconds = (f"{cost.seconds:.1f}" for cost in (costs[0], costs[1], costs[-1]))
            state = f"{costs[-1].state / MB:.0f}"
            rows.append((method, f"{above:.0f}", f"{flat:.3f}", state, *seconds))
            promises.append(Promise(f"{method}: largest / smallest fold", FLAT_LIMIT, flat))
            if method == "mean" and case is LONG:
                promises.append(Promise("mean: MB above imports", MEAN_LIMIT, above))
    heads = ("", "peak MB", "largest / smallest", "state MB", "1st fold s", "2nd", f"{sources}th")
    print_table(f"{sources} folds of {case}, without refinement; memory above imports", heads, rows)
    return settle(promises)


if __name__ == "__main__":
    raise SystemExit(main())
