"""`grasp demo`: what merging does, shown on the running server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_cli.local import needing
from grasp_cli.session import Session, online
from grasp_core.report import Figures

if TYPE_CHECKING:
    from rich.console import RenderableType

    from grasp_cli.demo.experiment import Comparison, Experiment

WIDTH = 10  # of a column of the chart
STEP = 0.05  # of its rows
CLEAR = 2.0  # standard errors: what is less may be chance
ROWS = {
    "the merged model": "merged",
    "the best source, fine-tuned": "best_source",
    "the ancestor, fine-tuned": "ancestor",
}
INTRODUCTION = """\
Four offices have scanned handwritten digits, each with the scanner of its decade, and each trains
a small model on its own, from one ancestor. You have digits as they are scanned today: {train} to
learn from, {val} to validate with, and {test} to test with. Now the models arrive.
"""


@dataclass(frozen=True)
class SourceResult:
    """A source that arrived; accuracies are on the target's test split."""

    source: str
    alone: float
    status: str
    sentence: str | None  # what it was worth, and who won
    transferred_share: float | None
    version: int | None  # of the merged model after it
    merged: float | None


@online
def demo(
    session: Session,
    seed: Annotated[int, typer.Option(min=0, help="Other digits, other weights.")] = 0,
    seeds: Annotated[
        int, typer.Option(min=1, help="How many to compare; all but the first without the server.")
    ] = 3,
    files: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="A folder to keep the target and the sources in."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
) -> None:
    """Train four small models here, merge them on the running server, and compare with what one
    would do instead."""
    with needing("demo", "the demo"), TemporaryDirectory() as aside:
        from grasp_cli.demo.experiment import QUICK, Experiment, Sizes

        folder = files or Path(aside)
        folder.mkdir(parents=True, exist_ok=True)
        sizes = QUICK if quick else Sizes()
        experiment = Experiment(folder, Path(aside), seed, sizes)
        shown = Demo(session, experiment, _free_name(session))
        shown.run()
        for other in range(seed + 1, seed + seeds):
            own = Path(aside, f"seed-{other}")
            own.mkdir()
            shown.repeat(Experiment(own, own, other, sizes))
    result = shown.result()
    session.print_result(result, lambda: _rendered(shown.results, result["fine_tuned_ancestor"]))
    session.print_text(_summary(result))


class Demo:
    """What happens, in order."""

    def __init__(self, session: Session, experiment: Experiment, name: str) -> None:
        self.session = session
        self.experiment = experiment
        self.name = name  # of the target and of the model
        self.results: list[SourceResult] = []
        self.comparisons: dict[int, Comparison] = {}  # by seed

    def run(self) -> None:
        from grasp_cli.demo.digits import DECADES
        from grasp_cli.demo.experiment import Comparison
        from grasp_cli.progress import require_success, wait_for

        experiment = self.experiment
        self.session.print_text(INTRODUCTION.format(**experiment.counts()))
        preparing = self._begin()
        with self._bar("the ancestor", "train") as progress:
            ancestor = experiment.train_ancestor(progress)
        require_success(wait_for(self.session, preparing, f"model {self.name}"))
        sources: dict[str, Path] = {}
        for decade in DECADES:
            with self._bar(decade, "train") as progress:
                sources[decade] = experiment.train_source(decade, ancestor, progress)
            self.results.append(self._offer(decade, sources[decade]))
        with self._bar(
            "the ancestor and each source, on the target alone", "fine-tune"
        ) as progress:
            controls = experiment.train_controls(ancestor, sources, self._rate(), progress)
        merged = self.results[-1].merged
        self.comparisons[experiment.seed] = Comparison(merged or 0.0, controls)

    def repeat(self, experiment: Experiment) -> None:
        """The same with other digits, without the server."""
        with self._bar(f"all of it again, seed {experiment.seed}", "train and fold") as progress:
            self.comparisons[experiment.seed] = experiment.replay(progress)

    def _begin(self) -> str:
        """Register the target and create its model; returns the job that prepares it."""
        from grasp_cli.demo.digits import SIDE
        from grasp_cli.demo.experiment import SPEC

        grasp = self.session.grasp
        grasp.targets.create(self.name, self.experiment.target)
        model = grasp.models.create(
            self.name,
            architecture=SPEC.architecture,
            target=self.name,
            image_size=SIDE,
            merge=self.experiment.merge,
        )
        return model.job.id

    def _offer(self, decade: str, source: Path) -> SourceResult:
        from grasp_cli.progress import wait_for

        pushed = self.session.grasp.sources.push(source, model=self.name, name=decade)
        job = wait_for(self.session, pushed.job.id, decade)
        model = self.session.grasp.models.get(self.name)
        return SourceResult(
            source=decade,
            alone=job.metrics["source"]["test"]["accuracy"],
            status=job.status,
            sentence=Figures.read(job.metrics).sentence,
            transferred_share=job.metrics.get("transferred_share"),
            version=model.version,
            merged=model.metrics["after"]["test"]["accuracy"] if model.metrics else None,
        )

    def _rate(self) -> float:
        """The learning rate that the first fold has found."""
        from grasp_core.config import LEARNING_RATES

        found = self.session.grasp.models.get(self.name).learning_rate
        return found.rate if found else LEARNING_RATES[0]  # none was accepted

    @contextmanager
    def _bar(self, label: str, stage: str) -> Iterator[Callable[[float, float], None]]:
        from grasp_cli.progress import stage_bar

        with stage_bar(self.session, label) as show:
            yield lambda fraction, loss: show(stage, fraction, {"loss": loss})

    def result(self) -> dict[str, Any]:
        controls = self.comparisons[self.experiment.seed].controls
        alone = {each.source: each.alone for each in self.results}
        best = {"name": controls.best_source, "fine_tuned": controls.best}
        return {
            "model": self.name,
            "version": self.results[-1].version,
            "merged": self.results[-1].merged,
            "best_source": best | {"alone": alone[controls.best_source]},
            "fine_tuned_ancestor": controls.ancestor,
            "sources": [asdict(each) for each in self.results],
            "seeds": [
                {
                    "seed": seed,
                    "merged": each.merged,
                    "best_source": each.controls.best,
                    "ancestor": each.controls.ancestor,
                }
                for seed, each in self.comparisons.items()
            ],
            "test_digits": self.experiment.counts()["test"],
            "page": f"{self.session.grasp.url}/ui/models/{self.name}",
            "pull": f"grasp pull {self.name}{_where(self.session.grasp.url)}",
        }


def _free_name(session: Session) -> str:
    """demo, or if there is one already, demo-2 and so on."""
    grasp = session.grasp
    taken = {
        thing.name for things in (grasp.targets.list(), grasp.models.list()) for thing in things
    }
    names = ("demo" if number == 1 else f"demo-{number}" for number in count(1))
    return next(name for name in names if name not in taken)


def _where(url: str) -> str:
    """What a command that is typed here needs, to go there."""
    from grasp_client.address import default_url

    return "" if url == default_url() else f" --url {url}"


def _rendered(results: Sequence[SourceResult], control: float) -> RenderableType:
    from rich.console import Group

    return Group(_table(results), _plot(results, control))


def _table(results: Sequence[SourceResult]) -> RenderableType:
    from grasp_cli.tables import listed, shown, status

    rows = [
        (
            each.source,
            f"{each.alone:.3f}",
            status(each.status),
            "-" if each.transferred_share is None else f"{each.transferred_share:.0%}",
            shown(each.version),
            shown(each.merged and f"{each.merged:.3f}"),
            (each.sentence or "").split("; ")[0],
        )
        for each in results
    ]
    columns = ("source", "alone", "fold", "from it", "version", "merged model", "what it was worth")
    return listed(columns, rows, "no sources")


def _plot(results: Sequence[SourceResult], control: float) -> RenderableType:
    from rich.text import Text

    marks = {
        "○": [each.alone for each in results],
        "●": [each.merged or 0.0 for each in results],
    }
    text = Text(
        "accuracy on the target's test split\n"
        f"{chart([each.source for each in results], marks, control)}\n\n"
        "● the merged model after this source   ○ the source alone\n"
        "┄ the ancestor, fine-tuned on the target alone\n"
    )
    text.highlight_regex("●", "bold green")
    text.highlight_regex("○", "yellow")
    return text


def chart(columns: Sequence[str], series: Mapping[str, Sequence[float]], level: float) -> str:
    """A plot for a terminal: marks over columns.

    `series` has a value per column for each mark, the last one on top.
    `level` is drawn as a line across. The axis spans what there is, in whole tenths.
    """
    values = [level, *(value for points in series.values() for value in points)]
    low, high = math.floor(min(values) * 10) / 10, math.ceil(max(values) * 10) / 10
    height = round((high - low) / STEP)
    rows = [[" "] * (WIDTH * len(columns)) for _ in range(height + 1)]  # the lowest first

    def row(value: float) -> list[str]:
        return rows[round((value - low) / STEP)]

    row(level)[:] = "┄" * (WIDTH * len(columns))
    for mark, points in series.items():
        for number, value in enumerate(points):
            row(value)[number * WIDTH + WIDTH // 2] = mark
    drawn = [f"{low + STEP * i:5.2f} ┤{''.join(cells)}".rstrip() for i, cells in enumerate(rows)]
    names = "".join(name.center(WIDTH) for name in columns).rstrip()
    return "\n".join([*reversed(drawn), f"{'':6}└{'─' * WIDTH * len(columns)}", f"{'':7}{names}"])


def _summary(result: dict[str, Any]) -> str:
    seeds = result["seeds"]
    figures = {name: [each[key] for each in seeds] for name, key in ROWS.items()}
    rows = (f"  {name:32}{_spread(values)}" for name, values in figures.items())
    ours, *others = figures.values()
    told = (
        _compare(ours, values, name) for name, values in zip(list(figures)[1:], others, strict=True)
    )
    return (
        f"Of {result['test_digits']} digits that no model has seen, right ({_count(seeds)}):\n\n"
        + "\n".join(rows)
        + "\n\n"
        + "\n".join(told)
        + f"\n\nLook at it:  {result['page']}\nTake it:     {result['pull']}"
    )


def _count(seeds: Sequence[object]) -> str:
    return "once" if len(seeds) == 1 else f"{len(seeds)} times, with other digits each"


def _spread(values: Sequence[float]) -> str:
    mean = f"{fmean(values):.1%}"
    return mean if len(values) == 1 else f"{mean}, from {min(values):.1%} to {max(values):.1%}"


def _compare(ours: Sequence[float], theirs: Sequence[float], name: str) -> str:
    """Paired, seed by seed."""
    differences = [100 * (a - b) for a, b in zip(ours, theirs, strict=True)]
    mean = fmean(differences)
    if len(differences) == 1:
        return f"Beside {name}: {mean:+.1f} points, of which one run says little."
    error = stdev(differences) / math.sqrt(len(differences))
    wins = sum(difference > 0 for difference in differences)
    if abs(mean) <= CLEAR * error:
        verdict = "here the merge is neither clearly better nor worse"
    else:
        verdict = "here the merge pays" if mean > 0 else "here the merge does not pay"
    return (
        f"Beside {name}: {mean:+.1f} ± {error:.1f} points, ahead in {wins} of {len(differences)}:"
        f" {verdict}."
    )
