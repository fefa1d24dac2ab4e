"""Candidates against a naive race: plain loops and whole copies of models, with nothing sealed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from pkgutil import resolve_name
from shutil import copytree
from statistics import stdev
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from grasp_core import (
    METHODS,
    STOP,
    Checkpoint,
    ConfigError,
    DeviceError,
    FoldConfig,
    FoldReport,
    FoldStopped,
    GraspError,
    Progress,
    TargetError,
    fold,
    folding,
)
from grasp_core.config import LEARNING_RATES, MethodConfig
from grasp_core.errors import OutOfTime
from grasp_core.methods.declaration import Method
from grasp_core.progress import Work
from grasp_core.race import name_candidates, plan_fold
from grasp_core.refinement import Trainer
from grasp_core.report import AS_IT_WAS, CandidateReport, Look, NamedFile, Verdict
from grasp_core.seeds import derive_seed
from grasp_core.state import publish_files
from grasp_core.workbench import Merge, Workbench
from tests.bits import flip_a_bit
from tests.core.shadow import SHADOW
from tests.core.toy import CLASSES, TINY, ToyTask, nudged, quick, save, tiny_weights

Weights = dict[str, Tensor]
ALL = ("keep", "source", "mean", "grasp")
STEPS, BATCH, RATE, TAU = 10, 32, 1e-3, 0.3
HEAT, HEAT_LOOKS = 0.25, 4  # after none, one, two and three of ten steps
NOTHING = {"method": "grasp", "tau": 1.0}  # what it transfers
RUNNERS = ("keep", "source", "mean", {"method": "grasp", "tau": TAU})
CONFIG = quick(candidates=RUNNERS, refine={"steps": STEPS, "batch_size": BATCH, "lr": RATE})
FEW = 4
FEW_STEPS = {"steps": FEW, "batch_size": BATCH, "lr": RATE}
TASK = ToyTask()


def learned(steps: int) -> Weights:
    """A network that has seen a little of the task."""
    model = network(tiny_weights(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = (b for epoch in range(steps) for b in TASK.training_batches(BATCH, epoch, {}))
    for batch, _ in zip(batches, range(steps), strict=False):
        optimizer.zero_grad()
        TASK.loss(model.train(), batch).backward()
        optimizer.step()
    return dict(model.state_dict())


def network(weights: Mapping[str, Tensor]) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(TINY.architecture, num_classes=len(CLASSES))
    model.load_state_dict({name: tensor.clone() for name, tensor in weights.items()})
    return model


class Files(NamedTuple):
    """A merged model that knows something, and sources that know other things, or nothing."""

    merged: Path
    sources: dict[str, Path]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("race")
    merged = learned(12)
    sources = {
        "good": learned(60),
        "near": nudged(merged, amount=0.2, seed=3),
        "bad": tiny_weights(7),
    }
    return Files(
        save(folder / "merged.safetensors", merged),
        {name: save(folder / f"{name}.safetensors", weights) for name, weights in sources.items()},
    )


def run(
    folder: Path,
    source: Path,
    merged: Path | None,
    config: FoldConfig = CONFIG,
    **options: Any,
) -> FoldReport:
    chosen: dict[str, Any] = {"work_dir": folder / "work", "force": True} | options
    return fold(
        TINY,
        source,
        TASK,
        folder / "weights",
        merged=merged,
        config=config,
        files_output=folder,
        **chosen,
    )


# The oracle


class Outcome(NamedTuple):
    weights: Weights
    log_likelihood: float


def naive_race(
    source: Path, merged: Path, seed: int, *, first: bool = False, heat: bool = False
) -> tuple[str | None, dict[str, Outcome]]:
    """Who wins, and what each of them becomes. None: the merged model as it was.

    Of a first fold `merged` is only the base, so that all but `keep` take the source whole.
    """
    old, new = dict(Checkpoint(merged)), dict(Checkpoint(source))
    mean = {n: (old[n] + new[n]) / 2 if new[n].is_floating_point() else old[n] for n in old}
    starts = {
        "keep": old,
        "source": new,
        "mean": new if first else mean,
        "grasp": new if first else naive_grasp(old, new, seed),
    }
    looks = {name: refine(recalibrated(start, seed), seed) for name, start in starts.items()}
    running = set(looks)
    if heat:
        begun = {name: find_best(each[:HEAT_LOOKS]) for name, each in looks.items()}
        running = {"keep", max(begun, key=lambda name: begun[name].log_likelihood)}
    outcomes = {
        name: find_best(each if name in running else each[:HEAT_LOOKS])
        for name, each in looks.items()
    }
    best = max(
        (name for name in outcomes if name in running),
        key=lambda name: outcomes[name].log_likelihood,
    )
    beaten = first or outcomes[best].log_likelihood > likelihood(network(old))
    return (best if beaten else None), outcomes


def naive_grasp(old: Weights, new: Weights, seed: int) -> Weights:
    gradients: list[dict[str, Tensor]] = []
    for weights in (old, new):
        model = network(weights).eval()
        for batch in alignment_batches(seed):
            TASK.loss(model, batch).backward()
        gradients.append({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    result = copy.deepcopy(old)
    cosine = torch.nn.CosineSimilarity(dim=0, eps=0.0)
    scores = {
        name: float(cosine(gradients[0][name].double().flatten(), gradient.double().flatten()))
        for name, gradient in gradients[1].items()
    }
    return result | {name: new[name] for name, score in scores.items() if score > TAU}


def alignment_batches(seed: int) -> Iterator[Any]:
    size, count = CONFIG.alignment_batch_size, CONFIG.alignment_batches
    return TASK.alignment_batches(size, count, derive_seed(seed, "batches"))


def recalibrated(weights: Weights, seed: int) -> Weights:
    model = network(weights).eval()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in alignment_batches(seed):
            model(**batch.inputs)
    return dict(model.state_dict())


def refine(weights: Weights, seed: int) -> list[Outcome]:
    """Eleven looks, each at a copy."""
    model = network(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    looks = [Outcome(dict(network(weights).state_dict()), likelihood(model))]
    for step in range(STEPS):
        if step % 2 == 0:
            batches = TASK.training_batches(BATCH, derive_seed(seed, "refine", step // 2 + 1), {})
        torch.manual_seed(derive_seed(seed, "refine", step + 1))
        warm_up, left = (step + 1) / 1, (step - 1) / (STEPS - 1)
        factor = warm_up if step < 1 else (1 + math.cos(math.pi * left)) / 2
        optimizer.param_groups[0]["lr"] = RATE * factor
        optimizer.zero_grad()
        TASK.loss(model.train(), next(batches)).backward()
        optimizer.step()
        looks.append(Outcome(copy.deepcopy(dict(model.state_dict())), likelihood(model)))
    return looks


def find_best(looks: Sequence[Outcome]) -> Outcome:
    return max(looks, key=lambda look: look.log_likelihood)


@torch.no_grad()
def likelihoods(model: nn.Module) -> Tensor:
    """Of each example of the validation split."""
    (val,) = TASK.evaluation_batches("val", 1000)
    return TASK.log_probabilities(model.eval(), val)[range(len(val.labels)), val.labels].double()


def likelihood(model: nn.Module) -> float:
    return float(likelihoods(model).mean())


@pytest.mark.parametrize(
    ("name", "first", "heat"),
    [
        ("good", False, False),
        ("near", False, False),
        ("bad", False, False),
        ("good", False, True),
        ("near", False, True),
        ("good", True, False),
        ("bad", True, False),
    ],
)
def test_the_best_of_a_naive_race_is_published_bit_for_bit(
    files: Files, tmp_path: Path, name: str, first: bool, heat: bool
) -> None:
    source = files.sources[name]
    config = CONFIG.model_copy(update={"heat": HEAT}) if heat else CONFIG

    if first:
        report = run(tmp_path, source, None, config, files={"base": files.merged})
    else:
        report = run(tmp_path, source, files.merged, config)

    winner, outcomes = naive_race(source, files.merged, report.seed, first=first, heat=heat)
    assert (report.winner and report.winner.name) == winner
    for candidate in report.candidates:
        assert candidate.val is not None
        expected = outcomes[candidate.name].log_likelihood
        assert candidate.val.log_likelihood == pytest.approx(expected, abs=1e-6)
    published = Checkpoint(tmp_path / "weights")
    wanted = outcomes[winner].weights if winner else dict(Checkpoint(files.merged))
    for tensor_name, tensor in wanted.items():
        assert torch.equal(published[tensor_name], tensor), tensor_name


def test_every_candidate_is_measured_on_test_where_that_is_asked_for(
    files: Files, tmp_path: Path
) -> None:
    source = files.sources["good"]
    plain = run(tmp_path / "plain", source, files.merged)
    whole = run(tmp_path / "whole", source, files.merged, test_all=True)

    assert whole.sha256 == plain.sha256
    assert {each.name for each in plain.candidates if each.test} == {"keep", plain.winner.name}  # type: ignore[union-attr]
    _, outcomes = naive_race(source, files.merged, whole.seed)
    for candidate in whole.candidates:
        model = network(outcomes[candidate.name].weights).eval()
        batch = TASK.splits["test"]
        with torch.no_grad():
            right = TASK.log_probabilities(model, batch).argmax(-1) == batch.labels
        assert candidate.test is not None
        assert candidate.test.accuracy == pytest.approx(float(right.float().mean()))
        assert candidate.error is not None
        own = likelihoods(model)
        assert candidate.error == pytest.approx(float(own.std() / len(own) ** 0.5), abs=1e-6)


def test_gains_are_paired_example_by_example(files: Files, tmp_path: Path) -> None:
    report = run(tmp_path, files.sources["good"], files.merged)

    _, outcomes = naive_race(files.sources["good"], files.merged, report.seed)
    keep = likelihoods(network(outcomes["keep"].weights))
    for candidate in report.candidates:
        if candidate.name == "keep":
            assert candidate.gain is None
            continue
        differences = likelihoods(network(outcomes[candidate.name].weights)) - keep
        assert candidate.gain is not None
        assert candidate.gain.log_likelihood is not None
        assert candidate.gain.log_likelihood.mean == pytest.approx(
            float(differences.mean()), abs=1e-6
        )
        error = stdev(differences.tolist()) / math.sqrt(len(differences))
        assert candidate.gain.log_likelihood.error == pytest.approx(error, rel=1e-3)


def test_the_source_is_worth_what_the_published_gained_over_doing_without_it(
    files: Files, tmp_path: Path
) -> None:
    report = run(tmp_path, files.sources["good"], files.merged)

    winner, worth = report.winner, report.worth
    assert winner is not None
    assert winner.name != "keep"
    assert worth is not None
    assert worth.val == winner.gain
    assert worth.val is not None
    assert worth.val.log_likelihood is not None
    gain = worth.val.log_likelihood.mean
    assert (worth.effectiveness, worth.informativeness) == (abs(gain), math.exp(gain))
    assert worth.test is not None
    figures = report.figures
    assert figures.worth == worth
    assert [(each.name, each.outcome, each.gain) for each in figures.candidates] == [
        (each.name, each.outcome, each.gain) for each in report.candidates
    ]
    assert FoldReport.model_validate_json(report.to_json()) == report


# The rule


def as_it_was(*candidates: str) -> FoldConfig:
    """Nothing is trained or measured anew, so that `keep` is the very version there was."""
    return quick(candidates=candidates, norm_stats="keep", refine={"steps": 0, "lr": RATE})


def test_the_version_as_it_was_wins_ties(files: Files, tmp_path: Path) -> None:
    report = run(tmp_path, files.sources["bad"], files.merged, as_it_was("keep", "source", "mean"))

    assert (report.outcome, report.reason, report.winner) == ("kept", AS_IT_WAS, None)
    assert report.accepted
    assert report.sha256 == Checkpoint(files.merged).sha256
    assert (tmp_path / "weights").read_bytes() == files.merged.read_bytes()
    assert [candidate.outcome for candidate in report.candidates] == ["lost"] * 3
    assert [file.name for file in report.files] == ["state/mean"]
    assert report.transferred_share == 0
    assert report.method is None
    assert report.figures.sentence == AS_IT_WAS
    assert report.worth is None
    assert report.change is not None
    assert (report.change.val.lost, report.change.val.gained) == (0, 0)


def test_one_candidate_alone_runs_against_nobody(files: Files, tmp_path: Path) -> None:
    report = run(tmp_path, files.sources["bad"], files.merged, as_it_was("source"))

    assert report.outcome == "accepted"
    assert report.winner is not None
    assert report.method == "source"
    assert report.worth is None
    published, source = Checkpoint(tmp_path / "weights"), Checkpoint(files.sources["bad"])
    assert all(torch.equal(published[name], source[name]) for name in source)


def test_what_methods_remember_travels_along_whoever_wins(files: Files, tmp_path: Path) -> None:
    report = run(tmp_path, files.sources["good"], files.merged, as_it_was("source", "mean"))

    assert report.winner is not None
    assert report.winner.name == "source"
    sums = Checkpoint(tmp_path / "state" / "mean")
    old, new = Checkpoint(files.merged), Checkpoint(files.sources["good"])
    for name in ("conv_stem.weight", "classifier.bias"):
        assert torch.equal(sums[name], old[name] + new[name])


def test_a_fold_that_the_gate_refuses_leaves_no_trace(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folding, "judge", lambda *_: Verdict(reason="no"))

    report = run(tmp_path, files.sources["good"], files.merged, as_it_was(*ALL), force=False)

    assert (report.outcome, report.reason, report.files) == ("rejected", "no", ())
    assert [path.name for path in tmp_path.iterdir()] == ["work"]


def test_of_equal_weights_only_the_first_are_refined(files: Files, tmp_path: Path) -> None:
    """As of a model's first source, which all but `keep` take whole."""
    report = run(tmp_path, files.sources["good"], None)

    keep, source, mean, grasp = report.candidates
    assert (keep.outcome, keep.reason) == (
        "out",
        "there is nothing to keep: this source is the first, without a base",
    )
    assert (source.outcome, source.same_as) == ("won", None)
    assert (mean.same_as, grasp.same_as) == ("source", "source")
    assert mean.val == grasp.val == source.val
    refined = {stage.candidate for stage in report.stages if stage.name == "refine"}
    assert refined == {"source"}


@pytest.mark.parametrize("first", ["a method that transfers nothing", "the source, to try rates"])
def test_keep_may_be_the_same_as_what_another_merged(
    files: Files, tmp_path: Path, first: str
) -> None:
    if first == "the source, to try rates":
        config = quick(candidates=ALL, refine={"steps": 2, "lr": "auto"})
        report = run(tmp_path, files.merged, None, config, files={"base": files.merged})
    else:
        config = quick(candidates=[NOTHING, "keep"], refine={"steps": 2, "lr": RATE})
        report = run(tmp_path, files.sources["good"], files.merged, config)

    winner, keep = report.winner, next(c for c in report.candidates if c.name == "keep")
    assert winner is not None
    assert keep.same_as == winner.name == ("source" if "source" in first else "grasp")
    assert (keep.val, keep.history, keep.gain) == (winner.val, winner.history, None)
    assert report.worth is not None
    assert report.worth.val is not None
    assert report.worth.val.log_likelihood is not None
    assert report.worth.val.log_likelihood.mean == 0


def test_before_a_first_source_the_base_is_what_there_was(files: Files, tmp_path: Path) -> None:
    report = run(tmp_path, files.sources["good"], None, files={"base": files.merged})

    keep = report.candidates[0]
    assert (keep.name, keep.reason) == ("keep", None)
    assert report.worth is not None


def test_the_rate_is_probed_once_by_the_source_and_used_by_all(
    files: Files, tmp_path: Path
) -> None:
    config = quick(candidates=ALL, refine={"steps": 2, "lr": "auto"})

    report = run(tmp_path, files.sources["good"], files.merged, config)

    rates = {c.name: c.learning_rate for c in report.candidates}
    probed = rates["source"]
    assert probed is not None
    assert len(probed.probe) == 5
    assert report.learning_rate == probed
    others = [rate for name, rate in rates.items() if name != "source" and rate is not None]
    assert {(rate.rate, rate.probe) for rate in others} == {(probed.rate, ())}
    known = run(tmp_path, files.sources["good"], files.merged, config, learning_rate=2e-4)
    assert {c.learning_rate.rate for c in known.candidates if c.learning_rate} == {2e-4}


# Heat


def test_after_a_heat_only_the_best_and_keep_go_on(files: Files, tmp_path: Path) -> None:
    heated = CONFIG.model_copy(update={"heat": HEAT})

    report = run(tmp_path, files.sources["good"], files.merged, heated)

    whole = run(tmp_path, files.sources["good"], files.merged)
    full = {candidate.name: candidate for candidate in whole.candidates}
    ran = {candidate.name for candidate in report.candidates if candidate.went_on}
    at_heat = {name: best_look(candidate.history[:HEAT_LOOKS]) for name, candidate in full.items()}
    assert ran == {"keep", max(at_heat, key=at_heat.__getitem__)}
    for candidate in report.candidates:
        history = full[candidate.name].history
        assert candidate.history == (history if candidate.went_on else history[:HEAT_LOOKS])
        assert candidate.val is not None
        assert candidate.val.log_likelihood == pytest.approx(best_look(candidate.history))
    assert report.winner is not None
    assert report.winner.went_on


def test_keep_goes_on_as_another_that_merged_to_the_same(files: Files, tmp_path: Path) -> None:
    config = quick(candidates=[NOTHING, "keep", "source"], refine=FEW_STEPS, heat=HEAT)

    report = run(tmp_path, files.sources["good"], files.merged, config)

    grasp, keep, source = report.candidates
    assert report.winner == source
    assert (keep.same_as, keep.went_on, grasp.went_on) == ("grasp", True, True)
    assert len(keep.history) == len(grasp.history) == len(source.history) == FEW + 1


def best_look(history: Sequence[Look]) -> float:
    return max(look.val_log_likelihood or -math.inf for look in history)


# Dead ends


class OddConfig(MethodConfig):
    method: str = "odd"


def odd(does: Callable[[Workbench], None]) -> Method[OddConfig]:
    """The source whole, but for what it does besides."""

    def merge(bench: Workbench, parameters: OddConfig, state: object) -> Merge:
        with bench.recorder.stage("transfer"):
            bench.load({name: tensor.clone() for name, tensor in bench.source.items()})
            does(bench)
        return Merge(tuple(bench.report(name, 1.0) for name, _ in bench.model.named_parameters()))

    return Method("odd", "Does odd things.", None, OddConfig, merge)


def blow_up(bench: Workbench) -> None:
    with torch.no_grad():
        next(bench.model.parameters()).fill_(torch.nan)


def test_a_candidate_whose_outputs_are_not_finite_is_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "odd", odd(blow_up))
    config = quick(candidates=["odd", "keep"], refine={"steps": 2, "lr": RATE})

    report = run(tmp_path, files.sources["good"], files.merged, config)

    out, keep = report.candidates
    assert (out.outcome, out.reason, out.gain) == ("out", "its outputs are not finite", None)
    assert keep.outcome == ("won" if report.outcome == "accepted" else "lost")


def test_a_candidate_whose_method_refuses_is_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)
    config = quick(candidates=["shadow", "keep"], refine={"steps": 0})

    report = run(tmp_path, files.sources["good"], files.merged, config)

    out = report.candidates[0]
    assert out.outcome == "out"
    assert out.reason == "shadow needs a base: the model that all sources were fine-tuned from"
    assert (out.share, out.val, out.history) == (None, None, ())


def test_a_candidate_that_cannot_read_its_state_is_out(files: Files, tmp_path: Path) -> None:
    config = quick(candidates=["mean", "keep"], refine={"steps": 0})
    state = {"state/mean": files.sources["near"]}

    report = run(tmp_path, files.sources["good"], files.merged, config, files=state)

    out, keep = report.candidates
    assert (out.outcome, out.reason) == ("out", "near.safetensors is not the state of a method")
    assert keep.val is not None


@pytest.mark.parametrize("error", [DeviceError("no such device"), TargetError("no such target")])
def test_what_is_no_fault_of_a_candidate_ends_the_fold(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: GraspError
) -> None:
    def fail(bench: Workbench) -> None:
        raise error

    monkeypatch.setitem(METHODS, "odd", odd(fail))

    with pytest.raises(type(error), match="no such"):
        run(tmp_path, files.sources["good"], files.merged, quick(candidates=["odd", "keep"]))


class Clock:
    """Stands still, unless somebody moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic


SECONDS, TOO_LONG = 30, "it took longer than candidate_seconds allows"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("grasp_core.progress.time", clock)
    monkeypatch.setattr("grasp_core.candidates.time", clock)
    return clock


@contextmanager
def slow(clock: Clock, function: str, call: int) -> Iterator[None]:
    """That call of a function of the core takes longer than a candidate may."""
    name, calls = f"grasp_core.{function}", count(1)
    original = resolve_name(name)

    def wait(*given: Any) -> Any:
        clock.now += 2 * SECONDS if next(calls) == call else 0
        return original(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(name, wait)
        yield


def limited(*candidates: object, **values: object) -> FoldConfig:
    values = {"refine": FEW_STEPS} | values
    return quick(candidates=candidates, candidate_seconds=SECONDS, **values)


def test_a_candidate_that_takes_too_long_is_out(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def dawdle(bench: Workbench) -> None:
        clock.now += 2 * SECONDS

    monkeypatch.setitem(METHODS, "odd", odd(dawdle))
    config = limited("odd", "keep", refine={"steps": 0})

    report = run(tmp_path, files.sources["good"], files.merged, config)

    out, keep = report.candidates
    assert (out.outcome, out.reason) == ("out", TOO_LONG)
    assert keep.val is not None
    alone = limited("odd", refine={"steps": 0})
    with pytest.raises(OutOfTime, match="candidate_seconds"):
        run(tmp_path / "alone", files.sources["good"], files.merged, alone)


def test_one_may_be_cut_off_before_its_first_look(
    files: Files, tmp_path: Path, clock: Clock
) -> None:
    with slow(clock, "refinement.evaluate", 1):
        report = run(tmp_path, files.sources["good"], files.merged, limited("source", "keep"))

    out, keep = report.candidates
    assert (out.reason, out.history, out.best_step, out.val) == (TOO_LONG, (), None, None)
    assert keep.val is not None


def test_half_a_probe_says_nothing_of_rates(files: Files, tmp_path: Path, clock: Clock) -> None:
    config = limited("source", "keep", refine={"steps": 2, "lr": "auto"})

    with slow(clock, "refinement.evaluate", 5):  # in the second of five trials
        report = run(tmp_path, files.sources["good"], files.merged, config)

    out, keep = report.candidates
    assert (out.reason, len(out.history)) == (TOO_LONG, 3)
    assert out.learning_rate is not None
    assert out.learning_rate.probe == ()
    assert keep.learning_rate is not None
    assert len(keep.learning_rate.probe) == len(LEARNING_RATES)
    assert report.learning_rate == keep.learning_rate


def test_one_that_is_late_with_its_predictions_cannot_win(
    files: Files, tmp_path: Path, clock: Clock
) -> None:
    config, stop = limited("source", "keep"), StopAt((None, "evaluate"), "begins")
    with slow(clock, "candidates.predict", 1), pytest.raises(FoldStopped):
        run(tmp_path, files.sources["good"], files.merged, config, progress=stop)

    report = run(tmp_path, files.sources["good"], files.merged, config)

    out, keep = report.candidates
    assert (out.outcome, out.reason, out.val) == ("out", TOO_LONG, None)
    assert report.winner == keep


def test_when_a_finalist_runs_out_of_time_the_next_best_goes_on(
    files: Files, tmp_path: Path, clock: Clock
) -> None:
    """Or the fold would fail though others are left, or one win that did not go on."""
    config = limited("source", "mean", heat=HEAT)

    with slow(clock, "refinement.evaluate", 6):  # after two looks of each, the finalist's fourth
        report = run(tmp_path, files.sources["good"], files.merged, config)

    source, mean = report.candidates
    assert (source.outcome, source.reason, source.went_on) == ("out", TOO_LONG, True)
    assert report.winner == mean
    assert mean.went_on
    assert len(mean.history) == FEW + 1


def test_when_a_finalist_runs_out_of_time_what_was_the_same_takes_its_place(
    files: Files, tmp_path: Path, clock: Clock
) -> None:
    config = limited(NOTHING, "keep", heat=HEAT)

    with slow(clock, "refinement.evaluate", 4):
        report = run(tmp_path, files.sources["good"], files.merged, config)

    grasp, keep = report.candidates
    assert (grasp.outcome, grasp.reason) == ("out", TOO_LONG)
    assert (keep.outcome, keep.same_as, len(keep.history)) == ("won", None, FEW + 1)


@pytest.mark.parametrize("candidates", [("source", "mean"), (NOTHING, "keep")], ids=str)
def test_whose_time_was_up_gets_no_more_in_another_attempt(
    files: Files, tmp_path: Path, clock: Clock, candidates: tuple[object, ...]
) -> None:
    config, source = limited(*candidates, heat=HEAT), files.sources["good"]
    stop = StopAt((None, "evaluate"), "begins")
    call = 2 * len(candidates) + 2 if "source" in candidates else 4
    with slow(clock, "refinement.evaluate", call):
        whole = run(tmp_path / "whole", source, files.merged, config)
    with slow(clock, "refinement.evaluate", call), pytest.raises(FoldStopped):
        run(tmp_path, source, files.merged, config, progress=stop)

    again = run(tmp_path, source, files.merged, config)

    assert {candidate.reason for candidate in whole.candidates} == {None, TOO_LONG}
    assert without_costs(again) == without_costs(whole)


@pytest.mark.parametrize("stopped", [False, True])
def test_what_was_remembered_outlives_being_cut_off(
    files: Files, tmp_path: Path, clock: Clock, stopped: bool
) -> None:
    config, source = limited("mean", "keep", refine={"steps": 0}), files.sources["good"]
    whole = run(tmp_path / "whole", source, files.merged, config)
    stop = StopAt((None, "evaluate"), "begins")
    with slow(clock, "candidates.recalibrate", 1):
        if stopped:
            with pytest.raises(FoldStopped):
                run(tmp_path, source, files.merged, config, progress=stop)
        report = run(tmp_path, source, files.merged, config)

    assert report.candidates[0].reason == TOO_LONG
    assert [file.name for file in report.files] == ["state/mean"]
    assert report.files == whole.files
    assert (tmp_path / "state" / "mean").exists()


def test_a_fold_fails_only_if_no_candidate_is_left(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "shadow", SHADOW)

    with pytest.raises(ConfigError, match="nothing to keep"):
        run(tmp_path, files.sources["good"], None, quick(candidates=["keep", "shadow"]))


# Interruption

SHORT = quick(candidates=RUNNERS, refine=FEW_STEPS)
RACES = {"a race": SHORT, "a heat": SHORT.model_copy(update={"heat": HEAT})}
WORK = {name: list(plan_fold(config)) for name, config in RACES.items()}


class StopAt:
    """Says stop as soon as this work begins, or in its middle."""

    def __init__(self, work: Work, when: Literal["begins", "in its middle"]) -> None:
        self._work, self._late = work, when != "begins"

    def __call__(self, progress: Progress) -> Literal["stop"] | None:
        if (progress.candidate, progress.stage) != self._work:
            return None
        begun = progress.metrics.get("step", 0) > 0
        return STOP if begun or not self._late else None


@pytest.fixture(scope="module")
def uninterrupted(files: Files, tmp_path_factory: pytest.TempPathFactory) -> dict[str, FoldReport]:
    return {
        name: run(tmp_path_factory.mktemp("whole"), files.sources["good"], files.merged, config)
        for name, config in RACES.items()
    }


MOMENTS = [
    (race, work, when)
    for race, plan in WORK.items()
    for work in plan
    for when in ("begins", "in its middle")
    if (work[1] == "refine" if when != "begins" else race == "a race" or work[1] == "predict")
]


@pytest.mark.parametrize(
    ("race", "work", "when"),
    [
        pytest.param(*moment, marks=[pytest.mark.proof] * (number % 2))
        for number, moment in enumerate(MOMENTS)
    ],
    ids=str,
)
def test_a_race_stopped_anywhere_ends_in_the_same_bytes(
    files: Files,
    uninterrupted: dict[str, FoldReport],
    tmp_path: Path,
    race: str,
    work: Work,
    when: Literal["begins", "in its middle"],
) -> None:
    source = files.sources["good"]
    with pytest.raises(FoldStopped):
        run(tmp_path, source, files.merged, RACES[race], progress=StopAt(work, when))

    report = run(tmp_path, source, files.merged, RACES[race])

    assert without_costs(report) == without_costs(uninterrupted[race])
    assert list((tmp_path / "work").iterdir()) == []


def without_costs(report: FoldReport) -> dict[str, Any]:
    """All but what differs from run to run."""
    costs: dict[str, Any] = {"seconds": 0.0, "peak_bytes": 0}
    candidates = tuple(each.model_copy(update=costs) for each in report.candidates)
    whole = report.model_copy(update={"candidates": candidates})
    ran = {(stage.candidate, stage.name) for stage in report.stages}
    return whole.model_dump(exclude={"resumed_from_epoch", "stages"}) | {"ran": ran}


def test_what_is_done_is_not_done_again(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files.sources["good"]
    stop = StopAt(("mean", "refine"), "in its middle")
    with pytest.raises(FoldStopped):
        run(tmp_path, source, files.merged, SHORT, progress=stop)
    steps: list[int] = []
    advance = Trainer.advance

    def note(self: Trainer, step: int) -> Look:
        steps.append(step)
        return advance(self, step)

    monkeypatch.setattr(Trainer, "advance", note)
    seen: list[Progress] = []
    run(tmp_path, source, files.merged, SHORT, progress=seen.append)

    assert steps.count(FEW) == 2  # mean and grasp come to their ends
    assert {p.candidate for p in seen if p.stage == "refine"} == {"mean", "grasp"}
    assert not any(p.stage == "baseline" for p in seen)


@pytest.mark.parametrize("file", ["done.safetensors", "trial1/best.safetensors"])
def test_a_candidate_that_was_damaged_is_run_again(
    files: Files, uninterrupted: dict[str, FoldReport], tmp_path: Path, file: str
) -> None:
    source = files.sources["good"]
    stop = StopAt((None, "evaluate"), "begins")
    with pytest.raises(FoldStopped):
        run(tmp_path, source, files.merged, SHORT, progress=stop)
    winner = uninterrupted["a race"].winner
    assert winner is not None
    damaged = tmp_path / "work" / winner.name / file
    assert damaged.exists()
    flip_a_bit(damaged)
    seen: list[Progress] = []

    report = run(tmp_path, source, files.merged, SHORT, progress=seen.append)

    assert report.sha256 == uninterrupted["a race"].sha256
    assert {p.candidate for p in seen if p.stage == "predict"} == {winner.name}


class Killed(BaseException):
    """What no code expects."""


def test_what_was_published_when_it_was_killed_is_not_merged_again(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = files.sources["good"]

    def publish(folder: Path, made: Iterable[NamedFile], output: Path) -> None:
        publish_files(folder, made, output)
        if made:
            raise Killed

    monkeypatch.setattr(folding, "publish_files", publish)
    with pytest.raises(Killed):
        run(tmp_path, source, files.merged, SHORT)
    assert (tmp_path / "state" / "mean").exists()
    monkeypatch.undo()
    seen: list[Progress] = []

    report = run(tmp_path, source, files.merged, SHORT, progress=seen.append)

    assert {progress.candidate for progress in seen} == {None}
    assert [file.name for file in report.files] == ["state/mean"]


PROBED_STEPS = {"steps": 2, "batch_size": BATCH, "lr": "auto"}
KILLED = {
    "a heat": quick(candidates=[NOTHING, "keep", "mean"], refine=FEW_STEPS, heat=HEAT),
    "a first fold, a probe and a heat": quick(candidates=ALL, refine=PROBED_STEPS, heat=HEAT),
}


@pytest.mark.parametrize("name", KILLED)
def test_a_race_killed_after_any_other_file_ends_in_the_same_bytes(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A copy of the folder, made when a file has come to be, is what a kill then leaves."""
    monkeypatch.setattr("grasp_core.refinement.LEARNING_RATES", LEARNING_RATES[:2])
    config, source, copies = KILLED[name], files.sources["good"], tmp_path / "copies"
    first = name.startswith("a first fold")
    merged, given = (None, {"base": files.merged}) if first else (files.merged, {})
    written = count()

    def copy_after(write: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            result = write(*arguments)
            if (number := next(written)) % 2:
                copytree(tmp_path / "whole", copies / str(number))
            return result

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("grasp_core.checkpoints._write", "grasp_core.folding.publish_files"):
            patch.setattr(name, copy_after(resolve_name(name)))
        whole = run(tmp_path / "whole", source, merged, config, files=given)

    killed = sorted(copies.iterdir())
    assert len(killed) > 10
    for folder in killed:
        again = run(folder, source, merged, config, files=given)
        assert without_costs(again) == without_costs(whole), folder.name
        for file in ("weights", "state/mean"):
            assert (folder / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


# Progress


@pytest.mark.parametrize("name", RACES)
def test_progress_grows_over_the_whole_and_says_which_candidate_runs(
    files: Files, tmp_path: Path, name: str
) -> None:
    seen: list[Progress] = []

    report = run(tmp_path, files.sources["near"], files.merged, RACES[name], progress=seen.append)

    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0, 1)
    order = list(dict.fromkeys(progress.candidate for progress in seen))
    assert order == [None, *ALL]
    assert {(p.candidate, p.stage) for p in seen} <= set(WORK[name])
    assert {(s.candidate, s.name) for s in report.stages} == {(p.candidate, p.stage) for p in seen}


def test_a_new_method_can_be_a_candidate_with_no_other_edit(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "shadow", replace(SHADOW, name="shadow"))
    config = quick(candidates=["keep", {"method": "shadow", "scale": 0.1}], refine={"steps": 2})

    report = run(
        tmp_path, files.sources["good"], files.merged, config, files={"base": files.merged}
    )

    shadow: CandidateReport = report.candidates[1]
    assert (shadow.name, shadow.method, shadow.config["scale"]) == ("shadow", "shadow", 0.1)
    assert shadow.val is not None
    assert shadow.gain is not None
    assert [file.name for file in report.files] == ["state/shadow"]


def test_a_method_may_run_twice_with_other_parameters(files: Files, tmp_path: Path) -> None:
    config = quick(
        candidates=[{"method": "grasp", "tau": 0.0}, {"method": "grasp", "tau": 1.0}],
        refine={"steps": 0},
    )

    report = run(tmp_path, files.sources["near"], files.merged, config)

    assert [candidate.name for candidate in report.candidates] == ["grasp", "grasp-2"]
    assert [candidate.config["tau"] for candidate in report.candidates] == [0.0, 1.0]
    shares = [candidate.share for candidate in report.candidates]
    assert shares[0] is not None
    assert shares[1] == 0 < shares[0]
    assert np.isfinite(shares[0])


def test_every_candidate_has_a_name_of_its_own() -> None:
    grasp, plugin = OddConfig(method="grasp"), OddConfig(method="grasp-2")

    assert list(name_candidates([grasp, grasp, plugin])) == ["grasp", "grasp-2", "grasp-2-2"]
    assert list(name_candidates([plugin, grasp, grasp])) == ["grasp-2", "grasp", "grasp-3"]
