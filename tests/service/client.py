"""A client of the live API, and what it can find out about the outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import httpx
from sqlalchemy import select

from registry.database import Database
from registry.jobs.states import TERMINAL
from registry.process.settings import Settings
from registry.tables import Job, Model, Source
from tests.service.fake_folds import chain
from tests.worker.waiting import until

Json = dict[str, Any]


class Client:
    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def make_models(self, count: int, **options: Any) -> list[str]:
        """Their names; nothing of them is prepared yet."""
        _accepted(self.http.post("/targets", params={"name": "target"}, content=b"images"))
        names = [f"model-{number}" for number in range(count)]
        for name in names:
            body = {"name": name, "architecture": "test_resnet", "target": "target", **options}
            _accepted(self.http.post("/models", json=body))
        return names

    def offer(self, model: str, name: str, data: bytes, key: str | None = None) -> Json:
        headers = {"Idempotency-Key": key} if key else {}
        return _accepted(
            self.http.post(
                "/sources",
                data={"model": model, "name": name},
                files={"file": (f"{name}.safetensors", data)},
                headers=headers,
            )
        )

    def job(self, job_id: str) -> Json:
        return _accepted(self.http.get(f"/jobs/{job_id}"))

    def ended(self, job_id: str) -> Json:
        found: list[Json] = []

        def is_over() -> bool:
            found.append(_accepted(self.http.get(f"/jobs/{job_id}", params={"wait": 30})))
            return found[-1]["status"] in TERMINAL

        until(is_over)
        return found[-1]

    def versions(self, model: str) -> list[Json]:
        """Oldest first."""
        items: list[Json] = []
        after: Json = {}
        while True:
            params = {"limit": 200, **after}
            page = _accepted(self.http.get(f"/models/{model}/versions", params=params))
            items += page["items"]
            if page["next_cursor"] is None:
                return items[::-1]
            after = {"cursor": page["next_cursor"]}

    def check_chain(self, settings: Settings, model: str, files: Sequence[bytes]) -> None:
        """The model has folded each of the files once, one onto the other, in arrival order."""
        versions = self.versions(model)
        arrived = _in_arrival_order(settings, model)
        by_hash = {hashlib.sha256(data).hexdigest(): data for data in files}
        expected = chain(by_hash[sha256] for _, sha256 in arrived)

        count = len(files)
        assert [version["number"] for version in versions] == list(range(1, count + 1))
        assert [version["parent"] for version in versions] == [None, *range(1, count)]
        assert [version["source"] for version in versions] == [source for source, _ in arrived]
        assert [version["sha256"] for version in versions] == expected
        newest = self.http.get(f"/models/{model}")
        assert hashlib.sha256(newest.content).hexdigest() == expected[-1]


def _in_arrival_order(settings: Settings, model: str) -> list[tuple[str, str]]:
    """Ids and hashes of a model's sources, by the numbers that their jobs drew."""
    database = Database(settings.database)
    sources = (
        select(Source.id, Source.sha256)
        .join(Job, Job.id == Source.job_id)
        .join(Model, Model.id == Source.model_id)
        .where(Model.name == model)
        .order_by(Job.seq)
    )
    with database.read() as session:
        rows = session.execute(sources).all()
    database.close()
    return [(row.id, row.sha256) for row in rows]


def _accepted(response: httpx.Response) -> Json:
    assert response.is_success, response.text
    answer: Json = response.json()
    return answer
