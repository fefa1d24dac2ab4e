"""What nobody sends by mistake: each is refused in words, and leaves nothing behind."""

import json
from base64 import b64encode
from contextlib import ExitStack
from itertools import product
from string import ascii_lowercase
from typing import Any

import pytest
from safetensors.numpy import load, save
from sqlalchemy import select

from app.errors import MAX_LISTED
from app.http.turns import MAX_WAITING
from grasp_core.config import MAX_CLASS_NAME, MAX_CLASSES, MAX_PATTERN, MAX_PATTERNS
from registry.tables import Model
from tests.app.world import World, checkpoint

DEEP = "[" * 5000
MODEL = {"name": "new", "architecture": "test_vit", "target": "faces"}
NESTED: dict[str, tuple[str, dict[str, Any]]] = {
    "a body": ("/models", {"content": DEEP}),
    "a form's model": ("/models", {"files": {"model": (None, DEEP), "file": checkpoint()}}),
    "a form's classes": (
        "/sources",
        {"data": {"model": "merged", "classes": DEEP}, "files": {"file": checkpoint()}},
    ),
    "a query": (f"/sources?model=merged&classes={DEEP}", {"content": checkpoint()}),
    "a string": ("/sources", {"json": {"model": "merged", "uri": "file:///x", "classes": DEEP}}),
    "metadata": (
        "/uploads",
        {
            "headers": {
                "Upload-Length": "9",
                "Upload-Metadata": f"model {b64encode(b'merged').decode()},"
                f"classes {b64encode(DEEP.encode()).decode()}",
            }
        },
    ),
}


@pytest.fixture
def world(world: World) -> World:
    world.ready_model()
    return world


@pytest.mark.parametrize(("path", "request_"), NESTED.values(), ids=NESTED)
def test_json_that_is_nested_too_deeply(world: World, path: str, request_: dict[str, Any]) -> None:
    with world.nothing_left():
        answer = world.client.post(path, **request_)
    assert answer.status_code in (400, 422)
    assert "JSON" in answer.json()["detail"]


@pytest.mark.parametrize("number", ["NaN", "1e999", "-Infinity"])
@pytest.mark.parametrize("field", ["mean", "std"])
def test_numbers_that_are_not_finite(world: World, field: str, number: str) -> None:
    body = json.dumps(MODEL)[:-1] + f', "preprocessing": {{"{field}": [1, {number}, 1]}}}}'
    with world.nothing_left():
        answer = world.client.post("/models", content=body)
    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"where": f"body.preprocessing.{field}.1", "message": "Input should be a finite number"}
    ]


@pytest.mark.parametrize(
    "wrong", [{f"field{number}": 1 for number in range(20_000)}, {"classes": [1] * 100_000}]
)
def test_thousands_of_mistakes_get_a_short_answer(world: World, wrong: dict[str, Any]) -> None:
    answer = world.client.post("/models", json=MODEL | wrong)

    assert answer.status_code == 422
    assert 0 < len(answer.json()["errors"]) <= MAX_LISTED
    assert len(answer.content) < 20_000


def test_a_checkpoint_that_differs_in_thousands_of_tensors_gets_a_short_answer(
    world: World,
) -> None:
    names = [f"{number:05}".ljust(300, "x") for number in range(10_000)]
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps(dict.fromkeys(names, entry)).encode()

    with world.nothing_left():
        answer = world.post_raw(len(header).to_bytes(8, "little") + header)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "checkpoint_mismatch")
    assert len(answer.content) < 8_000
    assert "10000 unexpected: 00000xx" in problem["detail"]
    assert "and 9990 more" in problem["detail"]
    listed = problem["mismatches"]["unexpected"]
    assert listed == names[: len(listed)]
    assert problem["mismatches"]["more"] == {"unexpected": 10_000 - len(listed)}


LONG = "x" * 60_000
LONG_WORDS: dict[str, dict[str, Any]] = {
    "a field": {"json": MODEL | {LONG * 10: 1}},
    "fields": {"json": MODEL | {f"{n}{LONG}": 1 for n in range(15)}},
    "a value": {"json": MODEL | {"name": LONG * 10}},
    "form fields": {"files": {f"{n}{LONG[:8000]}": (None, "1") for n in range(12)}},
    "a digest": {"headers": {"Repr-Digest": f"sha-256=:{LONG}"}, "files": {"file": checkpoint()}},
}


@pytest.mark.parametrize("request_", LONG_WORDS.values(), ids=LONG_WORDS)
def test_long_words_get_a_short_answer(world: World, request_: dict[str, Any]) -> None:
    answer = world.client.post("/models", **request_)

    assert answer.status_code in (400, 422)
    assert len(answer.content) < 20_000


def test_a_form_of_many_fields(world: World) -> None:
    fields = {f"field{number}": (None, LONG) for number in range(10)}

    with world.nothing_left():
        answer = world.client.post("/models", files=fields)

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "body", [b'{"name": "' + b"x" * 2**20, b'{"merge": {' + b'"":1,' * 30_000 + b'"a":1}}']
)
def test_json_that_is_too_large(world: World, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}

    answer = world.client.post("/models", content=body, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_large_json_is_refused_while_much_of_it_waits(world: World) -> None:
    turns = world.app.state.service.turns
    large = MODEL | {"classes": ["x" * 100 + str(number) for number in range(1000)]}
    with ExitStack() as others:
        for _ in range(MAX_WAITING):
            others.enter_context(turns.room())
        answer, small = (world.client.post("/models", json=body) for body in (large, MODEL))

    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers
    assert small.status_code == 201
    assert world.client.post("/models", json=large | {"name": "b"}).status_code != 503


MANY = ["".join(letters) for letters in product(ascii_lowercase, repeat=3)][: MAX_CLASSES + 1]
TOO_LONG = ["F", "x" * (MAX_CLASS_NAME + 1)]


@pytest.mark.parametrize("names", [MANY, TOO_LONG], ids=["many", "long"])
def test_class_names_have_an_end_wherever_they_come_in(world: World, names: list[str]) -> None:
    said = json.dumps(names, separators=(",", ":"))  # in a form, not too long for a field
    file = {"file": checkpoint()}
    own = save(load(checkpoint(2)), {"grasp": json.dumps({"classes": names})})
    model = {"model": json.dumps(MODEL)[:-1] + f', "classes":{said}}}'}
    upload = {"model": "merged", "upload": "upl_none", "classes": names}
    with world.nothing_left():
        answers = [
            world.client.post("/models", json=MODEL | {"classes": names}),
            world.client.post("/models", data=model, files=file),
            world.client.post("/models", data={"model": json.dumps(MODEL)}, files={"file": own}),
            world.client.post("/sources", json=upload),
            world.post_source(checkpoint(1), fields={"classes": said}),
            world.post_source(own),
        ]
    assert [answer.status_code for answer in answers] == [422] * 6
    assert all(len(answer.content) < 3000 for answer in answers)
    for answer in answers:
        assert str(MAX_CLASSES if names is MANY else MAX_CLASS_NAME) in answer.json()["detail"]


def test_bounds_are_part_of_the_contract(world: World) -> None:
    schemas = world.client.get("/openapi.json").json()["components"]["schemas"]
    classes = schemas["ModelCreate"]["properties"]["classes"]["anyOf"][0]
    freeze = schemas["RefineConfig"]["properties"]["freeze"]

    assert (classes["maxItems"], classes["items"]["maxLength"]) == (MAX_CLASSES, MAX_CLASS_NAME)
    assert (freeze["maxItems"], freeze["items"]["maxLength"]) == (MAX_PATTERNS, MAX_PATTERN)


@pytest.mark.parametrize("freeze", [["*"] * (MAX_PATTERNS + 1), ["x" * (MAX_PATTERN + 1)]])
def test_patterns_have_an_end(world: World, freeze: list[str]) -> None:
    merge = {"refine": {"freeze": freeze}}

    created = world.client.post("/models", json=MODEL | {"merge": merge})
    changed = world.client.patch("/models/merged", json={"merge": merge})

    for answer in (created, changed):
        assert answer.status_code == 422
        assert answer.json()["errors"][0]["where"].startswith("body.merge.refine.freeze")


def test_lists_leave_out_what_is_long(world: World) -> None:
    """And end early, where even the rest is large."""
    frozen = {"refine": {"freeze": ["x" * MAX_PATTERN] * MAX_PATTERNS}}
    for number in range(30):
        body = MODEL | {"name": f"model-{number}", "classes": MANY[:-1], "merge": frozen}
        assert world.client.post("/models", json=body).status_code == 201

    answer = world.client.get("/models?limit=30")
    page = answer.json()
    rest = world.client.get("/models", params={"cursor": page["next_cursor"]}).json()

    assert len(answer.content) < 1.2 * 2**20
    assert 0 < len(page["items"]) < 30
    assert len(page["items"]) + len(rest["items"]) == 31
    assert {(item["classes"], item["class_count"]) for item in page["items"]} == {
        (None, MAX_CLASSES)
    }
    assert (rest["items"][-1]["classes"], rest["items"][-1]["class_count"]) == (["F", "M"], 2)
    shown = world.client.get("/models/model-1/info").json()
    assert (shown["classes"], shown["class_count"]) == (MANY[:-1], MAX_CLASSES)


def test_a_model_that_an_older_release_took_is_still_shown(world: World) -> None:
    many = ["*"] * (MAX_PATTERNS + 1)
    with world.database.write() as session:
        row = session.scalars(select(Model)).one()
        row.merge = row.merge | {"refine": row.merge["refine"] | {"freeze": many}}

    shown = world.client.get("/models/merged/info").json()

    assert shown["merge"]["refine"]["freeze"] == many
    assert world.client.get("/models").status_code == 200


def test_how_many_mistakes_are_not_listed(world: World) -> None:
    wrong = {f"field{number}": 1 for number in range(MAX_LISTED + 7)}

    answer = world.client.post("/models", json=MODEL | wrong)

    assert answer.json()["detail"].endswith("; and 7 more")
