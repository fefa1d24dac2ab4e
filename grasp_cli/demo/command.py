"""`grasp demo`: what merging does, shown on the running server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from math import sqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grasp_cli.local import needing
from grasp_cli.session import Session, online
from grasp_cli.waiting import require_success, wait_for

if TYPE_CHECKING:
    from rich.console import RenderableType

    from grasp_cli.demo.experiment import Experiment

INTRODUCTION = """\
Four offices have scanned handwritten digits, each with the scanner of its decade, and each trains
a small model on its own, from one ancestor. You have digits as they are scanned today: {train} to
learn from, {val} to validate with, and {test} to test with. Now the models arrive.
"""


@dataclass(frozen=True)
class Chapter:
    """A source that arrived; accuracies are on the target's test split."""

    source: str
    alone: float
    status: str
    transferred_share: float | None
    version: int | None  # of the merged model after it
    merged: float | None


@online
def demo(
    session: Session,
    seed: Annotated[int, typer.Option(min=0, help="Other digits, other weights.")] = 0,
    files: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="A folder to keep the target and the sources in."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
) -> None:
    """Train four small models here, merge them on the running server, and compare."""
    with needing("demo", "the demo"), TemporaryDirectory() as aside:
        from grasp_cli.demo.experiment import QUICK, Experiment, Sizes

        folder = files or Path(aside)
        folder.mkdir(parents=True, exist_ok=True)
        experiment = Experiment(folder, Path(aside), seed, QUICK if quick else Sizes())
        story = Story(session, experiment, _free_name(session))
        story.play()
    result = story.result()
    session.give(result, lambda: _shown(story.chapters, story.control))
    session.say(_farewell(result))


class Story:
    """What happens, in order."""

    def __init__(self, session: Session, experiment: Experiment, name: str) -> None:
        self.session = session
        self.experiment = experiment
        self.name = name  # of the target and of the model
        self.chapters: list[Chapter] = []
        self.control = 0.0  # the ancestor, fine-tuned on the target alone
        self.rival = 0.0  # so is the source that is best alone

    def play(self) -> None:
        from grasp_cli.demo.digits import DECADES

        experiment = self.experiment
        self.session.say(INTRODUCTION.format(**experiment.counts()))
        preparing = self._begin()
        with self._bar("the ancestor", "train") as heard:
            ancestor = experiment.train_ancestor(heard)
        require_success(wait_for(self.session, preparing, f"model {self.name}"))
        sources: dict[str, Path] = {}
        for decade in DECADES:
            with self._bar(decade, "train") as heard:
                sources[decade] = experiment.train_source(decade, ancestor, heard)
            self.chapters.append(self._offer(decade, sources[decade]))
        self.control = self._fine_tune("the ancestor", ancestor)
        self.rival = self._fine_tune(self.best.source, sources[self.best.source])

    def _begin(self) -> str:
        """Register the target and create its model; returns the job that prepares it."""
        from grasp_cli.demo.experiment import SPEC

        grasp = self.session.grasp
        grasp.targets.create(self.name, self.experiment.target)
        model = grasp.models.create(
            self.name,
            architecture=SPEC.architecture,
            target=self.name,
            image_size=SPEC.preprocessing.image_size,
            merge=self.experiment.merge,
        )
        return model.job.id

    def _offer(self, decade: str, source: Path) -> Chapter:
        pushed = self.session.grasp.sources.push(source, model=self.name, name=decade)
        job = wait_for(self.session, pushed.job.id, decade)
        model = self.session.grasp.models.get(self.name)
        return Chapter(
            source=decade,
            alone=self.experiment.measure(source),
            status=job.status,
            transferred_share=job.metrics.get("transferred_share"),
            version=model.version,
            merged=model.metrics["after"]["test"]["accuracy"] if model.metrics else None,
        )

    def _fine_tune(self, name: str, weights: Path) -> float:
        with self._bar(f"{name} on the target alone", "fine-tune") as heard:
            return self.experiment.fine_tune(weights, len(self.chapters), heard)

    @property
    def best(self) -> Chapter:
        """Of the sources as they came."""
        return max(self.chapters, key=lambda chapter: chapter.alone)

    @contextmanager
    def _bar(self, label: str, stage: str) -> Iterator[Callable[[float, float], None]]:
        from grasp_cli.bars import stage_bar

        with stage_bar(self.session, label) as show:
            yield lambda fraction, loss: show(stage, fraction, {"loss": loss})

    def result(self) -> dict[str, Any]:
        best = {"name": self.best.source, "alone": self.best.alone, "fine_tuned": self.rival}
        return {
            "model": self.name,
            "version": self.chapters[-1].version,
            "merged": self.chapters[-1].merged,
            "best_source": best,
            "fine_tuned_ancestor": self.control,
            "sources": [asdict(chapter) for chapter in self.chapters],
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
    from grasp_client.protocol import DEFAULT_URL

    return "" if url == DEFAULT_URL else f" --url {url}"


def _shown(chapters: Sequence[Chapter], control: float) -> RenderableType:
    from rich.console import Group

    return Group(_table(chapters), _plot(chapters, control))


def _table(chapters: Sequence[Chapter]) -> RenderableType:
    from grasp_cli.tables import listed, shown, status

    rows = [
        (
            chapter.source,
            f"{chapter.alone:.3f}",
            status(chapter.status),
            shown(chapter.transferred_share and f"{chapter.transferred_share:.0%}"),
            shown(chapter.version),
            shown(chapter.merged and f"{chapter.merged:.3f}"),
        )
        for chapter in chapters
    ]
    columns = ("source", "alone", "fold", "transferred", "version", "merged model")
    return listed(columns, rows, "no sources")


def _plot(chapters: Sequence[Chapter], control: float) -> RenderableType:
    from rich.text import Text

    from grasp_cli.demo.chart import chart

    marks = {
        "○": [chapter.alone for chapter in chapters],
        "●": [chapter.merged or 0.0 for chapter in chapters],
    }
    text = Text(
        "accuracy on the target's test split\n"
        f"{chart([chapter.source for chapter in chapters], marks, control)}\n\n"
        "● GRASP after folding the source in   ○ the source alone\n"
        "┄ the ancestor, fine-tuned on the target alone\n"
    )
    text.highlight_regex("●", "bold green")
    text.highlight_regex("○", "yellow")
    return text


def _noise(accuracy: float, count: int) -> float:
    """How far apart two equally good models are on so many examples, in 19 of 20 cases, at most.

    Two more right and two more wrong (Agresti and Coull) keep it from 0 where all are right.
    """
    share = (accuracy * count + 2) / (count + 4)
    return 1.96 * sqrt(2 * share * (1 - share) / count)


def _farewell(result: dict[str, Any]) -> str:
    best = result["best_source"]
    noise = _noise(result["merged"], result["test_digits"])
    return (
        f"Of {result['test_digits']} digits that no model has seen, the merged model gets"
        f" {result['merged']:.1%} right.\n"
        f"Fine-tuned on the target alone, the ancestor gets {result['fine_tuned_ancestor']:.1%},"
        f" and the best source, {best['name']}, {best['fine_tuned']:.1%};\n"
        f"as it came, that source got {best['alone']:.1%}. With so few digits, less than"
        f" {100 * noise:.1f} points apart says little.\n\n"
        f"Look at it:  {result['page']}\n"
        f"Take it:     {result['pull']}"
    )
