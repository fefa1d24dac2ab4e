"""Parameters of folds: composed of what is common and of candidates, as people write them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from grasp_core.config import MAX_CANDIDATES, FoldConfig
from grasp_core.parameters import DEFAULT_CANDIDATES, change_config, methods_of, parse_config

SEVERAL: dict[str, Any] = {"candidates": ["keep", "source", {"method": "grasp", "tau": 0.2}]}


def dump(config: FoldConfig) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(config.model_dump_json())
    return values


def find_problems(values: object) -> dict[tuple[str | int, ...], str]:
    with pytest.raises(ValidationError) as refusal:
        parse_config(values)
    return {error["loc"]: error["msg"] for error in refusal.value.errors()}


@pytest.mark.parametrize("values", [{}, {"refine": {"steps": 7}}, {"heat": 0.25}])
def test_who_names_no_candidate_has_the_default(values: dict[str, Any]) -> None:
    assert parse_config(values).methods == DEFAULT_CANDIDATES


@pytest.mark.parametrize(
    ("values", "methods"),
    [
        (SEVERAL, ["keep", "source", "grasp"]),
        ({"candidates": ["mean"]}, ["mean"]),
        ({"method": "mean"}, ["mean"]),
        ({"tau": 0.3}, ["grasp"]),
        ({"preset": "paper"}, ["grasp"]),
        ({"preset": "paper", **SEVERAL}, ["keep", "source", "grasp"]),
    ],
)
def test_candidates_are_names_or_objects_or_stand_among_the_rest(
    values: dict[str, Any], methods: list[str]
) -> None:
    assert list(parse_config(values).methods) == methods
    assert list(methods_of(dump(parse_config(values)))) == methods


def test_what_is_common_is_the_same_for_all() -> None:
    config = parse_config(SEVERAL | {"refine": {"steps": 7}, "heat": 0.5, "seed": 3})

    assert (config.refine.steps, config.refine.epochs) == (7, None)
    assert (config.heat, config.seed) == (0.5, 3)
    assert [dump(config)["candidates"][place].get("tau") for place in range(3)] == [None, None, 0.2]


def test_one_method_may_run_with_several_sets_of_parameters() -> None:
    taus = [{"method": "grasp", "tau": tau} for tau in (0.1, 0.3)]

    assert len(parse_config({"candidates": taus}).candidates) == 2


@pytest.mark.parametrize(
    "values", [{}, SEVERAL, {"method": "mean"}, {"tau": 0.3, "refine": {"steps": 7}}]
)
def test_what_is_stored_is_read_as_the_same(values: dict[str, Any]) -> None:
    config = parse_config(values)

    assert parse_config(dump(config)) == config
    assert parse_config(config) is config


def test_one_candidate_is_stored_as_when_there_could_be_no_other() -> None:
    stored = dump(parse_config({"candidates": [{"method": "grasp", "tau": 0.3}]}))

    assert "candidates" not in stored
    assert (stored["method"], stored["tau"]) == ("grasp", 0.3)


@pytest.mark.parametrize(
    ("values", "place", "message"),
    [
        ({"candidates": []}, ("candidates",), "at least 1"),
        ({"candidates": "keep"}, ("candidates",), "valid tuple"),
        (
            {"candidates": [{"tau": n / 100} for n in range(MAX_CANDIDATES + 1)]},
            ("candidates",),
            "at most",
        ),
        ({"candidates": ["keep", "tyes"]}, ("candidates", 1, "method"), "there are keep, source"),
        ({"candidates": ["keep", 3]}, ("candidates", 1, "method"), "no such method"),
        ({"candidates": [{"method": "grasp", "tau": 2}]}, ("candidates", 0, "tau"), "or auto"),
        (
            {"candidates": [{"method": "mean", "tau": 0.1}]},
            ("candidates", 0, "tau"),
            "one of grasp",
        ),
        (
            {"candidates": [{"method": "mean", "heat": 0.1}]},
            ("candidates", 0, "heat"),
            "beside them",
        ),
        ({"candidates": ["keep", "keep"]}, ("candidates", 1), "given twice"),
        ({**SEVERAL, "tau": 0.3}, ("tau",), "belongs to one of the candidates"),
        ({"candidates": ["keep", "mean"], "tau": 0.3}, ("tau",), "one of grasp"),
        ({**SEVERAL, "method": "grasp"}, ("method",), "name it among the candidates"),
        ({**SEVERAL, "tua": 0.3}, ("tua",), "Extra inputs"),
        ({"heat": 1.0}, ("heat",), "less than 1"),
        ({"candidate_seconds": 0}, ("candidate_seconds",), "greater than 0"),
        ([], (), "dictionary"),
    ],
)
def test_nonsense_is_refused_by_its_place(
    values: object, place: tuple[str | int, ...], message: str
) -> None:
    problems = find_problems(values)

    assert message in problems[place]


def test_all_that_is_wrong_is_told_at_once() -> None:
    values = {"candidates": ["tyes", {"method": "grasp", "tau": 2}], "heat": 3, "seeed": 1}

    assert find_problems(values).keys() == {
        ("candidates", 0, "method"),
        ("candidates", 1, "tau"),
        ("heat",),
        ("seeed",),
    }


def test_changes_keep_what_they_do_not_name() -> None:
    stored = dump(parse_config({**SEVERAL, "refine": {"steps": 7}, "seed": 3}))

    changed = change_config(stored, {"refine": {"lr": 0.1}})
    assert changed.methods == ("keep", "source", "grasp")
    assert (changed.refine.steps, changed.refine.lr, changed.seed) == (7, 0.1, 3)
    other = change_config(stored, {"candidates": ["mean", "keep"]})
    assert (other.methods, other.seed, other.refine.steps) == (("mean", "keep"), 3, 7)
    alone = change_config(stored, {"method": "grasp", "tau": 0.4})
    assert (alone.methods, dump(alone)["tau"], alone.seed) == (("grasp",), 0.4, 3)
    paper = change_config(stored, {"preset": "paper"})
    assert (paper.methods, paper.refine.schedule) == (("grasp",), "epoch")
