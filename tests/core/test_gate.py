"""What the gate lets through."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from grasp_core.config import GateConfig
from grasp_core.evaluation import Predictions, read_predictions
from grasp_core.gate import find_bad_tensors, judge, root_mean_square
from grasp_core.report import Comparison, Verdict

GATE = GateConfig(max_drop=0.02)
ALWAYS = GateConfig(max_drop=0.02, significance=1)  # every fall beyond max_drop counts


def answers(*right: str) -> Predictions:
    """One string per class: `1` for each example that is recognised, `0` for each that is not."""
    labels = np.repeat(np.arange(len(right)), [len(of_class) for of_class in right])
    hits = np.array([hit == "1" for of_class in right for hit in of_class])
    predicted = np.where(hits, labels, (labels + 1) % len(right))
    probabilities = np.full((len(labels), len(right)), 0.1, np.float32)
    probabilities[np.arange(len(labels)), predicted] = 0.8
    return read_predictions(np.log(probabilities), labels, tuple("abcdefghij"[: len(right)]))


def recognised(*right: int, of: int = 100) -> Predictions:
    """`right[c]` of each class's `of` examples; more right means those and others."""
    return answers(*("1" * count + "0" * (of - count) for count in right))


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (recognised(90, 90), recognised(90, 90), None),
        (recognised(90, 90), recognised(88, 88), None),  # not beyond max_drop
        (recognised(90, 90), recognised(88, 87), "from 0.9000 to 0.8750, by more than 0.02"),
        (recognised(90, 90), recognised(96, 84), "class b fell from 0.9000 to 0.8400"),
        (recognised(90, 90), recognised(95, 86), None),  # 4 of 100: one in 8, with two classes
        (recognised(9, 9, of=10), recognised(10, 7, of=10), None),  # two examples are nothing
        (recognised(8, 9, of=10), recognised(10, 7, of=10), None),
        (recognised(9, 9, of=10), recognised(9, 1, of=10), "from 0.9000 to 0.5000"),
        (recognised(5, 9, of=10), recognised(10, 3, of=10), "class b fell from 0.9000 to 0.3000"),
    ],
)
def test_a_fall_is_refused_beyond_max_drop_and_beyond_chance(
    before: Predictions, after: Predictions, reason: str | None
) -> None:
    found = judge(before, after, GATE).reason

    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")


def test_a_reason_has_the_counts_and_the_probability() -> None:
    before, after = answers("1" * 10, "1" * 8 + "00"), answers("1" * 10, "0" * 8 + "01")

    assert judge(before, after, GATE).reason == (
        "validation accuracy fell from 0.9000 to 0.5500, by more than 0.02: of 20 examples 8 were"
        " right before and are wrong now, 1 the other way round, which chance alone does with"
        " probability 0.02"
    )


def test_the_same_fall_is_noise_where_as_much_came_as_went() -> None:
    """Three points less of 300, once as 9 examples lost, once as 59 lost and 50 gained."""
    before = answers("1" * 250 + "0" * 50, "1")
    lost_only = answers("0" * 9 + "1" * 241 + "0" * 50, "1")
    churned = answers("0" * 59 + "1" * 191 + "1" * 50, "1")

    assert lost_only.metrics.accuracy == churned.metrics.accuracy
    assert judge(before, lost_only, GATE).reason is not None
    assert judge(before, churned, GATE).reason is None


def test_the_level_can_be_set() -> None:
    before, after = recognised(9, 9, of=10), recognised(9, 5, of=10)  # p = 1/16

    assert judge(before, after, GATE).reason is None
    assert judge(before, after, GateConfig(significance=0.0625)).reason is not None
    assert judge(before, after, GateConfig(significance=0.0624)).reason is None
    assert judge(before, recognised(9, 8, of=10), ALWAYS).reason is not None


def test_a_fold_that_changes_nothing_but_noise_is_rarely_refused() -> None:
    """Two equally good models: refused at most as often as twice the level says."""
    random = np.random.default_rng(0)

    def model() -> Predictions:
        hits = random.random((10, 18)) < 0.9
        return answers(*("".join("1" if hit else "0" for hit in row) for row in hits))

    refused = [judge(model(), model(), GATE).reason is not None for _ in range(300)]
    by_the_old_rule = [judge(model(), model(), ALWAYS).reason is not None for _ in range(300)]

    assert np.mean(refused) < 0.1
    assert np.mean(by_the_old_rule) > 0.5


def test_classes_can_have_a_limit_of_their_own() -> None:
    before, after = recognised(90, 90), recognised(100, 80)

    assert judge(before, after, GATE).reason
    assert not judge(before, after, GateConfig(max_class_drop=0.1)).reason


def test_several_classes_are_named_together() -> None:
    found = judge(recognised(90, 90, 50), recognised(80, 80, 90), GATE).reason

    assert found is not None
    assert "class a" in found
    assert "class b" in found


def test_a_class_without_examples_cannot_fall() -> None:
    labels = np.zeros(4, int)
    only_a = read_predictions(np.log(np.full((4, 2), 0.5, np.float32)), labels, ("a", "b"))

    verdict = judge(only_a, only_a, GATE)

    assert verdict.reason is None
    assert list(verdict.classes) == ["a"]


@pytest.mark.parametrize("count", [3, 4, 5, 18, 40])
@pytest.mark.parametrize("gained", [0, 2])
def test_what_could_have_been_noticed_is_what_would_have_been(count: int, gained: int) -> None:
    """Found by trying every number of lost examples."""
    before = answers("1" * count + "0" * gained, "1" * count)

    def after(lost: int) -> Predictions:
        a, b = min(lost, count), max(0, lost - count)
        return answers("0" * a + "1" * (count - a) + "1" * gained, "0" * b + "1" * (count - b))

    verdicts = [judge(before, after(lost), GATE) for lost in range(2 * count + 1)]
    for kind in (_overall, _of_class_a):
        refused = [_drop(kind(verdict)) for verdict in verdicts if kind(verdict).refused]
        assert kind(verdicts[0]).detectable_drop == (min(refused) if refused else None)


def test_with_few_examples_nothing_could_have_been_noticed() -> None:
    verdict = judge(recognised(4, 4, of=4), recognised(0, 4, of=4), GATE)

    assert verdict.reason is None
    assert _overall(verdict).detectable_drop == 5 / 8  # five of eight, all lost: p = 1/32
    assert _of_class_a(verdict).detectable_drop is None


def test_outputs_that_are_not_finite_are_refused() -> None:
    labels = np.arange(2)
    broken = read_predictions(np.full((2, 2), np.nan, np.float32), labels, ("a", "b"))

    assert judge(None, broken, GATE).reason == "the folded model's outputs are not finite"


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (recognised(50, 50), None),
        (recognised(45, 45), None),  # worse than guessing, as one in six guesses is
        (recognised(30, 30), "60 of 200 validation examples right"),
        (recognised(0, 0, of=2), None),  # of four examples that can be
        (recognised(20, 20, 20, 20, 20), None),
    ],
)
def test_a_first_version_is_not_worse_than_guessing(first: Predictions, reason: str | None) -> None:
    found = judge(None, first, GATE).reason

    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
    assert judge(None, first, GateConfig(max_drop=1)).reason is None


def test_a_first_version_looks_at_its_inputs() -> None:
    blind = read_predictions(
        np.log(np.tile(np.array([0.7, 0.3], np.float32), (4, 1))),
        np.array([0, 0, 0, 1]),
        ("a", "b"),
    )

    assert "the same probabilities" in (judge(None, blind, GATE).reason or "")
    assert judge(None, blind, GateConfig(max_drop=1)).reason is None


def _overall(verdict: Verdict) -> Comparison:
    assert verdict.overall is not None
    return verdict.overall


def _of_class_a(verdict: Verdict) -> Comparison:
    return verdict.classes["a"]


def _drop(found: Comparison) -> float:
    return (found.lost - found.gained) / found.count


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
