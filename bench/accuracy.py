"""Does a fold pay? What comes out of it against what else the same files could have been used for.

    python bench/accuracy.py --data FOLDER [--quick] [--work FOLDER] [--cells N]
                             [--beds digits clothes yearbook] [--plot accuracy.svg]

A cell is a target of which little is labelled, and a few checkpoints that come in for it, one after
another. Every row gets the same files in the same order; all but the paper's preset and the last
release's default fine-tune for the same number of steps a fold, at the learning rate that the first
source's fold has found. Outcome are of what comes out at the end, on the target's test split, which
decides nothing. Differences are paired, cell by cell; ± is one standard error over cells.

Beds: scikit-learn's digits as the demo scans them (12 cells), the clothes of Fashion-MNIST with
drawn shifts (20), and portraits of the yearbook, from ImageNet's weights (16). FOLDER holds
fashion_mnist.npz, yearbook64.npz and tf_efficientnet_lite0_in1k.pth. `--quick` takes under ten
minutes on one core: 3, 3 and 2 cells, at most 600 examples of test, and portraits at 32 pixels for
a small network, whose ancestor has seen some of the sources' periods instead of ImageNet. So few
cells settle nothing; they show that all of this runs.

With `--work`, every row of every cell is kept there as soon as it is known, under a key made of all
that it depends on, the code included; run again, it goes on where it was.
"""

from __future__ import annotations

import argparse
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from app.charts.svg import Scale, drawing, element, number, ticks
from bench.beds import LONG, QUICK, Cell, Files, list_cells
from bench.budget import BEFORE
from bench.common import Promise, print_table, say, settle
from grasp_core import (
    Checkpoint,
    ConfigError,
    FoldReport,
    Runtime,
    build_model,
    fold,
    load_weights,
    parse_config,
)
from grasp_core.evaluation import predict
from grasp_core.report import Difference

ROOT = Path(__file__).parents[1]
CODE = (  # what figures depend on, besides what is below
    "grasp_core/**/*.py",
    "grasp_cli/demo/*.py",
    "bench/beds.py",
    "bench/budget.py",
    "bench/yearbook_settings.py",
)
SLACK, LEAST_GAIN = 0.3, 5.0  # points
Values = Mapping[str, Any]


class Outcome(NamedTuple):
    """Of what comes out at the end, on test."""

    accuracy: float
    log_likelihood: float
    right: str = ""  # an example each: 1 where it was right, else 0; nothing: nobody looked


class Version(NamedTuple):
    """What a fold has published."""

    weights: Path
    files: Mapping[str, Path]  # what methods remember
    report: FoldReport

    @property
    def val_log_likelihood(self) -> float:
        assert self.report.metrics.after is not None
        likelihood = self.report.metrics.after.val.log_likelihood
        return -math.inf if likelihood is None else likelihood


class Folds:
    """All folds of a cell. Those that several rows need are run once."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files, self._folder, self._count = files, folder, 0
        self._alone: dict[int, Version] = {}

    def alone(self, place: int) -> Version:
        """One source fine-tuned: as a first source, with which all candidates are the same."""
        if place not in self._alone:
            rate = self.rate if place else None  # the first finds it out
            self._alone[place] = self._fold(self._files.sources[place], {}, None, rate, force=True)
        return self._alone[place]

    @property
    def each(self) -> list[Version]:
        return [self.alone(place) for place in range(len(self._files.sources))]

    @cached_property
    def rate(self) -> float:
        found = self.alone(0).report.learning_rate
        assert found is not None
        return found.rate

    def ancestor(self) -> Outcome:
        values = {"method": "source"}
        return self.look(self._fold(self._files.ancestor, values, None, self.rate, force=True))

    def best(self) -> Outcome:
        return self.look(max(self.each, key=lambda version: version.val_log_likelihood))

    def look(self, version: Version) -> Outcome:
        """At the test split."""
        return self._examine(self._open(version.weights))

    def in_turn(
        self, values: Values, *, first: Values | None = None, force: bool = False
    ) -> Outcome:
        """A fold of each source. Without `first`, what else is said to the fold of the first, that
        fold is the one of all rows. `force`: as by hand, where no gate refuses anything."""
        if first is not None:
            kept = self._follow(self._files.sources[0], {**values, **first}, None, force)
        else:
            kept = self.alone(0) if force or not self.alone(0).report.forced else None
        for source in self._files.sources[1:]:
            kept = self._follow(source, values, kept, force)
        classes = len(self._files.spec.classes)  # if all are refused, one has to guess
        return self.look(kept) if kept is not None else Outcome(1 / classes, -math.log(classes))

    def ensemble(self, *, adapted: bool) -> Outcome:
        paths = [version.weights for version in self.each] if adapted else self._files.sources
        return self._examine(Ensemble(self._open(path) for path in paths))

    def _examine(self, model: nn.Module) -> Outcome:
        runtime = Runtime.choose(parse_config({"device": "cpu"}))
        said = predict(model, self._files.task, "test", runtime, 32)
        right = "".join(map(str, said.right.astype(int)))
        return Outcome(said.metrics.accuracy, said.mean_log_likelihood, right)

    def _follow(
        self, source: Path, values: Values, kept: Version | None, force: bool
    ) -> Version | None:
        """The next version; what the gate refuses leaves the one that there was."""
        try:
            new = self._fold(source, values, kept, self.rate, force=force)
        except ConfigError:  # there is nothing to keep: the first source was refused
            return kept
        return new if new.report.accepted else kept

    def _fold(
        self, source: Path, values: Values, kept: Version | None, rate: float | None, *, force: bool
    ) -> Version:
        self._count += 1
        folder = self._folder / f"fold{self._count}"
        folder.mkdir()
        refine = {**values.get("refine", {}), **self._files.refine}
        report = fold(
            self._files.spec,
            source,
            self._files.task,
            folder / "weights.safetensors",
            merged=None if kept is None else kept.weights,
            files=kept.files if kept is not None else None,
            files_output=folder,
            config=parse_config({**values, "refine": refine}),
            learning_rate=rate,
            version=None if kept is None else kept.report.version + 1,
            force=force,
        )
        files = {file.name: folder / file.name for file in report.files}
        return Version(folder / "weights.safetensors", files, report)

    def _open(self, weights: Path) -> nn.Module:
        model = build_model(self._files.spec)
        tensors = {name: tensor.clone() for name, tensor in Checkpoint(weights).items()}
        load_weights(model, tensors, torch.device("cpu"))
        return model


class Ensemble(nn.Module):
    """The mean of its members' probabilities, as log-probabilities."""

    def __init__(self, members: Iterable[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([member(x).softmax(-1) for member in self.members]).mean(0).log()


@dataclass(frozen=True)
class Row:
    """One way to use the sources."""

    name: str
    values: Values  # parameters of its folds
    run: Callable[[Folds], Outcome]
    first: Values | None = None  # what else is said to the fold of the first source
    force: bool = False  # whether no gate refuses anything
    is_control: bool = True  # with the memory of one model, as ours


def _in_turn(name: str, values: Values, first: Values | None = None, *, force: bool = False) -> Row:
    return Row(name, values, lambda f: f.in_turn(values, first=first, force=force), first, force)


OURS = Row("our default", {}, lambda folds: folds.in_turn({}), is_control=False)
LAST_RELEASE = _in_turn("last release's default", BEFORE, {"norm_stats": "keep"})
ROWS = (
    OURS,
    Row("ancestor fine-tuned", {}, Folds.ancestor),
    Row("first source fine-tuned", {}, lambda folds: folds.look(folds.alone(0))),
    Row("best source fine-tuned, by validation", {}, Folds.best),
    _in_turn("mean of sources, fine-tuned", {"method": "mean"}, force=True),
    _in_turn("keep alone: first source, refined on", {"method": "keep"}),
    _in_turn("source alone: the last that passed", {"method": "source"}),
    _in_turn("grasp alone", {"method": "grasp"}),
    _in_turn("GRASP, preset paper", {"preset": "paper"}, {}),
    LAST_RELEASE,
    Row("ensemble as they came, O(K)", {}, lambda f: f.ensemble(adapted=False), is_control=False),
    Row("ensemble of adapted, O(K)", {}, lambda f: f.ensemble(adapted=True), is_control=False),
)
Results = dict[str, Outcome]  # of one cell, by row


class Store:
    """Outcome of cells and rows, each in a small file whose name says what it depends on."""

    def __init__(self, folder: Path, code: str) -> None:
        self._folder, self._code = folder, code
        folder.mkdir(parents=True, exist_ok=True)

    def read(self, cell: Cell, row: Row) -> Outcome | None:
        try:
            saved = json.loads(self._path(cell, row).read_text())
        except FileNotFoundError:
            return None
        return Outcome(*(saved[name] for name in Outcome._fields))

    def write(self, cell: Cell, row: Row, figures: Outcome) -> None:
        path = self._path(cell, row)
        beside = path.with_suffix(".part")
        about = {"cell": str(cell), "row": row.name, "depends_on": self._about(cell, row)}
        beside.write_text(json.dumps(figures._asdict() | about, indent=2))
        beside.replace(path)

    def _path(self, cell: Cell, row: Row) -> Path:
        about = json.dumps(self._about(cell, row), sort_keys=True)
        return self._folder / f"{cell.bed}-{cell.number}-{_digest(about.encode())}.json"

    def _about(self, cell: Cell, row: Row) -> dict[str, Any]:
        config = parse_config(row.values).model_dump(mode="json")
        row_values = {"row": row.name, "config": config, "first": row.first, "force": row.force}
        cell_values = {"bed": cell.bed, "number": cell.number, **cell.definition}
        return cell_values | row_values | {"code": self._code}


@cache
def code_digest() -> str:
    """Of all code that figures depend on, and of the libraries that compute."""
    files = sorted(path for pattern in CODE for path in ROOT.glob(pattern))
    parts = [path.read_bytes() for path in files]
    parts += [inspect.getsource(each).encode() for each in (Version, Folds, Ensemble)]
    parts += [f"{name} {version(name)}".encode() for name in ("torch", "timm")]
    return _digest(b"\0".join(parts))


def measure(cell: Cell, store: Store, rows: Sequence[Row] = ROWS) -> Results:
    """All rows of a cell; of those that are known, nothing is run again."""
    results = {row.name: figures for row in rows if (figures := store.read(cell, row))}
    missing = [row for row in rows if row.name not in results]
    if missing:
        with TemporaryDirectory(prefix="accuracy-") as folder:
            folds = Folds(cell.prepare(Path(folder)), Path(folder))
            for row in missing:
                results[row.name] = row.run(folds)
                store.write(cell, row, results[row.name])
    return results


def pair(ours: Sequence[float], others: Sequence[float]) -> Difference | None:
    """Ours minus theirs, cell by cell. None: some are not finite."""
    return Difference.measure(a - b for a, b in zip(ours, others, strict=True))


def compare(cells: Sequence[Results], row: str) -> tuple[Difference | None, Difference | None]:
    """Our default minus a row: of accuracy, and of the log-likelihood."""
    ours, theirs = ([cell[name] for cell in cells] for name in (OURS.name, row))
    return (
        pair([each.accuracy for each in ours], [each.accuracy for each in theirs]),
        pair([each.log_likelihood for each in ours], [each.log_likelihood for each in theirs]),
    )


def compare_examples(cell: Results, row: str) -> Difference | None:
    """The same of one cell's accuracy, test example by test example."""
    ours, theirs = cell[OURS.name].right, cell[row].right
    return pair([int(a) for a in ours], [int(b) for b in theirs]) if ours and theirs else None


def report(title: str, cells: Sequence[Results]) -> None:
    heads = ("", "accuracy %", "log-lik.", "default - row: points", "log-lik.")
    print_table(f"{title}, {len(cells)} cells", heads, [_line(cells, row.name) for row in ROWS])


def report_cells(cells: Mapping[str, Results]) -> None:
    """Our default minus each row, cell by cell, in points; ± is over the examples of test."""
    names = [row.name for row in ROWS if row is not OURS]
    lines = [(row, *(_show_cell(results, row) for results in cells.values())) for row in names]
    print_table("our default minus each row, in points of test", ("", *cells), lines)


def _show_cell(cell: Results, row: str) -> str:
    difference = compare_examples(cell, row)
    return "-" if difference is None else _show(difference, 100, 1)


def _line(cells: Sequence[Results], row: str) -> tuple[str, ...]:
    accuracy = fmean(results[row].accuracy for results in cells)
    likelihood = fmean(results[row].log_likelihood for results in cells)
    means = (f"{100 * accuracy:.1f}", f"{likelihood:.3f}")
    if row == OURS.name:
        return row, *means, "", ""
    points, nats = compare(cells, row)
    return row, *means, _show(points, 100, 1), _show(nats, 1, 3)


def _show(difference: Difference | None, factor: int, digits: int) -> str:
    if difference is None:
        return "not finite"
    error = "" if difference.error is None else f" ± {factor * difference.error:.{digits}f}"
    return f"{factor * difference.mean:+.{digits}f}{error}"


def make_promises(cells: Sequence[Results]) -> Iterator[Promise]:
    """In points by which a control is above our default."""
    for row in ROWS:
        difference, _ = compare(cells, row.name)
        assert difference is not None
        if row is LAST_RELEASE:
            yield Promise(f"{row.name} minus ours, points", -LEAST_GAIN, -100 * difference.mean)
        elif row.is_control:
            lead = -100 * (difference.mean + (difference.error or 0.0))
            yield Promise(f"{row.name} minus ours, points, less one standard error", SLACK, lead)


STYLE = """
text { font: 13px sans-serif; fill: #222 } .grid { stroke: #ddd } .zero { stroke: #222 }
.whisker { stroke: #2a63b8; stroke-width: 2 } .dot { fill: #2a63b8 } .back { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .grid { stroke: #444 }
.zero { stroke: #ddd } .whisker { stroke: #7fb0ff } .dot { fill: #7fb0ff } .back { fill: #16181d } }
"""
WIDTH, LINE, TOP, LEFT, RIGHT = 760, 28, 54, 270, 660


def draw(cells: Sequence[Results]) -> str:
    """Our default minus each row in points of accuracy, with the interval at 95 %."""
    compared = {row.name: compare(cells, row.name)[0] for row in ROWS if row is not OURS}
    differences = {name: found for name, found in compared.items() if found is not None}
    ends = [100 * end for d in differences.values() for end in (d.mean, *(d.interval or ()))]
    marks = ticks(min(0.0, *ends), max(0.0, *ends), 6)
    x = Scale(marks[0], marks[-1], LEFT, RIGHT)
    bottom = TOP + LINE * len(differences)
    title = f"Test accuracy: our default minus each row, in points, over {len(cells)} cells"
    parts = [element("rect", class_="back", width=WIDTH, height=bottom + 34)]
    parts += [
        element("text", title, x=12, y=22),
        element("text", "default better →", x=RIGHT, y=44, text_anchor="end"),
    ]
    for mark in marks:
        kind = "zero" if mark == 0 else "grid"
        parts.append(element("line", class_=kind, x1=x(mark), x2=x(mark), y1=TOP, y2=bottom))
        label = number(mark)
        parts.append(element("text", label, x=x(mark), y=bottom + 20, text_anchor="middle"))
    for place, (name, difference) in enumerate(differences.items()):
        y = TOP + LINE * (place + 0.5)
        low, high = (x(100 * end) for end in difference.interval or 2 * (difference.mean,))
        parts += [
            element("text", name, x=LEFT - 12, y=y + 4, text_anchor="end"),
            element("line", class_="whisker", x1=low, x2=high, y1=y, y2=y),
            element("circle", class_="dot", cx=x(100 * difference.mean), cy=y, r=5),
            element("text", _show(difference, 100, 1), x=RIGHT + 12, y=y + 4),
        ]
    about = "A dot right of zero: our default is better. Lines: the interval at 95 %."
    style, svg = element("style", STYLE), "http://www.w3.org/2000/svg"
    return drawing(WIDTH, bottom + 34, title, about, [style, *parts], xmlns=svg) + "\n"


def main() -> int:
    args = parse_arguments()
    torch.set_num_threads(1)
    began, size = time.monotonic(), QUICK if args.quick else LONG
    by_bed: dict[str, dict[str, Results]] = {bed: {} for bed in args.beds}
    with work_folder(args.work) as work:
        store = Store(work / "results", code_digest())
        for bed in args.beds:
            for cell in list_cells(bed, args.data, work / code_digest(), size, args.cells):
                cell_began = time.monotonic()
                by_bed[bed][str(cell)] = results = measure(cell, store)
                ours, seconds = results[OURS.name], time.monotonic() - cell_began
                say(f"{cell}: our default {100 * ours.accuracy:.1f} %, {seconds:.0f} s")
    cells = [results for found in by_bed.values() for results in found.values()]
    for bed, found in by_bed.items():
        report(bed, list(found.values()))
        report_cells(found)
    report("all", cells)
    if args.plot:
        args.plot.write_text(draw(cells))
    print(f"\n{len(cells)} cells in {(time.monotonic() - began) / 60:.1f} minutes")
    return settle(list(make_promises(cells)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="under ten minutes")
    parser.add_argument("--work", type=Path, help="keep what is known there, for another run")
    parser.add_argument("--beds", nargs="+", choices=list(LONG.cells), default=list(LONG.cells))
    parser.add_argument("--cells", type=int, help="of each bed, at most")
    parser.add_argument("--plot", type=Path, help="write an SVG there")
    return parser.parse_args()


@contextmanager
def work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given
        return
    with TemporaryDirectory(prefix="accuracy-") as folder:
        yield Path(folder)


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


if __name__ == "__main__":
    sys.exit(main())
