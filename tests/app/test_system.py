"""The service itself: alive, ready, shown."""

from datetime import timedelta
from importlib.metadata import version

import pytest

from registry.tables import utc_now
from tests.app.world import World


def test_healthz_says_ok_and_which_version(world: World) -> None:
    answer = world.client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "version": version("grasp-merge")}


def test_readyz_counts_the_workers_that_live(world: World) -> None:
    world.add_worker()
    world.add_worker(id="wrk_b", seen_at=utc_now() - timedelta(hours=1))
    answer = world.client.get("/readyz")
    assert answer.status_code == 200
    checks = {"database": "ok", "blobs": "ok", "workers": "1"}
    assert answer.json() == {"status": "ready", "checks": checks}


def test_workers_are_listed_filtered_and_paged(world: World) -> None:
    for name in ("a", "b", "c"):
        world.add_worker(id=f"wrk_{name}")
    world.add_worker(id="wrk_d", seen_at=utc_now() - timedelta(hours=1))

    def found(query: str) -> list[str]:
        return [item["id"] for item in world.client.get(f"/workers?{query}").json()["items"]]

    assert found("") == ["wrk_a", "wrk_b", "wrk_c", "wrk_d"]
    assert found("alive=true") == ["wrk_a", "wrk_b", "wrk_c"]
    assert found("alive=false") == ["wrk_d"]
    page = world.client.get("/workers?limit=3").json()
    assert found(f"limit=3&cursor={page['next_cursor']}") == ["wrk_d"]
    assert world.client.get("/workers?limit=4").json()["next_cursor"] is None


def test_the_documentation_is_there(world: World) -> None:
    world.key("ann", "admin")
    assert world.client.get("/docs").status_code == 200
    assert world.client.get("/openapi.json").json()["info"]["title"] == "GRASP merge service"


@pytest.mark.parametrize("path", ["/models", "/healthz", "/metrics", "/models/none/info"])
def test_nothing_on_the_way_keeps_or_guesses(world: World, path: str) -> None:
    answer = world.client.get(path)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
