"""Metrics against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk
from torch import Tensor

from grasp_core import Runtime, build_model, evaluate, load_weights
from grasp_core.evaluation import score_predictions
from tests.configs import grasp_alone
from tests.core.toy import CLASSES, TINY, ToyTask


@given(seed=st.integers(0, 1000), present=st.integers(2, 4), count=st.integers(8, 60))
def test_metrics_are_scikit_learns(seed: int, present: int, count: int) -> None:
    """Of four classes only the first `present` have examples."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, present, count)
    labels[:present] = np.arange(present)
    logits = random.normal(size=(count, 4)) + 2 * np.eye(4)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    probabilities[: count // 2] = probabilities[0]  # ties

    given_scores = np.log(probabilities).astype(np.float32)

    result = score_predictions(given_scores, labels, ("a", "b", "c", "d"))

    predicted = probabilities.argmax(1)
    precision, recall, f1, _ = sk.precision_recall_fscore_support(
        labels, predicted, labels=range(present), average="macro", zero_division=0
    )
    assert result.count == count
    assert result.accuracy == pytest.approx(sk.accuracy_score(labels, predicted))
    assert result.precision == pytest.approx(precision)
    assert result.recall == pytest.approx(recall)
    assert result.f1 == pytest.approx(f1)
    assert result.log_likelihood == pytest.approx(
        -sk.log_loss(labels, probabilities, labels=range(4)), rel=1e-4
    )
    assert (
        result.confusion_matrix == sk.confusion_matrix(labels, predicted, labels=range(4)).tolist()
    )
    areas = [sk.roc_auc_score(labels == c, np.exp(given_scores)[:, c]) for c in range(present)]
    assert result.auroc == pytest.approx(np.mean(areas))
    assert [name for name, value in result.per_class_accuracy.items() if value is None] == list(
        "abcd"[present:]
    )


def test_what_is_undefined_is_none() -> None:
    one_class = score_predictions(
        np.log(np.full((3, 2), 0.5, np.float32)), np.zeros(3, int), ("a", "b")
    )
    broken = score_predictions(np.full((2, 2), np.nan, np.float32), np.arange(2), ("a", "b"))

    assert one_class.auroc is None
    assert broken.auroc is None
    assert broken.log_likelihood is None


@pytest.mark.parametrize("batch_size", [5, 64])
def test_a_model_is_evaluated_on_the_whole_split_in_eval_mode(
    merged_weights: dict[str, Tensor], batch_size: int
) -> None:
    task, runtime = ToyTask(), Runtime.choose(grasp_alone())
    model = build_model(TINY)
    load_weights(model, merged_weights, runtime.device)
    model.train()

    result = evaluate(model, task, "test", runtime, batch_size)

    model.eval()
    with torch.no_grad():
        right = model(**task.splits["test"].inputs).argmax(1) == task.splits["test"].labels
    assert result.accuracy == pytest.approx(float(right.double().mean()))
    assert result.count == len(right)
    assert tuple(result.per_class_count) == CLASSES
