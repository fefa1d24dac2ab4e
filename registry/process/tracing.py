"""Traces from request to fold (OpenTelemetry), where a collector is configured; else nothing.

OTEL_EXPORTER_OTLP_ENDPOINT and the other standard variables say where spans go and how. Without
them nothing is imported here, and a span is an object that does nothing.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Literal

from registry.process.logs import get_log

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
CLOSE_S = 3.0  # a collector that is away holds up nobody's end
Attributes = Mapping[str, str | int | float | bool | None]  # None: not known, so not told

log = get_log(__name__)
_tracer: "trace.Tracer | None" = None


class Span:
    """A piece of work, of which nothing is recorded."""

    trace_id: str | None = None

    def set(self, attributes: Attributes) -> None:
        pass

    def rename(self, name: str) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def child(self, name: str) -> "Span":  # noqa: ARG002 - the recorded kind has a use for it
        """A part of it that begins now, and ends when told to."""
        return self

    def end(self) -> None:
        pass


def is_configured() -> bool:
    """Whether the environment names a collector, and does not say to leave it alone."""
    off = _variable("OTEL_SDK_DISABLED") == "true" or _variable("OTEL_TRACES_EXPORTER") == "none"
    return not off and any(_variable(name) for name in ENDPOINTS)


@contextmanager
def tracing(service: str) -> Iterator[None]:
    """Send what this process traces meanwhile, as `service` unless the environment names it."""
    global _tracer
    provider = _open_provider(service) if is_configured() else None
    if provider is None:
        yield
        return
    before, _tracer = _tracer, provider.get_tracer("grasp")
    try:
        yield
    finally:
        _tracer = before
        _close(provider)


@contextmanager
def traced(
    name: str,
    *,
    parent: Mapping[str, str],
    kind: Literal["server", "consumer"],
    attributes: Attributes | None = None,
) -> Iterator[Span]:
    """A span around what happens inside, below the one that a `traceparent` in `parent` names."""
    if _tracer is None:
        yield Span()
        return
    from opentelemetry import trace

    with _tracer.start_as_current_span(
        name,
        context=_propagator().extract(parent),
        kind=trace.SpanKind[kind.upper()],
        record_exception=False,  # the log has it
    ) as opened:
        span = _Recorded(opened, _tracer)
        span.set(attributes or {})
        yield span


def current_traceparent() -> str | None:
    """What leads others to the span that is open here (W3C Trace Context)."""
    if _tracer is None:
        return None
    carrier: dict[str, str] = {}
    _propagator().inject(carrier)
    return carrier.get("traceparent")


class _Recorded(Span):
    def __init__(self, span: "trace.Span", tracer: "trace.Tracer") -> None:
        self._span = span
        self._tracer = tracer
        self.trace_id = f"{span.get_span_context().trace_id:032x}"

    def set(self, attributes: Attributes) -> None:
        known = {name: value for name, value in attributes.items() if value is not None}
        self._span.set_attributes(known)

    def rename(self, name: str) -> None:
        self._span.update_name(name)

    def fail(self, reason: str) -> None:
        from opentelemetry.trace import StatusCode

        self._span.set_status(StatusCode.ERROR, reason)

    def child(self, name: str) -> Span:
        from opentelemetry.trace import set_span_in_context

        below = set_span_in_context(self._span)
        return _Recorded(self._tracer.start_span(name, context=below), self._tracer)

    def end(self) -> None:
        self._span.end()


def _open_provider(service: str) -> "TracerProvider | None":
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning(
            "traces are configured, but not sent: a package is missing",
            missing=error.name,
            hint="pip install 'grasp-merge[tracing]', or unset OTEL_EXPORTER_OTLP_ENDPOINT",
        )
        return None
    # What the environment says of the service comes last, and so counts.
    resource = Resource.create({"service.name": service}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # it would warn of every retry
    return provider


def _close(provider: "TracerProvider") -> None:
    """Send what still waits, if the collector takes it at once."""
    closing = Thread(target=provider.shutdown, name="traces", daemon=True)
    closing.start()
    closing.join(CLOSE_S)


def _propagator() -> "TraceContextTextMapPropagator":
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator()


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()
