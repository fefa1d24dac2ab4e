"""Kinds over HTTP: a target has one, its models take it, and each has parameters of its own."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from app.main import create_app
from grasp_core.config import Frozen
from grasp_core.errors import ConfigError
from grasp_core.kinds import DEFAULT, KINDS, Implementation, Kind
from registry import tables
from registry.models import spec_of
from registry.tables import Model
from tests.app.world import World


class SoundOverrides(Frozen):
    sample_rate: int | None = Field(None, ge=1000)


class SoundAugmentation(Frozen):
    noise: float = 0.1


def no_implementation() -> Implementation:
    raise AssertionError("the API computes nothing")


SOUNDS = Kind(
    name="sound",
    summary="Sounds with one label each.",
    examples="sounds",
    formats="a zip of one folder per class",
    architectures="any that hears",
    load=no_implementation,
    overrides=SoundOverrides,
    augmentation=SoundAugmentation,
    asked=("sample_rate",),
)


@pytest.fixture(autouse=True)
def _sounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "sound", SOUNDS)


def wrong(answer: Any) -> dict[str, str]:
    assert answer.status_code == 422, answer.text
    return {error["where"]: error["message"] for error in answer.json()["errors"]}


def test_who_says_no_kind_means_images(world: World) -> None:
    target = world.post_target("faces").json()["target"]

    model = world.post_model("merged", "faces").json()["model"]

    assert (target["kind"], model["kind"]) == ("image", "image")
    assert model["merge"]["refine"]["augmentation"] == {"flip": True, "padding": None}
    assert model["preprocessing"]["image_size"] is None


def test_tables_know_the_same_default() -> None:
    assert tables.DEFAULT == DEFAULT


def test_the_document_shows_what_every_kind_takes(world: World) -> None:
    schemas = create_app(world.settings).openapi()["components"]["schemas"]

    assert schemas["TargetFromUri"]["properties"]["kind"]["enum"] == ["image", "sound"]
    form = schemas["TargetCreateForm"]["properties"]
    assert form["kind"]["pattern"] == "^(image|sound)$"
    augmentation = schemas["RefineConfig"]["properties"]["augmentation"]
    shown = [choice["$ref"].rpartition("/")[2] for choice in augmentation["anyOf"]]
    assert shown == ["Augmentation", "SoundAugmentation"]
    assert schemas["SoundAugmentation"]["properties"].keys() == {"noise"}
    assert augmentation["description"].startswith("Random changes to training examples")


def test_a_kind_comes_with_a_form_a_query_or_json(world: World) -> None:
    file = {"file": ("sounds.zip", b"PKsounds")}
    upload = world.client.post(
        "/uploads", headers={"Tus-Resumable": "1.0.0", "Upload-Length": "2"}
    ).headers["location"]
    world.client.patch(
        upload,
        headers={
            "Tus-Resumable": "1.0.0",
            "Upload-Offset": "0",
            "Content-Type": "application/offset+octet-stream",
        },
        content=b"PK",
    )
    answers = [
        world.client.post("/targets", data={"name": "a", "kind": "sound"}, files=file),
        world.client.post("/targets?name=b&kind=sound", content=b"PKsounds"),
        world.client.post(
            "/targets",
            json={"name": "c", "kind": "sound", "upload": upload.rpartition("/")[2]},
        ),
    ]

    assert [answer.status_code for answer in answers] == [202] * 3
    assert {answer.json()["target"]["kind"] for answer in answers} == {"sound"}
    assert world.client.get("/targets/b").json()["kind"] == "sound"


def test_an_unknown_kind_is_refused_with_those_there_are(world: World) -> None:
    file = {"file": ("smells.zip", b"PK")}
    answers = {
        "body.kind": world.client.post("/targets", data={"name": "a", "kind": "smell"}, files=file),
        "query.kind": world.client.post("/targets?name=b&kind=smell", content=b"PK"),
        "body.kind ": world.client.post("/targets", json={"name": "c", "kind": "smell"}),
    }

    for where, answer in answers.items():
        reported = "there is no kind 'smell': there are image, sound"
        assert wrong(answer) == {where.strip(): reported}
    assert world.client.get("/targets").json()["items"] == []
    assert world.files() == set()


@pytest.fixture
def sounds(world: World) -> str:
    answer = world.client.post("/targets?name=sounds&kind=sound", content=b"PKsounds")
    assert answer.status_code == 202
    return "sounds"


def test_a_model_has_the_kind_and_the_parameters_of_its_target(world: World, sounds: str) -> None:
    given: dict[str, Any] = {
        "preprocessing": {"sample_rate": 8000},
        "merge": {"refine": {"epochs": 1, "augmentation": {"noise": 0.5}}},
    }

    model = world.post_model("ears", sounds, **given).json()["model"]

    assert model["kind"] == "sound"
    assert model["preprocessing"] == {"sample_rate": 8000}
    assert model["image_size"] is None
    assert model["merge"]["refine"]["augmentation"] == {"noise": 0.5}
    usual = world.post_model("usual", sounds).json()["model"]
    assert usual["merge"]["refine"]["augmentation"] == {"noise": 0.1}


@pytest.mark.parametrize(
    ("given", "where", "reported"),
    [
        (
            {"preprocessing": {"image_size": 64}},
            "body.preprocessing.image_size",
            "sound has no such parameter; it is one of image",
        ),
        (
            {"image_size": 64},
            "body.preprocessing.image_size",
            "sound has no such parameter; it is one of image",
        ),
        (
            {"preprocessing": {"loudness": 1}},
            "body.preprocessing.loudness",
            "sound has no such parameter",
        ),
        (
            {"preprocessing": {"sample_rate": 1}},
            "body.preprocessing.sample_rate",
            "Input should be greater than or equal to 1000",
        ),
        (
            {"merge": {"refine": {"augmentation": {"flip": True}}}},
            "body.merge.refine.augmentation.flip",
            "sound has no such parameter; it is one of image",
        ),
    ],
)
def test_parameters_of_another_kind_are_refused_by_name(
    world: World, sounds: str, given: dict[str, Any], where: str, reported: str
) -> None:
    assert wrong(world.post_model("ears", sounds, **given)) == {where: reported}
    assert world.client.get("/models").json()["items"] == []


def test_a_patch_knows_the_kind(world: World, sounds: str) -> None:
    world.post_model("ears", sounds)

    refused = world.client.patch(
        "/models/ears", json={"merge": {"refine": {"augmentation": {"flip": False}}}}
    )
    changed = world.client.patch(
        "/models/ears", json={"merge": {"refine": {"augmentation": {"noise": 0.2}}}}
    )

    assert wrong(refused) == {
        "body.merge.refine.augmentation.flip": "sound has no such parameter; it is one of image"
    }
    assert changed.json()["merge"]["refine"]["augmentation"] == {"noise": 0.2}


def test_pages_speak_of_what_there_is(world: World, sounds: str) -> None:
    def page(path: str) -> str:
        answer = world.client.get(path, headers={"Accept": "text/html"})
        assert answer.status_code == 200
        return answer.text

    assert "All of its sounds are decoded once." in page("/ui/targets/sounds")
    new_target = page("/ui/targets")
    assert "<option>image</option><option>sound</option>" in new_target
    assert "Sounds: a zip of one folder per class." in new_target
    world.post_model("ears", sounds)
    parameters = page("/ui/models/ears")
    assert "refine.augmentation.noise" in parameters
    assert "refine.augmentation.flip" not in parameters
    new_model = page("/")
    assert 'name="preprocessing.image_size"' in new_model
    assert 'name="preprocessing.sample_rate"' in new_model


def test_what_a_lost_kind_made_is_still_shown(
    world: World, sounds: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.post_model("ears", sounds)
    monkeypatch.delitem(KINDS, "sound")

    assert world.client.get("/models/ears/info").json()["kind"] == "sound"
    assert world.client.get("/ui/models/ears").status_code == 200
    assert "All of its examples" in world.client.get("/ui/targets/sounds").text
    refused = world.post_model("more", sounds)
    assert refused.status_code == 422
    assert refused.json()["detail"] == "there is no kind 'sound'"
    with pytest.raises(ConfigError, match="there is no kind 'sound'"):
        spec_of(Model(kind="sound", architecture="a", classes=["a"], preprocessing={}))
