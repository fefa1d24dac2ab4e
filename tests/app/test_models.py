"""Models over HTTP: made, shown, changed for later folds, deleted."""

import json
from typing import Any

import pytest
from sqlalchemy import select

from registry.jobs.transitions import change
from registry.tables import Model
from tests.app.world import World, checkpoint, sha256


def test_a_model_needs_a_name_an_architecture_and_a_target(world: World) -> None:
    target = world.ready_target("faces")

    answer = world.post_model("merged")

    assert answer.status_code == 201
    model, job = answer.json()["model"], answer.json()["job"]
    assert answer.headers["location"] == f"/models/{model['id']}/info"
    assert (model["status"], model["version"], model["target"]) == ("preparing", None, target)
    assert (job["kind"], job["status"], job["model"]) == ("prepare", "queued", model["id"])
    assert answer.json()["source"] is None


def test_the_parameters_given_are_the_parameters_shown(world: World) -> None:
    world.ready_target("faces")

    answer = world.post_model(
        "merged",
        classes=["F", "M"],
        image_size=64,
        seed=7,
        keep_versions=3,
        keep_sources=True,
        merge={"tau": 0.25, "refine": {"epochs": 1}},
    )

    model = world.client.get("/models/merged/info").json()
    assert answer.status_code == 201
    assert (model["classes"], model["image_size"], model["seed"]) == (["F", "M"], 64, 7)
    assert (model["keep_versions"], model["keep_sources"]) == (3, True)
    assert (model["merge"]["tau"], model["merge"]["refine"]["epochs"]) == (0.25, 1)


def test_initial_weights_are_the_first_source(world: World) -> None:
    world.ready_target("faces")
    described = json.dumps({"name": "merged", "architecture": "test_vit", "target": "faces"})
    weights = checkpoint()

    answer = world.client.post(
        "/models",
        data={"model": described, "sha256": sha256(weights)},
        files={"file": ("w.safetensors", weights)},
    )

    assert answer.status_code == 201
    source = answer.json()["source"]
    assert (source["sha256"], source["status"]) == (sha256(weights), "queued")
    assert world.store.has(sha256(weights))
    jobs = world.client.get("/jobs?model=merged").json()["items"]
    assert [job["kind"] for job in jobs] == ["fold", "prepare"]


@pytest.mark.parametrize(
    ("body", "status", "where"),
    [
        ({}, 422, {"body.name", "body.architecture", "body.target"}),
        ({"name": "mdl_x", "architecture": "test_vit", "target": "faces"}, 422, {"body.name"}),
        ({"merge": {"tau": 2}}, 422, {"body.merge.tau"}),
        ({"merge": {"taau": 0.1}}, 422, {"body.merge.taau"}),
        ({"merge": {"device": "cuda"}}, 422, {"body.merge"}),
        ({"merge": {"preset": ["paper"]}}, 422, {"body.merge.preset"}),
        ({"classes": ["F", "F"]}, 422, {"body.classes"}),
        ({"classes": ["F", "M\x1b[31m"]}, 422, {"body.classes.1"}),
        ({"classes": ["F", "M\x85"]}, 422, {"body.classes.1"}),
        ({"classes": ["F", "M\u2028"]}, 422, {"body.classes.1"}),
        ({"image_size": 64, "preprocessing": {"image_size": 32}}, 422, {"body"}),
        ({"keep_versions": 0}, 422, {"body.keep_versions"}),
        ({"keep_versions": 2**40}, 422, {"body.keep_versions"}),
    ],
)
def test_every_wrong_value_is_named(
    world: World, body: dict[str, object], status: int, where: set[str]
) -> None:
    world.ready_target("faces")
    required = {"name": "m", "architecture": "test_vit", "target": "faces"} if body else {}

    with world.nothing_left():
        answer = world.client.post("/models", json={**required, **body})

    assert answer.status_code == status
    found = {error["where"] for error in answer.json()["errors"]}
    assert where <= found, found


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_json_lacks_are_refused(world: World, number: str) -> None:
    world.ready_target("faces")
    body = (
        '{"name": "m", "architecture": "test_vit", "target": "faces",'
        f' "merge": {{"refine": {{"lr": {number}}}}}}}'
    )
    with world.nothing_left():
        answer = world.client.post("/models", content=body)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    ("form", "status", "code"),
    [
        (
            {"model": '{"name": "new", "architecture": "test_vit", "target": "none"}'},
            404,
            "not_found",
        ),
        (
            {"model": '{"name": "old", "architecture": "test_vit", "target": "faces"}'},
            409,
            "name_taken",
        ),
        ({"model": "{"}, 400, "invalid_json"),
        ({"model": "[1]"}, 400, "invalid_json"),
        ({"model": "{}"}, 422, "invalid_request"),
        ({}, 400, "invalid_json"),
        (
            {"model": '{"name": "n", "architecture": "test_vit", "target": "faces"}', "naem": "x"},
            422,
            "invalid_request",
        ),
        (
            {
                "model": '{"name": "n", "architecture": "test_vit", "target": "faces"}',
                "sha256": "00",
            },
            422,
            "digest_mismatch",
        ),
    ],
)
def test_refused_initial_weights_leave_nothing(
    world: World, form: dict[str, str], status: int, code: str
) -> None:
    world.ready_model("old")
    with world.nothing_left():
        for headers in ({}, {"Idempotency-Key": "k"}):
            answer = world.client.post(
                "/models", data=form, files={"file": ("w", checkpoint())}, headers=headers
            )
            assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_initial_weights_that_are_not_safetensors_are_refused(world: World) -> None:
    world.ready_target("faces")
    described = json.dumps({"name": "merged", "architecture": "test_vit", "target": "faces"})
    with world.nothing_left():
        answer = world.client.post(
            "/models", data={"model": described}, files={"file": ("w.pt", b"PK\3\4" * 50)}
        )
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_checkpoint")


def test_info_counts_what_became_of_the_sources(world: World) -> None:
    world.ready_model()
    empty = world.client.get("/models/merged/info").json()
    world.fold(1)
    world.fold(2)
    world.post_source(checkpoint(3))
    world.reject()
    world.post_source(checkpoint(4))

    info = world.client.get("/models/merged/info").json()

    assert (empty["version"], empty["sha256"], empty["sources"]) == (None, None, {})
    assert info["sources"] == {"succeeded": 2, "rejected": 1, "queued": 1}
    assert (info["version"], info["metrics"]) == (2, {"accuracy": 0.9})
    assert info["sha256"] == sha256(world.client.get("/models/merged").content)
    assert info["links"]["download"] == f"/models/{info['id']}"


def test_a_patch_changes_what_it_names_and_nothing_else(world: World) -> None:
    world.ready_model(merge={"tau": 0.2, "refine": {"epochs": 5}})
    before = world.client.get("/models/merged/info").json()

    answer = world.client.patch("/models/merged", json={"merge": {"refine": {"lr": 0.001}}})

    merge = {**before["merge"], "refine": {**before["merge"]["refine"], "lr": 0.001}}
    assert answer.status_code == 200
    assert answer.json() == {**before, "merge": merge}
    assert world.client.get("/models/merged/info").json() == answer.json()


def test_a_patch_can_rename_and_thin_out(world: World) -> None:
    model = world.ready_model()
    world.ready_model("other")
    for seed in (1, 2, 3):
        world.fold(seed)

    renamed = world.client.patch(
        "/models/merged", json={"name": "new", "keep_versions": 1, "keep_sources": True}
    )
    taken = world.client.patch("/models/new", json={"name": "other", "keep_sources": False})

    assert renamed.json()["keep_sources"] is True
    assert world.client.get("/models/new/info").json()["id"] == model
    assert world.client.get("/models/merged/info").status_code == 404
    versions = world.client.get("/models/new/versions").json()["items"]
    assert [version["available"] for version in versions] == [True, False, False]
    assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    assert world.client.get("/models/new/info").json()["keep_sources"] is True
    assert world.client.patch("/models/new", json={"name": "new"}).status_code == 200
    cleared = world.client.patch("/models/new", json={"keep_versions": None})
    assert cleared.json()["keep_versions"] is None


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b'{"merge": {"tau": 3}}', 422, "invalid_request"),
        (b'{"merge": {"tua": 0.3}}', 422, "invalid_request"),
        (b'{"merge": {"\\ud800": 1}}', 422, "invalid_request"),
        (b'{"merge": {"device": "cuda"}}', 422, "invalid_request"),
        (b'{"merge": {"refine": {"lr": Infinity}}}', 422, "invalid_request"),
        (b'{"merge": {"preset": ["paper"]}}', 422, "invalid_request"),
        (b'{"merge": 1}', 422, "invalid_request"),
        (b'{"architecture": "other"}', 422, "invalid_request"),
        (b'{"\\ud800": 1}', 422, "invalid_request"),
        (b"[]", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"\xff", 400, "invalid_json"),
        (b'{"a": ' + b"1" * 5000 + b"}", 400, "invalid_json"),
        (b"[" * 100_000, 400, "invalid_json"),
        (b" " * (2**20 + 1), 413, "too_large"),
    ],
)
def test_a_wrong_patch_changes_nothing(
    world: World, content: bytes, status: int, code: str
) -> None:
    world.ready_model()
    with world.nothing_left():
        answer = world.client.patch("/models/merged", content=content)
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_wrong_parameter_is_named_in_plain_words(world: World) -> None:
    world.ready_model(merge={"method": "grasp"})
    merge = {"tau": 7, "tua": 0.3}

    answer = world.client.patch("/models/merged", json={"merge": merge})

    assert answer.json()["errors"] == [
        {"where": "body.merge.tau", "message": "must be a number from 0 to 1, or auto"},
        {"where": "body.merge.tua", "message": "there is no such parameter"},
    ]


def test_a_parameter_of_one_candidate_beside_several_says_where_it_belongs(world: World) -> None:
    world.ready_model()

    answer = world.client.patch(
        "/models/merged", json={"merge": {"tau": 0.2, "method": "grasp", "candidates": ["grasp"]}}
    )
    alone = world.client.patch("/models/merged", json={"merge": {"tau": 0.2}})

    assert answer.json()["errors"] == [
        {
            "where": "body.merge.tau",
            "message": 'it belongs to one of the candidates: {"method": "grasp", "tau": …}',
        },
        {
            "where": "body.merge.method",
            "message": "it stands for one candidate alone: name it among the candidates",
        },
    ]
    assert alone.json()["errors"] == answer.json()["errors"][:1]


def test_candidates_apply_to_later_folds(world: World) -> None:
    world.ready_model()
    several: list[Any] = ["keep", "source", {"method": "grasp", "tau": 0.2}]

    changed = world.client.patch("/models/merged", json={"merge": {"candidates": several}})
    alone = world.client.patch("/models/merged", json={"merge": {"method": "mean"}})

    merge = changed.json()["merge"]
    assert [each["method"] for each in merge["candidates"]] == ["keep", "source", "grasp"]
    assert merge["candidates"][2]["tau"] == 0.2
    assert "candidates" not in alone.json()["merge"]
    assert alone.json()["merge"]["method"] == "mean"


def test_a_preset_replaces_what_it_names(world: World) -> None:
    world.ready_model()
    answer = world.client.patch("/models/merged", json={"merge": {"preset": "paper"}})
    assert (answer.json()["merge"]["merged_mode"], answer.json()["merge"]["tau"]) == ("train", 0.3)


def test_a_deleted_model_is_gone_with_all_it_had(world: World) -> None:
    world.ready_model()
    world.fold(1)
    source = world.client.get("/sources").json()["items"][0]["id"]

    answer = world.client.delete("/models/merged")

    assert (answer.status_code, answer.content) == (204, b"")
    assert world.client.get("/models").json()["items"] == []
    assert world.client.get(f"/sources/{source}").status_code == 404
    assert [job["kind"] for job in world.client.get("/jobs").json()["items"]] == ["validate"]


def test_lists_are_filtered(world: World) -> None:
    world.ready_model("a")
    world.ready_target("others")
    world.post_model("b", "others")
    with world.database.write() as session:
        change(session, Model, Model.name == "b", {"architecture": "resnet18"})

    def names(query: str) -> list[str]:
        return [item["name"] for item in world.client.get(f"/models?{query}").json()["items"]]

    assert names("") == ["b", "a"]
    assert names("target=others") == names("status=preparing") == ["b"]
    assert names("architecture=test_vit") == ["a"]
    assert world.client.get("/models?target=none").status_code == 404
    page = world.client.get("/models?limit=1").json()
    assert names(f"limit=1&cursor={page['next_cursor']}") == ["a"]


def test_who_asks_for_auto_again_has_the_learning_rate_probed_again(world: World) -> None:
    world.ready_model()
    found = {"rate": 1e-3, "version": 1, "probe": []}
    with world.database.write() as session:
        session.scalars(select(Model)).one().learning_rate = found

    def patch(merge: dict[str, Any]) -> object:
        answer = world.client.patch("/models/merged", json={"merge": merge})
        assert answer.status_code == 200
        return answer.json()["learning_rate"]

    assert patch({"refine": {"steps": 50}}) == found
    assert patch({"heat": 0.25}) == found
    assert patch({"refine": {"lr": "auto"}}) is None


def test_a_model_that_failed_is_replaced_by_the_next_of_its_name(world: World) -> None:
    world.ready_target("faces")

    def create(key: str) -> Any:
        body = {"name": "merged", "architecture": "test_vit", "target": "faces"}
        return world.client.post("/models", json=body, headers={"Idempotency-Key": key})

    first = create("first")
    world.fail()

    second = create("second")

    assert second.status_code == 201, second.text
    shown = world.client.get("/models/merged/info").json()
    assert (shown["id"], shown["status"]) == (second.json()["model"]["id"], "preparing")
    assert world.client.get(f"/models/{first.json()['model']['id']}/info").status_code == 404
    for answer, key in ((first, "first"), (second, "second")):
        again = create(key)
        assert (again.status_code, again.json()) == (201, answer.json())


def test_a_model_takes_the_name_of_one_that_failed(world: World) -> None:
    other = world.ready_model("other")
    world.post_model("merged", "faces")
    world.fail()

    answer = world.client.patch("/models/other", json={"name": "merged"})

    assert (answer.status_code, answer.json()["name"]) == (200, "merged")
    assert world.client.get("/models/merged/info").json()["id"] == other


@pytest.mark.parametrize(
    ("architecture", "hint"),
    [
        ("resnt18", "did you mean resnet18 or "),
        ("resnt18.a1_in1k", "did you mean resnet18 or "),
        ("hf-hub_nothing_at_all", "choose any timm classifier, such as mobilevit_xxs"),
    ],
)
@pytest.mark.parametrize("as_form", [True, False])
def test_an_architecture_that_nobody_knows_is_refused_at_once(
    world: World, architecture: str, hint: str, as_form: bool
) -> None:
    world.ready_target("faces")

    with world.nothing_left():
        files = {"base": checkpoint()} if as_form else None
        answer = world.post_model("m", files=files, architecture=architecture)

    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_architecture")
    assert answer.json()["detail"] == (
        f"there is no architecture {architecture!r} of the kind image"
    )
    assert answer.json()["hint"].startswith(hint)


def test_an_architecture_may_name_the_weights_it_had(world: World) -> None:
    world.ready_target("faces")

    assert world.post_model("m", architecture="resnet18.a1_in1k").status_code == 201
