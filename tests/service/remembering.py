"""Real folds by a method of the tests' own, which has a base and a state; a child imports this."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from grasp_core.methods import METHODS
from grasp_core.operations import Folded, FoldSource, Live, Operation, ReportProgress

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy.orm import Session

    from registry.jobs.queue import Lease
    from registry.process.settings import Settings
    from worker.jobs import JobSpec

KILLED = "killed"  # the model whose folds die once each
DIES_IN = 2  # epochs


@dataclass(frozen=True)
class ShadowFold(FoldSource):
    """Of a method that only tests have."""

    dies: bool = False

    def run(self, report: ReportProgress) -> Folded:
        from tests.core.shadow import SHADOW

        METHODS.setdefault(SHADOW.name, SHADOW)
        died = self.work_dir / "died"

        def reporting(stage: str, fraction: float, metrics: Live) -> None:
            report(stage, fraction, metrics)
            if self.dies and metrics.get("epoch") == DIES_IN and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        return super().run(reporting)


def read_shadow_job(session: Session, lease: Lease, settings: Settings) -> JobSpec:
    """The real job, with folds that know the method."""
    from registry.tables import Model
    from worker.jobs import JobSpec, read_job

    real = read_job(session, lease, settings)
    model = session.get(Model, lease.queue_id)
    dies = model is not None and model.name == KILLED

    def operation(files: Mapping[str, Path]) -> Operation:
        made = real.operation(files=files)
        if not isinstance(made, FoldSource):
            return made
        given = {field.name: getattr(made, field.name) for field in fields(made)}
        return ShadowFold(**given, dies=dies)

    return JobSpec(operation, real.inputs, real.local)
