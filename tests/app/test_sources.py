"""Sources over HTTP: in every form, checked at once, kept once."""

import base64
import errno
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from safetensors.numpy import load, save
from sqlalchemy import update

import app.intake.checkpoints
import app.routes.sources
from app.intake.checkpoints import SourceInspector
from grasp_core.content import digest_content
from registry.blobs.base import BlobWriter, StorageFull
from registry.blobs.collection import collect_blobs
from registry.blobs.local import LocalBlobWriter
from registry.tables import Source
from tests.app.world import World, checkpoint, sha256


def test_a_form_a_raw_body_and_a_uri_are_the_same_source(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    content = checkpoint()
    path = tmp_path / "site-a.safetensors"
    path.write_bytes(content)
    world = make_world(data_roots=(tmp_path,))
    world.ready_model()

    form = world.post_source(content, fields={"name": "site-a", "classes": '["F", "M"]'})
    raw = world.post_raw(content)
    uri = world.client.post("/sources", json={"model": "merged", "uri": path.as_uri()})

    assert [answer.status_code for answer in (form, raw, uri)] == [202, 200, 200]
    assert form.json() == raw.json() == uri.json()
    source, job = form.json()["source"], form.json()["job"]
    assert form.headers["location"] == raw.headers["location"] == f"/jobs/{job['id']}"
    assert (source["sha256"], source["size"]) == (sha256(content), len(content))
    assert (source["name"], source["classes"]) == ("site-a", ["F", "M"])
    assert (job["kind"], job["status"], job["source"]) == ("fold", "queued", source["id"])
    assert world.store.fetch(source["sha256"]).read_bytes() == content
    assert world.client.get(f"/sources/{source['id']}").json() == source


def saved_again(content: bytes) -> bytes:
    """The same weights in another file, the other way round."""
    return packed(dict(reversed(list(load(content).items()))), {"epoch": "3"})


def packed(tensors: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """As safetensors, in this order, which its own writer would not keep."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, tensor in tensors.items():
        begin, data = len(data), data + tensor.tobytes()
        about = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [begin, len(data)]}
        header[name] = about
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize("way", ["form", "raw", "uri", "upload"])
def test_the_same_weights_in_another_file_are_the_same_source(
    make_world: Callable[..., World], tmp_path: Path, way: str
) -> None:
    again = saved_again(checkpoint())
    (tmp_path / "a.safetensors").write_bytes(again)
    (tmp_path / "first.safetensors").write_bytes(checkpoint())
    world = make_world(data_roots=(tmp_path,))
    world.ready_model()

    def offer(way: str, content: bytes, path: Path) -> Any:
        if way == "form":
            return world.post_source(content)
        if way == "raw":
            return world.post_raw(content)
        place = path.as_uri() if way == "uri" else upload(world, content)
        return world.client.post("/sources", json={"model": "merged", way: place})

    first = world.post_source()
    second = offer(way, again, tmp_path / "a.safetensors")
    world.ready_model("other")
    others = [
        world.post_source(again, "other"),
        world.post_source(checkpoint(2)),
    ]

    assert (first.status_code, second.status_code) == (202, 200), second.text
    assert second.json() == first.json()
    source = first.json()["source"]
    assert source["sha256"] == sha256(checkpoint())
    assert source["content"] == digest_content(tmp_path / "first.safetensors")
    assert [answer.status_code for answer in others] == [202, 202]
    assert others[0].json()["source"]["content"] == source["content"]
    found = world.client.get("/sources", params={"content": source["content"]}).json()["items"]
    assert [each["model"] for each in found] == [
        others[0].json()["source"]["model"],
        source["model"],
    ]
    assert world.client.get("/sources?content=short").status_code == 422


def upload(world: World, content: bytes) -> str:
    """The id of a finished upload."""
    headers = {
        "Tus-Resumable": "1.0.0",
        "Upload-Length": str(len(content)),
        "Content-Type": "application/offset+octet-stream",
    }
    made: str = world.client.post("/uploads", content=content, headers=headers).json()["id"]
    return made


def test_class_names_make_no_other_source(world: World) -> None:
    world.ready_model()
    swapped = {"grasp": json.dumps({"classes": ["M", "F"]})}

    first = world.post_source(fields={"classes": '["F", "M"]'})
    answers = [
        world.post_source(fields={"classes": '["M", "F"]'}),
        world.post_source(packed(load(checkpoint()), swapped)),
    ]

    assert [answer.json() for answer in answers] == [first.json()] * 2


def test_weights_of_a_source_that_an_older_release_took_are_known(
    world: World,
) -> None:
    world.ready_model()
    source = world.post_source().json()["source"]
    with world.database.write() as session:
        session.execute(update(Source).values(content=None))
    assert world.client.get(f"/sources/{source['id']}").json()["content"] is None
    dry = world.post_raw(saved_again(checkpoint()), params={"dry_run": "true"})
    assert dry.status_code == 202

    answer = world.post_source(saved_again(checkpoint()))

    assert (answer.status_code, answer.json()["source"]) == (200, source)


def test_what_was_refused_is_tried_again_with_the_file_that_came_last(world: World) -> None:
    world.ready_model()
    source = world.post_source().json()["source"]
    world.reject()
    collect_blobs(world.database, world.store, 0)
    assert not world.store.has(source["sha256"])
    again = saved_again(checkpoint())

    answer = world.post_source(again).json()

    assert answer["source"]["id"] == source["id"]
    assert (answer["source"]["sha256"], answer["source"]["stored"]) == (sha256(again), True)
    assert world.client.post(f"/jobs/{answer['job']['id']}/retry").status_code == 202
    collect_blobs(world.database, world.store, 0)
    assert world.store.fetch(sha256(again)).read_bytes() == again


def test_weights_are_known_wherever_their_file_was_cut() -> None:
    """In one batch may be the end of the header and the first tensors, or one byte."""
    content = saved_again(checkpoint())
    expected = inspected(content, 1)

    assert {inspected(content, size) for size in range(2, len(content) + 1)} == {expected}
    first = range(1, len(content))
    assert {inspected(content, cut, len(content)) for cut in first} == {expected}
    assert expected == inspected(checkpoint(), 100)


class Written:
    """Of a blob's writer, what an inspector needs."""

    def __init__(self) -> None:
        self.data = b""

    @property
    def size(self) -> int:
        return len(self.data)

    def read(self, first: int, count: int) -> bytes:
        return self.data[first : first + count]


def inspected(content: bytes, *sizes: int) -> str:
    """What an inspector says of a file that comes in batches of these sizes, the last repeated."""
    inspector, writer = SourceInspector("a"), Written()
    waiting = list(sizes)
    while writer.size < len(content):
        size = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        batch = content[writer.size : writer.size + size]
        ready = inspector.feed(batch)
        writer.data += batch
        if ready:
            inspector.look(cast("BlobWriter", writer))
    inspector.finish()
    return inspector.content


def test_a_fetched_file_is_verified_too(make_world: Callable[..., World], tmp_path: Path) -> None:
    path = tmp_path / "site-a.safetensors"
    path.write_bytes(checkpoint())
    world = make_world(data_roots=(tmp_path,))
    world.ready_model()
    body = {"model": "merged", "uri": path.as_uri()}
    with world.nothing_left():
        wrong = world.client.post("/sources", json={**body, "sha256": "0" * 64})
        unknown = world.client.post("/sources", json={**body, "model": "none"})
    right = world.client.post("/sources", json={**body, "sha256": sha256(checkpoint())})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
    assert (unknown.status_code, right.status_code) == (404, 202)


@pytest.mark.parametrize("way", ["form", "raw", "uri", "upload"])
def test_a_source_is_validated_and_compared_once(
    make_world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    (tmp_path / "a.safetensors").write_bytes(checkpoint())
    world = make_world(data_roots=(tmp_path,))
    world.ready_model()
    uploaded = upload(world, checkpoint())
    calls: Counter[str] = Counter()

    def counted(module: Any, name: str) -> None:
        real = getattr(module, name)

        def call(*args: Any) -> Any:
            calls[name] += 1
            return real(*args)

        monkeypatch.setattr(module, name, call)

    counted(app.routes.sources, "validated")
    counted(app.routes.sources, "find_model")
    counted(app.intake.checkpoints, "check_fit")
    if way == "form":
        answer = world.post_source()
    elif way == "raw":
        answer = world.post_raw(checkpoint())
    else:
        place = uploaded if way == "upload" else (tmp_path / "a.safetensors").as_uri()
        answer = world.client.post("/sources", json={"model": "merged", way: place})

    assert answer.status_code == 202, answer.text
    assert calls == {"validated": 1, "find_model": 1, "check_fit": 1}


def test_a_model_prepared_while_the_file_came_is_compared_then(world: World) -> None:
    world.ready_target()
    world.post_model()
    wrong = checkpoint(head__bias=(3,))

    def slowly() -> Iterator[bytes]:
        yield wrong[:-1]
        world.prepare()
        yield wrong[-1:]

    files = world.files()
    answer = world.post_raw(slowly())
    assert (answer.status_code, answer.json()["code"]) == (422, "checkpoint_mismatch")
    assert world.files() == files


def test_the_name_is_the_files_without_folders(world: World) -> None:
    world.ready_model()
    answer = world.post_source(filename="../../etc/site-b.safetensors")
    assert answer.json()["source"]["name"] == "site-b.safetensors"


def test_fields_may_come_after_the_file(world: World) -> None:
    world.ready_model()
    body, kind = form([("file", checkpoint()), ("model", b"merged"), ("name", b"late")])
    answer = world.client.post("/sources", content=body, headers={"content-type": kind})
    assert answer.status_code == 202
    assert answer.json()["source"]["name"] == "late"


def test_another_model_gets_its_own_source_of_the_same_bytes(world: World) -> None:
    world.ready_model("one")
    world.ready_model("two")
    first, second = (world.post_source(model=name).json() for name in ("one", "two"))
    assert first["source"]["id"] != second["source"]["id"]
    assert first["source"]["sha256"] == second["source"]["sha256"]


@pytest.mark.parametrize("prepared", [True, False])
def test_every_mismatch_is_named_when_the_manifest_is_known(world: World, prepared: bool) -> None:
    world.ready_target("faces")
    world.post_model("merged")
    if prepared:
        world.prepare()
    wrong = checkpoint(stem__weight=(4, 5), head__bias=None, extra=(1,))

    answers = [world.post_source(wrong), world.post_raw(wrong)]

    if not prepared:
        assert [answer.status_code for answer in answers] == [202, 200]
        return
    for answer in answers:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "checkpoint_mismatch")
        assert problem["mismatches"] == {
            "missing": ["head.bias"],
            "unexpected": ["extra"],
            "wrong_shape": {"stem.weight": [[4, 3], [4, 5]]},
            "wrong_dtype": {},
        }
        assert problem["architecture"] == "test_vit"
        assert problem["file"]
        assert problem["only_head"] is False


def test_other_classes_need_other_heads(world: World) -> None:
    world.ready_model()
    wider = checkpoint(head__weight=(3, 4), head__bias=(3,))

    without = world.post_source(wider)
    named = world.post_source(wider, fields={"classes": '["F", "M", "X"]'})

    assert without.status_code == 422
    assert "class names" in without.json()["hint"]
    assert without.json()["only_head"] is True
    assert named.status_code == 202


def digest(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


@pytest.mark.parametrize("header", ["Repr-Digest", "Content-Digest"])
def test_a_digest_is_verified(world: World, header: str) -> None:
    world.ready_model()
    content = checkpoint()
    with world.nothing_left():
        wrong = world.post_raw(content, headers={header: digest(b"other")})
        broken = world.post_raw(content, headers={header: "sha-256=abc"})
        not_base64 = world.post_raw(content, headers={header: "sha-256=:a:"})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "digest_mismatch")
    assert {broken.status_code, not_base64.status_code} == {422}
    assert world.post_raw(content, headers={header: digest(content)}).status_code == 202


@pytest.mark.parametrize("name", ["M\n", "M\x9b31m", "M\u2029", "\ud800"])
def test_class_names_that_no_line_can_show_are_refused(world: World, name: str) -> None:
    world.ready_model()
    given = world.post_source(checkpoint(1), fields={"classes": json.dumps(["F", name])})
    own = load(checkpoint(2))
    said = {"grasp": json.dumps({"classes": ["F", name]})}
    stored = world.post_source(save(own, said))

    assert (given.status_code, given.json()["code"]) == (422, "invalid_request")
    assert (stored.status_code, stored.json()["code"]) == (422, "invalid_checkpoint")
    assert "control character" in stored.json()["detail"]


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no model": ({"content": checkpoint()}, 422, "invalid_request"),
    "unknown model": ({"params": {"model": "x"}, "content": checkpoint()}, 404, "not_found"),
    "odd model": ({"params": {"model": "\0"}, "content": checkpoint()}, 422, "invalid_request"),
    "nothing": ({"params": {"model": "merged"}}, 422, "invalid_request"),
    "a pickle": ({"params": {"model": "merged"}, "content": b"\x80\x04" * 99}, 422, "invalid_chec"),
    "cut off": ({"params": {"model": "merged"}, "content": checkpoint()[:-1]}, 422, "invalid_chec"),
    "too long": ({"params": {"model": "merged"}, "content": checkpoint() + b"x"}, 422, "invalid_"),
    "sha256": (
        {"params": {"model": "merged", "sha256": "0" * 64}, "content": checkpoint()},
        422,
        "digest_mismatch",
    ),
    "classes": (
        {"params": {"model": "merged", "classes": "F,M"}, "content": checkpoint()},
        422,
        "invalid_request",
    ),
    "doubled classes": (
        {"params": {"model": "merged", "classes": '["F","F"]'}, "content": checkpoint()},
        422,
        "invalid_request",
    ),
    "number as classes": (
        {"params": {"model": "merged", "classes": "7"}, "content": checkpoint()},
        422,
        "invalid_request",
    ),
    "no file": ({"data": {"model": "merged"}, "files": {"f": b"1"}}, 422, "invalid_request"),
    "a misspelt field": (
        {"data": {"model": "merged", "naem": "x"}, "files": {"file": checkpoint()}},
        422,
        "invalid_request",
    ),
    "a uri in a form": (
        {"data": {"model": "merged", "uri": "file:///x"}, "files": {"file": checkpoint()}},
        422,
        "invalid_request",
    ),
    "no uri": ({"json": {"model": "merged"}}, 422, "invalid_request"),
    "uri": ({"json": {"model": "merged", "uri": "file:///etc/passwd"}}, 422, "uri_not_allowed"),
    "s3": ({"json": {"model": "merged", "uri": "s3://bucket/key"}}, 422, "uri_not_allowed"),
    "uri is a number": ({"json": {"model": "merged", "uri": 1}}, 422, "invalid_request"),
    "half a form": (
        {"content": b"--b\r\nCont", "headers": {"content-type": "multipart/form-data; boundary=b"}},
        400,
        "invalid_multipart",
    ),
    "dry run of what": (
        {"params": {"model": "merged", "dry_run": "perhaps"}, "content": checkpoint()},
        422,
        "invalid_request",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_uploads_leave_nothing(world: World, case: str) -> None:
    world.ready_model()
    request, status, code = REFUSED[case]
    with world.nothing_left():
        answer = world.client.post("/sources", **request)
    assert answer.status_code == status, answer.text
    assert answer.json()["code"].startswith(code)
    assert answer.headers["content-type"] == "application/problem+json"


def test_two_files_in_a_form_are_refused(world: World) -> None:
    world.ready_model()
    body, kind = form([("model", b"merged"), ("file", checkpoint()), ("file", checkpoint(2))])
    with world.nothing_left():
        answer = world.client.post("/sources", content=body, headers={"content-type": kind})
    assert answer.status_code == 422


def test_a_model_that_could_not_be_prepared_takes_no_sources(world: World) -> None:
    world.ready_target("faces")
    world.post_model("merged")
    world.fail()
    with world.nothing_left():
        answer = world.post_source()
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert "/retry" in answer.json()["hint"]


def test_the_limit_holds_with_and_without_a_length(make_world: Callable[..., World]) -> None:
    content = checkpoint()
    world = make_world(max_upload_bytes=len(content))
    world.ready_model()
    larger = content + b"x"

    def pieces() -> Iterator[bytes]:
        yield from (larger[:100], larger[100:])

    with world.nothing_left():
        answers = [
            world.post_raw(larger),
            world.client.post("/targets?name=x", content=pieces()),
            world.client.post("/targets", data={"name": "x"}, files={"file": larger}),
            world.client.post("/targets", data={"name": "x"}, files={"file": b"x" * 2**21}),
        ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    # The limit is the file's, not the form's around it.
    assert world.post_source(content).status_code == 202


def test_a_full_disk_is_507_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ready_model()

    def full(self: LocalBlobWriter, data: bytes) -> None:
        raise StorageFull("cannot write a blob: No space left on device") from OSError(errno.ENOSPC)

    monkeypatch.setattr(LocalBlobWriter, "write", full)
    with world.nothing_left():
        answers = [world.post_source(), world.post_raw(checkpoint()), world.post_target("new")]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (507, "storage_full")


def test_a_dry_run_is_a_job_without_a_source(world: World) -> None:
    world.ready_model()

    answer = world.post_raw(checkpoint(), params={"dry_run": "true"})
    world.try_out()

    assert answer.status_code == 202
    assert answer.json()["source"] is None
    job = world.client.get(answer.headers["location"]).json()
    assert (job["kind"], job["status"], job["source"]) == ("dry_run", "succeeded", None)
    assert job["verdict"] == {"outcome": "accepted", "reason": None, "cause": None, "change": None}
    assert world.client.get(job["links"]["report"]).json()["schema"] == 1
    assert world.client.get("/sources").json()["items"] == []
    assert world.client.get("/models/merged/info").json()["version"] is None


def test_a_dry_run_says_what_would_become_of_it(world: World) -> None:
    world.ready_model()
    answer = world.post_raw(checkpoint(), params={"dry_run": "true"})
    world.try_out(refused=True)

    job = world.client.get(answer.headers["location"]).json()
    page = world.client.get(f"/ui/jobs/{job['id']}", headers={"accept": "text/html"}).text

    assert (job["status"], job["error"], job["verdict"]["outcome"]) == (
        "succeeded",
        None,
        "rejected",
    )
    assert job["verdict"]["reason"] == "accuracy fell"
    assert job["verdict"]["change"] == {"count": 100, "lost": 42, "gained": 1, "trend": "down"}
    assert "It would be refused: 42 of 100 lost, 1 gained." in page
    assert "Accuracy fell." in page


def test_a_dry_run_is_checked_like_any_source(world: World) -> None:
    world.ready_model()
    with world.nothing_left():
        answer = world.post_raw(checkpoint(extra=(1,)), params={"dry_run": "true"})
    assert answer.json()["code"] == "checkpoint_mismatch"


def test_lists_are_filtered_and_paged(world: World) -> None:
    world.ready_model("a")
    world.ready_model("b")
    world.fold(1, "a")
    world.post_source(checkpoint(2), "a", fields={"name": "second"})
    world.post_source(checkpoint(3), "b", fields={"name": "third"})

    def names(query: str) -> list[str]:
        return [item["name"] for item in world.client.get(f"/sources?{query}").json()["items"]]

    assert names("") == ["third", "second", "site-a.safetensors"]
    assert names("model=a") == ["second", "site-a.safetensors"]
    assert names("status=succeeded") == ["site-a.safetensors"]
    assert names(f"sha256={sha256(checkpoint(3))}") == ["third"]
    page = world.client.get("/sources?limit=2").json()
    assert names(f"limit=2&cursor={page['next_cursor']}") == ["site-a.safetensors"]
    assert world.client.get("/sources?model=none").status_code == 404
    assert world.client.get("/sources?sha256=short").status_code == 422


def test_what_became_of_a_source_is_told_by_its_job(world: World) -> None:
    world.ready_model()
    source = world.post_source().json()["source"]["id"]
    world.publish()
    shown = world.client.get(f"/sources/{source}").json()
    assert (shown["status"], shown["version"], shown["stored"]) == ("succeeded", 1, False)


def form(parts: list[tuple[str, bytes]]) -> tuple[bytes, str]:
    """A form whose parts are in this order."""
    body = b""
    for name, value in parts:
        filename = '; filename="x.safetensors"' if name == "file" else ""
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"{filename}\r\n\r\n'
        body += head.encode() + value + b"\r\n"
    return body + b"--b--\r\n", "multipart/form-data; boundary=b"


def test_json_is_told_by_its_type_in_any_case(world: World) -> None:
    world.ready_model()
    body = json.dumps({"model": "merged", "uri": "file:///etc/passwd"})
    answer = world.client.post(
        "/sources", content=body, headers={"content-type": "Application/JSON; charset=utf-8"}
    )
    assert answer.json()["code"] == "uri_not_allowed"
