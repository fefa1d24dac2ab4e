"""Everything a fold measured, as versioned JSON. Importing this loads no torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean, stdev
from typing import Any, Literal, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    computed_field,
    model_validator,
)

from grasp_core.provenance import Provenance
from grasp_core.significance import paired_p_value, wilson

NORMAL_95 = 1.96  # standard errors on either side of a mean
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


class Difference(Record):
    """A mean of differences between two models, example by example."""

    mean: float
    error: float | None  # standard error of the mean; None: of a single example

    @computed_field  # type: ignore[prop-decorator]
    @property
    def interval(self) -> tuple[float, float] | None:
        """In which the difference on endless such data lies, at 95 %."""
        if self.error is None:
            return None
        return self.mean - NORMAL_95 * self.error, self.mean + NORMAL_95 * self.error

    def in_points(self, *, over: str = "") -> str:
        """Of accuracies, for people: `+1.8 points over it (0.4 to 3.1)`."""
        points = f"{100 * self.mean:+.1f} points{over}"
        if self.interval is None:
            return points
        low, high = (100 * bound for bound in self.interval)
        return f"{points} ({low:.1f} to {high:.1f})"

    @classmethod
    def measure(cls, differences: Iterable[float]) -> Difference | None:
        """None: some are not finite."""
        values = list(map(float, differences))
        if not values or not all(map(math.isfinite, values)):
            return None
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
        return cls(mean=fmean(values), error=error)


class Differences(Record):
    """How much better a model is than another, on the same examples."""

    accuracy: Difference | None
    log_likelihood: Difference | None  # None: not finite


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


AS_IT_WAS = "no candidate was better: the weights stay as they were"
Outcome = Literal["accepted", "kept", "rejected"]  # kept: for that reason
Cause = Literal["not_finite", "norm", "floor", "fall"]  # of a refusal
Standing = Literal["won", "lost", "out"]  # out: it did not come to an end that can be compared


class Worth(Record):
    """What the source was worth: the winner against `keep`, which did without it.

    In the paper's terms (section 3.2), too, on the validation split, where P is the geometric mean
    probability of the true class. An older release compared with the model before the fold, and so
    credited the source with what mere training did; it had no other figures.
    """

    effectiveness: float  # |log P(m) - log P(keep)|
    informativeness: float  # P(m) / P(keep); above 1: the source helped
    val: Differences | None = None  # by which it was decided
    test: Differences | None = None  # for the record

    @classmethod
    def measure(cls, val: Differences, test: Differences) -> Worth | None:
        if val.log_likelihood is None:
            return None
        gain = val.log_likelihood.mean
        return cls(effectiveness=abs(gain), informativeness=math.exp(gain), val=val, test=test)

    @property
    def sentence(self) -> str | None:
        """For people; by the test split, which decided nothing and so flatters nobody."""
        gain = self.test and self.test.accuracy
        return gain.in_points(over=" on test over doing without it") if gain else None


class Runner(Record):
    """A candidate in short."""

    name: str
    outcome: Standing
    reason: str | None = None  # why it is out
    same_as: str | None = None  # the candidate whose merged weights were the very same
    accuracy: float | None = None  # on validation, as all that follows; None: it is out
    log_likelihood: float | None = None
    error: float | None = None  # standard error of the log-likelihood
    gain: Differences | None = None  # over `keep`; None: nothing to compare with
    test_accuracy: float | None = None  # None: nobody looked
    seconds: float | None = None  # None: of an older release, as below
    peak_bytes: int | None = None


class Figures(Record):
    """The part of a report that is kept with a version, and shown of many at once."""

    before: SplitAccuracies | None = None
    after: SplitAccuracies | None = None
    source: SplitAccuracies | None = None
    change: SplitCounts | None = None
    transferred_share: float | None = None
    candidates: tuple[Runner, ...] = ()  # of an older release: none
    worth: Worth | None = None  # as in the report

    @classmethod
    def read(cls, metrics: Mapping[str, Any]) -> Figures:
        """Of a version or a job; none, where another release has written others."""
        try:
            return cls.model_validate(metrics)
        except ValidationError:
            return cls()

    @property
    def winner(self) -> str | None:
        """None: the version before, or of an older release."""
        return next((each.name for each in self.candidates if each.outcome == "won"), None)

    @property
    def kept(self) -> bool:
        """Whether the weights are those of the version before, as no candidate was better."""
        return bool(self.candidates) and self.winner is None

    @property
    def sentence(self) -> str | None:
        """What the source was worth, and who won; None: nothing ran against anything."""
        if self.kept:
            return AS_IT_WAS
        won = self.winner
        lost = [
            each.name for each in self.candidates if each.outcome == "lost" and not each.same_as
        ]
        parts = (
            self.worth.sentence if self.worth and won != "keep" else None,
            f"{won} won over {', '.join(lost)}" if lost else None,
        )
        return "; ".join(filter(None, parts)) or None


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
    cause: Cause | None = None  # the same for programs; None: it is not, or of an older release
    overall: Comparison | None = None  # None: the first version, which has nothing before it
    classes: dict[str, Comparison] = {}  # those with validation examples


class FoldVerdict(Record):
    """A verdict in short: what becomes of a fold, or would become of one that only tries."""

    outcome: Outcome
    reason: str | None = None
    cause: Cause | None = None  # what was refused; None: nothing, or by an older release
    change: PairedCounts | None = None  # on validation; None: nothing to compare with


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
    begins: bool = False  # it remembers something, and took over what it had not merged
    files: tuple[NamedFile, ...] = ()  # kept beside the weights

    @property
    def share(self) -> float:
        """Share of all parameters that the source gave."""
        total = sum(p.size for p in self.parameters)
        return sum(p.size * float(p.transferred) for p in self.parameters) / max(total, 1)


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
    candidate: str | None = None  # whose; None: of the fold as a whole


class CandidateReport(Record):
    """What became of one candidate."""

    name: str
    method: str
    config: dict[str, JsonValue]  # its parameters
    outcome: Standing
    reason: str | None = None  # why it is out
    same_as: str | None = None  # the candidate whose merged weights were the very same
    went_on: bool = True  # beyond the heat
    share: float | None = None  # of all parameters, given by the source
    val: Accuracies | None = None
    test: Accuracies | None = None  # for the record; None: nobody looked
    error: float | None = None  # standard error of the log-likelihood on validation
    gain: Differences | None = None  # over `keep`, on validation; None: nothing to compare with
    learning_rate: LearningRate | None = None
    history: tuple[Look, ...] = ()
    best_step: int | None = None
    seconds: float = 0.0
    peak_bytes: int = 0

    def in_short(self) -> Runner:
        return Runner(
            name=self.name,
            outcome=self.outcome,
            reason=self.reason,
            same_as=self.same_as,
            accuracy=self.val and self.val.accuracy,
            log_likelihood=self.val and self.val.log_likelihood,
            error=self.error,
            gain=self.gain,
            test_accuracy=self.test and self.test.accuracy,
            seconds=self.seconds,
            peak_bytes=self.peak_bytes,
        )


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
    outcome: Outcome
    reason: str | None = None  # why it was rejected, or would have been
    cause: Cause | None = None  # of what was refused before a fold; else the gate says it
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
    candidates: tuple[CandidateReport, ...] = ()  # as they were asked for; older releases had one
    worth: Worth | None = None  # None: nothing to compare with, or the weights stay
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
        """Whether there is a new version."""
        return self.outcome != "rejected"

    @property
    def winner(self) -> CandidateReport | None:
        return next((each for each in self.candidates if each.outcome == "won"), None)

    @property
    def method(self) -> str | None:
        """That made the weights; None: no candidate was better than those there were."""
        return self.winner.method if self.winner else cast(str | None, self.config.get("method"))

    @property
    def verdict(self) -> FoldVerdict:
        return FoldVerdict(
            outcome=self.outcome,
            reason=self.reason,
            cause=self.cause or (self.gate.cause if self.gate else None),
            change=self.change.val if self.change else None,
        )

    @property
    def figures(self) -> Figures:
        metrics = self.metrics
        return Figures(
            before=_accuracies(metrics.before),
            after=_accuracies(metrics.after),
            source=_accuracies(metrics.source),
            change=self.change,
            transferred_share=self.transferred_share,
            candidates=tuple(each.in_short() for each in self.candidates),
            worth=self.worth,
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


def summarize(metrics: Metrics) -> Accuracies:
    return Accuracies(
        accuracy=metrics.accuracy,
        per_class=metrics.per_class_accuracy,
        count=metrics.count,
        log_likelihood=metrics.log_likelihood,
    )


def _accuracies(metrics: SplitMetrics | None) -> SplitAccuracies | None:
    if metrics is None:
        return None
    return SplitAccuracies(val=summarize(metrics.val), test=summarize(metrics.test))


def _from_schema_1(old: dict[str, Any]) -> dict[str, Any]:
    """There was one method, whose threshold and scores had fields of their own."""
    tau = old.get("tau")  # None: the first source, compared with nothing
    parameters = [
        {**parameter, "score": None if tau is None else parameter.get("alignment")}
        for parameter in old.get("parameters", ())
    ]
    details = {} if tau is None else {"tau": tau}
    return {**old, "schema": 2, "details": details, "parameters": parameters}
