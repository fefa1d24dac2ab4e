"""What an arrival costs: mergekit, over all sources or pairwise, and our fold.

    python bench/against_mergekit.py [--quick] [--python PATH]

Fifteen checkpoints of ViT-B/16 (343 MB) arrive one after another, and after each the merged model
is wanted. mergekit (https://github.com/arcee-ai/mergekit, from PyPI, in an environment of its own
made in build/mergekit) merges all that have come, or the merged model with the newest: another
and worse rule. We fold: the newest is added to sums. Processor seconds and the largest
private memory are of the merging alone: reading, computing, writing; without imports, and of ours
without the evaluations, the gate and the publication that a whole fold adds, which mergekit does
not have. `--quick`: six arrivals of ViT-Ti/16 (22 MB), under two minutes.

The last merged model of both is compared: the largest difference of a weight, and how many differ.
Of TIES a few in a million do: entries that are as large as the smallest that is kept, which we keep
and mergekit does not, and votes that cancel but for rounding, which we leave out. DARE draws at
random, each in its own way, so that its results cannot be equal.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass, replace
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
from grasp_core.checkpoints import Checkpoint, write_safetensors
from grasp_core.inputs import Inputs
from grasp_core.memory import PeakMemory, private_bytes
from grasp_core.methods import METHODS
from grasp_core.parameters import parse_config
from grasp_core.progress import Recorder
from grasp_core.race import plan_fold
from grasp_core.runtime import Runtime
from grasp_core.state import open_state

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "build" / "mergekit"
LONG, QUICK = Case("vit_base_patch16_224", 224, 2), Case("vit_tiny_patch16_224", 224, 2)
SOURCES, FEW = 15, 6
EQUAL = 1e-6  # weights nearer than this are the same, but for rounding
LIMIT = 1.0  # the memory of our fold / of a merge of all
SAMPLE_S = 0.002
DRIVER = """
import json, sys, threading, time
from mergekit.graph import Executor
from mergekit.options import MergeOptions
from mergekit.scripts.merge_raw_pytorch import (
    RawPyTorchMergeConfig, SimpleLoaderCache, plan_flat_merge)
import torch
torch.set_num_threads(1)

def private():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024

peak = 0
def watch():
    global peak
    while True:
        peak = max(peak, private())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()

for job in json.load(sys.stdin):
    SimpleLoaderCache().loaders.clear()
    before = peak = private()
    began = time.process_time()
    config = RawPyTorchMergeConfig.model_validate(job["config"])
    tasks = plan_flat_merge(config, job["output"], False, False, MergeOptions())
    Executor(tasks, math_device="cpu", storage_device="cpu").execute()
    print(json.dumps([time.process_time() - began, peak - before]), flush=True)
"""


@dataclass(frozen=True)
class Way:
    """The same method, as both call it."""

    name: str
    ours: dict[str, Any]
    theirs: str
    parameters: dict[str, Any]
    per_model: dict[str, Any]


WAYS = (
    Way("linear", {"method": "mean"}, "linear", {}, {"weight": 1.0}),
    Way(
        "task arithmetic",
        {"method": "task_arithmetic", "scale": 0.3},
        "task_arithmetic",
        {"normalize": False},
        {"weight": 0.3},
    ),
    Way(
        "TIES",
        {"method": "ties", "density": 0.2},
        "ties",
        {"normalize": True},
        {"weight": 1.0, "density": 0.2},
    ),
    Way(
        "DARE-TIES",
        {"method": "ties", "density": 1.0, "drop": 0.8},
        "dare_ties",
        {"normalize": True},
        {"weight": 1.0, "density": 0.2},
    ),
)


@dataclass(frozen=True)
class Cost:
    """Of all arrivals."""

    seconds: float
    last: float  # seconds of the last of them
    peak: float  # MB of private memory

    @classmethod
    def of(cls, measured: list[tuple[float, int]]) -> Cost:
        seconds = [each for each, _ in measured]
        return cls(sum(seconds), seconds[-1], max(peak for _, peak in measured) / MB)

    def cells(self) -> tuple[str, str, str]:
        return f"{self.seconds:.1f}", f"{self.last:.2f}", f"{self.peak:.0f}"


def source_path(setting: Setting, number: int) -> Path:
    return setting.folder / f"source-{number}.safetensors"


def run_mergekit(
    python: Path, setting: Setting, way: Way, sources: int, *, pairwise: bool
) -> tuple[Cost, Path]:
    """A merge at each arrival but the first, of which nothing is to be merged."""
    folder = setting.folder / f"{way.theirs}-{'pairs' if pairwise else 'all'}"
    jobs, newest = [], source_path(setting, 1)
    for number in range(2, sources + 1):
        every = [source_path(setting, each) for each in range(1, number + 1)]
        output = folder / str(number)
        models = [newest, every[-1]] if pairwise else every
        jobs.append(_job(setting, way, models, output))
        newest = output / "model.safetensors"
    finished = subprocess.run(
        [python, "-c", DRIVER], input=json.dumps(jobs), capture_output=True, text=True, check=False
    )
    if finished.returncode != 0:
        raise RuntimeError(finished.stderr[-2000:])
    lines = [line for line in finished.stdout.splitlines() if line.startswith("[")]
    return Cost.of([tuple(json.loads(line)) for line in lines]), newest


def _job(setting: Setting, way: Way, models: list[Path], output: Path) -> dict[str, Any]:
    config: dict[str, Any] = {
        "merge_method": way.theirs,
        "models": [{"model": str(path), "parameters": way.per_model} for path in models],
        "parameters": way.parameters,
        "dtype": "float32",
    }
    if way.theirs != "linear":
        config["base_model"] = str(setting.merged)
    return {"config": config, "output": str(output)}


def run_ours(setting: Setting, way: Way, sources: int) -> tuple[Cost, Path]:
    """Each arrival merged into what the last one left."""
    config = parse_config({**way.ours, "norm_stats": "keep", "refine": {"steps": 0}})
    (parameters,) = config.candidates
    method = METHODS[parameters.method]
    task = InMemory.load(setting.images, setting.spec.classes)
    files, measured = {"base": setting.merged}, list[tuple[float, int]]()
    merged: Path | None = None
    for number in range(1, sources + 1):
        folder = setting.folder / f"ours-{way.theirs}-{number}"
        folder.mkdir()
        runtime = Runtime.choose(config)
        recorder = Recorder(runtime.device, plan=plan_fold(config))
        source = source_path(setting, number)
        inputs = Inputs.open(setting.spec, source, merged, None, number, files=files)
        bench = inputs.workbench(task, config, runtime, recorder, folder, None, remembers=True)
        bench = replace(bench, candidate=method.name, method=method)
        path = files.get(method.state_name)
        state = open_state(path, method) if path else None
        return_freed_memory()
        before, began = private_bytes(), time.process_time()
        with PeakMemory(torch.device("cpu"), SAMPLE_S) as peak, recorder.candidate(method.name):
            method.merge(bench, parameters, state)
        measured.append((time.process_time() - began, max(peak.bytes - before, 0)))
        merged = folder / "merged.safetensors"
        write_safetensors(merged, bench.model.state_dict(), {})
        files = {"base": setting.merged, method.state_name: folder / "kept" / method.state_name}
    assert merged is not None
    return Cost.of(measured[1:]), merged


def describe_difference(one: Path, other: Path) -> str:
    """The largest, and the share of weights that differ by more than rounding."""
    a, b = Checkpoint(one), Checkpoint(other)
    largest, differ, total = 0.0, 0, 0
    for name in a:
        difference = (a[name] - b[name]).abs()
        largest = max(largest, float(difference.max()))
        differ += int((difference > EQUAL).sum())
        total += difference.numel()
    return f"{largest:.0e} ({differ / total:.1e} of them)"


def find_mergekit() -> Path | None:
    """Its Python, installed where it is not yet. None: it cannot be had."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).with_name("uv")
        say("installing mergekit")
        for words in (
            ["venv", "--quiet", "--python", sys.executable, str(ENVIRONMENT)],
            ["pip", "install", "--quiet", "--python", str(python), "mergekit"],
        ):
            if subprocess.run([uv, *words], check=False).returncode != 0:
                return None
    found = subprocess.run(
        [python, "-c", "import mergekit.scripts.merge_raw_pytorch"],
        capture_output=True,
        check=False,
    )
    return python if found.returncode == 0 else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small model, six arrivals")
    parser.add_argument("--python", type=Path, help="of an environment that has mergekit")
    args = parser.parse_args()
    python = args.python or find_mergekit()
    if python is None:
        print("mergekit cannot be installed here: nothing was compared")
        return 0
    case, sources = (QUICK, FEW) if args.quick else (LONG, SOURCES)
    rows, promises = [], []
    with TemporaryDirectory(prefix="mergekit-") as folder:
        setting = prepare(case, Path(folder, "case"), None, steps=1)
        weights = initial_weights(setting.spec)
        for number in range(1, sources + 1):
            write_source(source_path(setting, number), weights, setting.spec, seed=number)
        for way in WAYS:
            say(way.name)
            every, theirs = run_mergekit(python, setting, way, sources, pairwise=False)
            pairs, _ = run_mergekit(python, setting, way, sources, pairwise=True)
            ours, merged = in_fresh_process(run_ours, setting, way, sources)
            difference = describe_difference(merged, theirs)
            for form, cost in (("all at once", every), ("pairwise", pairs), ("our fold", ours)):
                own = (
                    (f"{ours.seconds / cost.seconds:.2f}", "")
                    if cost is not ours
                    else ("", difference)
                )
                rows.append((f"{way.name}, {form}", *cost.cells(), *own))
            promises.append(
                Promise(f"{way.name}: our memory / all at once", LIMIT, ours.peak / every.peak)
            )
    heads = ("", "seconds in all", "of the last", "peak MB", "ours / this", "we differ by")
    print_table(f"{sources} arrivals of {case}", heads, rows)
    return settle(promises)


if __name__ == "__main__":
    raise SystemExit(main())
