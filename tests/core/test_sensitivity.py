"""What the gate can see of a target, against the gate."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from grasp_core.config import GateConfig
from grasp_core.evaluation import Predictions, read_predictions
from grasp_core.gate import judge
from grasp_core.sensitivity import Sensitivity

TEN = dict.fromkeys("abcdefghij", 10)


def predictions(counts: Mapping[str, int], lost: Mapping[str, int]) -> Predictions:
    """All are right, but for so many of each class."""
    labels = np.repeat(np.arange(len(counts)), list(counts.values()))
    guesses = labels.copy()
    for index, name in enumerate(counts):
        wrong = np.flatnonzero(labels == index)[: lost.get(name, 0)]
        guesses[wrong] = (index + 1) % len(counts)
    scores = np.where(np.eye(len(counts))[guesses] > 0, -0.1, -5.0).astype(np.float32)
    return read_predictions(scores, labels, tuple(counts))


@pytest.mark.parametrize(
    ("gate", "overall", "one_class"),
    [
        (GateConfig(), 0.05, 0.8),
        (GateConfig(max_drop=0.08), 0.09, 0.8),
        (GateConfig(max_class_drop=0.9), 0.05, 1.0),
        (GateConfig(mode="not_worse"), 0.03, 0.1),
        (GateConfig(significance=1.0), 0.03, 0.1),
        (GateConfig(max_drop=1.0), None, None),
    ],
    ids=str,
)
def test_what_it_says_is_what_the_gate_does(
    gate: GateConfig, overall: float | None, one_class: float | None
) -> None:
    seen = Sensitivity.of(TEN, gate)

    assert (seen.count, seen.overall, seen.one_class, seen.classes) == (100, overall, one_class, 10)
    before = predictions(TEN, {})
    if overall is not None:
        spread = dict.fromkeys("abcdefghij", 0)
        for number in range(round(100 * overall)):
            spread["abcdefghij"[number % 10]] += 1
        assert judge(before, predictions(TEN, spread), gate).overall.refused  # type: ignore[union-attr]
        spread["a"] -= 1
        assert not judge(before, predictions(TEN, spread), gate).overall.refused  # type: ignore[union-attr]
    if one_class is not None:
        lost = round(10 * one_class)
        assert judge(before, predictions(TEN, {"a": lost}), gate).classes["a"].refused
        assert not judge(before, predictions(TEN, {"a": lost - 1}), gate).classes["a"].refused


def test_of_few_examples_it_warns() -> None:
    assert Sensitivity.of({"a": 15, "b": 15}, GateConfig()).warning is None
    few = Sensitivity.of({"a": 3, "b": 3}, GateConfig())
    assert few.one_class is None
    assert few.warning is not None
    assert few.warning.startswith(
        "only 6 examples validate: the gate notices no fall below 83 points"
    )
    none = Sensitivity.of({"a": 2, "b": 2}, GateConfig())
    assert none.warning is not None
    assert "the gate notices no fall," in none.warning
