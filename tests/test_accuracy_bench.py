"""The comparison of a fold with its controls: every row, from real but tiny folds."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import accuracy, paper_claims
from bench.accuracy import (
    LAST_RELEASE,
    OURS,
    ROWS,
    Ensemble,
    Outcome,
    Results,
    Store,
    draw,
    measure,
)
from bench.beds import Cell, Files, write_some
from grasp_cli.demo.digits import DECADES
from grasp_cli.demo.experiment import QUICK, SPEC, Experiment
from grasp_core import fold, open_task, parse_config

STEPS = {"augmentation": {"flip": False}, "steps": 2, "epochs": None}


def prepare(folder: Path) -> Files:
    experiment = Experiment(folder, folder, sizes=QUICK)
    ancestor = experiment.train_ancestor()
    sources = tuple(experiment.train_source(decade, ancestor) for decade in list(DECADES)[:2])
    task = open_task(experiment.target, SPEC, cache_dir=folder)
    return Files(SPEC, ancestor, sources, task, STEPS)


CELL = Cell("digits", 0, {"labels": 60}, prepare)


def results(ours: Outcome, others: Outcome) -> Results:
    return {row.name: ours if row is OURS else others for row in ROWS}


def test_every_row_comes_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = measure(CELL, Store(tmp_path, "code"))
    assert list(measured) == [row.name for row in ROWS]
    assert all(0 <= each.accuracy <= 1 for each in measured.values())
    assert all(each.log_likelihood < 0 for each in measured.values())
    assert len(list(tmp_path.iterdir())) == len(ROWS)

    def run_again(*args: Any, **more: Any) -> None:
        raise AssertionError("a fold was run again")

    monkeypatch.setattr(accuracy, "fold", run_again)
    assert measure(CELL, Store(tmp_path, "code")) == measured
    with pytest.raises(AssertionError, match="again"):
        measure(CELL, Store(tmp_path, "other code"))
    with pytest.raises(AssertionError, match="again"):
        measure(Cell("digits", 0, {"labels": 61}, prepare), Store(tmp_path, "code"))


def test_the_claims_of_the_paper_are_measured_on_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    orders = []

    def watch(folds: accuracy.Folds, values: accuracy.Values, **more: Any) -> Outcome:
        orders.append([path.name for path in folds._files.sources])
        return Outcome(0.5 + 0.01 * len(orders), -1.0)

    monkeypatch.setattr(accuracy.Folds, "in_turn", watch)
    monkeypatch.setattr(paper_claims, "list_cells", lambda *_: [CELL])

    ((bed, rows),) = paper_claims.measure(["digits"], tmp_path, 1)

    assert bed == "digits"
    assert list(rows) == [*paper_claims.CHAIN, paper_claims.REVERSED]
    assert orders[-1] == orders[0][::-1] != orders[0]
    paper_claims.print_rows("all", [rows])
    paper_claims.print_spread([rows])
    said = capsys.readouterr().out
    assert all(name in said for name in rows)
    assert "the order moves our default by 1.0 points on average" in said


def test_first_fold_is_the_same_for_all_methods(tmp_path: Path) -> None:
    """So that the rows can share it."""
    files = prepare(tmp_path)
    made = {
        fold(
            SPEC,
            files.sources[0],
            files.task,
            tmp_path / "first",
            files_output=tmp_path / "files",
            config=parse_config({**values, "refine": STEPS}),
            learning_rate=1e-3,
        ).sha256
        for values in ({}, {"method": "source"}, {"method": "mean"}, {"method": "grasp"})
    }
    assert len(made) == 1


def test_what_is_interrupted_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path, "code")
    known = {row.name: Outcome(0.1 * place, -1.0) for place, row in enumerate(ROWS[:3])}
    for row in ROWS[:3]:
        store.write(CELL, row, known[row.name])
    (tmp_path / "torn.part").write_text("{")
    assert measure(CELL, store, ROWS[:3]) == known
    saved = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert sorted(each["row"] for each in saved) == sorted(known)


def test_differences_are_paired() -> None:
    cells = [
        results(Outcome(0.80, -0.5), Outcome(0.70, -0.7)),
        results(Outcome(0.60, -0.9), Outcome(0.54, -1.0)),
    ]
    points, nats = accuracy.compare(cells, LAST_RELEASE.name)
    assert points is not None
    assert nats is not None
    assert points.mean == pytest.approx(0.08)
    assert points.error == pytest.approx(0.02)  # of 0.10 and 0.06
    assert nats.mean == pytest.approx(0.15)
    assert nats.error == pytest.approx(0.05)


def test_differences_of_one_cell_are_paired_by_its_examples() -> None:
    cell = results(Outcome(0.75, -0.5, "1101"), Outcome(0.5, -0.7, "0101"))

    difference = accuracy.compare_examples(cell, LAST_RELEASE.name)

    assert difference is not None
    assert difference.mean == pytest.approx(0.25)
    assert difference.error == pytest.approx(0.25)  # of 1, 0, 0 and 0
    nobody_looked = results(Outcome(0.75, -0.5), Outcome(0.5, -0.7))
    assert accuracy.compare_examples(nobody_looked, LAST_RELEASE.name) is None


def test_promises_are_of_controls_above_ours() -> None:
    cells = [
        results(Outcome(0.70, -0.5), Outcome(0.71, -0.7)),
        results(Outcome(0.70, -0.5), Outcome(0.73, -0.7)),
    ]
    promises = {promise.text: promise for promise in accuracy.make_promises(cells)}
    mean = next(p for text, p in promises.items() if text.startswith("mean of sources"))
    assert mean.measured == pytest.approx(2 - 1)
    assert not mean.holds
    last = next(p for text, p in promises.items() if text.startswith(LAST_RELEASE.name))
    assert last.measured == pytest.approx(2)
    assert last.limit == -5
    assert not any("ensemble" in text or OURS.name + " minus" in text for text in promises)


def test_figures_that_are_not_finite_are_said_and_not_drawn(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cells = [results(Outcome(0.7, -0.5), Outcome(0.6, -math.inf))] * 2
    accuracy.report("all", cells)
    assert "not finite" in capsys.readouterr().out
    assert draw(cells).count("<circle") == len(ROWS) - 1


def test_ensemble_averages_probabilities() -> None:
    members = [torch.nn.Linear(3, 4) for _ in range(2)]
    x = torch.randn(5, 3)
    expected = sum(member(x).softmax(-1) for member in members) / 2
    torch.testing.assert_close(Ensemble(members)(x).exp(), expected)


def test_some_examples_of_a_target(tmp_path: Path) -> None:
    split = np.repeat([0, 1, 2], [6, 4, 5])
    columns = {"images": np.arange(15), "split": split, "classes": np.array(["a", "b"])}
    with np.load(write_some(tmp_path / "some.npz", columns, train=2, val=None, test=9)) as file:
        assert np.bincount(file["split"]).tolist() == [2, 4, 5]
        assert (split[file["images"]] == file["split"]).all()
        assert file["classes"].tolist() == ["a", "b"]
