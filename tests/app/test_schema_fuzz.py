"""Schemathesis against the API: no 5xx, and every answer as the OpenAPI document says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import ASGIClient
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from app.intake.uploads import MEDIA_TYPE
from app.main import create_app
from registry.process.settings import Settings
from tests.app.conftest import opened
from tests.app.world import World, checkpoint

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
URL = "http://127.0.0.1"
EXAMPLES = 8  # per operation, kind of data and kind of world
schemathesis.serializer.alias(MEDIA_TYPE, "application/octet-stream")
CONFIG = schemathesis.Config.from_dict({"generation": {"allow-x00": True}})
SCHEMA = schemathesis.openapi.from_dict(
    json.loads(json.dumps(create_app(Settings()).openapi())), config=CONFIG
)
OPERATIONS = {
    operation.definition.raw["operationId"]: operation
    for operation in (cast(Any, result).ok() for result in SCHEMA.get_all_operations())
}
MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
deterministic = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Fuzzed:
    """Sends generated requests to a world and looks at the answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = world.app
        self.client = ASGIClient(self.app, base_url=URL, max_stream_events=1)
        self.statuses: set[int] = set()

    def send(self, case: Any) -> None:
        wait = case.query.get("wait")
        if isinstance(wait, int | float) and 0 < wait <= 60:
            case.query["wait"] = 0  # as good as any, and sooner
        answer = case.call(base_url=URL, session=self.client, app=self.app)
        case.validate_response(answer, checks=CHECKS)
        self.statuses.add(answer.status_code)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_empty_service_holds_to_its_document(world: World, name: str) -> None:
    fuzzed = Fuzzed(world)
    for mode in MODES:

        @deterministic
        @given(case=OPERATIONS[name].as_strategy(generation_mode=mode))
        def run(case: Any) -> None:
            fuzzed.send(case)

        run()
    assert fuzzed.statuses


Known = dict[str, list[str]]


@pytest.fixture(scope="module")
def filled(migrated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Known]:
    """A home with a ready model of three versions and jobs in each state, and their ids."""
    home = tmp_path_factory.mktemp("filled") / "home"
    home.mkdir()
    shutil.copy(migrated, home / "grasp.db")
    with opened(home) as world:
        world.ready_model(files={"base": checkpoint()})
        for number in (1, 2, 3):
            world.fold(number, state=checkpoint(), others={"base": checkpoint()})
        world.add_worker()
        world.post_source(checkpoint(4))
        world.reject()
        world.post_source(checkpoint(5))
        world.fail()
        job = world.post_source(checkpoint(6)).json()["job"]["id"]
        world.client.post(f"/jobs/{job}/cancel")
        world.post_source(checkpoint(7))
        world.progress(world.claim(), "refine", 0.5, loss=0.1)
        world.post_source(checkpoint(8))
        world.post_raw(checkpoint(9), params={"dry_run": "true"})
        upload = world.client.post("/uploads", headers={"Upload-Length": "100000"}).json()
        jobs = world.client.get("/jobs").json()["items"]
        sources = world.client.get("/sources").json()["items"]
        states = {"succeeded", "rejected", "failed", "cancelled", "running", "queued"}
        assert {job["status"] for job in jobs} == states
        model = world.client.get("/models/merged/info").json()
    return home, {
        "job": [job["id"] for job in jobs],
        "source": [source["id"] for source in sources],
        "model": ["merged", model["id"]],
        "target": ["faces", model["target"]],
        "number": ["1", "2", "3"],
        "upload": [upload["id"]],
        "name": ["base", "state/grasp"],
    }


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_service_with_data_holds_to_its_document(
    make_world: Callable[..., World], filled: tuple[Path, Known], name: str
) -> None:
    home, known = filled
    fuzzed = Fuzzed(make_world(home))
    for mode in MODES:

        @deterministic
        @given(case=OPERATIONS[name].as_strategy(generation_mode=mode), data=st.data())
        def run(case: Any, data: st.DataObject) -> None:
            refer(fuzzed.world, case, name, lambda key: data.draw(st.sampled_from(known[key])))
            fuzzed.send(case)

        run()
        if mode is GenerationMode.POSITIVE:
            assert any(status < 300 for status in fuzzed.statuses), fuzzed.statuses


def refer(world: World, case: Any, name: str, pick: Callable[[str], str]) -> None:
    """Let a generated request speak of things that exist; of its own, where it deletes them."""
    for key in case.path_parameters:
        case.path_parameters[key] = pick(key)
    for key in ("model", "target", "source"):
        if key in case.query:
            case.query[key] = pick(key)
    case.query.pop("cursor", None)
    if name == "delete_model":
        case.path_parameters["model"] = "expendable"
        world.post_model("expendable")
    if name == "delete_target":
        case.path_parameters["target"] = "expendable"
        world.post_target("expendable")
    if name == "delete_upload":
        upload = world.client.post("/uploads", headers={"Upload-Length": "1"}).json()
        case.path_parameters["upload"] = upload["id"]
    if name in ("create_upload", "append_to_upload"):
        sensible = {"upload-length": "100000", "upload-offset": "0"}
        case.headers.update({key: sensible[key] for key in sensible if key in case.headers})
        for key in ("upload-metadata", "upload-checksum"):  # what is generated is never right
            case.headers.pop(key, None)
    if isinstance(case.body, dict):
        for key in ("model", "target"):
            if key in case.body and (name, key) != ("create_model", "model"):
                case.body = {**case.body, key: pick(key)}
        if "architecture" in case.body:
            case.body = {**case.body, "architecture": "test_vit"}
        if "merge" in case.body:
            case.body = {**case.body, "merge": {"tau": 0.25}}
    if name == "create_source":
        _carry_checkpoint(case, pick)


def _carry_checkpoint(case: Any, pick: Callable[[str], str]) -> None:
    case.query.pop("sha256", None)
    case.query.pop("classes", None)
    if isinstance(case.body, bytes):
        case.query["model"] = pick("model")
        case.body = checkpoint(int(pick("number")))
    elif isinstance(case.body, dict) and "file" in case.body:
        case.body = {"model": pick("model"), "file": checkpoint(100 + int(pick("number")))}
