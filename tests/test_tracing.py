"""Traces as a collector gets them: a request, the fold it caused, and the stages of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.trace import SpanKind

from registry.process.tracing import (
    current_traceparent,
    is_configured,
    log_context,
    set_attributes,
    start_child,
    traced,
    tracing,
)
from tests.service.client import Client
from tests.service.fake_folds import checkpoint
from tests.service.harness import Harness, none_left
from tests.worker.waiting import until

ROOT = Path(__file__).parent.parent
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"


class Collector:
    """Takes in what exporters send (OTLP over HTTP), and keeps it."""

    def __init__(self) -> None:
        self.spans: list[Sent] = []
        self.services: set[str] = set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        for resource in request.resource_spans:
            self.services.add(attributes(resource.resource)["service.name"])
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def named(self, name: str, trace_id: str | None = None) -> list[Sent]:
        found = [span for span in self.spans if span.name == name]
        wanted = [span for span in found if trace_id in (None, span.trace_id.hex())]
        return sorted(wanted, key=lambda span: span.start_time_unix_nano)

    def below(self, parent: Sent) -> list[Sent]:
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the machine's own variables."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector(unset: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """Configured for this process, and for those that it starts."""
    running = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # milliseconds between two exports
    yield running
    running.close()


def logged(path: Path, **fields: Any) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if fields.items() <= line.items()]


def test_one_trace_holds_the_request_its_fold_and_the_stages(
    no_settings: None, tmp_path: Path, collector: Collector
) -> None:
    home = tmp_path / "home"
    with none_left(home), Harness(home, workers=1) as harness:
        client = Client(harness.client)
        (model,) = client.make_models(1)
        harness.client.headers["traceparent"] = TRACEPARENT
        traced_source = client.offer(model, "a", checkpoint("a", ticks=30))
        del harness.client.headers["traceparent"]
        tried_twice = client.offer(model, "b", checkpoint("b", "raise"))
        client.ended(tried_twice["job"]["id"])
        until(lambda: len(collector.named("fold")) == 3)
        api_log, worker_log = harness.api.log, harness.workers[0].log

    (request,) = collector.named("POST /sources", TRACE)
    (fold,) = collector.named("fold", TRACE)
    assert request.kind == Sent.SPAN_KIND_SERVER
    assert request.parent_span_id.hex() == CALLER
    reported = attributes(request)
    assert reported["http.route"] == reported["url.path"] == "/sources"
    assert (reported["http.request.method"], reported["http.response.status_code"]) == ("POST", 202)

    assert fold.parent_span_id == request.span_id
    assert fold.kind == Sent.SPAN_KIND_CONSUMER
    reported = attributes(fold)
    ids = {"job": traced_source["job"]["id"], "source": traced_source["source"]["id"]}
    assert {name: reported[f"grasp.{name}"] for name in ids} == ids
    assert reported["grasp.model"] == traced_source["source"]["model"]
    assert (reported["grasp.outcome"], reported["grasp.attempts"]) == ("accepted", 1)

    stages = collector.below(fold)
    names = [stage.name for stage in stages if stage.name != "align"]  # may pass unseen
    assert names == ["start", "refine", "publish"]
    for before, after in pairwise(stages):
        assert before.end_time_unix_nano <= after.start_time_unix_nano
    assert fold.start_time_unix_nano <= stages[0].start_time_unix_nano
    assert stages[-1].end_time_unix_nano <= fold.end_time_unix_nano

    (second,) = [s for s in collector.named("POST /sources") if s is not request]
    attempts = collector.below(second)
    assert second.trace_id.hex() != TRACE
    assert [attributes(attempt)["grasp.attempts"] for attempt in attempts] == [1, 2]
    failed, done = (attempt.status for attempt in attempts)
    assert (failed.code, failed.message) == (Status.STATUS_CODE_ERROR, "internal_error")
    assert done.code == Status.STATUS_CODE_UNSET

    assert {span.name for span in collector.spans} >= {"validate", "prepare", "POST /models"}
    assert not collector.named("GET /readyz")
    assert collector.services == {"grasp-api", "grasp-worker"}
    assert logged(api_log, event="request", trace_id=TRACE)
    assert logged(worker_log, event="job ended", trace_id=TRACE, job=ids["job"])


def test_a_trace_that_cannot_be_read_is_begun_anew(collector: Collector) -> None:
    with (
        tracing("here"),
        traced("outer", parent={"traceparent": "nonsense"}, kind=SpanKind.SERVER) as span,
    ):
        handed_on = current_traceparent()

    (sent,) = collector.named("outer")
    assert handed_on is not None
    assert handed_on.startswith(f"00-{log_context(span)['trace_id']}-{sent.span_id.hex()}-")
    assert len(handed_on) == 55  # as the column is
    assert sent.parent_span_id == b""
    assert current_traceparent() is None


def test_the_environment_names_the_service(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "merging")

    with tracing("here"), traced("outer", parent={}, kind=SpanKind.SERVER) as span:
        set_attributes(span, {"known": 1, "unknown": None})
        start_child(span, "inner").end()

    (sent,) = collector.named("outer")
    assert collector.services == {"merging"}
    assert attributes(sent) == {"known": 1}
    assert [inner.name for inner in collector.below(sent)] == ["inner"]


@pytest.mark.parametrize(
    ("variables", "configured"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_what_configures_it(
    variables: dict[str, str], configured: bool, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert is_configured() is configured


def test_without_a_collector_a_span_is_nothing(unset: None) -> None:
    with tracing("here"), traced("outer", parent={}, kind=SpanKind.SERVER) as span:
        assert not span.is_recording()
        assert not start_child(span, "inner").is_recording()
        assert (log_context(span), current_traceparent()) == ({}, None)


def test_without_a_collector_the_callers_trace_is_handed_on_as_it_is(unset: None) -> None:
    """By newer releases of OpenTelemetry; older ones hand on nothing."""
    parent = {"traceparent": TRACEPARENT}
    with tracing("here"), traced("outer", parent=parent, kind=SpanKind.SERVER) as span:
        assert not span.is_recording()
        assert log_context(span) in ({}, {"trace_id": TRACE})
        assert current_traceparent() in (None, TRACEPARENT)


def run(code: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("GRASP_", "OTEL_"))}
    environment |= {"PYTHONPATH": str(ROOT), "GRASP_HOME": str(home), **variables}
    environment["GRASP_OPEN"] = "1"  # there is no connection to recognise anybody by
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True)


LOADED = "print(*(name for name in sys.modules if name.startswith('opentelemetry')))"
ANSWER = f"""
import sys
from starlette.testclient import TestClient
from app.main import create_app
with TestClient(create_app(), base_url="http://127.0.0.1") as client:
    assert client.get("/models").status_code == 200
{LOADED}
"""
WORK = f"""
import sys
from threading import Timer
from registry.process.logs import configure_logs
from registry.process.settings import Settings
from worker.loop import Worker
configure_logs()
worker = Worker(Settings(warm_spare=False), warm=False)
worker.database.migrate()
Timer(0.5, worker.stop).start()
worker.run()
{LOADED}
"""


@pytest.mark.parametrize("process", [ANSWER, WORK])
def test_unconfigured_what_sends_traces_is_never_loaded(tmp_path: Path, process: str) -> None:
    loaded = run(process, tmp_path).stdout.split()

    parts = ("opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.proto")
    assert "opentelemetry.trace" in loaded
    assert not [name for name in loaded if name.startswith(parts)]


def test_configured_but_not_installed_it_says_so_and_goes_on(tmp_path: Path) -> None:
    missing = "import sys\nsys.modules['opentelemetry.sdk.resources'] = None\n"

    ended = run(missing + ANSWER, tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")

    (line,) = (json.loads(line) for line in ended.stderr.splitlines() if "traces are" in line)
    assert line["level"] == "warning"
    assert line["missing"] == "opentelemetry.sdk.resources"
    assert "py3-none-any.whl[tracing]'`" in line["hint"]
