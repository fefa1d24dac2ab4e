"""A fold's report, as pages read it: what a report lacks is empty, and what is new is passed over.

grasp_core.report writes it; this room does not load what that needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict
from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.tables import Job, Source


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Figures(Part):
    accuracy: float | None = None
    precision: float | None = None
    recall: float | None = None
    f1: float | None = None
    auroc: float | None = None


class Metrics(Figures):
    confusion_matrix: list[list[int]] = []  # rows: truth, columns: prediction


class Before(Part):
    val: Figures = Figures()
    test: Figures = Figures()


class After(Part):
    val: Metrics = Metrics()
    test: Metrics = Metrics()


class Moments(Part):
    before: Before | None = None
    after: After | None = None


class Comparison(Part):
    """Of the gate: two models on the same validation examples."""

    count: int
    lost: int
    gained: int
    p_value: float
    refused: bool
    detectable_drop: float | None


class Verdict(Part):
    overall: Comparison | None = None
    classes: dict[str, Comparison] = {}


class Worth(Part):
    effectiveness: float
    informativeness: float


class Parameter(Part):
    name: str
    size: int = 0
    alignment: float | None = None
    transferred: bool | float = False


class Epoch(Part):
    epoch: int
    train_loss: float
    val_accuracy: float


class Stage(Part):
    name: str
    seconds: float
    peak_bytes: int


class Provenance(Part):
    shares: dict[str, dict[str, float]] = {}  # parameter: {source: share}


class Ancestry(Part):
    """The part of it that says where parameters came from; the rest is not even looked at."""

    parameters: list[Parameter] = []
    provenance: Provenance = Provenance()

    def totals(self) -> dict[str, float]:
        """Each source's share of all parameters."""
        sizes = {parameter.name: parameter.size for parameter in self.parameters}
        whole = sum(sizes.values()) or 1
        given: dict[str, float] = {}
        for name, owners in self.provenance.shares.items():
            for source, share in owners.items():
                given[source] = given.get(source, 0.0) + share * sizes.get(name, 0) / whole
        return given


class Report(Ancestry):
    config: dict[str, Any] = {}
    metrics: Moments = Moments()
    gate: Verdict | None = None
    worth: Worth | None = None
    tau: float | None = None
    transferred_share: float | None = None
    history: list[Epoch] = []
    best_epoch: int | None = None
    resumed_from_epoch: int | None = None
    warnings: list[str] = []
    stages: list[Stage] = []
    environment: dict[str, Any] = {}


Kind = TypeVar("Kind", bound=Ancestry)


def read_report(session: Session, job_id: str, kind: type[Kind]) -> Kind | None:
    text = session.scalar(select(Job.report).where(Job.id == job_id))
    return None if text is None else kind.model_validate_json(text)


def source_names(session: Session, model_id: str) -> Mapping[str, str]:
    """sha256 → name of all that was offered to a model, in order of arrival."""
    offered = select(Source.sha256, Source.name).where(Source.model_id == model_id)
    return {row.sha256: row.name for row in session.execute(offered.order_by(Source.id))}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by their dotted names, as error messages call them."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
