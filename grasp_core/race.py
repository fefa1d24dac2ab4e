"""All candidates of a fold: one after another in the memory of one, judged on the same examples.

The best mean log-likelihood on validation wins, by whatever margin. The version as it was takes
part unchanged, and wins ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, count

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
        names = chain([candidate.method], (f"{candidate.method}-{n}" for n in count(2)))
        named[next(name for name in names if name not in named)] = candidate
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
            candidate.alike = _find_alike(candidate, order[:number])
            candidate.refine(self._rate, heat or 1.0)
            if heat is None:
                candidate.finish()
        if heat is not None:
            self._go_on(order, heat)
        errors = [each.error for each in self.candidates if each.error is not None]
        if len(errors) == len(self.candidates):
            raise errors[0]

    def choose(self, before: Predictions | None) -> Candidate | None:
        """The winner; None: the version as it was, which one candidate alone does not run against.

        Where no outputs are finite, it is one of those, for the gate to refuse.
        """
        runners = [each for each in self.candidates if each.is_runner and each.went_on]
        best = max(runners, key=lambda each: each.likelihood)
        if before is None or len(self.candidates) == 1 or not math.isfinite(best.likelihood):
            return best
        return best if best.likelihood > before.mean_log_likelihood else None

    @property
    def keep(self) -> Candidate | None:
        """Who shows what doing without the source gives, if it is tried."""
        return next((each for each in self._keepers if each.reason is None), None)

    @property
    def learning_rate(self) -> LearningRate | None:
        """As it was probed, if it was."""
        rates = (candidate.refined.learning_rate for candidate in self.candidates)
        return next((rate for rate in rates if rate and rate.probe), None)

    @property
    def _keepers(self) -> list[Candidate]:
        """Who are refined as `keep`, or for it."""
        return [each.runner for each in self.candidates if each.method.name == "keep"]

    @property
    def _rate(self) -> float | None:
        """What is known of the learning rate by now."""
        return self.learning_rate.rate if self.learning_rate else self._known_rate

    def _order(self) -> list[Candidate]:
        """As they stand; but where rates are to be tried, the source comes first, to try them."""
        probing = self._known_rate is None and self._bench.config.refine.lr == "auto"
        return sorted(self.candidates, key=lambda each: probing and each.method.name != "source")

    def _go_on(self, order: Sequence[Candidate], heat: float) -> None:
        """After the heat: the best that stays in the race, and `keep`, for what is left of the
        budget."""
        config = self._bench.config.refine
        schedule = Schedule(config, self._bench.task.training_steps(config.batch_size))
        until = schedule.look_after(heat)
        # Twins come right after the one that runs for them, to take its place if it drops out.
        ranked = sorted(order, key=lambda each: -each.runner.refined.best_until(until))
        finalist: Candidate | None = None
        for number, candidate in enumerate(ranked):
            if not candidate.is_runner:
                continue
            self._plan(ranked[number:], 1 - heat)
            candidate.went_on = finalist is None or candidate in self._keepers
            candidate.refine(self._rate, 1.0 if candidate.went_on else heat)
            candidate.finish()
            if candidate.is_runner:
                finalist = finalist or candidate

    def _plan(self, candidates: Sequence[Candidate], share: float) -> None:
        work = ((each.name, stage) for each in candidates if each.is_runner for stage in REFINING)
        self._bench.recorder.plan([*work, *ENDING], share)


def _find_alike(candidate: Candidate, others: Sequence[Candidate]) -> list[Candidate]:
    """Those that merged to the very same weights, and so would be refined to the same."""
    if candidate.weights is None:
        return []
    return [other for other in others if other.weights == candidate.weights]
