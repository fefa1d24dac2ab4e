"""Traces from request to fold (OpenTelemetry), where a collector is configured; else nothing.

OTEL_EXPORTER_OTLP_ENDPOINT and the other standard variables say where spans go and how. Without
them nothing of the SDK is imported, and OpenTelemetry's own spans do nothing.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from grasp_core.installation import advise_install
from registry.process.logs import get_log

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
CLOSE_S = 3.0  # a collector that is away holds up nobody's end
Attributes = Mapping[str, str | int | float | bool | None]  # None: not known, so not set

log = get_log(__name__)
_tracer: trace.Tracer = trace.NoOpTracer()
_propagator = TraceContextTextMapPropagator()


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
    name: str, *, parent: Mapping[str, str], kind: SpanKind, attributes: Attributes | None = None
) -> Iterator[Span]:
    """A span around what happens inside, below the one that a `traceparent` in `parent` names."""
    with _tracer.start_as_current_span(
        name,
        context=_propagator.extract(parent),
        kind=kind,
        record_exception=False,  # the log has it
    ) as span:
        set_attributes(span, attributes or {})
        yield span


def start_child(span: Span, name: str) -> Span:
    """A part of it that begins now, and ends when it is ended."""
    return _tracer.start_span(name, context=trace.set_span_in_context(span))


def set_attributes(span: Span, attributes: Attributes) -> None:
    span.set_attributes({name: value for name, value in attributes.items() if value is not None})


def set_failed(span: Span, reason: str) -> None:
    span.set_status(StatusCode.ERROR, reason)


def log_context(span: Span) -> dict[str, str]:
    """For the log, so that its lines are found by a trace."""
    context = span.get_span_context()
    return {"trace_id": trace.format_trace_id(context.trace_id)} if context.is_valid else {}


def current_traceparent() -> str | None:
    """What leads others to the span that is open here (W3C Trace Context)."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")


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
            hint=f"{advise_install('tracing')}; or unset OTEL_EXPORTER_OTLP_ENDPOINT",
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


def _variable(name: str) -> str:
    return os.environ.get(name, "").strip().lower()
