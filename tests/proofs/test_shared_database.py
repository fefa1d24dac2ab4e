"""Two APIs and four workers on one PostgreSQL, everything at once: no deadlock, no error."""

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import httpx
import pytest

from registry.jobs.states import ACTIVE
from tests.proofs.cluster import Cluster
from tests.proofs.conftest import MakeCluster
from tests.proofs.forms import choose_seed, short_and_long
from tests.servers import Postgres
from tests.service.fake_folds import checkpoint

pytestmark = pytest.mark.proof

CALLERS = 6
MODELS = 4
BACKLOG = 12  # jobs: more would only wait
PAUSE_S = 0.2  # at most, between two requests of a caller
SEED = choose_seed("SHARED_SEED")
_numbers = count()


class Caller:
    """Asks for anything that can be asked for, of one of the APIs."""

    def __init__(self, cluster: Cluster, number: int, seconds: float) -> None:
        self.chance = random.Random(SEED + number)
        self.http = cluster.https[number % len(cluster.https)]
        self.cluster = cluster
        self.until = time.monotonic() + seconds
        self.answers: Counter[tuple[str, int]] = Counter()
        self.bad: list[str] = []

    def run(self) -> None:
        """All deeds in one order, then in another, until the time is over."""
        deeds = [self.post] * 4 + [self.poll, self.list, self.cancel, self.retry] * 2
        deeds += [self.rollback, self.patch, self.delete]
        while time.monotonic() < self.until:
            for deed in self.chance.sample(deeds, len(deeds)):
                self._do(deed)
                time.sleep(self.chance.uniform(0, PAUSE_S))

    def _do(self, deed: Callable[[], httpx.Response | None]) -> None:
        answer = deed()
        if answer is not None:
            self.answers[deed.__name__, answer.status_code] += 1
            if answer.status_code >= 500:
                self.bad.append(f"{deed.__name__}: {answer.status_code} {answer.text}")

    def post(self) -> httpx.Response | None:
        if self.cluster.count_jobs(*ACTIVE) >= BACKLOG:
            return None
        name = f"source-{next(_numbers)}"
        return self.http.post(
            "/sources",
            data={"model": self._model(), "name": name},
            files={"file": (f"{name}.safetensors", checkpoint(name, ticks=1))},
        )

    def poll(self) -> httpx.Response:
        return self.http.get(f"/jobs/{self._job()}", params={"wait": self.chance.choice([0, 1])})

    def list(self) -> httpx.Response:
        return self.http.get(self.chance.choice(["/jobs", "/models", "/sources", "/workers"]))

    def cancel(self) -> httpx.Response:
        kind = self.chance.choice(["fold"] * 9 + ["prepare"])
        job = self._job(status=self.chance.choice(["queued", "running"]), kind=kind)
        return self.http.post(f"/jobs/{job}/cancel")

    def retry(self) -> httpx.Response:
        job = self._job(status=self.chance.choice(["cancelled", "failed"]))
        return self.http.post(f"/jobs/{job}/retry")

    def rollback(self) -> httpx.Response:
        return self.http.post(f"/models/{self._model()}/rollback", json={"version": 1})

    def patch(self) -> httpx.Response:
        changes = self.chance.choice([{"keep_versions": 3}, {"keep_versions": None}])
        return self.http.patch(f"/models/{self._model()}", json=changes)

    def delete(self) -> httpx.Response:
        """One of them comes and goes; the others may grow old."""
        model = "model-0"
        answer = self.http.delete(f"/models/{model}")
        body = {"name": model, "architecture": "test_resnet", "target": "target"}
        made = self.http.post("/models", json=body)
        return made if made.status_code >= 500 else answer

    def _model(self) -> str:
        return f"model-{self.chance.randrange(MODELS)}"

    def _job(self, **conditions: str) -> str:
        """One of the newest, or one that is not there."""
        answer = self.http.get("/jobs", params={"limit": 20, **conditions})
        found: list[str] = [job["id"] for job in answer.json()["items"]]
        return self.chance.choice(found or ["job_of_nobody"])


@pytest.mark.parametrize("seconds", short_and_long(10.0, 600.0))
def test_apis_and_workers_share_a_database_without_deadlocks(
    make_cluster: MakeCluster, postgres: Postgres, seconds: float
) -> None:
    print(f"SHARED_SEED={SEED}")
    with make_cluster(apis=2, workers=4) as cluster:
        cluster.client.make_models(MODELS)
        callers = [Caller(cluster, number, seconds) for number in range(CALLERS)]
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(Caller.run, callers))

        answers = sum((caller.answers for caller in callers), Counter[tuple[str, int]]())
        print(dict(answers))
        assert [bad for caller in callers for bad in caller.bad] == []
        assert {deed for deed, _ in answers} == {
            *("post", "poll", "list", "cancel", "retry", "rollback", "patch", "delete")
        }
        for number in range(MODELS):
            check_lineage(cluster.client.versions(f"model-{number}"))
        assert '"level": "error"' not in cluster.logs()
    assert "deadlock detected" not in postgres.log
    assert postgres.count_deadlocks(cluster.database_name) == 0


def check_lineage(versions: list[dict[str, Any]]) -> None:
    """One after the other, without a gap or a fork."""
    numbers = [version["number"] for version in versions]
    assert numbers == list(range(1, len(versions) + 1))
    assert [version["parent"] for version in versions] == [None, *numbers[:-1]][: len(versions)]
