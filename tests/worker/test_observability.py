"""The lines about an attempt: few, and with the figures that matter; and its spans."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import INVALID_SPAN

from registry.jobs.queue import Lease
from registry.process import tracing
from tests.service.fake_folds import checkpoint
from tests.service.place import Place
from worker import observability
from worker.messages import Progressed
from worker.observability import AttemptObserver, JobContext, Tally

# What a child says in the course of a fold; metrics add up.
FOLD: list[tuple[str, dict[str, float | str]]] = [
    ("load", {}),
    ("refine", {"val_accuracy": 0.5}),
    ("refine", {"epoch": 1, "loss": 0.9, "val_accuracy": 0.5}),
    ("refine", {"epoch": 1, "loss": 0.8, "val_accuracy": 0.5}),
    ("refine", {"epoch": 2, "loss": 0.7, "val_accuracy": 0.6}),
    ("evaluate", {"epoch": 2, "loss": 0.6, "val_accuracy": 0.75}),
    ("publish", {"epoch": 2, "loss": 0.6, "val_accuracy": 0.75}),
]


class Log:
    """Keeps what is written to it, with whose it is."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __getattr__(self, level: str) -> Any:
        def write(event: str, **fields: Any) -> None:
            context = structlog.contextvars.get_contextvars()
            self.lines.append({"level": level, "event": event, **context, **fields})

        return write


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    log = Log()
    monkeypatch.setattr(observability, "log", log)
    return log


@pytest.fixture
def place(no_settings: None, tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "home")
    yield place
    place.database.close()


def follow(observer: AttemptObserver) -> None:
    for stage, metrics in FOLD:
        observer.progressed(Progressed(stage, 0.5, metrics))


def test_a_long_fold_is_told_stage_by_stage_and_epoch_by_epoch(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observability, "SPARSE_S", -1.0)

    follow(AttemptObserver("fold", INVALID_SPAN, Tally()))

    stage = {"level": "info", "event": "stage", "progress": 0.5}
    epoch = {"level": "info", "event": "epoch"}
    assert log.lines == [
        {**stage, "stage": "load"},
        {**stage, "stage": "refine"},
        {**epoch, "epoch": 1, "loss": 0.8, "val_accuracy": 0.6},
        {**epoch, "epoch": 2, "loss": 0.7, "val_accuracy": 0.75},
        {**stage, "stage": "evaluate"},
        {**stage, "stage": "publish"},
    ]


def test_a_short_one_is_not(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observability, "SPARSE_S", 1e9)

    follow(AttemptObserver("fold", INVALID_SPAN, Tally()))

    assert len(log.lines) == 6
    assert {line["level"] for line in log.lines} == {"debug"}


def test_what_became_of_a_job_is_one_line(log: Log, place: Place) -> None:
    model = place.ready_model("faces")
    published = place.offer(model, checkpoint("a"))
    refused = place.offer(model, checkpoint("b", "refuse"))

    with place.worker() as worker:
        assert worker.drain() == 2

    lines = [line for line in log.lines if line["event"] != "stage"]
    started, ended = (line for line in lines if line["job"] == published.id)
    assert (started["event"], started["kind"], started["attempt"]) == ("job started", "fold", 1)
    assert (started["name"], started["source_name"]) == ("faces", "source")
    assert (ended["event"], ended["status"], ended["version"]) == ("job ended", "succeeded", 1)
    assert (ended["accuracy"], ended["transferred_share"]) == (0.5, 0.5)
    assert (ended["model"], ended["source"]) == (model.id, published.source_id)
    _, failed, ended = (line for line in lines if line["job"] == refused.id)
    assert (failed["event"], failed["level"]) == ("attempt failed", "warning")
    assert (failed["code"], failed["status"]) == ("invalid_checkpoint", "failed")
    assert (ended["event"], ended["status"]) == ("job ended", "failed")


def test_a_job_that_was_deleted_meanwhile_is_logged_by_its_id(place: Place) -> None:
    with place.database.read() as session:
        job = JobContext.read(session, Lease("mdl_x", 1, "wrk_x", "job_x"))

    assert (job.kind, job.ids) == ("job", {"job": "job_x"})


def test_stages_follow_one_another_as_spans(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(tracing, "_tracer", tracer)
    span = tracer.start_span("fold")
    observer = AttemptObserver("fold", span, Tally())

    follow(observer)
    observer.enter("publish")  # the worker's own part of it
    observer.close()

    stages = exporter.get_finished_spans()  # in the order of their ends, each once
    assert [stage.name for stage in stages] == ["start", "load", "refine", "evaluate", "publish"]
    for stage in stages:
        assert "grasp.candidate" not in (stage.attributes or {})
        assert stage.parent == span.get_span_context()


def test_each_candidate_has_stages_of_its_own(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observability, "SPARSE_S", -1.0)
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    monkeypatch.setattr(tracing, "_tracer", tracer)
    observer = AttemptObserver("fold", tracer.start_span("fold"), Tally())

    for candidate in ("keep", "source"):
        observer.progressed(Progressed("refine", 0.5, {"candidate": candidate}))
    observer.progressed(Progressed("evaluate", 0.9, {}))
    observer.close()

    stages = [
        (stage.name, (stage.attributes or {}).get("grasp.candidate"))
        for stage in exporter.get_finished_spans()
    ]
    assert stages == [
        ("start", None),
        ("refine", "keep"),
        ("refine", "source"),
        ("evaluate", None),
    ]
    told = [(line["stage"], line.get("candidate")) for line in log.lines]
    assert told == [("refine", "keep"), ("refine", "source"), ("evaluate", None)]
