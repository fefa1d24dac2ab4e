"""What the gate can see of a target: how far accuracy may fall before it is noticed. No torch."""

from __future__ import annotations

from collections.abc import Mapping

from grasp_core.config import GateConfig
from grasp_core.report import Record
from grasp_core.significance import smallest_refused

FEW = 30  # validation examples, of which little can be learned


class Sensitivity(Record):
    """The smallest falls of validation accuracy that are refused, if nothing is gained beside them;
    the more is, the larger. None: no fall would be."""

    count: int  # validation examples
    overall: float | None
    one_class: float | None  # of the class of which least can be seen
    classes: int

    @classmethod
    def of(cls, counts: Mapping[str, int], gate: GateConfig) -> Sensitivity:
        """From the validation examples of each class."""
        total = sum(counts.values())
        class_drop = gate.max_drop if gate.max_class_drop is None else gate.max_class_drop
        present = [count for count in counts.values() if count]
        by_class = [_share(count, class_drop, gate, len(present)) for count in present]
        known = [share for share in by_class if share is not None]
        return cls(
            count=total,
            overall=_share(total, gate.max_drop, gate, 1),
            one_class=max(known) if known and len(known) == len(by_class) else None,
            classes=len(present),
        )

    @property
    def warning(self) -> str | None:
        if self.count >= FEW:
            return None
        below = "" if self.overall is None else f" below {100 * self.overall:.0f} points"
        return (
            f"only {self.count} examples validate: the gate notices no fall{below}, and by so few"
            " the best of several looks, rates and versions is chosen; label more, 100 or so, or"
            " give a larger validation split"
        )


def _share(count: int, limit: float, gate: GateConfig, tries: int) -> float | None:
    significance = 1.0 if gate.mode == "not_worse" else gate.significance
    lost = smallest_refused(count, limit, significance, 1 if significance == 1 else tries)
    return None if lost is None else lost / count
