"""The fold against a naive reading of the paper: two whole models, two sets of gradients."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grasp_core import Batch, Checkpoint, ModelSpec, fold
from tests.configs import grasp_alone
from tests.core.toy import CLASSES, ToyTask, nudged, save

PAPER_ARCHITECTURES = ("mobilevit_xxs", "mobilevit_xs", "efficientnet_b1", "resnet50")
TAUS = (0.0, 0.3, 0.6, 0.9)


class Case(NamedTuple):
    spec: ModelSpec
    merged: Path
    source: Path
    batch: Batch


@pytest.fixture(scope="module", params=PAPER_ARCHITECTURES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp(request.param)
    batch = next(ToyTask(count=16, side=64).alignment_batches(8, 1, seed=0))
    weights = settled_weights(request.param, batch)
    return Case(
        ModelSpec(architecture=request.param, classes=CLASSES),
        save(folder / "merged.safetensors", weights),
        save(folder / "source.safetensors", nudged(weights, amount=0.03, seed=1)),
        batch,
    )


def settled_weights(architecture: str, batch: Batch) -> dict[str, Tensor]:
    """Random weights whose batch-norm statistics fit the batch, as a trained model's would."""
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=len(CLASSES)).train()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.9
    with torch.no_grad():
        for _ in range(3):
            model(**batch.inputs)
    return dict(model.state_dict())


def load(case: Case, path: Path) -> nn.Module:
    model: nn.Module = timm.create_model(case.spec.architecture, num_classes=len(CLASSES))
    model.load_state_dict(dict(Checkpoint(path)))
    return model


class Naive(NamedTuple):
    """Stages 1 to 3 as the authors' code has them."""

    merged: dict[str, Tensor]
    source: dict[str, Tensor]
    scores: dict[str, float]

    def fold(self, tau: float) -> dict[str, Tensor]:
        """Stage 4: copy every parameter tensor whose score is above τ."""
        copied = {name for name, score in self.scores.items() if score > tau}
        return {n: self.source[n] if n in copied else self.merged[n] for n in self.merged}


@pytest.fixture(scope="module")
def naive(case: Case) -> Naive:
    merged, source = load(case, case.merged).train(), load(case, case.source).eval()
    for model in (source, merged):
        F.cross_entropy(model(**case.batch.inputs), case.batch.labels).backward()
    scores = {}
    for (name, p), q in zip(merged.named_parameters(), source.parameters(), strict=True):
        assert p.grad is not None
        assert q.grad is not None
        # In float32, torch.dot over two million elements is off by 1e-4.
        g, gk = p.grad.flatten().double(), q.grad.flatten().double()
        scores[name] = (torch.dot(gk, g) / (gk.norm() * g.norm() + 1e-8)).item()
    return Naive(merged.state_dict(), source.state_dict(), scores)


class OneBatch(ToyTask):
    """Always the given batch."""

    def __init__(self, case: Case) -> None:
        super().__init__(count=8, side=64)
        self.batch = case.batch

    def alignment_batches(self, size: int, count: int, seed: int) -> Iterator[Batch]:
        assert (size, count) == (32, 1), "the paper's preset"
        yield self.batch


@pytest.mark.parametrize(
    "tau", [pytest.param(tau, marks=[pytest.mark.proof] * (n % 2)) for n, tau in enumerate(TAUS)]
)
def test_merged_tensors_equal_the_naive_ones_bit_for_bit(
    case: Case, naive: Naive, tau: float, tmp_path: Path
) -> None:
    config = grasp_alone(**{"preset": "paper", "tau": tau, "refine": {"epochs": 0}})

    report = fold(
        case.spec,
        case.source,
        OneBatch(case),
        tmp_path / "out.safetensors",
        merged=case.merged,
        config=config,
        force=True,
    )

    expected = naive.fold(tau)
    result = Checkpoint(tmp_path / "out.safetensors")
    assert set(result) == set(expected)
    different = [name for name in expected if not torch.equal(result[name], expected[name])]
    assert different == []
    assert {p.name: p.score for p in report.parameters} == pytest.approx(naive.scores, abs=1e-5)
    assert {p.name: p.transferred for p in report.parameters} == {
        name: score > tau for name, score in naive.scores.items()
    }


EPOCHS, RATE = 2, 5e-5


def refine(case: Case, weights: dict[str, Tensor], batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Stage 5: AdamW, a batch for each epoch, whose rate falls as a cosine; the epoch that is right
    on most of validation, the first of equals."""
    model = load(case, case.merged)
    model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01, fused=True)
    (val,) = OneBatch(case).evaluation_batches("val", 1000)
    right, epochs = [], []
    for epoch, batch in enumerate(batches):
        optimizer.param_groups[0]["lr"] = RATE * ((1 + math.cos(math.pi * epoch / EPOCHS)) / 2)
        optimizer.zero_grad()
        F.cross_entropy(model.train()(**batch.inputs), batch.labels).backward()
        optimizer.step()
        with torch.no_grad():
            answers = model.eval()(**val.inputs).argmax(dim=1)
        right.append(int((answers == val.labels).sum()))
        epochs.append(copy.deepcopy(model.state_dict()))
    return epochs[right.index(max(right))]


def test_what_the_paper_refines_equals_a_naive_loop_bit_for_bit(
    case: Case, naive: Naive, tmp_path: Path
) -> None:
    config = grasp_alone(**{"preset": "paper", "tau": 0.3, "refine": {"epochs": EPOCHS}})

    report = fold(
        case.spec,
        case.source,
        OneBatch(case),
        tmp_path / "out.safetensors",
        merged=case.merged,
        config=config,
        force=True,
    )

    expected = refine(case, naive.fold(0.3), [case.batch] * EPOCHS)
    result = Checkpoint(tmp_path / "out.safetensors")
    different = [name for name in expected if not torch.equal(result[name], expected[name])]
    assert different == []
    assert [look.epoch for look in report.history] == [1, 2]
    assert report.learning_rate is not None
    assert report.learning_rate.rate == RATE


def test_the_case_is_not_trivial(naive: Naive) -> None:
    """Every threshold parts the parameters, and each in another way."""
    above = [sum(score > tau for score in naive.scores.values()) for tau in TAUS]

    assert above == sorted(above, reverse=True)
    assert len(set(above)) == len(TAUS)
    assert above[-1] > 0
    assert above[0] < len(naive.scores)
