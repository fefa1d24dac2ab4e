"""Whether a method can go on from a version: some need their own state of all folds before."""

import json

from sqlalchemy import select
from sqlalchemy.orm import Session

from grasp_core.methods import METHODS
from registry.tables import Job, Version


def require_history(session: Session, version: Version | None, name: str) -> None:
    """Raises ConfigError where the method of this name cannot fold into that version."""
    method = METHODS.get(name)  # workers may have one that is not installed here
    if method is None or not method.needs.history or _has_state_of(session, version, name):
        return
    method.require_beginning(first=version is None)


def _has_state_of(session: Session, version: Version | None, method: str) -> bool:
    """Whether it was made by this method, and has what that remembers."""
    if version is None or version.state_sha256 is None:
        return False
    report = session.scalar(select(Job.report).where(Job.id == version.job_id))
    return bool(report and json.loads(report)["config"]["method"] == method)
