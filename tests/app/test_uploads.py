"""Uploads in parts (tus 1.0.0), and what is made of them."""

import asyncio
import base64
import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import parsedate_to_datetime
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import OperationalError

import app.intake.receiving
import app.intake.uploads
from registry.blobs.base import StorageFull
from registry.blobs.collection import collect_blobs
from registry.blobs.local import LocalBlobWriter
from registry.blobs.safetensors_header import LENGTH, MAX_HEADER
from registry.jobs.transitions import change
from registry.tables import Upload, UploadPart, utc_now
from registry.uploads import forget_uploads, read_parts
from tests.app.test_errors import assert_problem
from tests.app.world import World, checkpoint, sha256
from tests.buckets import PREFIX, Bucket, serving_s3

TUS = {"Tus-Resumable": "1.0.0"}
KEY = {"Idempotency-Key": "once"}
BYTES = {**TUS, "Content-Type": "application/offset+octet-stream"}
CONTENT = checkpoint(1)
ARCHIVE = b"PK\3\4" + bytes(27)  # a zip, of a file without a name


def metadata(**values: str) -> dict[str, str]:
    pairs = (f"{key} {base64.b64encode(value.encode()).decode()}" for key, value in values.items())
    return {"Upload-Metadata": ",".join(pairs)}


def checksum(algorithm: str, content: bytes) -> dict[str, str]:
    digest = base64.b64encode(hashlib.new(algorithm, content).digest()).decode()
    return {"Upload-Checksum": f"{algorithm} {digest}"}


def begin(world: World, size: int, **headers: str) -> str:
    """The path of a new upload."""
    answer = world.client.post("/uploads", headers={**TUS, "Upload-Length": str(size), **headers})
    assert answer.status_code == 201, answer.text
    return str(answer.headers["location"])


def patch(world: World, path: str, offset: int, content: Any, **headers: str) -> Any:
    sent = {**BYTES, "Upload-Offset": str(offset), **headers}
    return world.client.patch(path, content=content, headers=sent)


def offset(world: World, path: str) -> int:
    answer = world.client.head(path, headers=TUS)
    assert answer.status_code == 200
    return int(answer.headers["upload-offset"])


def uploaded(
    world: World, content: bytes = CONTENT, cuts: Sequence[int] = (50,), **said: str
) -> str:
    """The id of a finished upload."""
    path = begin(world, len(content), **metadata(filename="site-a.safetensors", **said))
    places = [0, *cuts, len(content)]
    for start, end in pairwise(places):
        assert patch(world, path, start, content[start:end]).status_code == 204
    return path.rpartition("/")[2]


@pytest.mark.parametrize("place", ["disk", "database"])
def test_a_full_disk_is_507_and_keeps_what_there_was(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = begin(world, len(CONTENT))
    assert patch(world, path, 0, CONTENT[:50]).status_code == 204

    def fill(*_: object) -> None:
        if place == "disk":
            raise StorageFull("cannot write a blob: No space left on device")
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        raise OperationalError("INSERT", {}, error)

    with monkeypatch.context() as full:
        if place == "disk":
            full.setattr(LocalBlobWriter, "write", fill)
        else:
            full.setattr(app.intake.uploads, "append_part", fill)
        assert_problem(patch(world, path, 50, CONTENT[50:]), 507, "storage_full")

    assert offset(world, path) == 50
    assert patch(world, path, 50, CONTENT[50:]).status_code == 204


# The protocol


def test_options_tell_what_there_is(make_world: Callable[..., World]) -> None:
    answer = make_world(max_upload_bytes=1000).client.options("/uploads")
    assert answer.status_code == 204
    assert answer.headers["tus-version"] == "1.0.0"
    assert answer.headers["tus-max-size"] == "1000"
    assert answer.headers["tus-checksum-algorithm"] == "sha256,sha1"
    assert set(answer.headers["tus-extension"].split(",")) == {
        "creation",
        "creation-with-upload",
        "expiration",
        "checksum",
        "termination",
    }


def test_an_upload_from_beginning_to_end(world: World) -> None:
    said = metadata(filename="a.safetensors") | {"Tus-Resumable": "1.0.0"}
    created = world.client.post("/uploads", headers={"Upload-Length": "11", **said})
    assert created.status_code == 201
    path = created.headers["location"]
    assert path == f"/uploads/{created.json()['id']}"
    assert created.headers["upload-offset"] == "0"
    left = parsedate_to_datetime(created.headers["upload-expires"]) - utc_now()
    assert timedelta(hours=23) < left <= timedelta(hours=24)

    first = patch(world, path, 0, b"hello ")
    assert (first.status_code, first.content) == (204, b"")
    assert first.headers["upload-offset"] == "6"
    assert "upload-expires" in first.headers

    state = world.client.head(path, headers=TUS)
    assert (state.status_code, state.content) == (200, b"")
    assert state.headers["upload-offset"] == "6"
    assert state.headers["upload-length"] == "11"
    assert state.headers["upload-metadata"] == said["Upload-Metadata"]
    assert state.headers["cache-control"] == "no-store"
    shown = world.client.get(path).json()
    assert (shown["received"], shown["size"]) == (6, 11)
    assert shown["metadata"] == {"filename": "a.safetensors"}

    assert patch(world, path, 6, b"world").headers["upload-offset"] == "11"
    assert patch(world, path, 11, b"").headers["upload-offset"] == "11"
    assert world.client.delete(path, headers=TUS).status_code == 204
    assert world.client.head(path, headers=TUS).status_code == 404
    assert world.client.delete(path, headers=TUS).status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/uploads"),
        ("HEAD", "/uploads/upl_no"),
        ("PUT", "/uploads"),
        ("GET", "/uploads/x/y"),
    ],
)
def test_every_answer_says_which_version_is_spoken(world: World, method: str, path: str) -> None:
    answer = world.client.request(method, path)
    assert answer.headers["tus-resumable"] == answer.headers["tus-version"] == "1.0.0"
    assert "tus-resumable" not in world.client.get("/models").headers


def test_another_version_is_not_spoken(world: World) -> None:
    path = begin(world, 5)
    other = {"Tus-Resumable": "0.2.2"}
    with world.nothing_left():
        answers = [
            world.client.post("/uploads", headers={"Upload-Length": "1", **other}),
            patch(world, path, 0, b"hello", **other),
            world.client.delete(path, headers=other),
        ]
    for answer in answers:
        assert_problem(answer, 412, "unsupported_tus")
        assert answer.headers["tus-version"] == "1.0.0"
    assert world.client.head(path, headers=other).status_code == 412
    assert world.client.options("/uploads", headers=other).status_code == 204


def test_a_post_can_stand_for_another_method(world: World) -> None:
    path = begin(world, 5)
    headers = {**BYTES, "Upload-Offset": "0", "X-HTTP-Method-Override": "PATCH"}
    assert world.client.post(path, content=b"hello", headers=headers).status_code == 204
    assert offset(world, path) == 5
    headers = {**TUS, "X-HTTP-Method-Override": "DELETE"}
    assert world.client.post(path, headers=headers).status_code == 204
    assert world.client.get(path).status_code == 404


def test_the_wrong_place_is_refused(world: World) -> None:
    path = begin(world, 10)
    patch(world, path, 0, b"abc")
    with world.nothing_left():
        for place in (0, 2, 4, 10):
            problem = assert_problem(patch(world, path, place, b"x"), 409, "offset_mismatch")
            assert "Upload-Offset: 3" in problem["hint"]
        assert_problem(
            world.client.patch(path, content=b"x", headers=BYTES), 422, "invalid_request"
        )


def test_more_than_was_announced_is_refused(world: World) -> None:
    path = begin(world, 5)

    def unannounced() -> Iterator[bytes]:
        yield b"hell"
        yield b"o!"

    with world.nothing_left():
        for content in (b"hello!", unannounced()):
            assert_problem(patch(world, path, 0, content), 413, "too_large")
    assert patch(world, path, 0, b"hello").status_code == 204
    assert_problem(patch(world, path, 5, b"!"), 413, "too_large")


def test_what_is_larger_than_the_limit_is_not_begun(make_world: Callable[..., World]) -> None:
    world = make_world(max_upload_bytes=100)
    begin(world, 100)
    with world.nothing_left():
        headers = {**TUS, "Upload-Length": "101"}
        assert_problem(world.client.post("/uploads", headers=headers), 413, "too_large")


@pytest.mark.parametrize("length", [None, "-1", "ten", "9" * 30])
def test_a_length_is_needed(world: World, length: str | None) -> None:
    headers = TUS if length is None else {**TUS, "Upload-Length": length}
    with world.nothing_left():
        assert_problem(world.client.post("/uploads", headers=headers), 422, "invalid_request")


def test_bytes_have_a_type_of_their_own(world: World) -> None:
    path = begin(world, 5)
    plain = {"Content-Type": "text/plain"}
    headers = {**TUS, "Upload-Length": "5", **plain}
    with world.nothing_left():
        assert_problem(patch(world, path, 0, b"hello", **plain), 415, "unsupported_media_type")
        answer = world.client.post("/uploads", content=b"hello", headers=headers)
        assert_problem(answer, 415, "unsupported_media_type")
    generated = {"Content-Type": "application/octet-stream"}  # by clients that know no other
    assert patch(world, path, 0, b"hello", **generated).status_code == 204


@pytest.mark.parametrize(
    "said",
    ["filename not-base64", "filename YQ==,filename YQ==", " YQ==,", "name gA==", ",", "a YQ==,,"],
)
def test_metadata_that_cannot_be_read_is_refused(world: World, said: str) -> None:
    headers = {**TUS, "Upload-Length": "5", "Upload-Metadata": said}
    with world.nothing_left():
        problem = assert_problem(
            world.client.post("/uploads", headers=headers), 422, "invalid_request"
        )
    assert "Upload-Metadata" in problem["detail"]


def test_metadata_may_have_no_values(world: World) -> None:
    path = begin(world, 5, **{"Upload-Metadata": "is_confidential,name bsOpbw=="})
    assert world.client.get(path).json()["metadata"] == {"is_confidential": "", "name": "néo"}


@pytest.mark.parametrize("algorithm", ["sha256", "sha1"])
def test_checksums_are_verified(world: World, algorithm: str) -> None:
    path = begin(world, 10)
    assert patch(world, path, 0, b"hello", **checksum(algorithm, b"hello")).status_code == 204
    with world.nothing_left():
        answer = patch(world, path, 5, b"world", **checksum(algorithm, b"World"))
        problem = assert_problem(answer, 460, "checksum_mismatch")
    assert problem["title"] == "Checksum Mismatch"
    assert offset(world, path) == 5


@pytest.mark.parametrize("said", ["md5 XUFAKrxLKna5cZ2REBfFkg==", "sha1 ?", "crc32 AAAA"])
def test_checksums_that_cannot_be_verified_are_refused(world: World, said: str) -> None:
    path = begin(world, 5)
    with world.nothing_left():
        answer = patch(world, path, 0, b"hello", **{"Upload-Checksum": said})
        assert_problem(answer, 400, "invalid_checksum")


def test_the_first_bytes_may_come_with_the_beginning(world: World) -> None:
    headers = {**BYTES, "Upload-Length": "11", **checksum("sha1", b"hello ")}
    created = world.client.post("/uploads", content=b"hello ", headers=headers)
    assert created.status_code == 201
    assert created.headers["upload-offset"] == "6"
    assert created.json()["received"] == 6
    assert patch(world, created.headers["location"], 6, b"world").status_code == 204

    with world.nothing_left():
        wrong = headers | checksum("sha1", b"other")
        answer = world.client.post("/uploads", content=b"hello ", headers=wrong)
        assert_problem(answer, 460, "checksum_mismatch")
        answer = world.client.post("/uploads", content=b"far too long", headers=headers)
        assert_problem(answer, 413, "too_large")


def test_beginning_again_with_the_same_key_goes_on(world: World) -> None:
    headers = {**BYTES, **KEY, "Upload-Length": "11"}
    first = world.client.post("/uploads", content=b"hello ", headers=headers)
    with world.nothing_left():
        second = world.client.post("/uploads", content=b"hello ", headers=headers)
    assert second.status_code == 201
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["upload-offset"] == "6"
    other = headers | {"Upload-Length": "12"}
    answer = world.client.post("/uploads", content=b"hello ", headers=other)
    assert_problem(answer, 422, "idempotency_key_reused")


def test_uploads_are_listed_until_they_are_used_or_expire(world: World) -> None:
    world.ready_model()
    unfinished, finished = begin(world, 5).rpartition("/")[2], uploaded(world)
    expired = begin(world, 5).rpartition("/")[2]
    expire(world, expired)

    def listed(query: str = "") -> list[str]:
        return [item["id"] for item in world.client.get(f"/uploads{query}").json()["items"]]

    assert listed() == [finished, unfinished]
    assert listed("?finished=true") == [finished]
    assert listed("?finished=false") == [unfinished]
    page = world.client.get("/uploads?limit=1").json()
    assert listed(f"?cursor={page['next_cursor']}") == [unfinished]
    world.client.post("/sources", json={"model": "merged", "upload": finished})
    assert listed() == [unfinished]


def expire(world: World, upload: str) -> None:
    with world.database.write() as session:
        change(session, Upload, Upload.id == upload, {"expires_at": utc_now()})


def test_what_has_expired_is_gone_with_its_bytes(world: World) -> None:
    world.ready_model()
    path = begin(world, len(CONTENT))
    patch(world, path, 0, CONTENT)
    upload = path.rpartition("/")[2]
    assert not collect_blobs(world.database, world.store, 0)
    expire(world, upload)
    assert world.client.head(path, headers=TUS).status_code == 404
    assert_problem(patch(world, path, len(CONTENT), b""), 404, "not_found")
    body = {"model": "merged", "upload": upload}
    assert_problem(world.client.post("/sources", json=body), 404, "not_found")
    with world.database.write() as session:
        forget_uploads(session, utc_now())
    assert collect_blobs(world.database, world.store, 0) == [sha256(CONTENT)]
    assert not world.rows()[UploadPart.__tablename__]


def test_of_two_requests_at_once_one_goes_on(world: World) -> None:
    path = begin(world, 10)
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(patch, world, path, 0, bytes([65 + i]) * (5 + i)) for i in range(4)]
        answers = [future.result() for future in sent]
    won = [answer for answer in answers if answer.status_code == 204]
    assert len(won) == 1
    assert {answer.status_code for answer in answers} == {204, 409}
    assert str(offset(world, path)) == won[0].headers["upload-offset"]


# What is made of them


def test_a_finished_upload_becomes_a_source(world: World) -> None:
    world.ready_model()
    upload = uploaded(world, cuts=(1, 7, 50, 51))
    body = {"model": "merged", "upload": upload, "classes": ["F", "M"], "sha256": sha256(CONTENT)}
    answer = world.client.post("/sources", json=body)
    assert answer.status_code == 202
    source = answer.json()["source"]
    assert (source["sha256"], source["size"]) == (sha256(CONTENT), len(CONTENT))
    assert (source["name"], source["classes"]) == ("site-a.safetensors", ["F", "M"])
    assert world.store.fetch(sha256(CONTENT)).read_bytes() == CONTENT
    assert world.client.get(f"/uploads/{upload}").status_code == 404
    kept = {row[4] for row in world.rows()["sources"]}  # and no part of an upload
    collected = collect_blobs(world.database, world.store, 0)
    assert len(collected) == 5
    assert not kept & set(collected)

    again = world.client.post("/sources", json=body | {"upload": uploaded(world)})
    assert again.status_code == 200
    assert again.json()["source"]["id"] == source["id"]
    assert not world.rows()["uploads"]


def test_a_finished_upload_becomes_a_target(world: World) -> None:
    upload = uploaded(world, b"PK and so on", cuts=(5,))
    body = {"name": "faces", "upload": upload}
    answer = world.client.post("/targets", json=body, headers=KEY)
    assert answer.status_code == 202
    assert answer.json()["target"]["sha256"] == sha256(b"PK and so on")
    assert not world.rows()["uploads"]
    with world.nothing_left():
        again = world.client.post("/targets", json=body, headers=KEY)
    assert (again.status_code, again.json()) == (202, answer.json())
    assert_problem(world.client.post("/targets", json=body), 404, "not_found")


def test_an_unfinished_upload_becomes_nothing(world: World) -> None:
    world.ready_model()
    path = begin(world, 100)
    patch(world, path, 0, b"abc")
    upload = path.rpartition("/")[2]
    with world.nothing_left():
        for where, body in (("sources", {"model": "merged"}), ("targets", {"name": "new"})):
            answer = world.client.post(f"/{where}", json={**body, "upload": upload})
            problem = assert_problem(answer, 409, "upload_unfinished")
            assert "97 of the upload's 100 bytes are missing" in problem["detail"]
            assert f"PATCH {path}" in problem["hint"]


def test_bytes_come_from_one_place(world: World) -> None:
    world.ready_model()
    upload = uploaded(world)
    places: list[dict[str, Any]] = [{}, {"uri": "file:///x", "upload": upload}, {"upload": None}]
    with world.nothing_left():
        for place in places:
            for where, body in (("sources", {"model": "merged"}), ("targets", {"name": "new"})):
                answer = world.client.post(f"/{where}", json=body | place)
                assert_problem(answer, 422, "invalid_request")
        answer = world.client.post(
            "/sources", data={"model": "merged", "upload": upload}, files={"file": b"x"}
        )
        assert_problem(answer, 422, "invalid_request")


@pytest.mark.parametrize(
    ("content", "fields", "code"),
    [
        (CONTENT, {"sha256": "0" * 64}, "digest_mismatch"),
        (ARCHIVE, {}, "invalid_checkpoint"),
        (checkpoint(stem__weight=(9, 9)), {}, "checkpoint_mismatch"),
        (CONTENT[:-1], {}, "invalid_checkpoint"),
        (b"", {}, "invalid_request"),
    ],
)
def test_a_wrong_file_is_refused_and_stays_an_upload(
    world: World, content: bytes, fields: dict[str, str], code: str
) -> None:
    world.ready_model()
    upload = uploaded(world, content, cuts=())
    body = {"model": "merged", "upload": upload, **fields}
    with world.nothing_left():
        assert_problem(world.client.post("/sources", json=body), 422, code)
    assert world.client.get(f"/uploads/{upload}").status_code == 200


def test_an_offer_can_be_repeated_though_its_upload_is_gone(world: World) -> None:
    world.ready_model()
    body = {"model": "merged", "upload": uploaded(world)}
    first = world.client.post("/sources", json=body, headers=KEY)
    with world.nothing_left():
        second = world.client.post("/sources", json=body, headers=KEY)
    assert (second.status_code, second.json()) == (202, first.json())
    assert second.headers["idempotency-replayed"] == "true"
    answer = world.client.post("/sources", json=body | {"name": "other"}, headers=KEY)
    assert_problem(answer, 422, "idempotency_key_reused")
    assert_problem(world.client.post("/sources", json=body), 404, "not_found")


def test_a_dry_run_leaves_the_upload(world: World) -> None:
    world.ready_model()
    body = {"model": "merged", "upload": uploaded(world)}
    assert world.client.post("/sources?dry_run=true", json=body).status_code == 202
    assert world.client.post("/sources", json=body).status_code == 202


def test_offers_at_once_make_one_source(world: World) -> None:
    world.ready_model()
    body = {"model": "merged", "upload": uploaded(world)}
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(world.client.post, "/sources", json=body) for _ in range(3)]
        answers: list[Any] = [future.result() for future in sent]
    assert sorted(answer.status_code for answer in answers) == [202, 404, 404]
    assert len(world.rows()["sources"]) == 1


def test_an_upload_that_is_deleted_while_it_is_read_is_not_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ready_model()
    upload = uploaded(world)

    def read_slowly(*arguments: Any) -> Iterator[bytes]:
        world.client.delete(f"/uploads/{upload}")
        collect_blobs(world.database, world.store, 0)
        yield from read_parts(*arguments)

    monkeypatch.setattr(app.intake.uploads, "read_parts", read_slowly)
    body = {"model": "merged", "upload": upload}
    assert_problem(world.client.post("/sources", json=body), 404, "not_found")


# With a model in its metadata


@pytest.mark.parametrize(
    ("wrong", "code"),
    [(checkpoint(stem__weight=(9, 9)), "checkpoint_mismatch"), (ARCHIVE, "invalid_checkpoint")],
)
@pytest.mark.parametrize("key", [{}, KEY])
def test_a_checkpoint_of_another_model_is_refused_by_its_first_bytes(
    world: World, wrong: bytes, code: str, key: dict[str, str]
) -> None:
    """And leaves nothing behind, with whichever request the bytes come."""
    world.ready_model()
    about = metadata(model="merged", filename="b.safetensors")
    files = world.files()

    path = begin(world, 900, **about)
    problem = assert_problem(patch(world, path, 0, wrong[:-1]), 422, code)
    assert "b.safetensors" in problem["detail"]
    assert_problem(patch(world, path, 0, wrong), 404, "not_found")

    headers = {**BYTES, **about, **key, "Upload-Length": "900"}
    assert_problem(world.client.post("/uploads", content=wrong, headers=headers), 422, code)
    assert world.client.get("/uploads").json()["items"] == []
    assert world.files() == files


@pytest.mark.parametrize("end", [1, -1], ids=["in its length", "in its last tensor"])
def test_one_that_ends_too_early_is_gone_once_it_was_offered(world: World, end: int) -> None:
    world.ready_model()
    body = {"model": "merged", "upload": uploaded(world, CONTENT[:end], (), model="merged")}
    assert_problem(world.client.post("/sources", json=body), 422, "invalid_checkpoint")
    assert world.client.get("/uploads").json()["items"] == []


def test_offered_to_another_model_it_stays_for_its_own(world: World) -> None:
    world.ready_model()
    three = checkpoint(head__weight=(3, 4), head__bias=(3,))
    about = {"model": "merged", "classes": '["F", "M", "X"]'}
    upload = uploaded(world, three, cuts=(), **about)
    world.ready_model(name="other")
    body = {"model": "other", "upload": upload}
    assert_problem(world.client.post("/sources", json=body), 422, "checkpoint_mismatch")
    assert world.client.get(f"/uploads/{upload}").status_code == 200


def test_a_checkpoint_of_its_model_may_come_in_any_pieces(world: World) -> None:
    world.ready_model()
    right = begin(world, len(CONTENT), **metadata(model="merged"))
    assert patch(world, right, 0, CONTENT[:9]).status_code == 204
    assert patch(world, right, 9, CONTENT[9:]).status_code == 204


def test_other_classes_are_told_beforehand(world: World) -> None:
    world.ready_model()
    three = checkpoint(head__weight=(3, 4), head__bias=(3,))
    path = begin(world, len(three), **metadata(model="merged"))
    assert_problem(patch(world, path, 0, three), 422, "checkpoint_mismatch")
    path = begin(world, len(three), **metadata(model="merged", classes='["F", "M", "X"]'))
    assert patch(world, path, 0, three).status_code == 204


def test_a_model_that_is_not_there_is_noticed_at_once(world: World) -> None:
    headers = {**TUS, "Upload-Length": "5"}
    with world.nothing_left():
        answer = world.client.post("/uploads", headers=headers | metadata(model="none"))
        assert_problem(answer, 404, "not_found")
        answer = world.client.post("/uploads", headers=headers | metadata(model="no/name"))
        assert_problem(answer, 422, "invalid_request")


# Connections that are cut


class Cut:
    """Sends a PATCH of which only some chunks arrive before the client is gone."""

    def __init__(self, world: World, path: str) -> None:
        self.world, self.path = world, path

    def send(self, place: int, chunks: Sequence[bytes], length: int, **headers: str) -> None:
        given = {**BYTES, "Upload-Offset": str(place), "Content-Length": str(length), **headers}
        messages = [
            {"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks
        ] + [{"type": "http.disconnect"}]

        async def receive() -> Any:
            return messages.pop(0)

        async def answer(message: Any) -> None:
            raise AssertionError(f"there is nobody to answer: {message}")

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "PATCH",
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()]
            + [(b"host", b"127.0.0.1")],
            "server": ("127.0.0.1", 80),
        }
        asyncio.run(self.world.app(scope, receive, answer))


def test_what_arrived_before_the_cut_is_kept(world: World) -> None:
    path = begin(world, 11)
    Cut(world, path).send(0, [b"hel", b"lo", b" "], 11)
    assert offset(world, path) == 6
    with world.nothing_left():
        Cut(world, path).send(6, [b"wor"], 5, **checksum("sha1", b"world"))  # cannot be verified
    assert patch(world, path, 6, b"world").headers["upload-offset"] == "11"
    answer = world.client.post("/targets", json={"name": "t", "upload": path.rpartition("/")[2]})
    assert answer.json()["target"]["sha256"] == sha256(b"hello world")


steps = st.tuples(
    st.sampled_from(["whole", "checked", "cut", "late", "too long"]),
    st.integers(0, 200),  # bytes of the request
    st.integers(0, 200),  # that arrive, if it is cut
    st.integers(1, 50),  # at once
)


@given(
    content=st.binary(min_size=1, max_size=400),
    plan=st.lists(steps, max_size=8),
    batch=st.integers(1, 64),
    piece=st.integers(1, 200),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_the_cuts_the_bytes_are_the_same(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    plan: list[tuple[str, int, int, int]],
    batch: int,
    piece: int,
) -> None:
    """Requests of any size, cut anywhere, or in the wrong place; kept in pieces of any size."""
    monkeypatch.setattr(app.intake.receiving, "BATCH", batch)
    monkeypatch.setattr(app.intake.uploads, "PIECE_BYTES", piece)
    path = begin(world, len(content))
    place = 0
    for kind, size, arriving, at_once in plan:
        sent = content[place : place + size]
        if kind == "cut":
            arrived = sent[:arriving]
            chunks = [arrived[i : i + at_once] for i in range(0, len(arrived), at_once)]
            Cut(world, path).send(place, chunks, len(sent))
            place += len(arrived)
        elif kind == "late":
            assert patch(world, path, place + 1, sent).status_code == 409
        elif kind == "too long":
            assert patch(world, path, place, content[place:] + b"!").status_code == 413
        else:
            check = checksum("sha256", sent) if kind == "checked" else {}
            assert patch(world, path, place, sent, **check).status_code == 204
            place += len(sent)
        assert offset(world, path) == place
    assert patch(world, path, place, content[place:]).status_code == 204
    name = f"t{len(world.rows()['targets'])}"
    answer = world.client.post("/targets", json={"name": name, "upload": path.rpartition("/")[2]})
    assert answer.json()["target"]["sha256"] == sha256(content)


# On S3


def test_parts_lie_in_the_bucket_too(make_world: Callable[..., World]) -> None:
    with serving_s3() as endpoint:
        bucket = Bucket.make(endpoint)
        url = f"s3://{bucket.name}/{PREFIX}"
        world = make_world(blob_url=url, blob_endpoint=endpoint)
        world.ready_model()
        path = begin(world, len(CONTENT))
        Cut(world, path).send(0, [CONTENT[:40], CONTENT[40:60]], len(CONTENT))
        assert offset(world, path) == 60
        elsewhere = make_world(world.settings.home, blob_url=url, blob_endpoint=endpoint)
        assert patch(elsewhere, path, 60, CONTENT[60:]).status_code == 204
        upload = path.rpartition("/")[2]
        answer = elsewhere.client.post("/sources", json={"model": "merged", "upload": upload})
        assert answer.json()["source"]["sha256"] == sha256(CONTENT)
        stored = bucket.objects().values()
    assert {CONTENT[:60], CONTENT[60:], CONTENT} <= set(stored)


def test_a_refusal_by_the_header_leaves_no_piece() -> None:
    assert app.intake.uploads.PIECE_BYTES > LENGTH + MAX_HEADER
