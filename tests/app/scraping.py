"""/metrics as Prometheus takes it in, and a worker that has something to report."""

from typing import Any

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from registry.jobs.totals import Totals
from tests.app.world import World

Samples = dict[tuple[str, ...], float]


def families(world: World, **options: Any) -> list[Metric]:
    answer = world.client.get("/metrics", **options)
    assert answer.status_code == 200, answer.text
    return list(text_string_to_metric_families(answer.text))


def scraped(world: World) -> Samples:
    """Each value by its name and what its labels say, these in the order of their names."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families(world)
        for sample in family.samples
    }


def done() -> dict[str, Any]:
    """The totals of a worker that has seen a bit of everything."""
    totals = Totals(resident_bytes=100, child_peak_bytes=900)
    totals.folds["fold"]["accepted"] = 3
    totals.rejections["accuracy"] = 1
    totals.failures["child_killed"] = 2
    totals.stages["refine"].add(1.5)
    totals.stages["refine"].add(2.5)
    for share in (0.05, 0.25, 1.0):
        totals.transferred_share.add(share)
    return totals.model_dump()
