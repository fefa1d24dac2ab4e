"""Dry runs with candidates of their own: which method does my data prefer?"""

import json
from typing import Any

import pytest

from grasp_core.methods import METHODS
from registry.tables import Job
from tests.app.world import World, checkpoint


def post(world: World, candidates: str, **params: str) -> Any:
    asked = {"dry_run": "true", "candidates": candidates} | params
    return world.post_raw(checkpoint(), params=asked)


def kept(world: World, answer: Any) -> Any:
    """What the job knows of its candidates."""
    with world.database.read() as session:
        candidate = session.get_one(Job, answer.json()["job"]["id"]).candidate
        return candidate and candidate.get("candidates")


def test_all_methods_are_tried(world: World) -> None:
    world.ready_model()

    answer = post(world, "all")

    assert answer.status_code == 202
    assert [each["method"] for each in kept(world, answer)] == list(METHODS)


def test_some_are_tried_with_parameters(world: World) -> None:
    world.ready_model()
    wanted = ["keep", {"method": "ties", "density": 0.1}]

    named = kept(world, post(world, "keep, ties"))
    spelt = kept(world, post(world, json.dumps(wanted)))

    assert [each["method"] for each in named] == ["keep", "ties"]
    assert (named[1]["density"], spelt[1]["density"]) == (0.2, 0.1)


def test_without_any_a_dry_run_has_those_of_its_model(world: World) -> None:
    world.ready_model()
    answer = world.post_raw(checkpoint(), params={"dry_run": "true"})
    assert kept(world, answer) is None


@pytest.mark.parametrize(
    ("candidates", "params", "message"),
    [
        ("keep", {"dry_run": "false"}, "only a dry run has candidates of its own"),
        ("keep,tyes", {}, "there is no such method; there are keep"),
        ('["keep", {"method": "ties", "tau": 1}]', {}, "ties has no such parameter"),
        ('["keep"', {}, "there is no such method"),
        ("[" * 20_000, {}, "there is no such method"),
        ('["keep", {"method": "ties", "scale": NaN}]', {}, "less than or equal to 100"),
        ("", {}, "there is no such method"),
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(
    world: World, candidates: str, params: dict[str, str], message: str
) -> None:
    world.ready_model()
    before = world.rows()

    answer = post(world, candidates, **params)

    assert answer.status_code == 422
    problem = answer.json()
    assert problem["errors"][0]["where"].startswith("query.candidates")
    assert message in problem["errors"][0]["message"]
    assert world.rows() == before
