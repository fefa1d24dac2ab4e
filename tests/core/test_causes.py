"""Why a fold is refused, for programs: what would allow it depends on that."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from grasp_core.config import GateConfig
from grasp_core.evaluation import Predictions, read_predictions
from grasp_core.gate import find_bad_tensors, judge, name_cause
from grasp_core.report import Environment, FoldReport, FoldVerdict, Verdict

GATE = GateConfig()
ENVIRONMENT = Environment(python="3", libraries={}, device="cpu", threads=1, autocast=None)
CLASSES = ("a", "b")


def right(share: float, count: int = 200) -> Predictions:
    """A model that recognises so many of two classes' examples."""
    labels = np.arange(count) % 2
    wrong = np.arange(count) >= share * count
    probabilities = np.full((count, 2), 0.1, np.float32)
    probabilities[np.arange(count), labels ^ wrong] = 0.9
    return read_predictions(np.log(probabilities), labels, CLASSES)


def broken() -> Predictions:
    return read_predictions(np.full((2, 2), np.nan, np.float32), np.arange(2), CLASSES)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (None, right(0.9), None),
        (None, right(0.1), "floor"),
        (None, broken(), "not_finite"),
        (right(0.9), right(0.9), None),
        (right(0.9), right(0.5), "fall"),
    ],
)
def test_a_verdict_names_its_cause(
    before: Predictions | None, after: Predictions, cause: str | None
) -> None:
    verdict = judge(before, after, GATE)

    assert verdict.cause == cause
    assert (verdict.reason is None) == (cause is None)


@pytest.mark.parametrize(
    ("value", "cause"), [(math.nan, "not_finite"), (math.inf, "not_finite"), (1e6, "norm")]
)
def test_a_source_that_is_refused_unseen_has_a_cause_too(value: float, cause: str) -> None:
    source = {"good": torch.ones(2), "bad": torch.full((2,), value)}

    assert find_bad_tensors(source, None, GATE)
    assert name_cause(source) == cause


def test_a_report_says_the_cause_in_short() -> None:
    fell = Verdict(reason="it fell", cause="fall")

    assert report(cause="norm").verdict.cause == "norm"
    assert report(gate=fell).verdict.cause == "fall"
    assert report().verdict.cause is None


def test_what_an_older_release_said_has_no_cause() -> None:
    old = FoldVerdict.model_validate({"outcome": "rejected", "reason": "it fell"})

    assert old.cause is None


def report(**values: object) -> FoldReport:
    return FoldReport.model_validate(
        {
            "outcome": "rejected",
            "spec": {},
            "config": {},
            "seed": 0,
            "version": 1,
            "parent": None,
            "source": "a" * 64,
            "environment": ENVIRONMENT,
            **values,
        }
    )
