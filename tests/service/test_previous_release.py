"""A home of the previous release, migrated: all of it is still there, and goes on.

tests/service/previous_release/README.md says what it holds.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from registry.blobs import open_store
from registry.blobs.damage import scrub
from registry.database import Database
from registry.process.settings import Settings
from tests.service.harness import none_left
from tests.serving import serving
from tests.worker.waiting import until

ARCHIVE = Path(__file__).with_name("previous_release") / "home.tar.xz"
TUS = {"Tus-Resumable": "1.0.0", "Content-Type": "application/offset+octet-stream"}
Json = dict[str, Any]
Rows = dict[str, list[Json]]


@dataclass(frozen=True)
class Left:
    """What the previous release left behind."""

    home: Path
    key: str
    rest: bytes  # of an upload in parts
    rows: Rows  # of every table

    @property
    def jobs(self) -> dict[str, Json]:
        """By what they did; the last of a kind."""
        return {f"{row['kind']} {row['status']}": row for row in self.rows["jobs"]}


def rows_of(home: Path) -> Rows:
    """All that the database holds, as it lies there."""
    with closing(sqlite3.connect(home / "grasp.db")) as database:
        database.row_factory = sqlite3.Row
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [name for (name,) in tables.fetchall() if name != "alembic_version"]
        return {
            name: [dict(row) for row in database.execute(f'SELECT * FROM "{name}"')]
            for name in names
        }


@pytest.fixture
def left(no_settings: None, tmp_path: Path) -> Iterator[Left]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    home = tmp_path / "home"
    key, rest = (tmp_path / "key.txt").read_text(), (tmp_path / "rest.bin").read_bytes()
    with none_left(home):
        yield Left(home, key, rest, rows_of(home))


def add_schedule(model: dict[str, Any]) -> dict[str, Any]:
    """There was one, which had no name."""
    merge = json.loads(model["merge"])
    merge["refine"] |= {"schedule": "epoch", "steps": None}
    return model | {"merge": json.dumps(merge)}


def test_no_row_and_no_blob_is_lost_by_the_migration(left: Left) -> None:
    settings = Settings(home=left.home)
    database = Database(settings.database)
    database.migrate()

    after = rows_of(left.home)
    for name, rows in left.rows.items():
        kept = [{column: row[column] for column in rows[0]} for row in after[name] if rows]
        wanted = [add_schedule(row) for row in rows] if name == "models" else rows
        assert kept == wanted, name
    reports = list(scrub(database, open_store(settings)))
    assert [(report.sha256, report.problem) for report in reports if report.problem] == []
    assert all(report.uses for report in reports)  # and every blob is still needed
    database.close()


def test_the_present_release_goes_on_where_the_previous_one_stopped(left: Left) -> None:
    with serving(left.home) as (client, _):
        client.headers["Authorization"] = f"Bearer {left.key}"
        before = versions_of(client)[:3]  # a worker may have begun
        assert [(v["number"], v["parent"], v["rollback_of"]) for v in before] == [
            (1, None, None),
            (2, 1, None),
            (3, 2, 1),
        ]
        weights = [weights_of(client, version) for version in before]
        check_reports(client, left, before)
        check_pages(client, left, before)

        queued = ended(client, left.jobs["fold queued"]["id"])
        late = ended(client, send_the_rest(client, left))

        for job in (queued, late):
            assert (job["status"], job["error"]) == ("succeeded", None)
        after = versions_of(client)
        assert [(v["number"], v["parent"]) for v in after[3:]] == [(4, 3), (5, 4)]
        assert [v["source"] for v in after[3:]] == [queued["source"], late["source"]]
        assert [without_links(v) for v in after[:3]] == [without_links(v) for v in before]
        assert [weights_of(client, version) for version in after[:3]] == weights
        for version in after[3:]:
            weights_of(client, version)
            parent = after[version["parent"] - 1]
            report = client.get(version["links"]["report"]).json()
            assert (report["sha256"], report["parent"]) == (version["sha256"], parent["sha256"])
        check_pages(client, left, after)
        check_contents(client, left)

        other = {"merge": {"method": "mean"}}  # which the previous release did not have
        assert client.patch("/models/merged", json=other).status_code == 200
        second = client.get(after[1]["links"]["self"]).content
        offered = client.post("/sources", params={"model": "merged"}, content=second)
        assert ended(client, offered.json()["job"]["id"])["status"] == "succeeded"
        remembered = [version["state"] is not None for version in versions_of(client)]
        assert remembered == [False] * 5 + [True]
        info = client.get("/models/merged/info").json()
        assert info["sources"] == {"succeeded": 5, "rejected": 1}


def versions_of(client: httpx.Client) -> list[Json]:
    """Oldest first."""
    items: list[Json] = client.get("/models/merged/versions").json()["items"]
    return items[::-1]


def without_links(version: Json) -> Json:
    """What a later release may have added to."""
    return {key: value for key, value in version.items() if key != "links"}


def weights_of(client: httpx.Client, version: Json) -> str:
    """The hash of what is downloaded, which is the version's."""
    found = client.get(version["links"]["self"])
    assert found.status_code == 200
    digest = hashlib.sha256(found.content).hexdigest()
    assert digest == version["sha256"]
    return digest


def check_reports(client: httpx.Client, left: Left, versions: list[Json]) -> None:
    """As JSON they are what was stored."""
    stored = {row["id"]: row["report"] for row in left.rows["jobs"]}
    for version in versions:
        assert client.get(version["links"]["report"]).json() == json.loads(stored[version["job"]])
        provenance = client.get(version["links"]["provenance"]).json()
        assert sum(source["share"] for source in provenance["sources"]) == pytest.approx(1)
    for ended_as in ("fold rejected", "dry_run succeeded"):
        job = left.jobs[ended_as]["id"]
        assert client.get(f"/jobs/{job}/report").json() == json.loads(stored[job])


def check_pages(client: httpx.Client, left: Left, versions: list[Json]) -> None:
    """What people look at can be drawn from what was stored."""
    numbers = [version["number"] for version in versions]
    paths = ["/", "/ui/models/merged", "/ui/targets/digits", "/ui/jobs"]
    paths += [f"/ui/models/merged/versions/{number}" for number in numbers]
    paths += [f"/ui/models/merged/compare?a={n}&b={numbers[-1]}" for n in numbers[:-1]]
    paths += [f"/ui/jobs/{row['id']}" for row in left.rows["jobs"]]
    for path in paths:
        page = client.get(path, headers={"Accept": "text/html"})
        assert page.status_code == 200, path
    measured = client.get(f"/ui/models/merged/versions/{numbers[1]}").text
    assert "conv_stem.weight" in measured


def check_contents(client: httpx.Client, left: Left) -> None:
    """What was still stored when the first source came is digested, and so is what came."""
    stored = {row["id"] for row in left.rows["sources"] if row["stored"]}
    sources = client.get("/sources", params={"model": "merged"}).json()["items"]
    new = {source["id"] for source in sources} - {row["id"] for row in left.rows["sources"]}
    known = {source["id"] for source in sources if source["content"]}
    assert new <= known <= stored | new


def send_the_rest(client: httpx.Client, left: Left) -> str:
    """End the upload that was half done, and offer it; the job."""
    [upload] = left.rows["uploads"]
    place = f"/uploads/{upload['id']}"
    headers = TUS | {"Upload-Offset": str(upload["received"])}
    assert client.patch(place, headers=headers, content=left.rest).status_code == 204
    offered = client.post("/sources", json={"model": "merged", "upload": upload["id"]})
    assert offered.status_code == 202, offered.text
    job: str = offered.json()["job"]["id"]
    return job


def ended(client: httpx.Client, job_id: str) -> Json:
    until(lambda: client.get(f"/jobs/{job_id}", params={"wait": 30}).json()["finished_at"])
    job: Json = client.get(f"/jobs/{job_id}").json()
    return job
