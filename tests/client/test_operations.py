"""What a client can do, at once and awaited, on a live server."""

from __future__ import annotations

import json
import threading
import zipfile
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from grasp_client import (
    CheckpointMismatch,
    Conflict,
    Grasp,
    GraspError,
    Invalid,
    JobCancelled,
    JobFailed,
    JobRejected,
    JobUnfinished,
    Misunderstood,
    NotAllowed,
    NotFound,
    Source,
    Unreachable,
    files,
    protocol,
)
from tests.app.world import CLASSES, Server, World, checkpoint, sha256
from tests.client.hand import working


def test_a_target_from_a_file(g: Any, world: World, tmp_path: Path) -> None:
    archive = tmp_path / "faces.zip"
    archive.write_bytes(b"PK images")
    seen: list[tuple[int, int]] = []

    target = g.targets.create(
        "faces", archive, progress=lambda done, total: seen.append((done, total))
    )

    assert (target.name, target.status, target.sha256) == (
        "faces",
        "validating",
        sha256(b"PK images"),
    )
    assert seen == [(9, 9)]
    with working(world):
        ready = target.wait()
    assert (ready.status, ready.classes) == ("ready", list(CLASSES))
    assert [each.id for each in g.targets.list(status="ready")] == [target.id]
    g.targets.delete("faces")
    assert g.targets.list() == []


def test_a_target_from_a_folder_is_sent_as_a_zip(
    grasp: Grasp, world: World, tmp_path: Path
) -> None:
    for name in ("F/1.png", "M/2.png"):
        path = tmp_path / "faces" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(name.encode())

    target = grasp.targets.create("faces", tmp_path / "faces")

    assert target.sha256 is not None
    with zipfile.ZipFile(world.store.fetch(target.sha256)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == {
            "F/1.png": b"F/1.png",
            "M/2.png": b"M/2.png",
        }


def test_a_target_by_its_uri_is_not_sent(grasp: Grasp) -> None:
    with pytest.raises(Invalid) as caught:
        grasp.targets.create("faces", "file:///nowhere/faces")

    assert caught.value.code == "uri_not_allowed"


def test_a_model_from_its_making_to_its_end(grasp: Grasp, world: World) -> None:
    world.ready_target("faces")

    model = grasp.models.create(
        "merged", architecture="test_vit", target="faces", merge={"tau": 0.2}, keep_versions=3
    )
    with working(world):
        ready = model.wait()

    assert (model.status, ready.status) == ("preparing", "ready")
    assert (ready.classes, ready.sources) == (list(CLASSES), {})
    changed = grasp.models.update("merged", merge={"refine": {"epochs": 1}}, keep_versions=None)
    assert (changed.merge["tau"], changed.merge["refine"]["epochs"]) == (0.2, 1)
    assert changed.keep_versions is None
    assert [each.name for each in grasp.models.list(target="faces")] == ["merged"]
    grasp.models.delete(model.id)
    with pytest.raises(NotFound):
        grasp.models.get("merged")


def test_a_model_that_begins_from_weights(g: Any, world: World, source: Path) -> None:
    world.ready_target("faces")
    seen: list[tuple[int, int]] = []

    model = g.models.create(
        "merged",
        architecture="test_vit",
        target="faces",
        preprocessing={"grayscale": True},
        weights=source,
        progress=lambda done, total: seen.append((done, total)),
    )

    size = source.stat().st_size
    [first] = g.sources.list(model=model.id)
    assert (first.name, first.sha256) == ("initial", sha256(source.read_bytes()))
    assert model.preprocessing["grayscale"] is True
    assert seen == [(size, size)]


def test_a_model_with_a_base(g: Any, world: World, source: Path, tmp_path: Path) -> None:
    world.ready_target("faces")
    base = tmp_path / "base.safetensors"
    base.write_bytes(checkpoint(9))
    described = {"architecture": "test_vit", "target": "faces"}

    with_file = g.models.create("file", **described, base=base, weights=source)
    initial = g.models.create("initial", **described, base="initial", weights=source)
    without = g.models.create("without", **described)

    assert (with_file.base.sha256, with_file.base.size) == (
        sha256(base.read_bytes()),
        base.stat().st_size,
    )
    assert initial.base.sha256 == sha256(source.read_bytes())
    assert without.base is None
    assert g.models.get("file").base == with_file.base
    assert g.uploads.list() == []
    with pytest.raises(Invalid, match="no initial weights"):
        g.models.create("none", **described, base="initial")
    with pytest.raises(Invalid) as caught:
        g.models.create("none", **described, base="file:///nowhere/base.safetensors")
    assert caught.value.code == "uri_not_allowed"
    with pytest.raises(GraspError, match="there is no file"):
        g.models.create("none", **described, base=tmp_path / "initial")


def test_a_source_is_pushed_folded_and_pulled(
    g: Any, world: World, source: Path, tmp_path: Path
) -> None:
    world.ready_model()

    pushed = g.sources.push(source, model="merged", classes=CLASSES)
    states: list[tuple[str, float]] = []
    with working(world):
        job = pushed.job.wait(lambda job: states.append((job.status, job.progress)))

    assert (pushed.name, pushed.sha256) == ("site-a.safetensors", sha256(source.read_bytes()))
    assert pushed.classes == list(CLASSES)
    assert states[-1] == ("succeeded", 1.0)
    assert (job.succeeded, job.version) == (True, 1)
    assert g.sources.get(pushed.id).status == "succeeded"
    [version] = g.models.versions("merged")
    assert (version.number, version.source) == (1, pushed.id)
    assert g.models.report("merged")["schema"] == g.models.report("merged", 1)["schema"] == 1
    assert {it["share"] for it in g.models.provenance("merged")["sources"]} == {0.75, 0.25}
    assert pushed.job.report() == g.jobs.report(job.id) == g.models.report("merged", 1)
    (tmp_path / "out").mkdir()
    path = g.models.pull("merged", tmp_path / "out")
    assert path == tmp_path / "out" / "merged-v1.safetensors"
    assert sha256(path.read_bytes()) == version.sha256


def test_any_version_can_be_pulled_and_gone_back_to(g: Any, world: World, tmp_path: Path) -> None:
    world.ready_model()
    for number in (1, 2):
        world.fold(number, weights=b"%d" % number)
    seen: list[tuple[int, int]] = []

    old = g.models.pull(
        "merged",
        tmp_path / "deep" / "old.safetensors",
        version=1,
        progress=lambda done, total: seen.append((done, total)),
    )
    made = g.models.rollback("merged", 1)
    new = g.models.pull("merged", f"{tmp_path}/new/")

    assert (old.read_bytes(), new.read_bytes()) == (b"1", b"1")
    assert seen == [(1, 1)]
    assert new == tmp_path / "new" / "merged-v3.safetensors"
    assert (made.number, made.rollback_of) == (3, 1)
    assert [version.number for version in g.models.versions("merged", limit=2)] == [3, 2]
    assert [path.name for path in old.parent.iterdir()] == ["old.safetensors"]


def test_nothing_to_pull_yet(grasp: Grasp, world: World, tmp_path: Path) -> None:
    world.ready_model()

    with pytest.raises(Conflict) as caught:
        grasp.models.pull("merged", tmp_path / "out.safetensors")

    assert caught.value.code == "no_version"
    assert list(tmp_path.iterdir()) == []


def test_the_same_bytes_are_the_same_source(grasp: Grasp, world: World, source: Path) -> None:
    world.ready_model()

    first = grasp.sources.push(source, model="merged")
    again = grasp.sources.push(source, model="merged", name="another")

    assert (again.id, again.job.id, again.name) == (first.id, first.job.id, "site-a.safetensors")
    assert len(grasp.sources.list(model="merged", sha256=first.sha256)) == 1


def test_a_dry_run_keeps_no_source(grasp: Grasp, world: World, source: Path) -> None:
    world.ready_model()

    tried = grasp.sources.push(source, model="merged", dry_run=True)
    with working(world):
        job = tried.wait()

    assert (tried.id, tried.sha256, tried.name) == (
        None,
        sha256(source.read_bytes()),
        "site-a.safetensors",
    )
    assert (job.kind, job.version) == ("dry_run", None)
    assert grasp.sources.list() == []


@pytest.mark.parametrize(
    ("name", "kind", "code"),
    [("bad", JobRejected, "gate_rejected"), ("broken", JobFailed, "out_of_memory")],
)
def test_a_job_that_did_not_succeed_says_why(
    grasp: Grasp, world: World, source: Path, name: str, kind: type[JobFailed], code: str
) -> None:
    world.ready_model()
    pushed = grasp.sources.push(source, model="merged", name=name)

    with working(world), pytest.raises(kind) as caught:
        pushed.job.wait()

    failure, error = caught.value, pushed.job.get().error
    assert error is not None
    assert (failure.code, failure.job.id) == (code, pushed.job.id)
    assert (failure.message, failure.hint) == (error.message, error.hint)
    assert str(failure) == f"{failure.message} ({failure.hint})"


def test_a_job_can_be_stopped_and_begun_again(g: Any, world: World, source: Path) -> None:
    world.ready_model()
    pushed = g.sources.push(source, model="merged")

    assert pushed.job.cancel().status == "cancelled"

    with pytest.raises(JobCancelled):
        g.jobs.wait(pushed.job.id)
    with pytest.raises(Conflict):
        g.jobs.cancel(pushed.job.id)
    assert g.jobs.retry(pushed.job.id).status == "queued"


def test_jobs_that_failed_for_one_reason_are_begun_again(
    g: Any, world: World, source: Path
) -> None:
    world.ready_model()
    pushed = g.sources.push(source, model="merged")
    world.fail()

    assert [job.id for job in g.jobs.list(code="out_of_memory")] == [pushed.job.id]
    assert g.jobs.retry_failed("worker_lost") == []
    [again] = g.jobs.retry_failed("out_of_memory")
    assert (again.id, again.status) == (pushed.job.id, "queued")


def test_a_job_that_takes_too_long_is_not_waited_for(g: Any, world: World, source: Path) -> None:
    world.ready_model()
    pushed = g.sources.push(source, model="merged")

    with pytest.raises(JobUnfinished):
        pushed.job.wait(timeout=0.3)

    assert pushed.job.get().status == "queued"


def test_a_job_is_followed_state_by_state(g: Any, world: World, source: Path) -> None:
    world.ready_model()
    pushed = g.sources.push(source, model="merged")
    states = []

    for job in pushed.job.follow():
        states.append((job.status, job.stage))
        if job.status == "queued":
            lease = world.claim()
            world.progress(lease, "align", 0.1)
        elif job.status == "running":
            world.publish(lease)

    assert states == [("queued", None), ("running", "align"), ("succeeded", "align")]


def test_lists_go_on_over_pages(
    grasp: Grasp, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        world.post_target(f"t{number}")
    monkeypatch.setattr(protocol, "LARGEST_PAGE", 2)

    assert [target.name for target in grasp.targets.list()] == ["t4", "t3", "t2", "t1", "t0"]
    assert [target.name for target in grasp.targets.list(limit=3)] == ["t4", "t3", "t2"]
    assert [job.kind for job in grasp.jobs.list(target="t0", kind="validate")] == ["validate"]


def test_an_error_says_all_that_the_server_said(g: Any) -> None:
    with pytest.raises(NotFound) as caught:
        g.models.get("faces")

    error = caught.value
    assert (error.status, error.code) == (404, "not_found")
    assert error.detail == error.message == "there is no model 'faces'"
    assert error.hint is not None
    assert error.request_id is not None


def test_what_was_wrong_with_the_fields_is_listed(grasp: Grasp, world: World) -> None:
    world.ready_target("faces")

    with pytest.raises(Invalid) as caught:
        grasp.models.create(
            "m", architecture="test_vit", target="faces", image_size=3, colour="red"
        )

    assert {error["where"] for error in caught.value.errors} == {"body.image_size", "body.colour"}


def test_a_checkpoint_of_another_model_is_refused_with_all_differences(
    grasp: Grasp, world: World, tmp_path: Path
) -> None:
    world.ready_model()
    other = tmp_path / "other.safetensors"
    other.write_bytes(checkpoint(1, stem__weight=(5, 3), head__bias=None, more=(1,)))

    with pytest.raises(CheckpointMismatch) as caught:
        grasp.sources.push(other, model="merged")

    assert caught.value.message.startswith("other.safetensors is not a test_vit checkpoint")
    assert caught.value.mismatches["missing"] == ["head.bias"]
    assert caught.value.mismatches["unexpected"] == ["more"]
    assert caught.value.mismatches["wrong_shape"] == {"stem.weight": [[4, 3], [5, 3]]}


def test_names_that_are_hard_to_write_arrive(grasp: Grasp, world: World, source: Path) -> None:
    world.ready_model()
    name = 'größe "x"%22\\ 猫.safetensors'
    odd = source.rename(source.with_name(name))

    assert grasp.sources.push(odd, model="merged").name == name


def test_a_name_does_not_lead_elsewhere(grasp: Grasp, world: World) -> None:
    world.ready_model()

    for name in ("../models/merged", "x/../../models/merged", "merged?x", "merged#", "a b"):
        with pytest.raises(GraspError):
            grasp.targets.delete(name)
        with pytest.raises(GraspError):
            grasp.models.get(name)
    assert grasp.models.get("merged").name == "merged"


def test_a_file_that_is_missing_is_noticed_before_anything_is_sent(grasp: Grasp) -> None:
    with pytest.raises(GraspError, match=r"there is no file 'nowhere\.safetensors'"):
        grasp.sources.push("nowhere.safetensors", model="merged")


def test_a_uri_is_left_to_the_server(grasp: Grasp, world: World) -> None:
    world.ready_model()

    with pytest.raises(Invalid) as caught:
        grasp.sources.fetch("https://example.org/a.safetensors", model="merged")

    assert caught.value.code == "uri_not_allowed"


class TestLargeFiles:
    @pytest.fixture(autouse=True)
    def _small_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(files, "LARGE_BYTES", 1)
        monkeypatch.setattr(files, "PART_BYTES", 100)

    def test_they_are_sent_in_parts(self, g: Any, world: World, source: Path) -> None:
        world.ready_model()
        seen: list[int] = []

        pushed = g.sources.push(
            source,
            model="merged",
            classes=CLASSES,
            progress=lambda done, _total: seen.append(done),
        )

        size = source.stat().st_size
        assert seen == sorted(seen)
        assert set(seen) == {*range(0, size, 100), size}
        assert (pushed.sha256, pushed.classes) == (sha256(source.read_bytes()), list(CLASSES))
        assert g.uploads.list() == []

    def test_a_large_target_too(self, grasp: Grasp, world: World, tmp_path: Path) -> None:
        archive = tmp_path / "faces.zip"
        archive.write_bytes(b"PK" + bytes(300))

        assert grasp.targets.create("faces", archive).sha256 == sha256(archive.read_bytes())

    def test_what_an_interrupted_push_has_sent_is_not_sent_again(
        self, g: Any, world: World, source: Path
    ) -> None:
        world.ready_model()

        def interrupt(done: int, _total: int) -> None:
            if done > 100:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            g.sources.push(source, model="merged", progress=interrupt)
        seen: list[int] = []
        g.sources.push(source, model="merged", progress=lambda done, _: seen.append(done))

        assert min(seen) >= 100
        assert len(g.sources.list()) == 1

    @pytest.mark.parametrize("share", [0, 0.5, 1])
    def test_two_who_push_the_same_file_get_the_same_source(
        self, g: Any, grasp: Grasp, world: World, source: Path, share: float
    ) -> None:
        """One of them is overtaken on its way: both send one upload, which the other takes."""
        world.ready_model()
        others: list[Source] = []

        def overtaken(done: int, total: int) -> None:
            if done >= share * total and not others:
                others.append(grasp.sources.push(source, model="merged"))

        pushed = g.sources.push(source, model="merged", progress=overtaken)

        assert [pushed.id] == [other.id for other in others]
        assert pushed.job.id == others[0].job.id
        assert g.uploads.list() == []

    @pytest.mark.parametrize("dry_run", [False, True])
    def test_also_where_the_other_is_first_to_offer_it(
        self,
        g: Any,
        grasp: Grasp,
        world: World,
        source: Path,
        monkeypatch: pytest.MonkeyPatch,
        dry_run: bool,
    ) -> None:
        world.ready_model()
        others: list[Source] = []
        client = g if isinstance(g, Grasp) else g._thing
        ask = type(client).ask

        def overtaken(self: Any, method: str, path: str, **options: Any) -> Any:
            if (method, path) == ("POST", "/sources"):
                monkeypatch.setattr(type(client), "ask", ask)
                others.append(grasp.sources.push(source, model="merged"))
            return ask(self, method, path, **options)

        monkeypatch.setattr(type(client), "ask", overtaken)
        seen: list[int] = []
        pushed = g.sources.push(
            source, model="merged", dry_run=dry_run, progress=lambda done, _: seen.append(done)
        )

        assert pushed.sha256 == others[0].sha256
        assert pushed.id == (None if dry_run else others[0].id)
        assert seen.count(0) == (2 if dry_run else 1)  # the bar began anew, or nothing was sent

    def test_one_file_as_two_targets_at_the_same_time(
        self, g: Any, grasp: Grasp, world: World, tmp_path: Path
    ) -> None:
        archive = tmp_path / "faces.zip"
        archive.write_bytes(b"PK" + bytes(300))
        seen: list[int] = []

        def overtaken(done: int, _total: int) -> None:
            if done == 200 and 200 not in seen:
                grasp.targets.create("one", archive)
            seen.append(done)

        assert g.targets.create("two", archive, progress=overtaken).name == "two"

        assert {target.name for target in grasp.targets.list()} == {"one", "two"}
        assert seen[-1] == 302
        assert seen.count(0) == 2

    def test_what_else_is_missing_is_said(
        self, g: Any, grasp: Grasp, world: World, source: Path
    ) -> None:
        world.ready_model()

        with pytest.raises(NotFound, match="there is no model 'merged'"):
            g.sources.push(
                source, model="merged", progress=lambda *_: _delete_model(grasp, "merged")
            )

        assert len(grasp.uploads.list()) == 1

    def test_another_models_checkpoint_is_refused_by_its_first_part(
        self, grasp: Grasp, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(files, "PART_BYTES", 1000)
        world.ready_model()
        other = tmp_path / "other.safetensors"
        other.write_bytes(checkpoint(1, stem__weight=(500, 3)))
        seen: list[int] = []

        with pytest.raises(CheckpointMismatch):
            grasp.sources.push(other, model="merged", progress=lambda done, _: seen.append(done))

        assert max(seen) < other.stat().st_size

    def test_an_upload_by_hand(self, grasp: Grasp, world: World, source: Path) -> None:
        upload = grasp.uploads.send(source, metadata={"colour": "red"})

        assert upload.finished
        assert grasp.uploads.get(upload.id).metadata == {
            "filename": "site-a.safetensors",
            "colour": "red",
        }
        assert grasp.uploads.resume(upload.id, source).id == upload.id
        grasp.uploads.delete(upload.id)
        with pytest.raises(NotFound):
            grasp.uploads.get(upload.id)


def _delete_model(grasp: Grasp, name: str) -> None:
    with suppress(NotFound):
        grasp.models.delete(name)


def test_many_class_names_arrive(grasp: Grasp, world: World, tmp_path: Path) -> None:
    """More than fit into a header, or into a field of a form."""
    world.ready_model()
    names = [f"class number {number}" for number in range(2000)]
    wide = tmp_path / "wide.safetensors"
    wide.write_bytes(checkpoint(1, head__weight=(2000, 4), head__bias=(2000,)))

    assert grasp.sources.push(wide, model="merged", classes=names).classes == names


def test_a_key_opens_what_is_its_owners(connect: Any, world: World, server: Server) -> None:
    secret = world.key("ada", "read")["Authorization"].removeprefix("Bearer ")

    with pytest.raises(NotAllowed) as caught:
        connect(server.url).models.list()
    assert caught.value.status == 401
    assert connect(server.url, key=secret).models.list() == []
    with pytest.raises(NotAllowed) as caught:
        connect(server.url, key=secret).models.delete("x")
    assert caught.value.status == 403


def test_address_and_key_come_from_the_environment(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = world.key("ada", "read")["Authorization"].removeprefix("Bearer ")
    monkeypatch.setenv("GRASP_URL", f"{server.url}/")
    monkeypatch.setenv("GRASP_KEY", f" {secret}\n")

    with Grasp() as grasp:
        assert grasp.url == server.url
        assert grasp.models.list() == []


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused(connect: Any, url: str) -> None:
    with pytest.raises(GraspError, match="is not the address of a server"):
        connect(url)


def test_a_key_that_cannot_be_one_is_refused(connect: Any) -> None:
    with pytest.raises(GraspError, match="no key has"):
        connect("http://127.0.0.1:1", key="schlüssel")


def test_a_server_that_does_not_run_is_not_waited_for_if_so_wished(connect: Any) -> None:
    with pytest.raises(Unreachable) as caught:
        connect("http://127.0.0.1:1", wait_for_server=False).models.list()

    assert caught.value.refused
    assert caught.value.hint is not None
    assert "grasp serve" in caught.value.hint


@pytest.mark.parametrize("body", [b"<html>hello</html>", b'{"items": [{}], "next_cursor": null}'])
def test_a_server_of_another_kind_is_noticed(connect: Any, body: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        with pytest.raises(Misunderstood):
            connect(f"http://127.0.0.1:{other.server_port}").models.list()
        other.shutdown()
        thread.join()


def test_records_are_what_the_server_sent(grasp: Grasp, world: World) -> None:
    world.ready_model()

    for path, record in [
        ("/models/merged/info", grasp.models.get("merged")),
        ("/targets/faces", grasp.targets.get("faces")),
    ]:
        assert json.loads(record.model_dump_json()) == world.client.get(path).json()
