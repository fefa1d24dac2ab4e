"""What Prometheus reads at /metrics."""

import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import event

from registry.tables import utc_now
from tests.app.scraping import done, families, scraped
from tests.app.world import ROOT, World, checkpoint


def test_the_database_is_told_as_it_is_now(world: World) -> None:
    world.ready_model()
    world.fold(1, weights=b"x" * 1000)
    world.post_source(checkpoint(2))
    world.add_worker("job_x")

    found = scraped(world)

    assert found["grasp_jobs", "fold", "succeeded"] == 1
    assert found["grasp_jobs", "fold", "queued"] == found["grasp_queue_jobs", "any"] == 1
    assert found["grasp_jobs", "dry_run", "failed"] == found["grasp_queue_jobs", "gpu"] == 0
    assert found["grasp_workers_alive",] == found["grasp_workers_busy",] == 1
    assert found["grasp_targets",] == found["grasp_models",] == found["grasp_versions",] == 1
    assert found["grasp_oldest_queued_seconds",] == found["grasp_queue_oldest_seconds", "any"] > 0
    assert found["grasp_blob_bytes", "versions"] == 1000
    assert found["grasp_blob_bytes", "sources"] == len(checkpoint(2))


def test_workers_tell_of_themselves_from_start_to_end(world: World) -> None:
    world.add_worker("job_x", totals=done(), device="cuda")
    gone = utc_now() - timedelta(hours=1)
    world.add_worker(id="wrk_b", totals=done(), seen_at=gone)
    world.add_worker(id="wrk_c")  # has reported nothing yet

    found = scraped(world)

    assert found["grasp_worker_info", "cuda", "h", "0", "wrk_a"] == 1
    for name, values in (("alive", (1, 0, 1)), ("busy", (1, 0, 0))):
        reported = [found[f"grasp_worker_{name}", f"wrk_{letter}"] for letter in "abc"]
        assert tuple(reported) == values
    assert found["grasp_worker_resident_bytes", "wrk_a"] == 100
    assert found["grasp_worker_child_peak_bytes", "wrk_a"] == 900
    assert ("grasp_worker_resident_bytes", "wrk_b") not in found  # nobody knows what it has now
    assert found["grasp_folds_total", "fold", "accepted", "wrk_a"] == 3
    assert found["grasp_folds_total", "fold", "accepted", "wrk_b"] == 3
    assert found["grasp_folds_total", "fold", "accepted", "wrk_c"] == 0
    assert found["grasp_gate_rejections_total", "accuracy", "wrk_a"] == 1
    assert found["grasp_attempts_failed_total", "child_killed", "wrk_a"] == 2
    assert found["grasp_attempts_failed_total", "out_of_memory", "wrk_c"] == 0
    assert found["grasp_stage_seconds_sum", "refine", "wrk_a"] == 4
    assert found["grasp_stage_seconds_count", "refine", "wrk_a"] == 2


def test_the_shares_of_a_worker_are_a_histogram(world: World) -> None:
    world.add_worker(totals=done())

    found = scraped(world)

    buckets = {
        bound: found["grasp_transferred_share_bucket", bound, "wrk_a"]
        for bound in ("0.01", "0.1", "0.2", "0.3", "0.99", "+Inf")
    }
    assert list(buckets.values()) == [0, 1, 1, 2, 2, 3]
    assert found["grasp_transferred_share_count", "wrk_a"] == 3
    assert found["grasp_transferred_share_sum", "wrk_a"] == pytest.approx(1.3)


@pytest.mark.parametrize("totals", [{"folds": 7}, {"transferred_share": {"counts": [1]}}])
def test_totals_of_another_release_do_not_break_the_rest(world: World, totals: Any) -> None:
    world.add_worker(totals=totals)
    world.add_worker(id="wrk_b", totals=done())

    found = scraped(world)

    assert found["grasp_folds_total", "fold", "accepted", "wrk_b"] == 3
    assert found["grasp_workers_alive",] == 2


def test_requests_are_counted_by_operation_and_never_by_path(world: World) -> None:
    before = scraped(world)
    for path in ("/models/a/info", "/models/b/info", "/wp-login.php", "/etc/passwd"):
        assert world.client.get(path).status_code == 404
    world.client.request("BREW", "/models")
    world.post_target()

    found = scraped(world)

    def counted(*labels: str) -> float:
        key = ("grasp_request_seconds_count", *labels)
        return found[key] - before.get(key, 0)

    assert counted("GET", "/models/{model}/info", "404") == 2
    assert counted("GET", "other", "404") == 2
    assert counted("other", "/models", "405") == 1
    assert counted("POST", "/targets", "202") == 1
    assert counted("GET", "/metrics", "200") == 1
    bucket = ("grasp_request_seconds_bucket", "+Inf", "POST", "/targets", "202")
    assert found[bucket] >= 1
    assert not [key for key in found if "passwd" in str(key) or "BREW" in str(key)]


def test_bytes_are_counted_as_they_come_and_go(world: World) -> None:
    world.ready_model()
    before = scraped(world)
    content = checkpoint(1)
    world.post_raw(content)
    version = world.publish(weights=b"w" * 5000)

    middle = scraped(world)
    assert world.client.get("/models/merged").status_code == 200
    after = scraped(world)

    assert version == 1
    received, sent = ("grasp_received_bytes_total",), ("grasp_sent_bytes_total",)
    assert middle[received] - before[received] == len(content)
    assert after[sent] - middle[sent] >= 5000


def test_a_release_and_its_process_are_told(world: World) -> None:
    names = {family.name for family in families(world)}

    assert {"grasp_build_info", "process_resident_memory_bytes", "process_open_fds"} <= names
    assert not [name for name in names if name.endswith("_created")]


def test_a_scrape_reads_indexes_and_not_the_rows_of_ended_jobs(world: World) -> None:
    asked: list[tuple[str, Any]] = []
    engine = world.app.state.service.database.engine

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        asked.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    scraped(world)
    event.remove(engine, "before_cursor_execute", note)

    with world.database.engine.connect() as connection:
        steps = [
            str(row[3])
            for statement, parameters in asked
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    tables = "jobs|versions|sources|version_files|model_files"
    growing = [step for step in steps if re.match(rf"(SCAN|SEARCH) ({tables})\b", step)]
    assert len(growing) == 8
    assert all("INDEX ix_" in step or "COVERING INDEX" in step for step in growing)


def test_every_metric_is_explained(world: World) -> None:
    explained = (ROOT / "docs" / "observe.md").read_text()
    samples = {s.name for family in families(world) for s in family.samples}
    counters = {name for name in samples if name.endswith("_total")}
    families_of = {family.name for family in families(world) if family.type != "counter"}

    ours = {name for name in counters | families_of if name.startswith("grasp_")}

    assert {name for name in ours if f"`{name}`" not in explained} == set()


def test_only_admins_may_look(world: World) -> None:
    assert families(world, headers=world.key("ann", "admin"))
    assert world.client.get("/metrics", headers=world.key("ann", "write")).status_code == 403
    assert world.client.get("/metrics").status_code == 401
