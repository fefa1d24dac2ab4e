"""Targets over HTTP: uploaded or referred to, listed, removed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.world import SUMMARY, World, sha256


def test_an_uploaded_archive_becomes_a_target_and_a_job(world: World) -> None:
    answer = world.post_target("faces")

    assert answer.status_code == 202
    target, job = answer.json()["target"], answer.json()["job"]
    assert answer.headers["location"] == f"/jobs/{job['id']}"
    assert (target["status"], job["kind"], job["status"]) == ("validating", "validate", "queued")
    assert target["sha256"] == sha256(b"PKfaces")
    assert world.store.fetch(target["sha256"]).read_bytes() == b"PKfaces"


def test_a_raw_body_takes_its_name_from_the_query(world: World) -> None:
    answer = world.client.post("/targets?name=raw", content=b"an archive")

    assert answer.status_code == 202
    assert answer.json()["target"]["name"] == "raw"
    assert answer.json()["target"]["size"] == len(b"an archive")


def test_a_validated_target_tells_its_classes_and_counts(world: World) -> None:
    world.ready_target("faces")

    shown = world.client.get("/targets/faces").json()

    assert shown["status"] == "ready"
    assert {name: shown[name] for name in SUMMARY} == SUMMARY


def test_a_target_says_what_a_gate_can_see_of_it(world: World) -> None:
    world.ready_target("few", counts={"train": {"F": 60}, "val": {"F": 3, "M": 3}, "test": {}})
    world.post_model("merged", "few", merge={"gate": {"mode": "not_worse"}})

    target = world.client.get("/targets/few").json()
    model = world.client.get("/models/merged/info").json()
    page = world.client.get("/ui/targets/few", headers={"accept": "text/html"}).text

    assert target["sensitivity"] == {
        "count": 6,
        "overall": pytest.approx(5 / 6),
        "one_class": None,
        "classes": 2,
    }
    assert target["warnings"][0].startswith("only 6 examples validate")
    assert model["sensitivity"]["overall"] == pytest.approx(1 / 6)
    assert "only 6 examples validate" in page
    assert "a fall of accuracy from <b>83.3</b> points on" in page


def test_a_folder_below_a_data_root_is_used_where_it_lies(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "faces"
    folder.mkdir(parents=True)
    world = make_world(data_roots=(tmp_path / "data",))

    answer = world.client.post("/targets", json={"name": "faces", "uri": folder.as_uri()})

    assert answer.status_code == 202
    assert answer.json()["target"]["uri"] == folder.as_uri()
    assert answer.json()["target"]["sha256"] is None
    assert world.files() == set()


def test_local_data_is_stored_as_the_place_that_was_checked(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    folder = tmp_path / "data" / "faces of 1990"
    folder.mkdir(parents=True)
    link = tmp_path / "data" / "newest"
    link.symlink_to(folder)
    world = make_world(data_roots=(tmp_path / "data",))
    ways = (f"file://{link}", f"FILE://{link}", f"file:{folder.parent}/x/../newest")

    for number, uri in enumerate(ways):
        body = {"name": f"faces-{number}", "uri": uri}
        first, again = (
            world.client.post("/targets", json=body, headers={"Idempotency-Key": uri})
            for _ in range(2)
        )
        assert first.status_code == 202, first.text
        assert first.json()["target"]["uri"] == folder.as_uri()
        assert again.json() == first.json()
    assert world.files() == set()

    link.unlink()
    link.symlink_to(tmp_path)
    refused = world.client.post("/targets", json={"name": "later", "uri": ways[0]})
    assert (refused.status_code, refused.json()["code"]) == (422, "uri_not_allowed")


def test_a_file_by_https_must_come_from_a_listed_host(world: World) -> None:
    with world.nothing_left():
        answer = world.client.post(
            "/targets", json={"name": "faces", "uri": "https://example.org/faces.zip"}
        )
    assert (answer.status_code, answer.json()["code"]) == (422, "uri_not_allowed")


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        ({"json": {"name": "x", "uri": "file:///etc"}}, 422, "uri_not_allowed"),
        ({"json": {"name": "x"}}, 422, "invalid_request"),
        ({"json": ["x"]}, 400, "invalid_json"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "invalid_json"),
        ({"json": {"name": "x", "uri": "file:///x", "color": 1}}, 422, "invalid_request"),
        ({"data": {"name": "x"}, "files": {"file": ("a.zip", b"")}}, 422, "invalid_request"),
        ({"data": {"name": "../x"}, "files": {"file": ("a", b"1")}}, 422, "invalid_request"),
        ({"data": {"name": "tgt_1"}, "files": {"file": ("a", b"1")}}, 422, "invalid_request"),
        ({"data": {"name": "x"}, "files": {"other": ("a", b"1")}}, 422, "invalid_request"),
        ({"files": {"file": ("a.zip", b"1")}}, 422, "invalid_request"),
        ({"data": {"uri": "file:///etc"}, "files": {"file": ("a", b"")}}, 422, "invalid_request"),
        (
            {"data": {"name": "x", "sha256": "0" * 64}, "files": {"file": ("a", b"1")}},
            422,
            "digest_mismatch",
        ),
        (
            {"content": b"--x\r\n", "headers": {"content-type": "multipart/form-data; boundary=y"}},
            400,
            "invalid_multipart",
        ),
    ],
)
def test_what_cannot_be_a_target_is_refused_and_leaves_nothing(
    world: World, request_: dict[str, object], status: int, code: str
) -> None:
    with world.nothing_left():
        answer = world.client.post("/targets", **request_)  # type: ignore[arg-type]
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_taken_name_leaves_no_bytes_behind(world: World) -> None:
    world.ready_target("faces")
    with world.nothing_left():
        early = world.client.post(
            "/targets", data={"name": "faces"}, files={"file": ("a.zip", b"other")}
        )
        late = world.client.post("/targets?name=faces", content=b"other", headers={"x": "y"})
        with_key = world.client.post(
            "/targets?name=faces", content=b"other", headers={"Idempotency-Key": "k"}
        )
    for answer in (early, late, with_key):
        assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")


def test_a_target_that_failed_is_replaced_by_the_next_of_its_name(world: World) -> None:
    failed = world.post_target("faces").json()["target"]["id"]
    world.fail()

    answer = world.client.post(
        "/targets", data={"name": "faces"}, files={"file": ("a.zip", b"mended")}
    )

    assert answer.status_code == 202, answer.text
    made = world.client.get("/targets/faces").json()
    assert (made["id"], made["status"]) == (answer.json()["target"]["id"], "validating")
    assert world.client.get(f"/targets/{failed}").status_code == 404


def test_a_target_that_failed_stays_for_a_model_that_may_yet_be_made(world: World) -> None:
    world.post_target("faces")
    world.post_model("merged", "faces")
    world.fail()

    with world.nothing_left():
        answer = world.client.post(
            "/targets", data={"name": "faces"}, files={"file": ("a.zip", b"mended")}
        )

    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert answer.json()["hint"] == "delete merged first, or choose another name"


def test_samples_are_shown_once_it_is_validated(world: World) -> None:
    samples = [{"class": name, "split": "train", "png": "iVBORw0KGgo="} for name in ("F", "M")]
    link = world.post_target().json()["target"]["links"]["samples"]
    assert world.client.get(link).json() == {"items": []}
    world.validate(samples)
    assert world.client.get(link).json() == {"items": samples}
    assert world.client.get("/targets/faces/samples").json() == {"items": samples}


def test_a_target_in_use_cannot_be_removed(world: World) -> None:
    world.ready_model()

    refused = world.client.delete("/targets/faces")
    world.client.delete("/models/merged")
    removed = world.client.delete("/targets/faces")

    assert (refused.status_code, refused.json()["code"]) == (409, "still_used")
    assert removed.status_code == 204
    assert world.client.get("/targets/faces").status_code == 404


def test_lists_are_filtered_and_paged(world: World) -> None:
    world.ready_target("old")
    for number in range(4):
        world.post_target(f"t{number}")

    assert names(world, "status=ready") == [["old"]]
    assert names(world, "limit=2") == [["t3", "t2"], ["t1", "t0"], ["old"]]
    assert names(world, "limit=2&status=validating") == [["t3", "t2"], ["t1", "t0"]]
    assert world.client.get("/targets?limit=0").status_code == 422


def names(world: World, query: str) -> list[list[str]]:
    pages, cursor = [], ""
    while True:
        page = world.client.get(f"/targets?{query}{cursor}").json()
        pages.append([item["name"] for item in page["items"]])
        if page["next_cursor"] is None:
            return pages
        cursor = f"&cursor={page['next_cursor']}"
