"""Versions over HTTP: downloaded, looked into, gone back to."""

from collections.abc import Callable
from typing import Any

import pytest
from safetensors.numpy import load
from sqlalchemy import select

from grasp_core.report import AS_IT_WAS
from registry.tables import Model, Version, utc_now
from registry.versions import FoldResult, publish
from tests.app.world import SHAPES, World, checkpoint, sha256

WEIGHTS = checkpoint(77)


@pytest.fixture
def folded(world: World) -> World:
    world.ready_model()
    world.fold(1)
    world.fold(2, weights=WEIGHTS)
    return world


def test_the_newest_weights_are_a_safetensors_file(folded: World) -> None:
    answer = folded.client.get("/models/merged")

    assert answer.status_code == 200
    assert answer.content == WEIGHTS
    assert {name: array.shape for name, array in load(answer.content).items()} == SHAPES
    assert answer.headers["etag"] == f'"{sha256(WEIGHTS)}"'
    assert answer.headers["content-disposition"] == 'attachment; filename="merged-v2.safetensors"'
    assert answer.headers["content-length"] == str(len(WEIGHTS))
    assert answer.headers["accept-ranges"] == "bytes"


@pytest.mark.parametrize("path", ["/models/merged", "/models/merged/versions/2"])
def test_range_head_and_conditions(folded: World, path: str) -> None:
    tag = f'"{sha256(WEIGHTS)}"'

    def get(method: str = "GET", **headers: str) -> Any:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return folded.client.request(method, path, headers=names)

    part = get(range="bytes=8-19")
    assert (part.status_code, part.content) == (206, WEIGHTS[8:20])
    assert part.headers["content-range"] == f"bytes 8-19/{len(WEIGHTS)}"
    head = get("HEAD")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(WEIGHTS))
    assert (get(if_none_match=tag).status_code, get(if_none_match='"x"').status_code) == (304, 200)
    assert get(if_none_match=tag).content == b""
    mismatch = get(if_match='"x"')
    assert (mismatch.status_code, mismatch.json()["code"]) == (412, "precondition_failed")
    outside = get(range=f"bytes={len(WEIGHTS)}-")
    assert (outside.status_code, outside.json()["code"]) == (416, "range_not_satisfiable")
    assert outside.headers["content-range"] == f"bytes */{len(WEIGHTS)}"


def test_nginx_is_asked_to_send_the_bytes(make_world: Callable[..., World]) -> None:
    world = make_world(accel_redirect="/blobs/")
    world.ready_model()
    world.fold(1, weights=WEIGHTS)

    answer = world.client.get("/models/merged")

    digest = sha256(WEIGHTS)
    assert answer.headers["x-accel-redirect"] == f"/blobs/{digest[:2]}/{digest}"
    assert answer.content == b""
    assert (world.settings.blob_folder / digest[:2] / digest).read_bytes() == WEIGHTS


def test_without_a_version_there_is_nothing_to_download(world: World) -> None:
    world.ready_model()
    for path in ("", "/versions/1", "/versions/1/report", "/versions/1/provenance"):
        answer = world.client.get(f"/models/merged{path}")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_version"), path
    rollback = world.client.post("/models/merged/rollback", json={"version": 1})
    assert rollback.json()["code"] == "no_version"


def test_the_lineage_is_listed_filtered_and_paged(folded: World) -> None:
    folded.fold(3)
    sources = {s["version"]: s["id"] for s in folded.client.get("/sources").json()["items"]}

    def numbers(query: str) -> list[int]:
        answer = folded.client.get(f"/models/merged/versions?{query}").json()
        return [item["number"] for item in answer["items"]]

    newest, second, first = folded.client.get("/models/merged/versions").json()["items"]
    assert [v["number"] for v in (newest, second, first)] == [3, 2, 1]
    assert [v["parent"] for v in (newest, second, first)] == [2, 1, None]
    assert (second["sha256"], second["size"]) == (sha256(WEIGHTS), len(WEIGHTS))
    assert second["metrics"] == {"accuracy": 0.9}
    page = folded.client.get("/models/merged/versions?limit=2").json()
    assert numbers(f"limit=2&cursor={page['next_cursor']}") == [1]
    assert numbers(f"source={sources[2]}") == [2]
    folded.client.patch("/models/merged", json={"keep_versions": 2})
    assert (numbers("available=true"), numbers("available=false")) == ([3, 2], [1])


def keep_weights(world: World, seed: int) -> None:
    """Fold a source with which no candidate is better than the version there is."""
    assert world.post_source(checkpoint(seed)).status_code == 202
    lease = world.claim()
    metrics = {"candidates": [{"name": name, "outcome": "lost"} for name in ("keep", "source")]}
    weights = {"weights": world.put(WEIGHTS), "state/mean": world.put(b"sums")}
    verdict = {"outcome": "kept", "reason": AS_IT_WAS}
    result = FoldResult(2, "{}", metrics, weights, None, verdict)
    with world.database.write() as session:
        assert publish(session, lease, result, utc_now()) == 3


def test_weights_that_are_kept_say_so_and_have_the_same_tag(folded: World) -> None:
    before = folded.client.get("/models/merged").headers["etag"]

    keep_weights(folded, 3)

    newest, second, _ = folded.client.get("/models/merged/versions").json()["items"]
    assert (newest["kept"], newest["summary"]) == (True, AS_IT_WAS)
    assert (second["kept"], second["summary"]) == (False, None)
    assert newest["sha256"] == second["sha256"]
    assert [file["name"] for file in newest["files"]] == ["state/mean"]
    assert folded.client.get("/models/merged").headers["etag"] == before
    unchanged = folded.client.get("/models/merged", headers={"if-none-match": before})
    assert unchanged.status_code == 304
    job = folded.client.get(f"/jobs/{newest['job']}").json()
    assert (job["status"], job["verdict"]["outcome"]) == ("succeeded", "kept")
    assert job["verdict"]["reason"] == AS_IT_WAS
    page = folded.client.get("/ui/models/merged", headers={"accept": "text/html"}).text
    assert AS_IT_WAS.capitalize() in page


def test_the_best_version_is_named_and_sent(folded: World) -> None:
    def tell(number: int, likelihood: float) -> None:
        with folded.database.write() as session:
            model = session.scalars(select(Model)).one()
            version = session.get_one(Version, (model.id, number))
            version.metrics = {"after": {"val": {"accuracy": 0.9, "log_likelihood": likelihood}}}

    def sent(version: str) -> str:
        answer = folded.client.get(f"/models/merged?version={version}")
        return answer.headers["content-disposition"].partition("merged-v")[2][0]

    assert folded.client.get("/models/merged/info").json()["best"] is None
    assert sent("best") == "2"  # none says, so it is the newest
    tell(1, -0.1)
    tell(2, -0.2)
    assert folded.client.get("/models/merged/info").json()["best"] == 1
    assert [sent(version) for version in ("best", "newest", "1", "2")] == ["1", "2", "1", "2"]
    assert folded.client.get("/models/merged?version=worst").status_code == 422
    assert folded.client.get("/models/merged?version=7").status_code == 404


def test_numbers_that_are_no_versions(folded: World) -> None:
    assert folded.client.get("/models/merged/versions/3").status_code == 404
    for number in ("0", "-1", "x", str(2**31), str(10**30)):
        assert folded.client.get(f"/models/merged/versions/{number}").status_code == 422


def test_report_and_provenance(folded: World) -> None:
    report = folded.client.get("/models/merged/versions/1/report")
    origins = folded.client.get("/models/merged/versions/1/provenance").json()

    assert report.headers["content-type"] == "application/json"
    assert report.json()["schema"] == 1
    shares = {entry["sha256"]: entry["share"] for entry in origins["sources"]}
    assert shares == pytest.approx({sha256(b"one"): 0.75, sha256(b"two"): 0.25})
    assert [entry["share"] for entry in origins["sources"]] == [0.75, 0.25]
    assert {p["name"]: p["size"] for p in origins["parameters"]} == {
        "stem.weight": 12,
        "head.weight": 8,
        "head.bias": 2,
    }


def test_going_back_is_a_new_version_equal_to_the_old(folded: World) -> None:
    first = folded.client.get("/models/merged/versions/1").content

    answer = folded.client.post("/models/merged/rollback", json={"version": 1})

    assert answer.status_code == 201
    version = answer.json()
    assert (version["number"], version["parent"], version["rollback_of"]) == (3, 2, 1)
    assert answer.headers["location"] == version["links"]["self"]
    assert folded.client.get("/models/merged").content == first
    assert folded.client.get(f"{version['links']['self']}/report").status_code == 200
    assert folded.fold(9) == 4


def test_going_back_to_nothing(folded: World) -> None:
    folded.client.patch("/models/merged", json={"keep_versions": 1})
    with folded.nothing_left():
        for body, status, code in (
            ({"version": 9}, 404, "not_found"),
            ({"version": 1}, 410, "bytes_gone"),
            ({"version": 0}, 422, "invalid_request"),
            ({"version": 2**31}, 422, "invalid_request"),
            ({}, 422, "invalid_request"),
        ):
            answer = folded.client.post("/models/merged/rollback", json=body)
            assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_deleted_weights_are_gone_and_say_so(folded: World) -> None:
    folded.client.patch("/models/merged", json={"keep_versions": 1})
    answer = folded.client.get("/models/merged/versions/1")
    assert (answer.status_code, answer.json()["code"]) == (410, "bytes_gone")
    assert folded.client.get("/models/merged/versions/1/report").status_code == 200


def test_a_lost_blob_is_an_error_of_ours(folded: World) -> None:
    folded.store.fetch(sha256(WEIGHTS)).unlink()
    answer = folded.client.get("/models/merged")
    assert (answer.status_code, answer.json()["code"]) == (500, "blob_missing")
    assert "/" not in answer.json()["detail"]
