"""Methods as the API and the dashboard take them from their declarations."""

import json
from dataclasses import replace
from typing import Literal

import pytest
from pydantic import Field

from grasp_core.config import MethodConfig
from grasp_core.kinds import check_augmentation, find_kind
from grasp_core.methods import METHODS
from grasp_core.methods.declaration import Method, Needs, Score, Stage
from grasp_core.parameters import parse_config
from registry.jobs.transitions import change
from registry.tables import Job
from tests.app.reading import Outline, page
from tests.app.story import Story, report
from tests.app.world import World


class TallyConfig(MethodConfig):
    """Counts."""

    method: Literal["tally"] = "tally"
    pace: float = Field(0.5, gt=0, description="How fast.")


def merge(*_: object) -> None:
    raise AssertionError("nobody folds here")


TALLY = Method(
    name="tally",
    summary="Counts.",
    paper=None,
    parameters=TallyConfig,
    merge=merge,  # type: ignore[arg-type]
    stages=(Stage("count", "Count <all>"),),
    score=Score("weight", "How heavy it is."),
    state=1,
)
NO_SUCH_METHOD = f"there is no such method; there are {', '.join([*METHODS, 'tally'])}"


@pytest.fixture(autouse=True)
def _tally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "tally", TALLY)


def stored(**values: object) -> dict[str, object]:
    """As a model of images has them."""
    config = parse_config({"method": "tally", **values})
    return check_augmentation(config, find_kind("image")).model_dump(mode="json")


def test_a_model_has_the_parameters_of_its_method(world: World) -> None:
    world.ready_model(merge={"method": "tally", "pace": 2.0, "refine": {"epochs": 1}})

    found = world.client.get("/models/merged/info").json()["merge"]

    assert found == stored(pace=2.0, refine={"epochs": 1})


@pytest.mark.parametrize(
    ("given", "where", "message"),
    [
        ({"tau": 0.3}, "body.merge.tau", "tally has no such parameter; it is one of grasp"),
        ({"speed": 1}, "body.merge.speed", "there is no such parameter"),
        ({"pace": 0}, "body.merge.pace", "Input should be greater than 0"),
        ({"method": "talley"}, "body.merge.method", NO_SUCH_METHOD),
    ],
)
def test_wrong_parameters_are_named(
    world: World, given: dict[str, object], where: str, message: str
) -> None:
    world.ready_model(merge={"method": "tally"})
    model = {"name": "new", "architecture": "test_vit", "target": "faces"}
    posted = world.client.post("/models", json=model | {"merge": {"method": "tally"} | given})
    patched = world.client.patch("/models/merged", json={"merge": given})

    for answer in (posted, patched):
        assert answer.status_code == 422
        assert answer.json()["errors"] == [{"where": where, "message": message}]


def test_a_model_can_change_its_method(world: World) -> None:
    world.ready_model(merge={"tau": 0.2, "seed": 4, "refine": {"epochs": 5}})
    world.fold(1)

    to_tally = {"merge": {"method": "tally", "refine": {"lr": 0.5}}}
    answer = world.client.patch("/models/merged", json=to_tally)

    wanted = stored(seed=4, refine={"epochs": 5, "lr": 0.5})
    assert (answer.status_code, answer.json()["merge"]) == (200, wanted)
    back = world.client.patch("/models/merged", json={"merge": {"method": "grasp"}})
    assert (back.json()["merge"]["tau"], back.json()["merge"]["seed"]) == ("auto", 4)


def test_a_method_that_needs_its_history_takes_no_model_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "tally", replace(TALLY, needs=Needs(history=True)))
    world.ready_model()
    change_method = {"merge": {"method": "tally"}}
    assert world.client.patch("/models/merged", json=change_method).status_code == 200
    world.client.patch("/models/merged", json={"merge": {"method": "grasp"}})
    world.fold(1)

    answer = world.client.patch("/models/merged", json=change_method)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config")
    assert "tally cannot take over" in answer.json()["detail"]
    assert answer.json()["hint"]
    assert world.client.get("/models/merged/info").json()["merge"]["method"] == "grasp"


def test_a_model_whose_method_is_gone_is_shown_and_can_be_given_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ready_model(merge={"method": "tally", "pace": 3.0, "seed": 8})
    world.fold(1)
    monkeypatch.delitem(METHODS, "tally")

    found = world.client.get("/models/merged/info")

    assert (found.status_code, found.json()["merge"]["pace"]) == (200, 3.0)
    assert len(world.client.get("/models").json()["items"]) == 1
    assert "tally" in page(world, "/ui/models/merged")
    assert "merged" in page(world, "/")
    answer = world.client.patch("/models/merged", json={"merge": {"method": "grasp"}})
    assert (answer.status_code, answer.json()["merge"]["seed"]) == (200, 8)


def test_the_form_has_the_fields_of_the_method(world: World) -> None:
    world.ready_model(merge={"method": "tally", "pace": 3.0})

    outline = Outline(page(world, "/ui/models/merged"))

    fields = [tag for tag in (*outline.all("select"), *outline.all("input")) if "data-kept" in tag]
    kept = {tag["name"]: tag["data-kept"] for tag in fields}
    assert (kept["method"], kept["pace"], kept["refine.epochs"]) == ("tally", "3.0", "3")
    assert "tau" not in kept
    values = [tag.get("value") for tag in outline.all("option")]
    assert values[: len(METHODS)] == list(METHODS)


def test_a_running_job_shows_the_stages_of_the_method(filled: tuple[World, Story]) -> None:
    world, story = filled
    assert "Gradients of the source" in page(world, f"/ui/jobs/{story.running}")
    world.client.patch("/models/merged", json={"merge": {"method": "tally"}})
    text = page(world, f"/ui/jobs/{story.running}")
    assert "Gradients of the source" not in text
    assert "Count &lt;all&gt;" in text


@pytest.mark.parametrize(("method", "heading"), [("tally", "Weight"), ("gone", "Score")])
def test_scores_are_called_what_the_method_calls_them(
    filled: tuple[World, Story], method: str, heading: str
) -> None:
    world, story = filled
    reported = report() | {"schema": 2, "details": {"count": 3}}
    reported["config"] = {"method": method}
    reported["parameters"] = [
        {"name": "stem.weight", "size": 3, "score": 0.25, "transferred": 0.5},
        {"name": "head.weight", "size": 3, "score": 0.5, "transferred": True},
    ]
    with world.database.write() as session:
        change(session, Job, Job.id == story.folded, {"report": json.dumps(reported)})

    text = page(world, "/ui/models/merged/versions/3")

    assert f">{heading}<" in text
    assert "stem.weight: " + heading.lower() + " 0.250, 50% transferred" in text
    assert "τ" not in text
    assert ("How heavy it is." in text) == (method == "tally")
    compared = page(world, "/ui/models/merged/compare?a=1&b=3")
    assert "<dt>count</dt><dd>3</dd>" in compared
    assert "<dt>tau</dt><dd>0.300</dd>" in compared
