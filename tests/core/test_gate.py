"""What the gate lets through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from grasp_core.config import GateConfig
from grasp_core.evaluation import Metrics, score_predictions
from grasp_core.gate import find_bad_tensors, find_regression, root_mean_square

GATE = GateConfig(max_drop=0.02)


def metrics(*right: int, of: int = 100) -> Metrics:
    """`right[c]` of each class's `of` examples recognised."""
    labels = np.repeat(np.arange(len(right)), of)
    hits = np.concatenate([np.arange(of) < count for count in right])
    predicted = np.where(hits, labels, (labels + 1) % len(right))
    probabilities = np.full((len(labels), len(right)), 0.1, np.float32)
    probabilities[np.arange(len(labels)), predicted] = 0.8
    return score_predictions(np.log(probabilities), labels, tuple("abc"[: len(right)]))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (metrics(90, 90), metrics(90, 90), None),
        (metrics(90, 90), metrics(88, 88), None),
        (metrics(90, 90), metrics(88, 87), "validation accuracy fell by 0.0250"),
        (metrics(90, 90), metrics(95, 87), "class b fell from 0.9000 to 0.8700"),
        (metrics(9, 9, of=10), metrics(10, 8, of=10), None),  # one example is noise
        (metrics(9, 9, of=10), metrics(10, 7, of=10), "validation accuracy fell by 0.0500"),
        (metrics(8, 9, of=10), metrics(10, 7, of=10), "class b fell"),
        (None, metrics(0, 0), None),
    ],
)
def test_a_fall_beyond_max_drop_is_refused(
    before: Metrics | None, after: Metrics, reason: str | None
) -> None:
    found = find_regression(before, after, GATE)

    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_classes_can_have_a_limit_of_their_own() -> None:
    before, after = metrics(90, 90), metrics(97, 84)

    assert find_regression(before, after, GATE)
    assert not find_regression(before, after, GateConfig(max_class_drop=0.1))


def test_several_classes_are_named_together() -> None:
    found = find_regression(metrics(90, 90, 50), metrics(80, 80, 90), GATE)

    assert found is not None
    assert "class a" in found
    assert "class b" in found


def test_a_class_without_examples_cannot_fall() -> None:
    labels = np.zeros(4, int)
    only_a = score_predictions(np.log(np.full((4, 2), 0.5, np.float32)), labels, ("a", "b"))

    assert find_regression(only_a, only_a, GATE) is None


def test_outputs_that_are_not_finite_are_refused() -> None:
    broken = metrics(50, 50).model_copy(update={"log_likelihood": None})

    assert find_regression(None, broken, GATE) == "the folded model's outputs are not finite"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_named(value: float) -> None:
    source = {"a": torch.ones(3), "bn.running_var": torch.tensor([1.0, value])}

    assert find_bad_tensors(source, None, GATE) == (
        "the source has values that are not finite in bn.running_var"
    )


@pytest.mark.parametrize(
    ("source", "merged", "refused"),
    [
        (torch.full((4,), 99.0), torch.ones(4), False),
        (torch.full((4,), 101.0), torch.ones(4), True),
        (torch.full((4,), 0.5), torch.zeros(4), False),  # a bias that left zero
        (torch.full((4,), 101.0), None, True),
        (torch.full((4,), 99.0), None, False),
        (torch.full((4,), 200.0, dtype=torch.float16), torch.ones(4), True),
    ],
)
def test_norms_far_beyond_the_merged_ones_are_refused(
    source: Tensor, merged: Tensor | None, refused: bool
) -> None:
    reason = find_bad_tensors({"a": source}, merged if merged is None else {"a": merged}, GATE)

    assert (reason is not None) == refused
    assert not refused or "100 times" in (reason or "")


def test_statistics_of_the_data_may_be_of_any_size() -> None:
    source = {
        "bn.running_var": torch.full((2,), 1e5),
        "bn.num_batches_tracked": torch.tensor(10**9),
    }

    assert find_bad_tensors(source, None, GATE) is None


def test_many_names_are_shortened() -> None:
    source = {f"layer{i}": torch.tensor([torch.nan]) for i in range(12)}

    assert "layer4 and 7 more" in (find_bad_tensors(source, None, GATE) or "")


def test_root_mean_square_is_wide_and_takes_empty_tensors() -> None:
    assert root_mean_square(torch.full((1000,), 3e38)) == pytest.approx(3e38)
    assert root_mean_square(torch.zeros(0)) == 0
