"""What Prometheus scrapes: the database's figures as it asks, and this process's own counts.

Other processes of the API count their own requests.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from pydantic import ValidationError
from sqlalchemy.orm import Session

from registry import figures
from registry.blobs.collection import sum_bytes
from registry.blobs.damage import count_problems
from registry.jobs.totals import SHARES, Totals
from registry.jobs.workers import is_alive, list_workers
from registry.process.settings import Settings
from registry.tables import Model, Target, Version, Worker, utc_now

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
OTHER = "other"  # any method or path that is no operation's: whoever asks cannot make up series
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)

disable_created_metrics()  # type: ignore[no-untyped-call]

CONNECTIONS = CollectorRegistry()  # of this process, which are there before its application
OPEN_CONNECTIONS = Gauge("grasp_connections", "Connections that are open", registry=CONNECTIONS)
CLOSED_CONNECTIONS = Counter(
    "grasp_connections_closed",
    "Connections that the service cut off: waiting too long for a head, a body or a reader, or"
    " beyond a limit, in all or of one address",
    ["reason"],
    registry=CONNECTIONS,
)
for _reason in ("head", "body", "reader", "limit", "address"):
    CLOSED_CONNECTIONS.labels(_reason)


class RequestMetrics:
    """Counts requests by operation, never by the path that was asked for."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._seconds = Histogram(
            "grasp_request_seconds",
            "Time until the answer began, by method, path of the operation and status",
            ["method", "route", "status"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._received = self._counter("grasp_received_bytes", "Bytes of bodies that came in")
        self._sent = self._counter("grasp_sent_bytes", "Bytes of bodies that were sent")

    def received(self, count: int) -> None:
        self._received.inc(count)

    def sent(self, count: int) -> None:
        self._sent.inc(count)

    def answered(self, scope: Mapping[str, Any], status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        self._seconds.labels(method, route_of(scope), str(status)).observe(seconds)

    def _counter(self, name: str, about: str) -> Counter:
        return Counter(name, about, registry=self.registry)


def route_of(scope: Mapping[str, Any]) -> str:
    """The path of the operation that was chosen, with its parameters by name."""
    return str(getattr(scope.get("route"), "path", OTHER))


__all__ = ["CONTENT_TYPE", "render_metrics"]

Labelled = Iterable[tuple[Sequence[str], float]]  # values, each with what its labels say


def render_metrics(session: Session, settings: Settings, requests: RequestMetrics) -> bytes:
    workers = list_workers(session)
    alive = {worker.id for worker in workers if is_alive(worker, settings)}
    found = [*_build(), *_from_database(session), *_from_workers(workers, alive)]
    own = generate_latest(requests.registry) + generate_latest(CONNECTIONS)
    return generate_latest(_Found(found)) + own


class _Found(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


def _build() -> Iterator[Metric]:
    labels = {"version": version("grasp-merge"), "python": platform.python_version()}
    yield _gauge("grasp_build_info", "Which release answers", labels, [(tuple(labels.values()), 1)])


def _from_database(session: Session) -> Iterator[Metric]:
    jobs = figures.count_jobs(session)
    yield _gauge("grasp_jobs", "Jobs by kind and status", ["kind", "status"], jobs.items())
    queues = figures.measure_queues(session, utc_now())
    waiting = [((name,), float(queue.jobs)) for name, queue in queues.items()]
    ages = [((name,), queue.oldest_seconds) for name, queue in queues.items()]
    yield _gauge("grasp_queue_jobs", "Waiting jobs by the workers they want", ["queue"], waiting)
    yield _gauge("grasp_queue_oldest_seconds", "Age of the oldest of these", ["queue"], ages)
    oldest = max(age for _, age in ages)
    yield GaugeMetricFamily("grasp_oldest_queued_seconds", "Age of the oldest waiting job", oldest)
    stored = [((kind,), float(size)) for kind, size in sum_bytes(session).items()]
    yield _gauge("grasp_blob_bytes", "Bytes that rows refer to, by what they are", ["kind"], stored)
    bad = [((problem,), float(count)) for problem, count in count_problems(session).items()]
    about = "Blobs that are needed and were found to be bad, by what is wrong with them"
    yield _gauge("grasp_blob_problems", about, ["problem"], bad)
    for table in (Target, Model, Version):
        count = figures.count_rows(session, table)
        yield GaugeMetricFamily(f"grasp_{table.__tablename__}", f"{table.__name__}s", count)


def _from_workers(workers: Sequence[Worker], alive: set[str]) -> Iterator[Metric]:
    busy = {worker.id for worker in workers if worker.job_id is not None}
    yield GaugeMetricFamily("grasp_workers_alive", "Workers heard of lately", len(alive))
    yield GaugeMetricFamily("grasp_workers_busy", "Those of them with a job", len(alive & busy))
    about = [((w.id, w.host, w.device, w.release), 1.0) for w in workers]
    labels = ["worker", "host", "device", "release"]
    yield _gauge("grasp_worker_info", "Where a worker runs, and on what", labels, about)
    for name, what, which in (("alive", "was heard of lately", alive), ("busy", "has a job", busy)):
        flags = [((worker.id,), float(worker.id in which)) for worker in workers]
        yield _gauge(f"grasp_worker_{name}", f"Whether a worker {what}", ["worker"], flags)
    totals = {worker.id: _read_totals(worker) for worker in workers}
    yield from _memory({worker: found for worker, found in totals.items() if worker in alive})
    yield from _sums(totals)


def _read_totals(worker: Worker) -> Totals:
    """Those of a worker of another release may look different; they are not worth a failure."""
    try:
        return Totals.model_validate(worker.totals or {})
    except ValidationError:
        return Totals()


def _memory(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    own = [((worker,), float(found.resident_bytes)) for worker, found in totals.items()]
    peaks = [((worker,), float(found.child_peak_bytes)) for worker, found in totals.items()]
    yield _gauge("grasp_worker_resident_bytes", "Memory of a worker's process", ["worker"], own)
    about = "The most memory that a process of a job has had"
    yield _gauge("grasp_worker_child_peak_bytes", about, ["worker"], peaks)


def _sums(totals: Mapping[str, Totals]) -> Iterator[Metric]:
    """What workers have done since each of them started."""
    yield _counter(
        "grasp_folds",
        "Folds and dry runs that ended, by outcome",
        ["worker", "kind", "outcome"],
        (
            ((worker, kind, outcome), count)
            for worker, found in totals.items()
            for kind, outcomes in found.folds.items()
            for outcome, count in outcomes.items()
        ),
    )
    yield _counter(
        "grasp_gate_rejections",
        "Folds that the gate refused, for their accuracy or for what the file holds",
        ["worker", "reason"],
        (
            ((worker, reason), count)
            for worker, found in totals.items()
            for reason, count in found.rejections.items()
        ),
    )
    yield _counter(
        "grasp_attempts_failed",
        "Attempts at any job that went wrong, by code",
        ["worker", "code"],
        (
            ((worker, code), count)
            for worker, found in totals.items()
            for code, count in found.failures.items()
        ),
    )
    stages = SummaryMetricFamily(
        "grasp_stage_seconds", "Seconds in each stage of a fold", labels=["worker", "stage"]
    )
    shares = HistogramMetricFamily(
        "grasp_transferred_share", "Share of the parameters taken over", labels=["worker"]
    )
    for worker, found in totals.items():
        for stage, seconds in found.stages.items():
            stages.add_metric([worker, stage], seconds.count, seconds.total)
        spread = found.transferred_share
        bounds = [*map(str, SHARES), "+Inf"]
        buckets = list(zip(bounds, accumulate(spread.counts), strict=True))
        shares.add_metric([worker], buckets, spread.total)
    yield stages
    yield shares


def _gauge(name: str, about: str, labels: Iterable[str], values: Labelled) -> Metric:
    return _filled(GaugeMetricFamily(name, about, labels=list(labels)), values)


def _counter(name: str, about: str, labels: Iterable[str], values: Labelled) -> Metric:
    return _filled(CounterMetricFamily(name, about, labels=list(labels)), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Labelled) -> Metric:
    for labels, value in values:
        family.add_metric(labels, value)
    return family
