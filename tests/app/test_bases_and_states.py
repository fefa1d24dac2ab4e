"""What sources were trained from, and what methods remember: given, shown and downloaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest
from safetensors.numpy import load, save

from grasp_core.config import MethodConfig
from grasp_core.methods import METHODS
from grasp_core.methods.declaration import Method, Needs
from tests.app.scraping import scraped
from tests.app.world import World, checkpoint, sha256

BASE, INITIAL = checkpoint(100), checkpoint(101)
STATE = checkpoint(102)
DESCRIBED = {"name": "merged", "architecture": "test_vit", "target": "faces"}
Json = dict[str, Any]


@pytest.fixture
def world(world: World) -> World:
    world.ready_target("faces")
    return world


def upload(world: World, content: bytes) -> str:
    headers = {"Tus-Resumable": "1.0.0", "Upload-Length": str(len(content))}
    place = world.client.post("/uploads", headers=headers).headers["location"]
    headers |= {"Upload-Offset": "0", "Content-Type": "application/offset+octet-stream"}
    assert world.client.patch(place, headers=headers, content=content).status_code == 204
    return str(place).rpartition("/")[2]


def check_base(world: World, content: bytes, name: str = "merged") -> None:
    """The model says what it is, and it is there to be downloaded."""
    info = world.client.get(f"/models/{name}/info").json()
    assert info["base"] == {"sha256": sha256(content), "size": len(content)}
    assert info["links"]["base"] == f"/models/{info['id']}/base"
    found = world.client.get(info["links"]["base"])
    assert (found.status_code, found.content) == (200, content)
    assert found.headers["etag"] == f'"{sha256(content)}"'
    assert found.headers["content-disposition"] == f'attachment; filename="{name}-base.safetensors"'


# A base


def test_a_model_has_no_base_unless_it_is_given_one(world: World) -> None:
    assert world.post_model().json()["model"]["base"] is None

    answer = world.client.get("/models/merged/base")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "base" not in world.client.get("/models/merged/info").json()["links"]


def test_a_base_may_be_a_part_of_the_form(world: World) -> None:
    answer = world.post_model(files={"base": BASE}, fields={"base_sha256": sha256(BASE)})

    assert answer.status_code == 201
    assert answer.json()["model"]["base"] == {"sha256": sha256(BASE), "size": len(BASE)}
    assert answer.json()["source"] is None
    check_base(world, BASE)


@pytest.mark.parametrize("order", [("file", "base"), ("base", "file")])
@pytest.mark.parametrize("described_first", [True, False])
def test_initial_weights_and_a_base_may_come_in_any_order(
    world: World, order: tuple[str, str], described_first: bool
) -> None:
    contents = {"file": INITIAL, "base": BASE}
    described = ("model", (None, json.dumps(DESCRIBED)))
    files: list[Any] = [(name, (f"{name}.safetensors", contents[name])) for name in order]
    files.insert(0 if described_first else 2, described)

    answer = world.client.post("/models", files=files)

    assert answer.status_code == 201, answer.text
    source = answer.json()["source"]
    assert source["sha256"] == sha256(INITIAL)
    check_base(world, BASE)
    world.prepare()
    again = world.post_source(save(load(INITIAL), {"epoch": "3"}))
    assert (again.status_code, again.json()["source"]["id"]) == (200, source["id"])
    assert world.post_source(BASE).status_code == 202


def test_initial_weights_may_be_the_base(world: World) -> None:
    answer = world.post_model(files={"file": INITIAL}, base="initial")

    assert answer.status_code == 201
    assert answer.json()["source"]["sha256"] == sha256(INITIAL)
    world.prepare()
    world.publish()  # after which the source is let go of
    check_base(world, INITIAL)


def test_a_base_may_be_a_finished_upload(world: World) -> None:
    name = upload(world, BASE)

    answer = world.post_model(base={"upload": name, "sha256": sha256(BASE)})

    assert answer.status_code == 201
    check_base(world, BASE)
    assert world.client.head(f"/uploads/{name}").status_code == 404  # it has served its purpose


def test_a_base_may_be_fetched(make_world: Callable[..., World], tmp_path: Path) -> None:
    (tmp_path / "base.safetensors").write_bytes(BASE)
    world = make_world(data_roots=str(tmp_path))
    world.ready_target("faces")

    answer = world.post_model(base={"uri": f"file://{tmp_path}/base.safetensors"})

    assert answer.status_code == 201, answer.text
    check_base(world, BASE)


def test_a_form_with_initial_weights_may_name_a_base(world: World) -> None:
    name = upload(world, BASE)

    answer = world.post_model(files={"file": INITIAL}, base={"upload": name})

    assert answer.status_code == 201
    check_base(world, BASE)


def test_an_answer_is_given_again_also_when_the_upload_is_gone(world: World) -> None:
    name = upload(world, BASE)
    body = DESCRIBED | {"base": {"upload": name}}
    once = {"Idempotency-Key": "k"}

    first = world.client.post("/models", json=body, headers=once)
    again = world.client.post("/models", json=body, headers=once)
    other = world.client.post("/models", json=body | {"base": None}, headers=once)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("base", "where"),
    [
        ("file", "body.base"),
        (7, "body.base"),
        ({}, "body.base"),
        ({"uri": "file:///x", "upload": "upl_x"}, "body.base"),
        ({"uri": 7}, "body.base.uri.uri"),
        ({"upload": "upl_x", "sha": "x"}, "body.base.upload.sha"),
    ],
)
def test_what_is_no_base_is_refused_by_name(world: World, base: object, where: str) -> None:
    with world.nothing_left():
        answer = world.post_model(base=base)

    assert answer.status_code == 422
    assert [error["where"] for error in answer.json()["errors"]] == [where]


@pytest.mark.parametrize(
    ("described", "fields", "files", "code", "words"),
    [
        ({"base": "initial"}, {}, {"base": BASE}, "invalid_request", "two bases"),
        ({"base": {"upload": "upl_x"}}, {}, {"base": BASE}, "invalid_request", "two bases"),
        ({}, {"base_sha256": "0" * 64}, {"base": BASE}, "digest_mismatch", "have sha256"),
        ({}, {}, {"base": b"PK\3\4" * 50}, "invalid_checkpoint", "base.safetensors"),
        ({}, {}, {"file": INITIAL, "base": b""}, "invalid_request", "empty"),
    ],
)
def test_a_form_whose_base_cannot_be_had_leaves_nothing(
    world: World, described: Json, fields: Json, files: dict[str, bytes], code: str, words: str
) -> None:
    with world.nothing_left():
        answer = world.post_model(files=files, fields=fields, **described)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text
    assert words in answer.json()["detail"]


def test_json_has_no_initial_weights(world: World) -> None:
    with world.nothing_left():
        answer = world.post_model(base="initial")
    assert answer.status_code == 422
    assert "part `file`" in answer.json()["hint"]


def test_an_upload_that_is_another_file_than_was_said_is_refused_and_kept(world: World) -> None:
    name = upload(world, BASE)
    with world.nothing_left():
        answer = world.post_model(base={"upload": name, "sha256": "0" * 64})
    assert (answer.status_code, answer.json()["code"]) == (422, "digest_mismatch")
    assert world.client.head(f"/uploads/{name}").status_code == 200


def test_two_bases_in_a_form_are_one_too_many(world: World) -> None:
    parts = [("model", (None, json.dumps(DESCRIBED)))]
    files: list[Any] = [*parts, *(("base", ("b", BASE)) for _ in range(2))]
    with world.nothing_left():
        answer = world.client.post("/models", files=files)
    assert answer.status_code == 422
    assert "two parts named base" in answer.json()["detail"]


# A state


def test_versions_show_the_state_of_their_method(world: World) -> None:
    world.ready_model()
    world.fold(1, state=STATE)
    world.fold(2)

    second, first = world.client.get("/models/merged/versions").json()["items"]

    assert first["state"] == {"sha256": sha256(STATE), "size": len(STATE)}
    assert (second["state"], "state" in second["links"]) == (None, False)
    found = world.client.get(first["links"]["state"])
    assert (found.status_code, found.content) == (200, STATE)
    name = 'attachment; filename="merged-v1-state-grasp.safetensors"'
    assert found.headers["content-disposition"] == name
    part = world.client.get(first["links"]["state"], headers={"Range": "bytes=8-19"})
    assert (part.status_code, part.content) == (206, STATE[8:20])
    head = world.client.head(first["links"]["state"])
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(STATE)))
    none = world.client.get("/models/merged/versions/2/state")
    assert (none.status_code, none.json()["code"]) == (404, "not_found")
    assert "not every method remembers" in none.json()["hint"]


def test_a_version_gone_back_to_has_its_state(world: World) -> None:
    world.ready_model()
    world.fold(1, state=STATE)
    world.fold(2)

    made = world.client.post("/models/merged/rollback", json={"version": 1}).json()

    assert made["state"] == {"sha256": sha256(STATE), "size": len(STATE)}


def test_states_go_with_their_versions(world: World) -> None:
    world.ready_model(keep_versions=1)
    world.fold(1, state=STATE)
    world.fold(2)

    answer = world.client.get("/models/merged/versions/1/state")

    assert (answer.status_code, answer.json()["code"]) == (410, "bytes_gone")


def test_files_are_listed_and_sent_by_their_names(world: World) -> None:
    """Whatever they are: nothing here knows what `state/pair+more` means."""
    world.ready_model(files={"base": BASE})
    assert world.post_source(checkpoint(1)).status_code == 202
    world.publish(state=STATE, others={"state/grasp+more": INITIAL, "asset/words.json": b"{}"})

    for place, named in (
        ("/models/merged/files", {"base": BASE}),
        (
            "/models/merged/versions/1/files",
            {"asset/words.json": b"{}", "state/grasp": STATE, "state/grasp+more": INITIAL},
        ),
    ):
        items = world.client.get(place).json()["items"]
        assert [(item["name"], item["sha256"], item["size"]) for item in items] == [
            (name, sha256(content), len(content)) for name, content in named.items()
        ]
        for item in items:
            answer = world.client.get(item["links"]["self"])
            assert (answer.status_code, answer.content) == (200, named[item["name"]])
            assert world.client.head(item["links"]["self"]).status_code == 200
            assert "merged" in answer.headers["content-disposition"]
    json_file = world.client.get("/models/merged/versions/1/files/asset/words.json")
    assert 'filename="merged-v1-asset-words.json"' in json_file.headers["content-disposition"]
    version = world.client.get("/models/merged/versions").json()["items"][0]
    assert [file["name"] for file in version["files"]] == [*named]
    assert version["method"] == "grasp"


@pytest.mark.parametrize(
    "path", ["files/nothing", "versions/1/files/nothing", "versions/1/files/state"]
)
def test_a_file_that_is_not_there_says_where_to_look(world: World, path: str) -> None:
    world.ready_model()
    world.fold(1)

    answer = world.client.get(f"/models/merged/{path}")

    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "files for" in answer.json()["hint"]


@pytest.mark.parametrize("name", ["../weights", "a//b", ".hidden", "a/../b", "x" * 201])
def test_what_is_no_name_of_a_file_is_refused(world: World, name: str) -> None:
    world.ready_model()

    answer = world.client.get(f"/models/merged/files/{name.replace('/', '%2F')}")

    assert answer.status_code == 422


def test_strangers_see_neither(world: World) -> None:
    world.ready_model(files={"base": BASE})
    world.fold(1, state=STATE)
    bob = world.key("bob", "write")

    for path in ("/models/merged/base", "/models/merged/versions/1/state"):
        assert world.client.get(path, headers=bob).status_code == 404


# Methods that need them


class SummedConfig(MethodConfig):
    method: Literal["summed"] = "summed"


class CountedConfig(MethodConfig):
    method: Literal["counted"] = "counted"


def never(*_: object) -> NoReturn:
    raise NotImplementedError


SUMMED = Method("summed", "Compares with a base.", None, SummedConfig, never, Needs(base=True))
COUNTED = Method(
    "counted", "Counts all sources.", None, CountedConfig, never, Needs(history=True), state=1
)


@pytest.fixture
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in (SUMMED, COUNTED):
        monkeypatch.setitem(METHODS, method.name, method)


@pytest.mark.usefixtures("methods")
def test_a_method_that_needs_a_base_is_not_begun_without_one(world: World) -> None:
    merge = {"method": "summed"}
    with world.nothing_left():
        for files in (None, {"file": INITIAL}):
            answer = world.post_model(files=files, merge=merge)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config")
            assert answer.json()["detail"].startswith("summed needs a base")
            assert "the part `base` of a form" in answer.json()["hint"]

    assert world.post_model("part", files={"base": BASE}, merge=merge).status_code == 201
    answer = world.post_model("initial", files={"file": INITIAL}, merge=merge, base="initial")
    assert answer.status_code == 201


@pytest.mark.usefixtures("methods")
def test_a_model_without_a_base_is_not_changed_to_a_method_that_needs_it(world: World) -> None:
    world.ready_model("without")
    world.ready_model("with", files={"base": BASE})
    change = {"merge": {"method": "summed"}}

    refused = world.client.patch("/models/without", json=change)
    changed = world.client.patch("/models/with", json=change)

    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_config")
    assert "make one with this method, and its base" in refused.json()["hint"]
    assert len(world.client.get("/models/without/info").json()["merge"]["candidates"]) == 4
    assert (changed.status_code, changed.json()["merge"]["method"]) == (200, "summed")


@pytest.mark.usefixtures("methods")
def test_a_method_that_needs_all_folds_before_takes_over_only_what_it_made(world: World) -> None:
    world.ready_model(merge={"method": "counted"})
    begun = {"merge": {"method": "counted"}}

    def fold_by(method: str, seed: int, state: bytes | None) -> None:
        assert world.post_source(checkpoint(seed)).status_code == 202
        world.publish(state=state, method=method)

    fold_by("counted", 1, STATE)
    assert world.client.patch("/models/merged", json={"merge": {"method": "grasp"}}).is_success
    fold_by("grasp", 2, None)

    refused = world.client.patch("/models/merged", json=begun)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_config")
    assert "counted cannot take over" in refused.json()["detail"]

    world.client.post("/models/merged/rollback", json={"version": 1})
    assert world.client.patch("/models/merged", json=begun).is_success


# When they are bad


def spoil(world: World, content: bytes) -> None:
    path = world.store.fetch(sha256(content))
    path.chmod(0o644)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def test_a_damaged_state_or_base_is_neither_sent_nor_gone_back_to(world: World) -> None:
    world.ready_model(files={"base": BASE})
    world.fold(1, state=STATE)
    world.fold(2)
    spoil(world, STATE)
    spoil(world, BASE)

    for path in ("/models/merged/versions/1/state", "/models/merged/base"):
        answer = world.client.get(path)
        assert (answer.status_code, answer.json()["code"]) == (500, "blob_damaged")
    back = world.client.post("/models/merged/rollback", json={"version": 1})

    assert (back.status_code, back.json()["code"]) == (409, "blob_damaged")
    assert "state/grasp of version 1 of model 'merged'" in back.json()["detail"]
    versions = world.client.get("/models/merged/versions").json()["items"]
    assert [version["problem"] for version in versions] == [None, "damaged"]
    held = world.client.get("/models/merged/info").json()["held"]
    assert held["message"].startswith("base of model 'merged' is damaged")
    page = world.client.get("/ui/models/merged/versions/1").text
    assert "state/grasp of version 1 of model" in page


def test_their_bytes_are_counted(world: World) -> None:
    world.ready_model(files={"base": BASE})
    world.fold(1, state=STATE)

    found = scraped(world)

    assert found["grasp_blob_bytes", "version_files"] == len(STATE)
    assert found["grasp_blob_bytes", "model_files"] == len(BASE)


def test_pages_show_them(world: World) -> None:
    world.ready_model(files={"base": BASE})
    world.fold(1, state=STATE)

    model = world.client.get("/ui/models/merged").text
    version = world.client.get("/ui/models/merged/versions/1").text

    assert "/files/base" in model
    assert sha256(STATE) in version
    for text in (model, version):
        assert "/versions/1/files/state/grasp" in text
