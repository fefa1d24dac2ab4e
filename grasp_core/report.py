"""Everything a fold measured, as versioned JSON. Importing this loads no torch."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, computed_field, model_validator

from grasp_core.provenance import Provenance
from grasp_core.significance import paired_p_value, wilson

CHANCE = 0.05  # a change that chance alone makes so often is none


class Record(BaseModel):
    """Something that was measured, and is kept; what a later release adds to it is passed over."""

    model_config = ConfigDict(frozen=True)


class NamedFile(Record):
    """A file that belongs to a version or a model, by its name there."""

    name: str
    sha256: str
    size: int


class Metrics(Record):
    """Classification quality on one split. None: undefined, as for a class without examples."""

    count: int
    accuracy: float
    per_class_accuracy: dict[str, float | None]
    per_class_count: dict[str, int]
    precision: float  # macro averages over the classes that the split has
    recall: float
    f1: float
    auroc: float | None  # macro, one class against the rest
    log_likelihood: float | None  # mean log-probability of the true class; None: not finite
    confusion_matrix: list[list[int]]  # rows: truth, columns: prediction


class SplitMetrics(Record):
    val: Metrics
    test: Metrics


class MetricsReport(Record):
    before: SplitMetrics | None = None  # None: the first source, or refused before a look
    after: SplitMetrics | None = None  # None: refused before a fold
    source: SplitMetrics | None = None  # as it came; None: refused, or of an older release


class PairedCounts(Record):
    """Two models on the same examples."""

    count: int
    lost: int  # right under the first, wrong under the second
    gained: int  # the other way round

    @computed_field  # type: ignore[prop-decorator]
    @property
    def trend(self) -> Literal["up", "down", "same"]:
        """Whether one of them is better, by more than chance explains (the gate's test)."""
        if paired_p_value(self.lost, self.gained) <= CHANCE:
            return "down"
        return "up" if paired_p_value(self.gained, self.lost) <= CHANCE else "same"


class SplitCounts(Record):
    val: PairedCounts
    test: PairedCounts


class Accuracies(Record):
    """The part of `Metrics` that is shown of many versions at once."""

    accuracy: float
    per_class: dict[str, float | None] = {}
    count: int | None = None  # None: of an older release, as below
    log_likelihood: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval(self) -> tuple[float, float] | None:
        """In which the accuracy on endless such data lies, at 95 %."""
        return wilson(self.accuracy, self.count) if self.count else None


class SplitAccuracies(Record):
    val: Accuracies
    test: Accuracies


class Figures(Record):
    """The part of a report that is kept with a version, and shown of many at once."""

    before: SplitAccuracies | None = None
    after: SplitAccuracies | None = None
    source: SplitAccuracies | None = None
    change: SplitCounts | None = None
    transferred_share: float | None = None


class Comparison(Record):
    """Two models on the same examples: all of the validation split, or those of one class."""

    count: int  # examples
    before: float  # accuracy
    after: float
    lost: int  # right before, wrong after
    gained: int  # wrong before, right after
    limit: float  # the largest drop that is allowed anyhow
    p_value: float  # how often chance alone loses as many; of classes: in any one of them
    refused: bool  # beyond the limit, and beyond chance
    detectable_drop: float | None  # the smallest that would be refused; None: none would be


class Verdict(Record):
    """What the gate saw of a folded model, and what it could have seen."""

    reason: str | None = None  # why it is refused; None: it is not
    overall: Comparison | None = None  # None: the first version, which has nothing before it
    classes: dict[str, Comparison] = {}  # those with validation examples


class FoldVerdict(Record):
    """A verdict in short: what becomes of a fold, or would become of one that only tries."""

    outcome: Literal["accepted", "rejected"]
    reason: str | None = None
    change: PairedCounts | None = None  # on validation; None: nothing to compare with


class Worth(Record):
    """What the source was worth on the validation split, in the paper's terms (section 3.2).

    P is the geometric mean probability of the true class.
    """

    effectiveness: float  # |log P(m) - log P(m-1)|
    informativeness: float  # P(m) / P(m-1); above 1: the source helped

    @classmethod
    def measure(cls, metrics: MetricsReport) -> Worth | None:
        if metrics.before is None or metrics.after is None:
            return None
        before, after = metrics.before.val.log_likelihood, metrics.after.val.log_likelihood
        if before is None or after is None:
            return None
        return cls(effectiveness=abs(after - before), informativeness=math.exp(after - before))


class ParameterReport(Record):
    """What happened to one parameter tensor."""

    name: str
    size: int
    transferred: bool | float  # the share of it that the source gave
    score: float | None = None  # what the method chose by; None: it has no such thing

    @computed_field  # type: ignore[prop-decorator]
    @property
    def alignment(self) -> float | None:
        """The score, by the name that clients know from when there was one method."""
        return self.score


class MergeReport(Record):
    """What a method did, before any refinement."""

    parameters: tuple[ParameterReport, ...] = ()
    details: dict[str, JsonValue] = {}  # of the method's own
    adopted: bool = False  # the first source, taken as it is
    files: tuple[NamedFile, ...] = ()  # kept beside the weights

    @property
    def share(self) -> float:
        """Share of all parameters that the source gave."""
        total = sum(p.size for p in self.parameters)
        return sum(p.size * float(p.transferred) for p in self.parameters) / total


class Look(Record):
    """What refinement saw of the validation split."""

    step: int = 0  # after so many; a release that counted only epochs did not say
    epoch: float  # after so many
    lr: float  # of the newest step
    train_loss: float | None  # mean since the look before; None: before the first step
    val_accuracy: float
    val_log_likelihood: float | None


class ProbedRate(Record):
    """A learning rate that was tried, at its best look."""

    rate: float
    step: int
    val_accuracy: float
    val_log_likelihood: float | None


class LearningRate(Record):
    """That of a refinement, and how it was chosen."""

    rate: float
    probe: tuple[ProbedRate, ...] = ()  # empty: it was given, or known from an earlier fold


class StageRecord(Record):
    """What a stage cost."""

    name: str
    seconds: float
    peak_bytes: int


class Environment(Record):
    """What computed the fold; the same fold gives the same bytes on the same of these."""

    python: str
    libraries: dict[str, str]
    device: str
    threads: int
    autocast: str | None


class FoldReport(Record):
    """One fold, whole: what it was asked, what it measured, what it decided."""

    schema_version: Literal[2] = Field(2, alias="schema")
    outcome: Literal["accepted", "rejected"]
    reason: str | None = None  # why it was rejected, or would have been
    forced: bool = False
    spec: dict[str, JsonValue]  # as it was: its kind may be gone,
    config: dict[str, JsonValue]  # its method too, or have other parameters now
    seed: int
    version: int
    parent: str | None  # sha256 of the version folded into
    source: str  # sha256
    sha256: str | None = None  # of the new version; None if rejected
    files: tuple[NamedFile, ...] = ()  # of the new version, beside its weights
    metrics: MetricsReport = MetricsReport()
    change: SplitCounts | None = None  # from before to after; None: there is no before
    gate: Verdict | None = None  # None: refused before a fold
    worth: Worth | None = None
    details: dict[str, JsonValue] = {}  # of the method's own
    transferred_share: float | None = None
    parameters: tuple[ParameterReport, ...] = ()
    learning_rate: LearningRate | None = None  # None: no refinement, or of an older release
    history: tuple[Look, ...] = ()
    best_epoch: float | None = None
    best_step: int | None = None
    resumed_from_epoch: float | None = None
    provenance: Provenance = Provenance()
    warnings: tuple[str, ...] = ()
    stages: tuple[StageRecord, ...] = ()
    environment: Environment

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tau(self) -> JsonValue:
        """Where clients look for it, of details that have it."""
        return self.details.get("tau")

    @property
    def accepted(self) -> bool:
        return self.outcome == "accepted"

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def verdict(self) -> FoldVerdict:
        change = self.change.val if self.change else None
        return FoldVerdict(outcome=self.outcome, reason=self.reason, change=change)

    @property
    def figures(self) -> Figures:
        metrics = self.metrics
        return Figures(
            before=_accuracies(metrics.before),
            after=_accuracies(metrics.after),
            source=_accuracies(metrics.source),
            change=self.change,
            transferred_share=self.transferred_share,
        )

    def given(self) -> dict[str, float]:
        """Share of all parameters that each source gave, by its sha256."""
        return self.provenance.totals({p.name: p.size for p in self.parameters})

    def to_json(self) -> str:
        return self.model_dump_json(by_alias=True, indent=2)

    @model_validator(mode="before")
    @classmethod
    def _upgrade(cls, values: Any) -> Any:
        is_old = isinstance(values, dict) and values.get("schema") == 1
        return _from_schema_1(values) if is_old else values


def _accuracies(metrics: SplitMetrics | None) -> SplitAccuracies | None:
    if metrics is None:
        return None
    val, test = (
        Accuracies(
            accuracy=found.accuracy,
            per_class=found.per_class_accuracy,
            count=found.count,
            log_likelihood=found.log_likelihood,
        )
        for found in (metrics.val, metrics.test)
    )
    return SplitAccuracies(val=val, test=test)


def _from_schema_1(old: dict[str, Any]) -> dict[str, Any]:
    """There was one method, whose threshold and scores had fields of their own."""
    tau = old.get("tau")  # None: the first source, compared with nothing
    parameters = [
        {**parameter, "score": None if tau is None else parameter.get("alignment")}
        for parameter in old.get("parameters", ())
    ]
    details = {} if tau is None else {"tau": tau}
    return {**old, "schema": 2, "details": details, "parameters": parameters}
