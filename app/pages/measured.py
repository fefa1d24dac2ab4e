"""What a fold measured, arranged for a page: of a version, a rejected fold, or a dry run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from app.charts import Aligned, Series, alignment_chart, bar, line_chart, shade
from app.pages.reports import After, Before, Metrics, Report
from app.pages.words import decimal, percent

MEASURES: tuple[tuple[str, str], ...] = (
    ("accuracy", "Accuracy"),
    ("f1", "F1"),
    ("precision", "Precision"),
    ("recall", "Recall"),
    ("auroc", "AUROC"),
)
STAGE_NAMES = {
    "load": "Load",
    "baseline": "Evaluate before",
    "target_gradients": "Gradients of the merged model",
    "source_gradients": "Gradients of the source",
    "transfer": "Transfer",
    "recalibrate": "Recalibrate statistics",
    "refine": "Refine",
    "evaluate": "Evaluate after",
    "publish": "Publish",
}
MOST_CLASSES = 20  # in a confusion matrix
MOST_PAIRS = 15


@dataclass(frozen=True)
class Measure:
    """One figure on one split, before and after."""

    before: float | None
    after: float | None

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
class StageRow:
    name: str
    seconds: float
    bar: Markup
    peak_bytes: int


@dataclass(frozen=True)
class Measured:
    """All that a page shows of a report."""

    report: Report
    val: Measure  # accuracy
    test: Measure
    measures: Sequence[tuple[str, Measure, Measure]]  # name, on validation, on test
    alignment: Markup | None
    parameters: Sequence[Aligned]
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


def measured(report: Report, classes: Sequence[str]) -> Measured:
    before = report.metrics.before or Before()
    after = report.metrics.after or After()
    aligned = _aligned(report)

    def measure(split: str, name: str) -> Measure:
        return Measure(*(getattr(getattr(m, split), name) for m in (before, after)))

    return Measured(
        report=report,
        val=measure("val", "accuracy"),
        test=measure("test", "accuracy"),
        measures=[
            (words, measure("val", name), measure("test", name))
            for name, words in MEASURES
            if report.metrics.after
        ],
        alignment=alignment_chart(aligned, report.tau) if _compared(report) else None,
        parameters=aligned,
        confusions=_confusions({"test": after.test, "validation": after.val}, classes),
        loss=_loss(report),
        refinement=_refinement(report),
        stages=_stages(report),
    )


def _compared(report: Report) -> bool:
    """Not the first source, which all of the model was taken from."""
    return report.tau is not None and any(p.alignment is not None for p in report.parameters)


def _aligned(report: Report) -> list[Aligned]:
    return [
        Aligned(p.name, p.size, p.alignment, float(p.transferred))
        for p in report.parameters
        if p.alignment is not None
    ]


def _confusions(splits: Mapping[str, Metrics], classes: Sequence[str]) -> dict[str, Confusion]:
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


def _loss(report: Report) -> Markup | None:
    if not report.history:
        return None
    losses = Series("training loss", [epoch.train_loss for epoch in report.history], 6)
    at = [epoch.epoch for epoch in report.history]
    return line_chart("Training loss of each epoch", "epoch", at, [losses], show=decimal)


def _refinement(report: Report) -> Markup | None:
    """Epoch 0 is the model as it was before the fold."""
    if not report.history:
        return None
    before = report.metrics.before
    start = [(0, before.val.accuracy)] if before else []
    points = start + [(epoch.epoch, epoch.val_accuracy) for epoch in report.history]
    at = [epoch for epoch, _ in points]
    line = Series("validation accuracy", [accuracy for _, accuracy in points], 0)
    others = set(at) - {report.best_epoch}
    title = "Validation accuracy after each epoch"
    return line_chart(title, "epoch", at, [line], show=percent, shares=True, hollow=others)


def _stages(report: Report) -> list[StageRow]:
    longest = max((stage.seconds for stage in report.stages), default=0.0) or 1.0
    return [
        StageRow(
            STAGE_NAMES.get(stage.name, stage.name),
            stage.seconds,
            bar(stage.seconds / longest),
            stage.peak_bytes,
        )
        for stage in report.stages
    ]
