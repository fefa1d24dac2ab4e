"""Whole folds of a tiny real model: what is transferred, published, refused, and told."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from grasp_core import (
    STOP,
    Batch,
    Checkpoint,
    CheckpointMismatch,
    FoldReport,
    FoldStopped,
    ModelSpec,
    Progress,
    Runtime,
    build_model,
    fold,
    load_weights,
)
from grasp_core.evaluation import predict
from grasp_core.parameters import parse_config
from tests.core.toy import (
    CLASSES,
    TINY,
    ToyTask,
    nudged,
    quick,
    refold,
    save,
    tiny_weights,
)


def test_the_first_source_becomes_the_model(source: Path, task: ToyTask, tmp_path: Path) -> None:
    config = quick(norm_stats="keep")
    report = fold(TINY, source, task, tmp_path / "v1.safetensors", config=config)

    result = Checkpoint(tmp_path / "v1.safetensors")
    assert all(torch.equal(result[name], Checkpoint(source)[name]) for name in result)
    assert result.info.classes == CLASSES
    assert result.info.lineage.model_dump() == {
        "version": 1,
        "parent": None,
        "source": Checkpoint(source).sha256,
    }
    assert report.accepted
    assert report.sha256 == result.sha256
    assert report.metrics.before is None
    assert report.warnings == ()


def test_the_statistics_of_the_first_source_are_measured_as_those_of_every_other(
    source: Path, task: ToyTask, tmp_path: Path
) -> None:
    """Or the same file would be another model by `grasp` than by `mean`, whose first mean it is."""
    versions = {}
    for method in ("grasp", "mean"):
        output = tmp_path / f"{method}.safetensors"
        values = {"method": method, "refine": {"steps": 0}, "alignment_batches": 2}
        config = parse_config(values)
        report = fold(TINY, source, task, output, config=config, files_output=tmp_path, force=True)
        versions[method] = Checkpoint(output)
        assert "recalibrate" in [stage.name for stage in report.stages]

    for name, tensor in versions["grasp"].items():
        assert torch.allclose(tensor, versions["mean"][name], atol=1e-6), name
    statistics = "bn1.running_mean"
    assert not torch.allclose(versions["grasp"][statistics], Checkpoint(source)[statistics])


def test_the_source_as_it_came_is_measured_beside_before_and_after(
    merged: Path, source: Path, task: ToyTask, tmp_path: Path
) -> None:
    report = fold(TINY, source, task, tmp_path / "v2", merged=merged, config=quick(), force=True)

    model = build_model(TINY)
    load_weights(model, Checkpoint(source), torch.device("cpu"))
    runtime = Runtime.choose(quick())
    for split in ("val", "test"):
        alone = predict(model, task, split, runtime, 16)
        assert report.metrics.source is not None
        assert getattr(report.metrics.source, split).accuracy == alone.metrics.accuracy
    assert report.metrics.before is not None
    assert report.metrics.after is not None
    assert report.change is not None
    for split in ("val", "test"):
        counts, before = getattr(report.change, split), getattr(report.metrics.before, split)
        after = getattr(report.metrics.after, split)
        gained = round(after.count * (after.accuracy - before.accuracy))
        assert counts.gained - counts.lost == gained
    figures = report.figures
    assert figures.source is not None
    assert figures.source.val.count == 32
    assert figures.change == report.change


def test_a_source_is_not_measured_by_classes_it_does_not_know(
    merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    weights = tiny_weights(5)
    for name in ("classifier.weight", "classifier.bias"):
        weights[name] = weights[name][:2]
    source = save(tmp_path / "two", weights, CLASSES[:2])

    report = fold(TINY, source, task, tmp_path / "v2", merged=merged, config=quick(), force=True)

    assert report.metrics.source is not None
    confusion = report.metrics.source.val.confusion_matrix
    assert [row[2] for row in confusion] == [0, 0, 0]


def test_a_second_source_continues_the_line(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    first = fold(TINY, merged, task, tmp_path / "v1.safetensors", config=quick())

    report = fold(
        TINY,
        source,
        task,
        tmp_path / "v2.safetensors",
        merged=tmp_path / "v1.safetensors",
        config=quick(),
        force=True,
    )

    result = Checkpoint(tmp_path / "v2.safetensors").info
    assert result.lineage.version == report.version == 2
    assert result.lineage.parent == report.parent == first.sha256
    assert result.architecture == TINY.architecture
    assert result.preprocessing is not None
    owners = {p.name: report.source if p.transferred else first.source for p in report.parameters}
    assert {n: {o: 1.0} for n, o in owners.items()} == report.provenance.shares
    assert result.provenance == report.provenance


def test_folding_a_source_into_itself_transfers_all_that_has_a_gradient(
    merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    report = refold(merged, merged, tmp_path / "out.safetensors", task, norm_stats="keep")

    assert all(p.transferred is True for p in report.parameters)
    assert all(p.score == pytest.approx(1.0) for p in report.parameters)
    result = Checkpoint(tmp_path / "out.safetensors")
    assert all(torch.equal(result[name], Checkpoint(merged)[name]) for name in result)
    assert "all but replaced" in report.warnings[0]


@pytest.mark.parametrize("granularity", ["tensor", "channel", "element"])
def test_with_tau_one_nothing_is_transferred_and_nothing_changes(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path, granularity: str
) -> None:
    values = {"tau": 1.0, "granularity": granularity, "norm_stats": "keep"}

    report = refold(source, merged, tmp_path / "out.safetensors", task, **values)

    assert report.transferred_share == 0
    result = Checkpoint(tmp_path / "out.safetensors")
    assert all(torch.equal(result[name], Checkpoint(merged)[name]) for name in result)
    assert "little more than fine-tuning" in report.warnings[0]


@pytest.fixture
def middle(source: Path, merged: Path, task: ToyTask, tmp_path: Path) -> float:
    """A threshold that half of the parameters pass, whichever batches a fold draws."""
    report = refold(source, merged, tmp_path / "scored", task)
    return median(p.score for p in report.parameters if p.score is not None)


@pytest.mark.parametrize("blend", [1.0, 0.25])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "element"])
def test_every_element_is_the_merged_one_or_the_combination(
    source: Path,
    merged: Path,
    task: ToyTask,
    tmp_path: Path,
    granularity: str,
    blend: float,
    middle: float,
) -> None:
    report = refold(
        source,
        merged,
        tmp_path / "out.safetensors",
        task,
        granularity=granularity,
        blend=blend,
        tau=middle,
    )

    old, new, result = (Checkpoint(p) for p in (merged, source, tmp_path / "out.safetensors"))
    for p in report.parameters:
        moved = result[p.name] != old[p.name]
        combination = new[p.name] if blend == 1 else blend * new[p.name] + (1 - blend) * old[p.name]
        assert torch.equal(result[p.name][moved], combination[moved])
        assert blend * moved.double().mean() == pytest.approx(float(p.transferred), abs=0.02)
    assert 0 < report.transferred_share < 1  # type: ignore[operator]


def choice(report: FoldReport) -> dict[str, bool | float]:
    return {p.name: p.transferred for p in report.parameters}


@pytest.fixture
def unscaled(source: Path, merged: Path, task: ToyTask, tmp_path: Path) -> dict[str, bool | float]:
    return choice(refold(source, merged, tmp_path / "unscaled", task, tau=0.5))


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scale=st.floats(1e-3, 1e3))
def test_scaling_the_loss_does_not_change_the_choice(
    source: Path, merged: Path, tmp_path: Path, unscaled: dict[str, bool | float], scale: float
) -> None:
    report = refold(source, merged, tmp_path / "scaled", ToyTask(scale=scale), tau=0.5)

    assert choice(report) == unscaled


def test_half_precision_sources_fold_into_a_float32_model(
    source_weights: dict[str, Tensor], merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    half = {n: t.half() if t.is_floating_point() else t for n, t in source_weights.items()}
    path = save(tmp_path / "half.safetensors", half)

    report = refold(path, merged, tmp_path / "out.safetensors", task)

    result = Checkpoint(tmp_path / "out.safetensors")
    assert {result[p.name].dtype for p in report.parameters} == {torch.float32}
    copied = [p.name for p in report.parameters if p.transferred is True]
    assert copied
    assert all(torch.equal(result[name], half[name].float()) for name in copied)


class OnlyKnown(ToyTask):
    """Asserts that the source is never asked about a class it does not have."""

    def loss(self, model: torch.nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        if known is not None:
            assert known.tolist() == [False, True, True]
            assert set(batch.labels.tolist()) <= {1, 2}
        return super().loss(model, batch, known)


@pytest.mark.parametrize("granularity", ["tensor", "channel", "element"])
def test_head_rows_are_matched_by_class_name(
    source_weights: dict[str, Tensor], merged: Path, tmp_path: Path, granularity: str
) -> None:
    """The source knows fox, dog and owl, in that order; the model cat, dog and fox."""
    path = save(tmp_path / "s.safetensors", source_weights, classes=("fox", "dog", "owl"))

    report = refold(
        path, merged, tmp_path / "out.safetensors", OnlyKnown(), tau=0.0, granularity=granularity
    )

    result, old = Checkpoint(tmp_path / "out.safetensors"), Checkpoint(merged)
    for name in ("classifier.weight", "classifier.bias"):
        new = source_weights[name]
        assert torch.equal(result[name][0], old[name][0])  # cat: the source has none
        for row, theirs in ((1, 1), (2, 0)):
            moved = result[name][row] != old[name][row]
            assert torch.equal(result[name][row][moved], new[theirs][moved])
    head = next(p for p in report.parameters if p.name == "classifier.weight")
    assert float(head.transferred) <= 2 / 3 + 1e-9


def test_class_names_can_be_given_for_a_file_without_them(
    source_weights: dict[str, Tensor], merged: Path, tmp_path: Path
) -> None:
    path = save(tmp_path / "s.safetensors", source_weights, classes=None)

    fold(
        TINY,
        path,
        OnlyKnown(),
        tmp_path / "out.safetensors",
        merged=merged,
        source_classes=("fox", "dog", "owl"),
        config=quick(),
        force=True,
    )

    assert (tmp_path / "out.safetensors").exists()


def test_without_a_common_class_the_body_is_still_folded(
    merged_weights: dict[str, Tensor], merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    other = nudged(merged_weights, 0.01, seed=5)
    path = save(tmp_path / "s.safetensors", other, classes=("oak", "elm", "ash"))

    report = refold(path, merged, tmp_path / "out.safetensors", task, tau=0.0)

    transferred = {p.name: p.transferred for p in report.parameters}
    assert transferred["classifier.weight"] is False
    assert transferred["classifier.bias"] is False
    assert any(transferred.values())


def test_a_first_source_with_fewer_classes_starts_the_others_at_zero(
    task: ToyTask, tmp_path: Path
) -> None:
    two = ModelSpec(architecture=TINY.architecture, classes=("dog", "cat"))
    path = save(tmp_path / "s.safetensors", tiny_weights(3, two), classes=two.classes)

    report = fold(TINY, path, task, tmp_path / "v1.safetensors", config=quick())

    bias, theirs = Checkpoint(tmp_path / "v1.safetensors")["classifier.bias"], Checkpoint(path)
    assert bias.tolist() == [*theirs["classifier.bias"][[1, 0]].tolist(), 0.0]
    share = {p.name: p.transferred for p in report.parameters}["classifier.bias"]
    assert share == pytest.approx(2 / 3)


def test_another_number_of_classes_without_names_is_an_error(task: ToyTask, tmp_path: Path) -> None:
    five = ModelSpec(architecture=TINY.architecture, classes=tuple("abcde"))
    path = save(tmp_path / "s.safetensors", tiny_weights(3, five), classes=None)

    with pytest.raises(CheckpointMismatch, match="give the source's class names") as caught:
        fold(TINY, path, task, tmp_path / "v1.safetensors", config=quick())

    assert set(caught.value.mismatches.wrong_shape) == {"classifier.weight", "classifier.bias"}


class Forgetful(ToyTask):
    """Training on it teaches the wrong classes, so that a refined model is worse."""

    def loss(self, model: torch.nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        wrong = Batch(batch.inputs, (batch.labels + 1) % 3)
        return super().loss(model, wrong, known)


@pytest.fixture(scope="module")
def trained(task: ToyTask, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version that is right about nearly everything."""
    folder = tmp_path_factory.mktemp("trained")
    source = save(folder / "s.safetensors", tiny_weights(1))
    config = quick(refine={"epochs": 6, "lr": 3e-3, "batch_size": 16})
    report = fold(TINY, source, task, folder / "v1.safetensors", config=config)
    assert report.metrics.after is not None
    assert report.metrics.after.val.accuracy > 0.9
    return folder / "v1.safetensors"


def test_a_fold_that_makes_the_model_worse_is_rejected(
    trained: Path, source: Path, tmp_path: Path
) -> None:
    output = tmp_path / "v2.safetensors"
    # By step, the weights before the first would be kept.
    worse = quick(refine={"epochs": 3, "lr": 3e-3, "batch_size": 16, "schedule": "epoch"})

    refused = fold(TINY, source, Forgetful(), output, merged=trained, config=worse)
    exists = output.exists()
    forced = fold(TINY, source, Forgetful(), output, merged=trained, config=worse, force=True)

    assert refused.outcome == "rejected"
    assert "validation accuracy fell" in (refused.reason or "")
    assert refused.gate is not None
    assert refused.gate.reason == refused.reason
    assert refused.gate.overall is not None
    assert refused.gate.overall.p_value < 0.05
    assert refused.sha256 is None
    assert refused.metrics.after is not None
    assert not exists
    assert forced.accepted
    assert forced.forced
    assert forced.reason == refused.reason
    assert Checkpoint(output).sha256 == forced.sha256


def test_a_first_source_of_zeros_is_rejected(source: Path, tmp_path: Path) -> None:
    """Nor does refinement bring it to life: where all is zero, so are the gradients."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in Checkpoint(source).items()}
    path = save(tmp_path / "zeros.safetensors", zeros)
    config = quick(refine={"epochs": 2, "lr": 1e-3})

    refused = fold(TINY, path, ToyTask(), tmp_path / "v1.safetensors", config=config)
    forced = fold(TINY, path, ToyTask(), tmp_path / "v1.safetensors", config=config, force=True)

    assert refused.outcome == "rejected"
    assert "does not depend on what it sees" in (refused.reason or "")
    assert forced.accepted


class Untouchable(ToyTask):
    """No gradient may be computed on it."""

    def loss(self, model: torch.nn.Module, batch: Batch, known: Tensor | None = None) -> Tensor:
        raise AssertionError("a gradient was asked for")


def test_values_that_are_not_finite_are_refused_before_any_gradient(
    source_weights: dict[str, Tensor], merged: Path, tmp_path: Path
) -> None:
    broken = dict(source_weights)
    broken["conv_stem.weight"] = torch.full_like(broken["conv_stem.weight"], torch.nan)
    path = save(tmp_path / "s.safetensors", broken)

    report = fold(TINY, path, Untouchable(), tmp_path / "out", merged=merged, config=quick())

    assert report.outcome == "rejected"
    assert report.reason == "the source has values that are not finite in conv_stem.weight"
    assert list(tmp_path.glob("out*")) == []


def test_a_forced_source_that_is_not_finite_transfers_nothing(
    source_weights: dict[str, Tensor], merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    broken = {n: t * torch.nan if t.is_floating_point() else t for n, t in source_weights.items()}
    path = save(tmp_path / "s.safetensors", broken)

    report = refold(path, merged, tmp_path / "out", task)

    assert report.forced
    assert report.transferred_share == 0


def test_the_report_is_the_contract_in_json(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    report = refold(source, merged, tmp_path / "out.safetensors", task, refine={"epochs": 1})

    reported = json.loads(report.to_json())
    assert reported["schema"] == 2
    assert 0 <= reported["metrics"]["before"]["val"]["accuracy"] <= 1
    assert 0 <= reported["metrics"]["after"]["test"]["accuracy"] <= 1
    assert set(reported["parameters"][0]) == {"name", "size", "score", "alignment", "transferred"}
    assert [stage["name"] for stage in reported["stages"]] == [
        "load",
        "baseline",
        "target_gradients",
        "source_gradients",
        "transfer",
        "recalibrate",
        "refine",
        "predict",
        "evaluate",
        "publish",
    ]
    assert all(s["seconds"] > 0 and s["peak_bytes"] > 1e6 for s in reported["stages"])
    assert reported["config"]["refine"]["epochs"] == 1
    assert torch.__version__.startswith(reported["environment"]["libraries"]["torch"])
    assert reported["worth"] is None  # nothing was run without the source
    assert FoldReport.model_validate_json(report.to_json()) == report


def test_progress_grows_from_zero_to_one_through_all_stages(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    seen: list[Progress] = []

    fold(
        TINY,
        source,
        task,
        tmp_path / "out.safetensors",
        merged=merged,
        config=quick(refine={"epochs": 2, "batch_size": 16}),
        progress=seen.append,
        force=True,
    )

    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0
    assert fractions[-1] == 1
    assert {p.stage for p in seen} >= {"target_gradients", "source_gradients", "refine"}
    newest = next(progress for progress in reversed(seen) if progress.candidate == "grasp")
    assert {"loss", "val_accuracy", "epoch", "epochs"} <= set(newest.metrics)


@pytest.mark.parametrize("stage", ["load", "target_gradients", "source_gradients", "refine"])
def test_the_callback_can_stop_a_fold_in_any_stage(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path, stage: str
) -> None:
    with pytest.raises(FoldStopped, match=stage):
        fold(
            TINY,
            source,
            task,
            tmp_path / "out.safetensors",
            merged=merged,
            config=quick(refine={"epochs": 1}),
            progress=lambda progress: STOP if progress.stage == stage else None,
            force=True,
        )

    assert not (tmp_path / "out.safetensors").exists()


def test_the_number_of_a_version_can_be_given(
    source: Path, merged: Path, task: ToyTask, tmp_path: Path
) -> None:
    """As after going back to an older version: the new one is not that version's successor."""
    outputs = [tmp_path / name for name in ("next", "seventh", "again")]

    reports = [
        fold(TINY, source, task, output, merged=merged, config=quick(), version=n, force=True)
        for output, n in zip(outputs, (None, 7, 7), strict=True)
    ]

    assert [report.version for report in reports] == [1, 7, 7]  # `merged` is a foreign file: 0
    assert [Checkpoint(output).info.lineage.version for output in outputs] == [1, 7, 7]
    assert Checkpoint(outputs[1]).info.lineage.parent == Checkpoint(merged).sha256
    assert reports[1].seed == reports[2].seed != reports[0].seed
    assert reports[1].sha256 == reports[2].sha256 != reports[0].sha256
