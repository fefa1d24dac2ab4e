"""What a worker sums up about its jobs and its memory, for the row that /metrics reads."""

import json
import sys
from typing import Any

import psutil

from grasp_core.operations import Folded
from registry.jobs.totals import FoldKind, Outcome, Sum, Totals

if sys.platform != "win32":
    import resource

RUSAGE_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes


class Tally:
    """Counts since the worker started; a new worker counts from nothing."""

    def __init__(self) -> None:
        self._totals = Totals()

    def count_end(self, kind: FoldKind, outcome: Outcome) -> None:
        """A fold that came to an end without a report."""
        self._totals.folds[kind][outcome] += 1

    def count_fold(self, kind: FoldKind, folded: Folded) -> None:
        """A fold whose report is recorded."""
        totals = self._totals
        totals.folds[kind][folded.outcome] += 1
        if kind == "fold" and folded.outcome == "rejected":
            looked_at_only = folded.metrics.after is None
            totals.rejections["tensors" if looked_at_only else "accuracy"] += 1
        first = folded.metrics.before is None  # taken whole: there was nothing to choose
        share = folded.metrics.transferred_share
        if share is not None and not first:
            totals.transferred_share.add(share)
        for stage in json.loads(folded.report).get("stages", ()):
            totals.stages.setdefault(stage["name"], Sum()).add(stage["seconds"])

    def count_failure(self, code: str) -> None:
        """An attempt that went wrong, whether or not another follows."""
        self._totals.failures[code] = self._totals.failures.get(code, 0) + 1

    def snapshot(self) -> dict[str, Any]:
        """All of it, with the memory of this moment."""
        self._totals.resident_bytes = psutil.Process().memory_info().rss
        self._totals.child_peak_bytes = max(self._totals.child_peak_bytes, _child_peak())
        return self._totals.model_dump()


def _child_peak() -> int:
    """The most that a child that has ended ever held, or a running one holds now."""
    running = [_resident(child) for child in psutil.Process().children()]
    ended = 0
    if sys.platform != "win32":
        ended = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * RUSAGE_UNIT
    return max(ended, *running, 0)


def _resident(process: psutil.Process) -> int:
    try:
        bytes_: int = process.memory_info().rss
    except psutil.NoSuchProcess:
        return 0
    return bytes_
