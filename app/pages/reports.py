"""A fold's report, as pages read it."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.report import FoldReport
from registry.tables import Job, Source


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


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters by their dotted names, as error messages call them."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
