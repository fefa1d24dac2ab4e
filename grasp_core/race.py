"""All candidates of a fold: one after another in the memory of one, judged on the same examples.

The best mean log-likelihood on validation wins, by whatever margin. The version as it was takes
part unchanged, and wins ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from grasp_core.candidates import Candidate
from grasp_core.config import FoldConfig, MethodConfig
from grasp_core.evaluation import Predictions
from grasp_core.methods import METHODS
from grasp_core.progress import Work
from grasp_core.report import LearningRate
from grasp_core.schedule import Schedule
from grasp_core.workbench import Workbench

BEGINNING: tuple[Work, ...] = ((None, "load"), (None, "baseline"))
MERGING, REFINING = ("transfer", "recalibrate"), ("refine", "predict")
ENDING: tuple[Work, ...] = ((None, "evaluate"), (None, "publish"))


def plan_fold(config: FoldConfig) -> Iterator[Work]:
    """All stages of a fold, in order."""
    yield from BEGINNING
    for name, candidate in name_candidates(config.candidates).items():
        own = (stage.name for stage in METHODS[candidate.method].stages)
        yield from ((name, stage) for stage in (*own, *MERGING, *REFINING))
    yield from ENDING


def name_candidates(candidates: Sequence[MethodConfig]) -> dict[str, MethodConfig]:
    """By their methods, of which one may be there with several sets of parameters."""
    named: dict[str, MethodConfig] = {}
    for candidate in candidates:
        others = sum(other.method == candidate.method for other in named.values())
        named[f"{candidate.method}-{others + 1}" if others else candidate.method] = candidate
    return named


class Race:
    """The candidates of one fold."""

    def __init__(self, bench: Workbench, known_rate: float | None) -> None:
        named = name_candidates(bench.config.candidates)
        self.candidates = [Candidate(bench, name, each) for name, each in named.items()]
        self._bench = bench
        self._known_rate = known_rate

    def run(self) -> None:
        """Raises what the first of them said, if none comes to an end."""
        heat = self._bench.config.heat if len(self.candidates) > 1 else None
        order = self._order()
        for number, candidate in enumerate(order):
            candidate.merge()
            candidate.twin = _find_twin(candidate, order[:number])
            if candidate.twin is None:
                candidate.refine(self._rate, heat or 1.0)
                if heat is None:
                    candidate.finish()
        if heat is not None:
            self._go_on(heat)
        errors = (candidate.error for candidate in self.candidates if candidate.error is not None)
        if all(candidate.val is None for candidate in self.candidates):
            raise next(errors)

    def choose(self, before: Predictions | None) -> Candidate | None:
        """The winner; None: the version as it was, which one candidate alone does not run against.

        Where no outputs are finite, it is one of those, for the gate to refuse.
        """
        runners = [each for each in self.candidates if each.twin is None and each.went_on]
        best = max(runners, key=lambda each: (each.val is not None, each.likelihood))
        if before is None or len(self.candidates) == 1 or not math.isfinite(best.likelihood):
            return best
        return best if best.likelihood > before.mean_log_likelihood else None

    @property
    def keep(self) -> Candidate | None:
        """What doing without the source gave, if it was tried."""
        kept = (each for each in self.candidates if each.method.name == "keep")
        return next((each for each in kept if each.val and each.reason is None), None)

    @property
    def learning_rate(self) -> LearningRate | None:
        """As it was probed, if it was."""
        rates = (candidate.refined.learning_rate for candidate in self.candidates)
        return next((rate for rate in rates if rate and rate.probe), None)

    @property
    def _rate(self) -> float | None:
        """What is known of the learning rate by now."""
        return self.learning_rate.rate if self.learning_rate else self._known_rate

    def _order(self) -> list[Candidate]:
        """As they stand; but where rates are to be tried, the source comes first, to try them."""
        probing = self._known_rate is None and self._bench.config.refine.lr == "auto"
        return sorted(self.candidates, key=lambda each: probing and each.method.name != "source")

    def _go_on(self, heat: float) -> None:
        """After the heat: the best, and `keep`, for what is left of the budget."""
        runners = [each for each in self.candidates if each.twin is None and each.error is None]
        config = self._bench.config.refine
        schedule = Schedule(config, self._bench.task.training_steps(config.batch_size))
        until = schedule.look_after(heat)
        best = max(runners, key=lambda each: each.refined.best_until(until), default=None)
        for candidate in runners:
            candidate.went_on = candidate is best or candidate.method.name == "keep"
        self._bench.recorder.plan(
            [*((each.name, stage) for each in runners for stage in REFINING), *ENDING], 1 - heat
        )
        for candidate in runners:
            if candidate.went_on:
                candidate.refine(self._rate)
            candidate.finish()


def _find_twin(candidate: Candidate, others: Iterable[Candidate]) -> Candidate | None:
    """One before it that merged to the very same weights, and so would be refined to the same."""
    if candidate.weights is None:
        return None
    alike = (o for o in others if o.weights == candidate.weights and o.twin is None)
    return next((other for other in alike if other.error is None), None)
