"""A fold's report, arranged for a page: of a version, a rejected fold, or a dry run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from markupsafe import Markup
from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.charts import (
    Contributor,
    Scored,
    Series,
    bar,
    contributors,
    gain_bar,
    layers,
    line_chart,
    provenance_rows,
    reach,
    score_chart,
    shade,
    share_bar,
)
from app.charts.provenance import OTHERS, Row
from app.pages.formatting import decimal, percent
from grasp_core.methods import METHODS, list_stages
from grasp_core.report import (
    CandidateReport,
    FoldReport,
    Look,
    Metrics,
    SplitMetrics,
    StageRecord,
)
from grasp_core.significance import wilson
from registry.tables import Job, Source

MEASURES: tuple[tuple[str, str], ...] = (
    ("accuracy", "Accuracy"),
    ("f1", "F1"),
    ("precision", "Precision"),
    ("recall", "Recall"),
    ("auroc", "AUROC"),
)
MOST_CLASSES = 20  # in a confusion matrix
MOST_PAIRS = 15
SLOTS = 7  # colours that can be told apart


def stage_titles() -> dict[str, str]:
    """By name, of all methods that there are."""
    return {stage.name: stage.title for stage in list_stages(METHODS.values())}


def read_report(session: Session, job_id: str) -> FoldReport | None:
    """None if there is none, or none that this release can read."""
    text = session.scalar(select(Job.report).where(Job.id == job_id))
    try:
        return None if text is None else FoldReport.model_validate_json(text)
    except ValidationError:
        return None


def source_names(session: Session, model_id: str) -> Mapping[str, str]:
    """sha256 → name of all that was offered to a model, in order of arrival."""
    offered = select(Source.sha256, Source.name).where(Source.model_id == model_id)
    return {row.sha256: row.name for row in session.execute(offered.order_by(Source.id))}


@dataclass(frozen=True)
class Measure:
    """One figure on one split, before and after."""

    before: float | None
    after: float | None
    source: float | None = None  # of the source as it came
    interval: tuple[float, float] | None = None  # of `after`
    trend: str = "same"  # up or down where the change is more than chance explains

    @property
    def change(self) -> float | None:
        if self.before is None or self.after is None:
            return None
        return self.after - self.before


@dataclass(frozen=True)
class Cell:
    count: int
    shade: str


@dataclass(frozen=True)
class Confusion:
    """Truth against prediction; of many classes, only the pairs that are confused most."""

    classes: Sequence[str]
    rows: Sequence[tuple[str, Sequence[Cell]]]
    pairs: Sequence[tuple[str, str, int]]  # truth, prediction, how often


@dataclass(frozen=True)
class Scores:
    """What the method measured of every parameter, and chose by."""

    name: str
    meaning: str
    chart: Markup
    parameters: Sequence[Scored]


@dataclass(frozen=True)
class CandidateRow:
    """One candidate, beside `keep`."""

    candidate: CandidateReport
    slot: int  # its colour
    log_likelihood: Markup | None  # bars of what it gained; None: nothing to compare with
    accuracy: Markup | None


@dataclass(frozen=True)
class Rivals:
    """All candidates of a fold."""

    sentence: str | None
    rows: Sequence[CandidateRow]
    charts: tuple[Markup, Markup] | None  # of their refinement


@dataclass(frozen=True)
class StageRow:
    name: str
    seconds: float
    bar: Markup
    peak_bytes: int


@dataclass(frozen=True)
class ReportView:
    """All that a page shows of a report."""

    report: FoldReport
    rivals: Rivals | None  # None: there was one alone
    val: Measure  # accuracy
    test: Measure
    measures: Sequence[tuple[str, Measure, Measure]]  # name, on validation, on test
    scores: Scores | None
    confusions: Mapping[str, Confusion]  # by split
    loss: Markup | None
    refinement: Markup | None
    stages: Sequence[StageRow]

    @property
    def seconds(self) -> float:
        return sum(stage.seconds for stage in self.stages)

    @property
    def peak_bytes(self) -> int:
        return max((stage.peak_bytes for stage in self.stages), default=0)


def view_report(report: FoldReport, classes: Sequence[str]) -> ReportView:
    metrics = report.metrics

    def measure(split: Literal["val", "test"], name: str) -> Measure:
        moments = (metrics.before, metrics.after, metrics.source)
        before, of_fold, of_source = (_figure(moment, split, name) for moment in moments)
        figures = Measure(before, of_fold, of_source)
        if name != "accuracy":
            return figures
        change, after = report.change, report.figures.after
        return replace(
            figures,
            interval=getattr(after, split).interval if after else None,
            trend=getattr(change, split).trend if change else "same",
        )

    return ReportView(
        report=report,
        rivals=_rivals(report),
        val=measure("val", "accuracy"),
        test=measure("test", "accuracy"),
        measures=[
            (label, measure("val", name), measure("test", name))
            for name, label in MEASURES
            if report.metrics.after
        ],
        scores=_scores(report),
        confusions=_confusions(report.metrics.after, classes),
        loss=_loss(report),
        refinement=_refinement(report),
        stages=_stages(report),
    )


def _figure(metrics: SplitMetrics | None, split: str, name: str) -> float | None:
    found: float | None = getattr(getattr(metrics, split), name) if metrics else None
    return found


def _rivals(report: FoldReport) -> Rivals | None:
    if len(report.candidates) < 2:
        return None
    gains = [each.gain for each in report.candidates]
    likelihoods = [gain.log_likelihood if gain else None for gain in gains]
    accuracies = [gain.accuracy if gain else None for gain in gains]
    halves = reach(likelihoods), reach(accuracies)
    rows = [
        CandidateRow(
            candidate,
            slot=slot % SLOTS,
            log_likelihood=gain_bar(likelihood, halves[0], slot % SLOTS) if likelihood else None,
            accuracy=gain_bar(accuracy, halves[1], slot % SLOTS) if accuracy else None,
        )
        for slot, (candidate, likelihood, accuracy) in enumerate(
            zip(report.candidates, likelihoods, accuracies, strict=True)
        )
    ]
    return Rivals(report.figures.sentence, rows, _refinements(rows))


def _refinements(rows: Sequence[CandidateRow]) -> tuple[Markup, Markup] | None:
    """Validation loss and accuracy, all in one chart; of those that merged to the same weights, one
    candidate stands for the others."""
    refined = [row for row in rows if row.candidate.history and not row.candidate.same_as]
    if len(refined) < 2:
        return None
    at = sorted({look.step for row in refined for look in row.candidate.history})

    def lines(figure: Callable[[Look], float | None]) -> list[Series]:
        looks = [{look.step: figure(look) for look in row.candidate.history} for row in refined]
        return [
            Series(row.candidate.name, [own.get(step) for step in at], row.slot)
            for row, own in zip(refined, looks, strict=True)
        ]

    losses, accuracies = lines(_loss_of), lines(lambda look: look.val_accuracy)
    return (
        line_chart("Validation loss of each candidate", "step", at, losses, format_value=decimal),
        line_chart(
            "Validation accuracy of each candidate",
            "step",
            at,
            accuracies,
            format_value=percent,
            shares=True,
        ),
    )


def _loss_of(look: Look) -> float | None:
    return None if look.val_log_likelihood is None else -look.val_log_likelihood


def _scores(report: FoldReport) -> Scores | None:
    """None of the first source, which is compared with nothing, and of methods without scores."""
    scored = [
        Scored(p.name, p.size, p.score, float(p.transferred))
        for p in report.parameters
        if p.score is not None
    ]
    if not scored:
        return None
    method = METHODS.get(report.method or "")
    score = method.score if method else None
    threshold = report.details.get(score.threshold) if score and score.threshold else None
    line = float(threshold) if isinstance(threshold, int | float) else None
    name = score.name if score else "score"
    chart = score_chart(name, scored, line, score.symbol if score else "")
    return Scores(name, score.meaning if score else "", chart, scored)


def _confusions(after: SplitMetrics | None, classes: Sequence[str]) -> dict[str, Confusion]:
    splits: dict[str, Metrics] = {"test": after.test, "validation": after.val} if after else {}
    return {
        name: _confusion(found.confusion_matrix, classes)
        for name, found in splits.items()
        if found.confusion_matrix and len(found.confusion_matrix) == len(classes)
    }


def _confusion(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> Confusion:
    wrong = [
        (classes[truth], classes[guess], count)
        for truth, row in enumerate(matrix)
        for guess, count in enumerate(row)
        if truth != guess and count
    ]
    pairs = sorted(wrong, key=lambda pair: -pair[2])[:MOST_PAIRS]
    if len(classes) > MOST_CLASSES:
        return Confusion(classes, (), pairs)
    rows = [
        (classes[truth], [_cell(count, row, truth == guess) for guess, count in enumerate(row)])
        for truth, row in enumerate(matrix)
    ]
    return Confusion(classes, rows, pairs)


def _cell(count: int, row: Sequence[int], right: bool) -> Cell:
    share = count / (sum(row) or 1)
    return Cell(count, shade(share, "good") if right else shade(3 * share, "bad"))


def _loss(report: FoldReport) -> Markup | None:
    if not report.history:
        return None
    looks = [look for look in report.history if look.train_loss is not None]
    losses = Series("training loss", [look.train_loss for look in looks], 6)
    x_name, at = _places(looks)
    return line_chart("Training loss", x_name, at, [losses], format_value=decimal)


def _refinement(report: FoldReport) -> Markup | None:
    if not report.history:
        return None
    x_name, at = _places(report.history)
    accuracies = [look.val_accuracy for look in report.history]
    after = report.metrics.after
    band = [wilson(value, after.val.count) for value in accuracies] if after else []
    line = Series("validation accuracy", accuracies, 0, band=band)
    others = {
        place
        for place, look in zip(at, report.history, strict=True)
        if look.epoch != report.best_epoch
    }
    title = "Validation accuracy during refinement"
    return line_chart(title, x_name, at, [line], format_value=percent, shares=True, hollow=others)


def _places(looks: Sequence[Look]) -> tuple[str, list[int]]:
    """Where in refinement they were; an older release counted epochs."""
    if any(look.step for look in looks):
        return "step", [look.step for look in looks]
    return "epoch", [round(look.epoch) for look in looks]


def _stages(report: FoldReport) -> list[StageRow]:
    longest = max((stage.seconds for stage in report.stages), default=0.0) or 1.0
    titles = stage_titles()

    def name(stage: StageRecord) -> str:
        title = titles.get(stage.name, stage.name)
        alone = stage.candidate is None or len(report.candidates) < 2
        return title if alone else f"{stage.candidate}: {title}"

    return [
        StageRow(
            name(stage),
            stage.seconds,
            bar(stage.seconds / longest),
            stage.peak_bytes,
        )
        for stage in report.stages
    ]


@dataclass(frozen=True)
class Origins:
    """The map, its legend, and a bar of the whole."""

    bar: Markup
    legend: Sequence[Contributor]
    rows: Sequence[Row]
    estimated_by: str | None = None  # the method that moved more than its own source's shares

    @property
    def names(self) -> dict[int, str]:
        return {part.slot: part.name for part in self.legend}


def origins(report: FoldReport, names: Mapping[str, str]) -> Origins | None:
    """None if the report does not say. `names` are those of the sources, by sha256."""
    sizes = {p.name: p.size for p in report.parameters if p.name in report.provenance.shares}
    if not sizes:
        return None
    found = contributors(report.given(), names)
    legend = _legend(list(found.values()))
    slots = {key: part.slot for key, part in found.items()}
    drawn = layers(sizes, report.provenance.shares, slots)
    return Origins(
        bar=share_bar("Share of all parameters that each source gave", legend),
        legend=legend,
        rows=provenance_rows(drawn, {part.slot: part.name for part in legend}),
        estimated_by=_find_estimate(report),
    )


def _find_estimate(report: FoldReport) -> str | None:
    method = METHODS.get(report.method or "")
    return method.name if method is not None and method.provenance == "estimate" else None


def _legend(parts: Sequence[Contributor]) -> list[Contributor]:
    alone = [part for part in parts if part.slot != OTHERS]
    small = [part for part in parts if part.slot == OTHERS]
    if not small:
        return alone
    together = sum(part.share for part in small)
    return [*alone, Contributor(f"{len(small)} others", together, OTHERS)]
