"""Jobs over HTTP: polled, waited for, followed, stopped, tried again."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from sqlalchemy import delete

from app.http import following
from app.http.following import Following
from app.routes import jobs
from registry.tables import Job
from tests.app.world import Server, World, checkpoint, sha256, wait_until


@pytest.fixture
def job(world: World) -> str:
    """A queued fold."""
    world.ready_model()
    return str(world.post_source().json()["job"]["id"])


def get(world: World, job: str, **params: Any) -> Any:
    return world.client.get(f"/jobs/{job}", params=params)


def test_a_fold_from_queued_to_published(world: World, job: str) -> None:
    queued = get(world, job)
    assert queued.headers["retry-after"] == "2"
    assert (queued.json()["status"], queued.json()["started_at"]) == ("queued", None)
    assert queued.json()["links"]["cancel"] == f"/jobs/{job}/cancel"

    lease = world.claim()
    world.progress(lease, "refine", 0.5, loss=0.25, step=10, candidate="mean")
    running = get(world, job)
    assert running.headers["retry-after"] == "1"
    shown = running.json()
    assert (shown["status"], shown["stage"], shown["progress"]) == ("running", "refine", 0.5)
    assert shown["metrics"] == {
        "candidate": "mean",
        "loss": 0.25,
        "step": 10,
        "curves": {"mean": [[10, 0.25]]},
    }
    assert shown["attempts"] == 1
    assert shown["revision"] > queued.json()["revision"]
    assert shown["started_at"] is not None

    world.publish(lease)
    ended = get(world, job)
    assert "retry-after" not in ended.headers
    shown = ended.json()
    assert (shown["status"], shown["version"], shown["progress"]) == ("succeeded", 1, 1.0)
    assert shown["finished_at"] is not None
    assert shown["error"] is None
    links = shown["links"]
    assert {"cancel", "retry"}.isdisjoint(links)
    for name in ("self", "report", "model", "target", "source", "download"):
        assert world.client.get(links[name]).status_code == 200, name


def test_a_rejected_fold_says_why_and_has_a_report(world: World, job: str) -> None:
    world.reject()
    shown = get(world, job).json()
    assert shown["status"] == "rejected"
    assert shown["error"]["code"] == "gate_rejected"
    assert shown["error"]["message"] == "accuracy fell"
    assert shown["error"]["hint"]
    assert world.client.get(f"/jobs/{job}/report").json()["schema"] == 1


def test_every_failed_attempt_is_told(world: World, job: str) -> None:
    world.fail(attempts=2)
    again = get(world, job).json()
    assert (again["status"], again["attempts"], again["error"]) == ("queued", 1, None)
    world.fail(attempts=2)
    failed = get(world, job).json()
    assert (failed["status"], failed["attempts"]) == ("failed", 2)
    error = {"code": "out_of_memory", "message": "it did not fit", "hint": "a smaller batch"}
    assert failed["error"] == error
    assert [failure["attempt"] for failure in failed["failures"]] == [1, 2]


def test_figures_that_json_lacks_are_left_out(world: World, job: str) -> None:
    world.progress(world.claim(), "refine", 0.5, loss=float("nan"), lr=float("inf"), epoch=1)
    shown = get(world, job)
    assert shown.status_code == 200
    assert shown.json()["metrics"] == {"epoch": 1}
    cancelled = world.client.post(f"/jobs/{job}/cancel")
    assert cancelled.status_code == 202


def test_a_job_without_a_report(world: World, job: str) -> None:
    assert world.client.get(f"/jobs/{job}/report").status_code == 404
    assert "report" not in get(world, job).json()["links"]


# Waiting


def test_waiting_ends_with_the_job(world: World, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes when the job has ended, though the wait is much longer."""
    monkeypatch.setattr(following, "LOOK_SECONDS", 0.01)
    lease = world.claim()
    looks: list[int] = []
    look = Following.look

    async def look_at_work(followed: Following) -> None:
        looks.append(1)
        if len(looks) == 1:
            world.progress(lease, "refine", 0.5)
        if len(looks) == 2:
            world.publish(lease)
        await look(followed)

    monkeypatch.setattr(Following, "look", look_at_work)
    assert get(world, job, wait=60).json()["status"] == "succeeded"
    assert len(looks) == 2


def test_waiting_for_a_job_that_is_deleted(
    world: World, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Following.look

    async def delete_and_look(followed: Following) -> None:
        with world.database.write() as session:
            session.execute(delete(Job).where(Job.id == job))
        await look(followed)

    monkeypatch.setattr(Following, "look", delete_and_look)
    answer = get(world, job, wait=60)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_waiting_has_an_end(world: World, job: str) -> None:
    answer = get(world, job, wait=0.05)
    assert answer.json()["status"] == "queued"
    assert answer.headers["retry-after"] == "2"


@pytest.mark.parametrize("wait", ["-1", "61", "nan", "inf", "x"])
def test_waits_that_make_no_sense(world: World, job: str, wait: str) -> None:
    assert get(world, job, wait=wait).status_code == 422


# Following


def events(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Id and data of each event, as an EventSource would give them."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "data" in fields:
            assert fields["event"] == "job"
            yield int(fields["id"]), json.loads(fields["data"])
            fields = {}


def test_a_job_that_has_ended_is_sent_once(world: World, job: str) -> None:
    world.publish()
    answer = world.client.get(f"/jobs/{job}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    ((revision, shown),) = events(iter(answer.text.splitlines()))
    assert shown == get(world, job).json()
    assert revision == shown["revision"]


@pytest.mark.parametrize("seen", ["0", "99999", "x", "", "²", "9" * 5000])
def test_an_odd_last_event_id_does_no_harm(world: World, job: str, seen: str) -> None:
    world.publish()
    headers = {b"Last-Event-ID": seen.encode()}
    answer = world.client.get(f"/jobs/{job}/events", headers=headers)
    assert len(list(events(iter(answer.text.splitlines())))) == 1


def test_a_strangers_job_is_404_before_the_stream(world: World, job: str) -> None:
    answer = world.client.get("/jobs/job_none/events")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_a_live_stream_and_its_resumption(live: World) -> None:
    live.ready_model("sse", "sse-target")
    job = live.post_source(model="sse").json()["job"]["id"]
    lease = live.claim()
    with live.client.stream("GET", f"/jobs/{job}/events") as stream:
        heard = events(stream.iter_lines())
        first, shown = next(heard)
        assert shown["status"] == "running"
        live.progress(lease, "align", 0.25)
        second, shown = next(heard)
        assert (shown["stage"], shown["progress"]) == ("align", 0.25)
        assert second > first
    # The connection is lost; meanwhile the job goes on.
    live.progress(lease, "refine", 0.75)
    headers = {"Last-Event-ID": str(second)}
    with live.client.stream("GET", f"/jobs/{job}/events", headers=headers) as stream:
        heard = events(stream.iter_lines())
        third, shown = next(heard)
        assert third > second
        assert shown["stage"] == "refine"
        live.publish(lease)
        _, shown = next(heard)
        assert (shown["status"], shown["version"]) == ("succeeded", 1)
        assert list(heard) == []  # the stream ends with the job


def test_what_was_seen_is_not_sent_again(live: World) -> None:
    live.ready_model("seen", "seen-target")
    job = live.post_source(model="seen").json()["job"]
    headers = {"Last-Event-ID": str(job["revision"])}
    path = f"/jobs/{job['id']}/events"
    with live.client.stream("GET", path, headers=headers) as stream:
        heard = events(stream.iter_lines())
        live.client.post(f"/jobs/{job['id']}/cancel")
        revision, shown = next(heard)
    assert shown["status"] == "cancelled"
    assert revision > job["revision"]


def test_nobody_can_have_seen_what_is_to_come(live: World) -> None:
    live.ready_model("ahead", "ahead-target")
    job = live.post_source(model="ahead").json()["job"]["id"]
    with live.client.stream(
        "GET", f"/jobs/{job}/events", headers={"Last-Event-ID": "99999"}
    ) as stream:
        heard = events(stream.iter_lines())
        live.client.post(f"/jobs/{job}/cancel")
        _, shown = next(heard)
    assert shown["status"] == "cancelled"


def test_a_quiet_stream_is_kept_alive(
    world: World, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PING_SECONDS", 0.01)
    look = Following.look

    async def publish_and_look(followed: Following) -> None:
        world.publish()
        await look(followed)

    monkeypatch.setattr(Following, "look", publish_and_look)
    text = world.client.get(f"/jobs/{job}/events").text
    assert text.count("event: job\n") == 2
    assert ": ping\n\n" in text


def test_a_stream_of_a_deleted_job_ends(live: World) -> None:
    live.ready_model("deleted", "deleted-target")
    job = live.post_source(model="deleted").json()["job"]["id"]
    with live.client.stream("GET", f"/jobs/{job}/events") as stream:
        heard = events(stream.iter_lines())
        next(heard)
        live.client.delete("/models/deleted")
        assert list(heard) == []


def test_many_wait_at_once_and_others_are_still_served(live: World, server: Server) -> None:
    """Waiting takes no thread: there are 40, and here are 60 who wait."""
    live.ready_model("many", "many-target")
    job = live.post_source(model="many").json()["job"]["id"]
    statuses: list[str] = []

    def wait() -> None:
        answer = httpx.get(f"{server.url}/jobs/{job}?wait=60", timeout=90)
        statuses.append(answer.json()["status"])

    threads = [threading.Thread(target=wait) for _ in range(60)]
    for thread in threads:
        thread.start()
    assert live.client.get("/models").status_code == 200
    live.client.post(f"/jobs/{job}/cancel")
    for thread in threads:
        thread.join()
    assert statuses == ["cancelled"] * 60
    wait_until(lambda: live.client.get("/readyz").status_code == 200)


# Stopping and trying again


def test_a_queued_job_is_cancelled_at_once(world: World, job: str) -> None:
    answer = world.client.post(f"/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "cancelled")
    again = world.client.post(f"/jobs/{job}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "conflict")


def test_a_running_job_is_asked_to_stop(world: World, job: str) -> None:
    world.claim()
    revision = get(world, job).json()["revision"]
    answer = world.client.post(f"/jobs/{job}/cancel")
    assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert answer.json()["revision"] == revision + 1


def test_a_cancelled_job_can_be_tried_again(world: World, job: str) -> None:
    cancelled = world.client.post(f"/jobs/{job}/cancel").json()

    answer = world.client.post(cancelled["links"]["retry"])

    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["error"]) == ("queued", None)
    assert answer.json()["attempts"] == 0
    world.publish()
    ended = world.client.post(f"/jobs/{job}/retry")
    assert (ended.status_code, ended.json()["code"]) == (409, "conflict")


def test_a_rejected_source_is_posted_again_to_be_tried_again(world: World, job: str) -> None:
    world.reject()
    gone = world.client.post(f"/jobs/{job}/retry")
    assert (gone.status_code, gone.json()["code"]) == (410, "bytes_gone")

    posted = world.post_source()
    assert (posted.status_code, posted.json()["job"]["id"]) == (200, job)
    assert world.store.has(sha256(checkpoint()))
    assert world.client.post(f"/jobs/{job}/retry").status_code == 202
    world.publish()
    assert get(world, job).json()["version"] == 1


def test_a_failed_preparation_can_be_tried_again(world: World) -> None:
    world.ready_target("faces")
    job = world.post_model("merged").json()["job"]["id"]
    world.fail()
    assert world.client.get("/models/merged/info").json()["error"]["code"] == "out_of_memory"
    assert world.client.post(f"/jobs/{job}/retry").status_code == 202
    world.prepare()
    info = world.client.get("/models/merged/info").json()
    assert (info["status"], info["error"]) == ("ready", None)


def test_all_that_failed_for_one_reason_is_tried_again(world: World) -> None:
    world.ready_model()
    jobs = [world.post_source(checkpoint(seed)).json()["job"]["id"] for seed in (1, 2)]
    for _ in jobs:
        world.fail()

    def listed(code: str) -> set[str]:
        return {item["id"] for item in world.client.get(f"/jobs?code={code}").json()["items"]}

    assert (listed("worker_lost"), listed("out_of_memory")) == (set(), set(jobs))
    none = world.client.post("/jobs/retry?code=worker_lost")
    again = world.client.post("/jobs/retry?code=out_of_memory", headers={"Idempotency-Key": "k"})
    repeated = world.client.post("/jobs/retry?code=out_of_memory", headers={"Idempotency-Key": "k"})

    assert (none.status_code, none.json()["items"]) == (202, [])
    assert [(item["id"], item["status"]) for item in again.json()["items"]] == [
        (job, "queued") for job in jobs
    ]
    assert repeated.json() == again.json()
    assert listed("out_of_memory") == set()
    assert world.client.post("/jobs/retry").status_code == 422


def test_a_dry_run_is_not_tried_again(world: World) -> None:
    world.ready_model()
    job = world.post_raw(checkpoint(), params={"dry_run": "true"}).json()["job"]["id"]
    cancelled = world.client.post(f"/jobs/{job}/cancel").json()
    assert "retry" not in cancelled["links"]
    answer = world.client.post(f"/jobs/{job}/retry")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_lists_are_filtered_and_paged(world: World) -> None:
    world.ready_target("others")
    world.ready_model()
    world.post_source()

    def found(query: str) -> list[str]:
        return [item["kind"] for item in world.client.get(f"/jobs?{query}").json()["items"]]

    assert found("") == ["fold", "prepare", "validate", "validate"]
    assert found("model=merged") == ["fold", "prepare"]
    assert found("target=others") == ["validate"]
    assert found("target=faces&kind=validate") == ["validate"]
    assert found("status=queued") == ["fold"]
    assert found("model=merged&status=succeeded") == ["prepare"]
    page = world.client.get("/jobs?limit=3").json()
    assert found(f"limit=3&cursor={page['next_cursor']}") == ["validate"]
    assert world.client.get("/jobs?status=done").status_code == 422
